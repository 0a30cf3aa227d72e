"""Inputs that become caches: only where what goes out is what came in, with new entries scattered
into it.
"""

import pytest

from potluck.errors import ModelError
from potluck.graph.caches import with_caches
from potluck.graph.trace import trace

torch = pytest.importorskip("torch")


class Scattered(torch.nn.Module):
    """A running list of each row, and its sum."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, place, new, held):
        now = self.how(held, place, new)
        return now.sum(-1), now


HOWS = {
    "scattered": lambda held, place, new: held.scatter(1, place, new),
    "added": lambda held, place, new: held + new,
    "read twice": lambda held, place, new: held.scatter(1, place, new) + 0 * held,
    "over rows": lambda held, place, new: held.scatter(0, place * 0, new),
}


def traced(how):
    inputs = [torch.tensor([[1], [2]]), torch.randn(2, 1), torch.zeros(2, 4)]
    return trace(Scattered(HOWS[how]), inputs, input_names=["place", "new", "held"])


def test_the_input_is_a_buffer_and_the_output_is_gone():
    given = traced("scattered")
    made = with_caches(given, {2: 1}, rows=3)
    assert [port.name for port in made.graph.inputs] == ["place", "new"]
    (buffer,) = made.graph.buffers
    assert (buffer.name, buffer.shape, buffer.updated) == ("cache.held", (3, 4), True)
    assert len(made.graph.outputs) == 1
    # what a cache holds never crosses
    ops = [node.op for node in made.graph.nodes]
    place = made.graph.first_node + ops.index("potluck.cache_scatter.default")
    assert all(ref.value != place for ref in made.by_rows)


@pytest.mark.parametrize("how", ["added", "read twice"])
def test_whatever_else_an_input_is_it_is_no_cache(how):
    with pytest.raises(ModelError, match="held is no cache"):
        with_caches(traced(how), {2: 1}, rows=3)


def test_rows_are_never_mixed():
    with pytest.raises(ModelError):  # where it is traced, if not before
        with_caches(traced("over rows"), {2: 1}, rows=3)
