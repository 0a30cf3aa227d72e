"""Inputs that are indices, and how large they may be: read off the graph, so that a bad batch is
refused before it is sent. Pure, but for the tensors that it looks at.

A device would notice too, in the middle of a step; by then other devices have begun it, and the run
has to end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck.errors import ModelError
from potluck.graph.traced import Traced
from potluck_wire.graph import Node, Ref

# op -> position of the argument that is an index into dimension `dim` of another: (index, other,
# dim).
_INDEXED = {
    "aten.embedding.default": (1, 0, 0),
    "aten.cross_entropy_loss.default": (1, 0, 1),
    "aten.nll_loss_nd.default": (1, 0, 1),
    "aten.nll_loss.default": (1, 0, 1),
}
_IGNORE = 4  # position of a loss's ignore_index
IGNORED = -100  # its default
# These keep every element of their first argument.
_KEEPING = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "reshape.default",
        "flatten.using_ints",
        "unsqueeze.default",
        "squeeze.dim",
        "contiguous.default",
        "transpose.int",
        "permute.default",
        "clone.default",
        "alias.default",
    )
)


@dataclass(frozen=True, slots=True)
class IndexBound:
    """Input number `position` holds indices below `size`, or `ignored`."""

    position: int
    size: int
    ignored: int | None = None


def index_bounds(traced: Traced) -> tuple[IndexBound, ...]:
    """The bounds of all inputs that are used as indices, as far as the graph tells."""
    graph = traced.graph
    nodes = dict(enumerate(graph.nodes, start=graph.first_node))
    found = []
    for node in graph.nodes:
        if node.op not in _INDEXED:
            continue
        index, other, dim = _INDEXED[node.op]
        position = _input_of(node.args[index], nodes, len(graph.inputs))
        target = node.args[other]
        if (
            position is None
            or not isinstance(target, Ref)
            or graph.inputs[position].dtype not in ("int64", "int32")
        ):
            continue
        shape = traced.type_of(target).shape
        size = shape[min(dim, len(shape) - 1)]
        if isinstance(size, int):
            found.append(IndexBound(position, size, _ignored(node) if dim else None))
    return tuple(found)


def _input_of(ref: object, nodes: Mapping[int, Node], n_inputs: int) -> int | None:
    """The input that this value is, perhaps in another shape."""
    while isinstance(ref, Ref):
        if ref.value < n_inputs:
            return ref.value
        node = nodes.get(ref.value)
        if node is None or node.op not in _KEEPING:
            return None
        ref = node.args[0]
    return None


def _ignored(node: Node) -> int:
    given: Any = (
        node.args[_IGNORE]
        if len(node.args) > _IGNORE
        else dict(node.kwargs).get("ignore_index", IGNORED)
    )
    return int(given)


def check_indices(
    bounds: Sequence[IndexBound], names: Sequence[str], tensors: Sequence[Any]
) -> None:
    """Refuse a batch with an index that its table does not have, or a label of no class.

    Parameters
    ----------
    bounds
        Of each tensor of indices: how many there may be.
    names
        Of the inputs and targets.
    tensors
        Of one batch, in that order.

    Raises
    ------
    ModelError
        An index is there that its table or the classes do not have.
    """
    for bound in bounds:
        tensor = tensors[bound.position]
        wrong = (tensor < 0) | (tensor >= bound.size)
        if bound.ignored is not None:
            wrong &= tensor != bound.ignored
        if bool(wrong.any()):
            raise ModelError(
                f"{names[bound.position]} holds {int(tensor[wrong][0])}; indices from 0 to "
                f"{bound.size - 1} are expected.",
                next_step="Check the labels or tokens of this batch; nothing of it was sent.",
            )
