"""Which operators of a graph have a gradient of their weights that is a computation of its own. It
can be taken later than the gradient of what flows through them.

The worker splits the backward by this, and the SDK knows by it how much of a backward can wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .graph import FLOATS, Graph, Node, Ref, node_refs
from .operators import KIND_OF

# Their backward has one product for what flows and another for the weights. Norms sum once for
# both, recurrent operators go through time once for both, and sums of a scale or a bias are cheap.
_KINDS = frozenset({"convolution", "product", "embedding"})
_NESTED = frozenset({"aten.einsum.default"})  # takes its operands as a list


@dataclass(frozen=True, slots=True)
class Apart:
    """What waits: for each operator, by its position, which of its arguments are data; and the
    values of the parameters whose gradients wait.
    """

    data: dict[int, tuple[int, ...]]
    parameters: frozenset[int]


def weights_apart(graph: Graph) -> Apart:
    """The operators whose weight gradients can wait, and the parameters that are theirs alone.

    A parameter waits with all of its uses or with none, so that its gradient is summed in the order
    of a whole backward. Weights may come to an operator transposed or cast: what is made of
    parameters alone is a weight, too.
    """
    made_of = _made_of(graph)
    uses = {
        position: frozenset().union(*(made_of[v] or () for v in _weights(node, made_of)))
        for position, node in enumerate(graph.nodes)
        if made_of[graph.first_node + position] is None
    }
    waiting = {p for p, used in uses.items() if used and _can_wait(graph.nodes[p], made_of)}
    at_once = frozenset().union(*(made_of[o.ref.value] or () for o in graph.outputs))
    while True:
        at_once |= frozenset().union(*(used for p, used in uses.items() if p not in waiting))
        kept = {p for p in waiting if uses[p].isdisjoint(at_once)}
        if kept == waiting:
            break
        waiting = kept
    return Apart(
        {p: tuple(_data(graph.nodes[p], made_of)) for p in sorted(waiting)},
        frozenset().union(*(uses[p] for p in waiting)),
    )


def _made_of(graph: Graph) -> list[frozenset[int] | None]:
    """Per value: the trainable parameters that it is made of; None where an input is in it."""
    found: list[frozenset[int] | None] = [None] * len(graph.inputs)
    for value, p in enumerate(graph.parameters, start=len(graph.inputs)):
        learns = p.trainable and p.dtype in FLOATS
        found.append(frozenset({value}) if learns else frozenset())
    found += [frozenset()] * len(graph.buffers)
    for node in graph.nodes:
        read = [found[ref.value] for ref in node_refs(node)]
        found.append(None if None in read else frozenset().union(*(r or () for r in read)))
    return found


def _weights(node: Node, made_of: list[frozenset[int] | None]) -> Iterator[int]:
    return (ref.value for ref in node_refs(node) if made_of[ref.value])


def _data(node: Node, made_of: list[frozenset[int] | None]) -> Iterator[int]:
    """The places of the arguments that an input is in."""
    for place, argument in enumerate(node.args):
        if isinstance(argument, Ref) and made_of[argument.value] is None:
            yield place


def _can_wait(node: Node, made_of: list[frozenset[int] | None]) -> bool:
    """Whether it is of a kind, and takes every tensor as an argument of its own."""
    if KIND_OF[node.op] not in _KINDS or node.op in _NESTED:
        return False
    plain = sum(isinstance(argument, Ref) for argument in node.args)
    return plain == len(tuple(node_refs(node)))
