"""What a value takes from task to task, on real agents of this machine."""

import pytest

from potluck.run.hop_times import BYTES_PER_VALUE, ROWS, WIDTH, hop_between
from potluck.testing.internals import link_of

torch = pytest.importorskip("torch")


def test_a_hop_is_measured_and_random_numbers_go_on_as_before(process_home):
    before = torch.random.get_rng_state()
    hop = hop_between(link_of(process_home), process_home.devices, "local-1", "local-2")
    assert hop.seconds > 0
    assert hop.nbytes == ROWS * WIDTH * BYTES_PER_VALUE
    assert torch.equal(torch.random.get_rng_state(), before)
    again = hop_between(link_of(process_home), process_home.devices, "local-2", "local-1")
    assert again.nbytes == hop.nbytes
