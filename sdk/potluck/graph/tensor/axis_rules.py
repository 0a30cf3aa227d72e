"""The rules of division by tensor: per operator, how its result lies among devices whose operands
are cut along columns, heads or channels.

A rule says None where it knows no way. Pure.
"""

from collections.abc import Callable, Mapping
from typing import Any

from potluck.graph.tensor import shape_rules
from potluck.graph.tensor.layouts import (
    PARTIAL,
    Arguments,
    Best,
    Cut,
    Effect,
    LayoutView,
    Partial,
    Rule,
    same,
)
from potluck_wire.graph import Node, Ref, node_refs
from potluck_wire.operators import KINDS, aten

# --- where a division begins ---------------------------------------------------------------------


def columns(view: LayoutView, outer: int) -> Effect | None:
    """A product with a weight of which each device has some columns, or channels."""
    rule = _SOURCES.get(view.node.op)
    return rule(view, outer) if rule and not view.layouts else None


def _linear_columns(view: LayoutView, outer: int) -> Effect | None:
    weight, bias = view.argument(1), view.argument(2, "bias")
    return _columns(view, len(view.shape) - 1, {weight: 0, bias: 0}, outer)


def _addmm_columns(view: LayoutView, outer: int) -> Effect | None:
    bias, weight = view.argument(0), view.argument(2)
    if view.node.kwargs or not isinstance(bias, Ref) or len(view.shape_of(bias)) != 1:
        return None
    return _columns(view, 1, {weight: 1, bias: 0}, outer)


def _channels(view: LayoutView, outer: int) -> Effect | None:
    weight, bias = view.argument(1), view.argument(2, "bias")
    if view.argument(6, "groups", 1) != 1:
        return None
    return _columns(view, 1, {weight: 0, bias: 0}, outer)


def _columns(view: LayoutView, axis: int, states: Mapping[Any, int], outer: int) -> Effect | None:
    found = view.pattern(view.shape[axis], outer)
    given = {ref: dim for ref, dim in states.items() if ref is not None}
    if found is None or not all(map(view.is_state, given)):
        return None
    cuts = {ref.value: Cut(dim, found.outer, found.inner) for ref, dim in given.items()}
    return Effect(results=(Cut(axis, found.outer, found.inner),), states=cuts)


# --- operators on cut operands -------------------------------------------------------------------


def _element_wise(view: LayoutView) -> Effect | None:
    """Operands are aligned at their last dimensions, as broadcasting does."""
    rank = len(view.shape)
    operands = {ref: view.shape_of(ref) for ref in dict.fromkeys(node_refs(view.node))}
    cuts = {
        Cut(rank - len(shape) + cut.axis, cut.outer, cut.inner)
        for ref, shape in operands.items()
        if (cut := view.cut(ref)) is not None
    }
    if len(cuts) != 1 or any(isinstance(view.layout(ref), Partial) for ref in operands):
        return None
    (cut,) = cuts
    states, slices = dict[int, Cut](), dict[Ref, Cut]()
    for ref, shape in operands.items():
        own = cut.axis - (rank - len(shape))
        if view.cut(ref) is None and own >= 0 and shape[own] != 1:
            mine = Cut(own, cut.outer, cut.inner)
            if view.is_state(ref):
                states[ref.value] = mine
            else:
                slices[ref] = mine
    return Effect(results=(cut,), states=states, slices=slices)


def _added(view: LayoutView) -> Effect | None:
    """A summand of the whole besides is added by one device alone."""
    refs = [view.argument(0), view.argument(1, "other")]
    layouts = [view.layout(ref) for ref in refs]
    if PARTIAL not in layouts or not all(isinstance(ref, Ref) for ref in refs):
        return _element_wise(view)
    if any(view.shape_of(ref) != view.shape for ref in refs) or view.node.kwargs:
        return None
    if None not in layouts:
        return Effect(results=(PARTIAL,)) if layouts == [PARTIAL, PARTIAL] else None
    return Effect(results=(PARTIAL,), once=layouts.index(None))


def _cached(view: LayoutView) -> Effect | None:
    """New entries into a cache, which is cut as they are; places are the same for all of them."""
    cache, index = view.argument(0), view.argument(2)
    cut, places = view.cut(view.argument(3)), view.cut(index)
    if cut is None or cut.axis in (0, view.argument(1) % len(view.shape)):
        return None
    if places not in (None, cut) or not view.is_state(cache):
        return None
    slices = {} if places else {index: cut}
    return Effect(results=(cut,), states={cache.value: cut}, slices=slices)


def _inert(view: LayoutView) -> Effect | None:
    """Dropout that drops nothing."""
    layout = view.layout(view.argument(0))
    return None if drops(view.node) or layout is None else Effect(results=(layout,))


