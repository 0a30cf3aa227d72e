"""The yardstick of the streaming bench really moves bytes between two processes, and leaves none
behind.
"""

import psutil
import pytest

from potluck.bench.raw_zeromq import RawStream


@pytest.mark.parametrize("curve", [False, True])
def test_moves_transfers_of_any_size_and_ends_its_receiver(curve):
    before = set(psutil.Process().children())
    with RawStream(curve=curve, frame_bytes=4096) as stream:
        for nbytes in (0, 1, 4096, 100_001):
            stream.transfer(nbytes)
        (receiver,) = set(psutil.Process().children()) - before
        assert receiver.is_running()
    assert not receiver.is_running()
