"""Batch norms that train: over how many values of each channel they take their statistics, which
must be several.

Of one value the variance is 0 / 0: torch refuses it by name, and the operator alone would spoil the
running statistics.
"""

import math
from collections.abc import Iterable, Mapping

from potluck.errors import ModelError
from potluck.graph.traced import Traced
from potluck_wire.graph import BATCH, evaluate, node_refs

_BATCH_NORM = "aten.batch_norm.default"
_TRAINS = 5  # position of the argument


def values_per_row(traced: Traced, positions: Iterable[int]) -> int:
    """Values of each channel that one row gives the batch norms among these nodes, the fewest; 0:
    there are none.

    Dimensions that may change their length count as 1.
    """
    sizes = {**dict.fromkeys(traced.hints, 1), BATCH: 1}
    return min(
        (_values(traced, position, sizes) for position in _norms(traced, positions)), default=0
    )


def check_values(traced: Traced, sizes: Mapping[str, int]) -> None:
    """Raise `ModelError`, as torch does, where a whole batch of these sizes has one value for a
    channel to learn by.
    """
    for position in _norms(traced, range(len(traced.graph.nodes))):
        if _values(traced, position, sizes) == 1:
            module = traced.modules[position] if position < len(traced.modules) else ""
            raise ModelError(
                f"a batch of {sizes[BATCH]} row{'s' * (sizes[BATCH] != 1)} cannot be trained on: "
                f"Expected more than 1 value per channel when training ({module or 'batch norm'}).",
                next_step="Give it two rows or more: with drop_last=True, a DataLoader leaves out "
                "what is over.",
            )


def _norms(traced: Traced, positions: Iterable[int]) -> Iterable[int]:
    for position in positions:
        node = traced.graph.nodes[position]
        if node.op == _BATCH_NORM and node.args[_TRAINS] is True:
            yield position


def _values(traced: Traced, position: int, sizes: Mapping[str, int]) -> int:
    """Values of each channel in the input of a batch norm: all dimensions but the second."""
    taken = node_refs(traced.graph.nodes[position])[0]
    shape = [evaluate(size, sizes) for size in traced.type_of(taken).shape]
    return math.prod(shape) // shape[1]
