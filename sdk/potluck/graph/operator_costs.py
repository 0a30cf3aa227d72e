"""What one operator costs: its kind, floating-point operations forward and backward, and what it
keeps for backward.

The one table of it: models of one's own, those of the library and the layers of a plan are all
priced here. A multiply-add is two operations; element-wise operators count one an element, norms
five. Backward: a product costs as much again for each operand that needs a gradient, attention 2.5
times its forward (its five products, the scores made again), the rest twice. Kept for backward:
what autograd's formulas save. Pure: no torch.
"""

import math
from collections.abc import Mapping

from potluck.graph.traced import Traced
from potluck_wire.graph import BATCH, Node, Ref, evaluate, node_refs
from potluck_wire.operators import KIND_OF, TRAINING_ARGUMENT

HEAVY = frozenset({"convolution", "product", "attention", "recurrent", "embedding"})
FEW_CHANNELS = 8  # per group, fewer than a vector unit has lanes: bound by memory
# what a roofline calls each kind; the others are element-wise
_KINDS = {
    "convolution": "conv", "product": "matmul", "recurrent": "matmul", "attention": "attention",
    "embedding": "embedding", "normalisation": "norm", "pooling": "pool", "reduction": "pool",
}  # fmt: skip
_SOFTMAX = frozenset({"softmax", "log_softmax"})
_PER_ELEMENT = {
    "pooling": 1,
    "reduction": 1,
    "loss": 5,
    "activation": 1,
    "arithmetic": 1,
    "comparison": 1,
    "random": 1,
    "draw": 1,
    "code": 5,  # magnitude, maximum, divide, round, convert
}
# mean, variance, subtract, scale, shift; softmax: maximum, subtract, exp, sum, divide
_PER_NORM = 5
_PER_ATTENTION = 2.5

_KEEPS_OUTPUT = _SOFTMAX | {
    *(
        "relu",
        "sigmoid",
        "tanh",
        "exp",
        "expm1",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "scaled_dot_product_attention",
    ),
    *("lstm", "amax", "amin", "linalg_vector_norm"),
}
_KEEPS_INPUTS = frozenset(
    {"attention", "recurrent", "normalisation", "loss", "embedding", "activation", "pooling"}
)
_KEEPS_INPUT = frozenset(
    {
        *(
            "pow",
            "square",
            "log",
            "log1p",
            "log2",
            "sin",
            "cos",
            "abs",
            "erf",
            "var",
            "std",
            "amax",
            "amin",
        ),
        *(
            "maximum",
            "minimum",
            "where",
            "masked_fill",
            "index",
            "index_select",
            "gather",
            "logsumexp",
        ),
    }
)
_MULTIPLIES = frozenset({"convolution", "product"})
_VIEWS = frozenset(
    {
        *(
            "view",
            "view_as",
            "permute",
            "transpose",
            "t",
            "numpy_T",
            "swapaxes",
            "movedim",
            "unsqueeze",
            "squeeze",
        ),
        *(
            "expand",
            "expand_as",
            "detach",
            "alias",
            "select",
            "slice",
            "narrow",
            "diagonal",
            "split",
            "chunk",
        ),
        *("split_with_sizes", "unbind", "unflatten", "broadcast_tensors"),
    }
)
_MAYBE_VIEWS = frozenset({"reshape", "reshape_as", "flatten", "contiguous"})
_REORDER = frozenset(
    {"permute", "transpose", "t", "numpy_T", "swapaxes", "movedim", "expand", "expand_as"}
)


def kind(traced: Traced, position: int) -> str:
    """What a node mostly does, of `modelgraph.KINDS`: its speed on a device depends on this."""
    node = traced.graph.nodes[position]
    if _packet(node) in _SOFTMAX:
        return "norm"
    found = _KINDS.get(KIND_OF[node.op], "elementwise")
    if found == "conv" and "transpose" not in node.op:
        image, weight = _shapes(traced, node, traced.hints)[:2]
        if image[1] != weight[1] < FEW_CHANNELS:  # fewer than the image has: in groups
            return "depthwise"
    return found


def forward_flop(traced: Traced, position: int, sizes: Mapping[str, int]) -> float:
    """Operations of one node at these sizes.

    Parameters
    ----------
    traced
        The model.
    position
        Of the node.
    sizes
        Of the batch and other dimensions that may change.
    """
    node, graph = traced.graph.nodes[position], traced.graph
    if _is_view(traced, node):
        return 0.0
    what = KIND_OF[node.op]
    out = sum(t.elements(sizes) for t in traced.types[graph.first_node + position])
    shapes = _shapes(traced, node, sizes)
    if what == "convolution":
        # behind a scale and a zero of the input, where that is quantised
        over = shapes[0] if "transpose" in node.op else None
        weight = next(shape for shape in shapes[1:] if len(shape) > 2)
        return 2.0 * (math.prod(over) if over else out) * math.prod(weight) / (weight[0] or 1)
    if what == "product":
        return 2.0 * out * _inner(node, shapes)
    if what == "attention":  # scores and their product with the values; a causal mask saves nothing
        return 2.0 * math.prod(shapes[0]) * shapes[1][-2] + 2.0 * out * shapes[1][-2]
    if what == "recurrent":
        steps = math.prod(shapes[0][:-1])
        return 2.0 * steps * sum(math.prod(shape) for shape in shapes[1:] if len(shape) == 2)
    if what == "normalisation" or _packet(node) in _SOFTMAX:
        return float(_PER_NORM * out)
    largest = (
        max([out, *map(math.prod, shapes)]) if what in ("pooling", "reduction", "loss") else out
    )
    return float(_PER_ELEMENT.get(what, 0) * largest)