def drops(node: Node) -> bool:
    """Whether this dropout drops anything."""
    return bool(node.argument(2, "train", True)) and node.argument(1, "p", 0.5) != 0


def _linear(view: LayoutView) -> Effect | None:
    """Along the cut axis a sum of products; along another one a product as ever."""
    x = view.argument(0)
    weight = view.argument(1)
    bias = view.argument(2, "bias")
    cut = view.cut(x)
    if cut is None or view.layout(weight) is not None:
        return None
    if cut.axis != len(view.shape_of(x)) - 1:
        return Effect(results=(cut,))
    return _summed(view, weight, Cut(1, cut.outer, cut.inner), None if bias is None else 2)


def _addmm(view: LayoutView) -> Effect | None:
    cut, weight = view.cut(view.argument(1)), view.argument(2)
    if cut is None or cut.axis != 1 or view.node.kwargs or view.layout(view.argument(0)):
        return None
    return _summed(view, weight, Cut(0, cut.outer, cut.inner), 0)


def _summed(view: LayoutView, weight: Any, cut: Cut, once: int | None) -> Effect | None:
    if not view.is_state(weight):
        return None
    return Effect(results=(PARTIAL,), states={weight.value: cut}, once=once)


def _convolution(view: LayoutView) -> Effect | None:
    """Of cut channels a sum; where each group is a channel, its own filters."""
    x = view.argument(0)
    weight = view.argument(1)
    bias = view.argument(2, "bias")
    cut, groups = view.cut(x), view.argument(6, "groups", 1)
    if cut is None or cut.axis != 1 or view.layout(weight) is not None:
        return None
    if groups == 1:
        return _summed(view, weight, Cut(1, cut.outer, cut.inner), None if bias is None else 2)
    n_channels = view.shape_of(x)[1]
    if groups != n_channels or not view.is_state(weight) or len(view.node.args) < 7:
        return None
    more = view.shape[1] // n_channels
    out = Cut(1, cut.outer, cut.inner * more)
    filters = Cut(0, out.outer, out.inner)
    states = {weight.value: filters} | ({} if bias is None else {bias.value: filters})

    def arguments(n: int) -> Arguments:
        args = view.node.args
        return (*args[:6], groups // view.units * n, *args[7:])

    return Effect(results=(out,), states=states, arguments=arguments)


def _by_channel(view: LayoutView) -> Effect | None:
    """Batch normalisation and prelu, which keep numbers per channel."""
    cut = view.cut(view.argument(0))
    refs = node_refs(view.node)[1:]
    if cut is None or cut.axis != 1 or not all(map(view.is_state, refs)):
        return None
    mine = Cut(0, cut.outer, cut.inner)
    return Effect(
        results=(cut,), states={ref.value: mine for ref in refs if view.shape_of(ref)[0] != 1}
    )


def _normalised(view: LayoutView) -> Effect | None:
    """Over the last dimensions; its weights are whole."""
    cut = view.cut(view.argument(0))
    return same(cut) if cut and cut.axis < len(view.shape) - len(view.argument(1)) else None


def _pooled(view: LayoutView) -> Effect | None:
    """Over the last dimensions, as many as its name says."""
    cut = view.cut(view.argument(0))
    n_pooled = next(n for n in (1, 2) if f"{n}d" in view.node.op)
    if cut is None or cut.axis >= len(view.shape) - n_pooled:
        return None
    return Effect(results=(cut,) * len(view.traced.types[view.value]))


def _as_type(view: LayoutView) -> Effect | None:
    """Of the other one the type alone counts."""
    cut = view.cut(view.argument(0))
    return same(cut) if cut else None


def _padded(view: LayoutView) -> Effect | None:
    cut = view.cut(view.argument(0))
    padded = len(view.argument(1)) // 2
    return same(cut) if cut and cut.axis < len(view.shape) - padded else None


def _matmul(view: LayoutView) -> Effect | None:
    """Both cut along the same batch dimension, along what is summed, or one along the result."""
    a, b = view.argument(0), view.argument(1)
    left, right = view.cut(a), view.cut(b)
    rank, ranks = len(view.shape), (len(view.shape_of(a)), len(view.shape_of(b)))
    if min(ranks) < 2 or ranks[0] != ranks[1]:
        return None
    if left and right:
        if left == right and left.axis < rank - 2:
            return same(left)
        sums = (left.axis, right.axis) == (rank - 1, rank - 2)
        alike = (left.outer, left.inner) == (right.outer, right.inner)
        return Effect(results=(PARTIAL,)) if sums and alike else None
    if left and left.axis == rank - 2 and view.layout(b) is None:
        return same(left)
    if right and right.axis == rank - 1 and view.layout(a) is None:
        return same(right)
    return None


def _fit(view: LayoutView, queries: Cut, keys: Cut) -> bool:
    """Whether the heads of keys are cut as those of the queries that read them."""
    same = (queries.axis, queries.outer) == (keys.axis, keys.outer)
    grouped = bool(view.argument(7, "enable_gqa", False))
    return same and (grouped or keys.inner == queries.inner)


def _attention(view: LayoutView) -> Effect | None:
    """By heads; several of the queries may share one of the keys and values."""
    query, key, value, mask = (view.argument(i) for i in range(4))
    cut, axis = view.cut(query), len(view.shape) - 3
    if cut is None or cut.axis != axis or axis < 1 or view.argument(4, "dropout_p", 0.0) != 0.0:
        return None
    slices = dict[Ref, Cut]()
    for ref in (key, value):
        n_heads, mine = view.shape_of(ref)[axis], view.cut(ref)
        if mine is None and n_heads == view.shape_of(query)[axis]:
            slices[ref] = cut
        elif not (n_heads == 1 if mine is None else _fit(view, cut, mine)):
            return None
    if isinstance(mask, Ref):
        shape = view.shape_of(mask)
        own = len(shape) - 3
        mine = view.cut(mask)
        if mine and mine != Cut(own, cut.outer, cut.inner):
            return None
        if not mine and own >= 0 and shape[own] != 1:
            slices[mask] = Cut(own, cut.outer, cut.inner)
    return Effect(results=(cut,), slices=slices)


def _best(view: LayoutView) -> Effect | None:
    """The largest along the cut axis are among the largest of each device."""
    x, n_best = view.argument(0), view.argument(1, "k")
    axis = view.argument(2, "dim", -1) % len(view.shape)
    if view.cut(x) != Cut(axis, 1, 1) or not isinstance(n_best, int):
        return None

    def arguments(n: int) -> Arguments:
        return (x, min(n_best, n), *view.node.args[2:])

    return Effect(results=(Best(axis), Best(axis)), arguments=arguments)


_SOURCES: dict[str, Callable[[LayoutView, int], Effect | None]] = {
    "aten.linear.default": _linear_columns,
    "aten.addmm.default": _addmm_columns,
    "aten.conv1d.default": _channels,
    "aten.conv2d.default": _channels,
    "aten.conv3d.default": _channels,
    "aten.conv1d.padding": _channels,
    "aten.conv2d.padding": _channels,
}
_SPECIAL = aten("softmax.int log_softmax.int _softmax _log_softmax glu prelu")
_UNARY = aten("contiguous clone detach alias")
_GROUPS: tuple[tuple[tuple[str, ...], Rule], ...] = (
    (tuple(n for n in KINDS["activation"] if n not in _SPECIAL), _element_wise),
    (KINDS["arithmetic"] + KINDS["comparison"], _element_wise),
    (aten("type_as"), _as_type),
    (_UNARY, lambda view: shape_rules.partial(view) or _element_wise(view)),
    (aten("add.Tensor"), _added),
    (aten("expand_as"), _element_wise),
    (KINDS["cache"], _cached),
    (aten("dropout feature_dropout"), _inert),
    (aten("linear"), _linear),
    (aten("addmm"), _addmm),
    (aten("conv1d conv2d conv3d conv1d.padding conv2d.padding"), _convolution),
    (aten("batch_norm prelu"), _by_channel),
    (aten("layer_norm rms_norm"), _normalised),
    (
        aten(
            "max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d "
            "adaptive_max_pool2d upsample_nearest2d.vec upsample_bilinear2d.vec"
        ),
        _pooled,
    ),
    (aten("constant_pad_nd"), _padded),
    (aten("matmul bmm"), _matmul),
    (aten("scaled_dot_product_attention"), _attention),
    (aten("view reshape _unsafe_view"), shape_rules.viewed),
    (aten("unflatten.int"), shape_rules.unflattened),
    (aten("flatten.using_ints unsqueeze"), shape_rules.flattened),
    (aten("squeeze.dim squeeze.dims"), shape_rules.squeezed),
    (aten("expand"), shape_rules.expanded),
    (aten("permute transpose.int swapaxes"), shape_rules.moved),
    (aten("repeat_interleave.self_int"), shape_rules.repeated),
    (aten("split.Tensor split_with_sizes chunk glu"), shape_rules.parted),
    (
        aten("softmax.int log_softmax.int _softmax _log_softmax slice.Tensor narrow"),
        shape_rules.along(1, 0),
    ),
    (aten("unbind.int select.int"), shape_rules.taken),
    (aten("cat"), shape_rules.joined),
    (aten("mean.dim sum.dim_IntList amax amin"), shape_rules.reduced),
    (aten("topk"), _best),
)
RULES: dict[str, Rule] = {name: rule for names, rule in _GROUPS for name in names}
