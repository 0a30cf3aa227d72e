"""What one operator costs: floating-point operations forward and backward, and what it keeps for backward.

A closed table over the kinds of operators. One multiply-add is two operations. An element-wise operator is counted by
what it does to one element, roughly; memory, not arithmetic, decides its time.
"""

import math
from collections.abc import Mapping

from potluck_wire.graph import Node, Ref, evaluate, node_refs
from potluck_wire.operators import KIND_OF

from .traced import Traced

HEAVY = frozenset({"convolution", "product", "attention", "recurrent", "embedding"})
_PER_ELEMENT = {
    "normalisation": 8,
    "activation": 4,
    "pooling": 4,
    "loss": 8,
    "reduction": 1,
    "arithmetic": 1,
    "random": 2,
}
# what autograd keeps: (inputs, outputs)
_KEEPS_INPUTS = frozenset({"convolution", "product", "attention", "recurrent", "normalisation", "loss", "embedding"})
_KEEPS_OUTPUT = frozenset(
    {
        "relu",
        "sigmoid",
        "tanh",
        "softmax",
        "log_softmax",
        "exp",
        "sqrt",
        "rsqrt",
        "scaled_dot_product_attention",
        "lstm",
    }
)
_KEEPS_BOTH_SIDES = frozenset({"mul", "div", "pow", "maximum", "minimum", "addcmul"})


def forward_flop(traced: Traced, position: int, sizes: Mapping[str, int]) -> float:
    """Operations of one node at these sizes."""
    node, graph = traced.graph.nodes[position], traced.graph
    kind = KIND_OF[node.op]
    out = sum(t.elements(sizes) for t in traced.types[graph.first_node + position])
    shapes = [[evaluate(s, sizes) for s in traced.type_of(ref).shape] for ref in node_refs(node)]
    if kind == "convolution":
        over = shapes[0] if "transpose" in node.op else None
        return 2.0 * (math.prod(over) if over else out) * math.prod(shapes[1]) / (shapes[1][0] or 1)
    if kind == "product":
        return 2.0 * out * _inner(node, shapes)
    if kind == "attention":
        return 2.0 * math.prod(shapes[0]) * shapes[1][-2] + 2.0 * out * shapes[1][-2]
    if kind == "recurrent":
        steps = math.prod(shapes[0][:-1])
        return 2.0 * steps * sum(math.prod(shape) for shape in shapes[1:] if len(shape) == 2)
    return float(_PER_ELEMENT.get(kind, 0)) * max(out, math.prod(shapes[0]) if kind in ("loss", "reduction") else 0)


def _inner(node: Node, shapes: list[list[int]]) -> float:
    """Length of the sums of a matrix product."""
    if "einsum" in node.op:
        left, _, right = str(node.args[0]).replace(" ", "").partition("->")
        sizes = {
            letter: size
            for term, shape in zip(left.split(","), shapes, strict=False)
            for letter, size in zip(term, shape, strict=False)
        }
        return math.prod(size for letter, size in sizes.items() if letter not in right)
    left_factor = shapes[1] if "addmm" in node.op or "baddbmm" in node.op else shapes[0]
    return left_factor[-1] if left_factor else 1.0


def backward_flop(traced: Traced, position: int, requires: frozenset[Ref], sizes: Mapping[str, int]) -> float:
    """Operations of a node's backward: as many as forward for each side that needs a gradient."""
    node = traced.graph.nodes[position]
    sides = len({ref for ref in node_refs(node)[:2] if ref in requires})
    heavy = KIND_OF[node.op] in ("convolution", "product", "attention", "recurrent")
    return forward_flop(traced, position, sizes) * (sides if heavy else min(sides, 1))


def kept(traced: Traced, position: int, requires: frozenset[Ref]) -> frozenset[Ref]:
    """Which values a node keeps for backward (a view keeps what it looks at)."""
    node, first = traced.graph.nodes[position], traced.graph.first_node
    if not any(ref in requires for ref in node_refs(node)):
        return frozenset()
    kind, packet = KIND_OF[node.op], node.op.split(".")[1]
    keeps: set[Ref] = set()
    if kind in _KEEPS_INPUTS or (kind in ("activation", "pooling") and packet not in _KEEPS_OUTPUT):
        keeps |= set(node_refs(node))
    if packet in _KEEPS_OUTPUT or packet.startswith("max_pool"):
        keeps |= {Ref(first + position)}
    if packet in _KEEPS_BOTH_SIDES:
        keeps |= set(node_refs(node))
    if kind == "random":
        keeps |= {Ref(first + position)}  # its mask
    return frozenset(base(traced, ref) for ref in keeps)


def base(traced: Traced, ref: Ref) -> Ref:
    """The value whose memory a view looks at."""
    first = traced.graph.first_node
    while ref.value >= first:
        node = traced.graph.nodes[ref.value - first]
        if KIND_OF[node.op] != "shape" or node.op.split(".")[1] not in _VIEWS or not node_refs(node):
            break
        ref = node_refs(node)[0]
    return ref


_VIEWS = frozenset(
    [
        "view",
        "reshape",
        "flatten",
        "unflatten",
        "permute",
        "transpose",
        "t",
        "numpy_T",
        "swapaxes",
        "movedim",
        "unsqueeze",
        "squeeze",
        "expand",
        "expand_as",
        "view_as",
        "reshape_as",
        "contiguous",
        "detach",
        "alias",
        "select",
        "slice",
        "narrow",
        "diagonal",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
    ]
)