def backward_flop(
    traced: Traced, position: int, requires: frozenset[Ref], sizes: Mapping[str, int]
) -> float:
    """Operations of a node's backward.

    Parameters
    ----------
    traced
        The model.
    position
        Of the node.
    requires
        Values that a gradient is needed for.
    sizes
        Of the batch and other dimensions that may change.
    """
    node = traced.graph.nodes[position]
    what = KIND_OF[node.op]
    if not any(ref in requires for ref in node_refs(node)):
        return 0.0
    times = 2.0
    if what in _MULTIPLIES:
        times = sum(ref in requires for ref in _factors(node))
    elif what == "attention":
        times = _PER_ATTENTION
    return forward_flop(traced, position, sizes) * times


def kept(traced: Traced, position: int, requires: frozenset[Ref]) -> frozenset[Ref]:
    """Which values a node keeps for backward (a view keeps what it looks at).

    Parameters
    ----------
    traced
        The model.
    position
        Of the node.
    requires
        Values that a gradient is needed for.
    """
    node, own = traced.graph.nodes[position], Ref(traced.graph.first_node + position)
    if not any(ref in requires for ref in node_refs(node)):
        return frozenset()
    what, packet = KIND_OF[node.op], _packet(node)
    keeps: set[Ref] = set()
    if packet in _KEEPS_OUTPUT or (what == "random" and base(traced, own) == own):
        keeps.add(own)  # of a dropout: its mask
    if packet in _KEEPS_INPUT or (
        what in _KEEPS_INPUTS and not (what == "activation" and packet in _KEEPS_OUTPUT)
    ):
        keeps |= set(node_refs(node))
    if what in _MULTIPLIES or packet in ("mul", "div", "addcmul"):
        factors = _factors(node)
        for i, factor in enumerate(factors):  # the gradient of one needs the others
            if any(other in requires for k, other in enumerate(factors) if k != i):
                keeps.add(factor)
    return frozenset(base(traced, ref) for ref in keeps)


def kept_beside(traced: Traced, position: int, requires: frozenset[Ref]) -> int:
    """Bytes per row that a node keeps beside values: the places of maxima, a norm's and attention's
    sums.

    Parameters
    ----------
    traced
        The model.
    position
        Of the node.
    requires
        Values that a gradient is needed for.
    """
    node, sizes = traced.graph.nodes[position], {**traced.hints, BATCH: 1}
    if not any(ref in requires for ref in node_refs(node)):
        return 0
    shape = [
        evaluate(size, sizes) for size in traced.types[traced.graph.first_node + position][0].shape
    ]
    rows = math.prod(shape[:-1])
    packet = _packet(node)
    if packet.startswith("max_pool"):
        return 8 * math.prod(shape)
    return {"layer_norm": 8, "scaled_dot_product_attention": 4}.get(packet, 0) * rows


def base(traced: Traced, ref: Ref) -> Ref:
    """The value whose memory this one is: a view's is that of what it looks at."""
    while ref.value >= traced.graph.first_node:
        node = traced.graph.nodes[ref.value - traced.graph.first_node]
        if not _is_view(traced, node):
            break
        ref = node_refs(node)[0]
    return ref


def _is_view(traced: Traced, node: Node) -> bool:
    """Whether a node gives another name to memory that is there. Another order of dimensions has to
    be copied to be reshaped; a dropout that is off does nothing.
    """
    packet, read = _packet(node), node_refs(node)
    if not read:
        return False
    if KIND_OF[node.op] == "random":
        place, off = TRAINING_ARGUMENT[node.op]
        return len(node.args) > place and node.args[place] == off
    return packet in _VIEWS or (packet in _MAYBE_VIEWS and not _reordered(traced, read[0]))


def _reordered(traced: Traced, ref: Ref) -> bool:
    """Whether a value is a view in another order of dimensions than its memory."""
    while ref.value >= traced.graph.first_node:
        node = traced.graph.nodes[ref.value - traced.graph.first_node]
        # fused attention lays its result out token by token, which heads after tokens is
        if _packet(node) in _REORDER:
            source = _unshaped(traced, node_refs(node)[0]).value - traced.graph.first_node
            return source < 0 or KIND_OF[traced.graph.nodes[source].op] != "attention"
        # what may be a view is one of a value in order, or a copy
        if _packet(node) in _MAYBE_VIEWS or not _is_view(traced, node):
            return False
        ref = node_refs(node)[0]
    return False


def _unshaped(traced: Traced, ref: Ref) -> Ref:
    """The value before reshapes to the shape that it has already."""
    while ref.value >= traced.graph.first_node:
        node = traced.graph.nodes[ref.value - traced.graph.first_node]
        if _packet(node) not in ("reshape", "view") or traced.type_of(
            node_refs(node)[0]
        ) != traced.type_of(ref):
            break
        ref = node_refs(node)[0]
    return ref


def _factors(node: Node) -> tuple[Ref, ...]:
    """The values that are multiplied with each other; what is added to the product is none."""
    refs = node_refs(node)
    if _packet(node) in ("addmm", "baddbmm", "addcmul"):
        return refs[1:3]
    return refs if "einsum" in node.op else refs[:2]


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


def _shapes(traced: Traced, node: Node, sizes: Mapping[str, int]) -> list[list[int]]:
    return [
        [evaluate(size, sizes) for size in traced.type_of(ref).shape] for ref in node_refs(node)
    ]


def _packet(node: Node) -> str:
    return node.op.split(".")[1]
