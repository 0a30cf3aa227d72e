"""Which operators draw random masks, or noise, in training: those of a micro-batch depend on its
number and on which rows it has.
"""

from collections.abc import Iterable

from potluck.graph.traced import Traced
from potluck_wire.graph import Node
from potluck_wire.operators import KIND_OF

_ATTENTION = "aten.scaled_dot_product_attention.default"


def draws(traced: Traced, positions: Iterable[int]) -> bool:
    """Whether one of these nodes does."""
    return any(_draws(traced.graph.nodes[position]) for position in positions)


def _draws(node: Node) -> bool:
    if node.op == _ATTENTION:
        return _argument(node, 4, "dropout_p") != 0.0
    if KIND_OF.get(node.op) == "draw":
        return True
    return KIND_OF.get(node.op) == "random" and _argument(node, 1, "p") != 0.0


def _argument(node: Node, position: int, name: str) -> object:
    given = dict(node.kwargs).get(name, 0.0)
    return node.args[position] if len(node.args) > position else given
