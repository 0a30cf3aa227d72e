"""Through which values of a traced model a gradient flows in training, as torch's autograd has it.
Pure: no torch.

A value carries a gradient where a weight that may learn leads to it, and it leads to the loss, by
operators that have a derivative. A weight that none reaches stays as it is: its gradient is None on
one machine, which is not zero. By a gradient of zero, weight decay and momentum would move it.
"""

from collections.abc import Sequence
from dataclasses import replace

from potluck_wire.graph import COMPLEX_BYTES, FLOATS, Graph, Node, Ref, node_refs
from potluck_wire.operators import KIND_OF

from .traced import Traced, Type

# their results have no derivative
_CUTS = frozenset(
    f"aten.{name}.default"
    for name in ("detach", "floor_divide", "special_bessel_j0", "special_bessel_j1")
)
_SELECTS = frozenset({"aten.where.self", "aten.masked_fill.Scalar", "aten.masked_fill.Tensor"})
_CONTINUOUS = FLOATS | COMPLEX_BYTES.keys()
_LIKE = frozenset(
    f"aten.{name}.default" for name in ("expand_as", "view_as", "reshape_as", "type_as")
)


def differentiated(node: Node) -> Sequence[Ref]:
    """The values that a node reads to which its derivative leads, if they are floating-point
    numbers.
    """
    kind = KIND_OF[node.op]
    if (
        node.op in _CUTS
        or kind in ("creation", "draw", "buffer", "cache", "search")
        or (kind == "comparison" and node.op not in _SELECTS)
    ):
        return ()
    # of the other one, the shape alone counts
    return node_refs(node)[: 1 if node.op in _LIKE else None]


def flow(traced: Traced) -> frozenset[Ref]:
    """The values through which a gradient flows: weights that learn, and what leads from them to
    the loss.
    """
    graph, n_inputs = traced.graph, len(traced.graph.inputs)
    found = {
        Ref(n_inputs + i)
        for i, p in enumerate(graph.parameters)
        if p.trainable and p.dtype in FLOATS
    }
    read = [differentiated(node) for node in graph.nodes]
    for value, refs in enumerate(read, start=graph.first_node):
        if any(ref in found for ref in refs):
            found |= _floating(value, traced.types[value])
    return frozenset(found & _reaching(graph, read, found))


def _floating(value: int, types: Sequence[Type]) -> set[Ref]:
    """The results of a node that are floating-point numbers: a single one goes by two names."""
    if len(types) == 1:
        return {Ref(value), Ref(value, 0)} if types[0].dtype in _CONTINUOUS else set()
    return {Ref(value, item) for item, t in enumerate(types) if t.dtype in _CONTINUOUS}


def _reaching(graph: Graph, read: Sequence[Sequence[Ref]], requires: set[Ref]) -> set[Ref]:
    """Of the values that a weight leads to, all those made by nodes that lead to the loss."""
    todo = [output.ref for output in graph.outputs if output.gradient and output.ref in requires]
    values = {ref.value for ref in todo}
    while todo:
        value = todo.pop().value
        if value >= graph.first_node:
            new = [
                r for r in read[value - graph.first_node] if r in requires and r.value not in values
            ]
            values.update(ref.value for ref in new)
            todo += new
    return {ref for ref in requires if ref.value in values}


def learning(traced: Traced) -> Graph:
    """The graph, with those weights alone marked as trainable that a gradient reaches."""
    reached, first = flow(traced), len(traced.graph.inputs)
    parameters = traced.graph.parameters
    return replace(
        traced.graph,
        parameters=tuple(
            replace(p, trainable=Ref(first + i) in reached) for i, p in enumerate(parameters)
        ),
    )
