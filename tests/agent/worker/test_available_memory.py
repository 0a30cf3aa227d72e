"""Memory is looked at before it is taken: for one large value, and for many small ones together."""

from collections import deque

import pytest

from potluck_agent.worker import available_memory
from potluck_wire.graph import SegmentError


class Full:
    """A memory of which nothing is left."""

    def available_bytes(self):
        return 0


@pytest.fixture(autouse=True)
def full():
    available_memory.look_at(Full())
    yield
    available_memory.look_at(None)


def test_a_large_value_is_refused_at_once():
    with pytest.raises(SegmentError, match=r"its result: .* bytes are needed, 0 are left"):
        available_memory.require(available_memory.SMALL_BYTES + 1, "its result")


@pytest.mark.parametrize(
    "nbytes", [available_memory.SMALL_BYTES, available_memory.SMALL_BYTES // 7]
)
def test_small_values_are_refused_before_they_take_the_workers_reserve(nbytes):
    n_values = available_memory.MANY_SMALL_BYTES // nbytes + 1
    with pytest.raises(SegmentError, match="its result"):
        deque((available_memory.require(nbytes, "its result") for _ in range(n_values)), maxlen=0)
