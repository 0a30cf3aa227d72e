"""The rules of dependence: per operator, how its result depends on the rows of the batch.

Pure: no torch.

A rule raises Mixes where an operator makes of several rows something else than a sum over them, and
gives None where it does not know. Whether a result has an axis of rows shows in its shape.
"""

from collections.abc import Callable

from potluck.graph.loss import dependence_products as products
from potluck.graph.loss import dependence_shapes as shapes
from potluck.graph.loss.dependence import (
    ACROSS,
    FREE,
    NUMBER,
    PAIRS,
    ROWS,
    Dependence,
    DependenceKind,
    RowsMixed,
    function,
    inverse,
    product,
    summed,
    together,
)
from potluck.graph.loss.node_view import NodeView
from potluck_wire.graph import FLOATS, Dtype, Ref
from potluck_wire.operators import KINDS, aten

_Rule = Callable[[NodeView], "Dependence | list[Dependence] | None"]
# as many equal values as there may be make no difference
_OF_EQUALS = ("amax", "amin", "max", "min", "any", "all")
_PRELU = "aten.prelu.default"  # entry by entry, wherever the rows are
# the dimension of those that work along the last one where none is said
_LAST = {
    f"aten.{word}": -1
    for word in (
        *("topk.default", "diff.default", "glu.default", "sort.default", "sort.stable"),
        *("kthvalue.default", "mode.default"),
    )
}


# --- entry by entry ---


def _entries(look: NodeView) -> Dependence | None:
    """Any function of the entries of its operands."""
    values = look.aligned(look.refs)
    numbers = [look.number(a) for a in look.numbers]
    return None if values is None else look.laid_out_as(look.refs, function([*values, *numbers]))


def _operands(look: NodeView, *positions: int) -> list[Dependence] | None:
    """The arguments at these positions as values that meet; numbers, too."""
    arguments = [look.argument(i) for i in positions]
    refs = [a for a in arguments if isinstance(a, Ref)]
    values = look.aligned(refs)
    if values is None:
        return None
    by_ref = dict(zip(refs, values, strict=True))
    return [by_ref[a] if isinstance(a, Ref) else look.number(a) for a in arguments]


def _sum(look: NodeView) -> Dependence | None:
    values = _operands(look, 0, 1)
    if values is None:
        return None
    other = look.argument(1)
    scaled = 0 if "rsub" in look.node.op else 1
    values[scaled] = product(values[scaled], look.number(look.argument(2, "alpha", 1)))
    if not isinstance(other, Ref) and other == 0:  # as Python's sum() begins
        values = values[:1]
    return look.laid_out_as(look.refs, together(values))


def _times(look: NodeView) -> Dependence | None:
    if look.axis is None and not isinstance(look.argument(1), Ref) and look.argument(1) == 0:
        return FREE  # however it grows with the rows
    values = _operands(look, 0, 1)
    return None if values is None else look.laid_out_as(look.refs, product(*values))


def _by(look: NodeView) -> Dependence | None:
    values = _operands(look, 0, 1)
    return (
        None
        if values is None
        else look.laid_out_as(look.refs, product(values[0], inverse(values[1])))
    )


def _reciprocal(look: NodeView) -> Dependence | None:
    return look.laid_out_as(look.refs, inverse(look.known[look.first]))


def _plus_product(look: NodeView) -> Dependence | None:
    values = _operands(look, 0, 1, 2)
    if values is None:
        return None
    return look.laid_out_as(look.refs, together([values[0], product(values[1], values[2])]))


def _chosen(look: NodeView) -> Dependence | None:
    """One of two values, or (a fill) a value and what stands in its place, by a condition."""
    condition, a, b = (0, 1, 2) if "where" in look.node.op else (1, 0, 2)
    values = _operands(look, condition, a, b)
    if values is None:
        return None
    by, numbers = function(values[:1]), (look.argument(a), look.argument(b))
    parts = [
        value
        for value, number in zip(values[1:], numbers, strict=True)
        if isinstance(number, Ref) or number != 0
    ]
    return look.laid_out_as(look.refs, together([product(by, part) for part in parts]))


def _put_into(look: NodeView) -> Dependence | None:
    """A part of each row put into another value of the same rows."""
    base, part = look.first, look.argument(1)
    dim = look.argument(2, "dim", 0) % look.rank(base)
    axis, values = look.axis_of(base), [look.known[base], look.known[part]]
    if axis == dim or any(value.outer != 1 for value in values):
        return None
    own = axis if axis is None or axis < dim or "slice" in look.node.op else axis - 1
    return together(values) if look.axis_of(part) == own else None


def _cast(look: NodeView) -> Dependence | None:
    target = look.argument(1)
    to = target.name if isinstance(target, Dtype) else look.traced.type_of(target).dtype
    value = look.known[look.first]
    if to in FLOATS or value.kind == DependenceKind.COUNT:
        return value
    return look.laid_out_as([look.first], function([value]))


def _side_by_side(look: NodeView) -> Dependence | None:
    """Entries that pair one of each operand, linear in all of them."""
    values = look.aligned(look.refs)
    return None if values is None else look.laid_out_as(look.refs, together(values))


def _searched(look: NodeView) -> Dependence | None:
    """Entries of a value looked for in a table, which must be the same for all rows."""
    value, table = look.argument(0), look.argument(1)
    if "searchsorted" in look.node.op:
        value, table = table, value
    if not (isinstance(value, Ref) and isinstance(table, Ref)):
        return None
    if look.axis_of(table) is not None:
        if "isin" in look.node.op:
            raise RowsMixed(PAIRS)
        return None  # of several dimensions, each row may have its own
    return look.laid_out_as([value], function([look.known[value], look.known[table]]))


# --- along dimensions ---


def _linear_in(look: NodeView) -> Dependence | None:
    """Something linear that leaves the axis of rows where, or at least as, it is."""
    return look.known[look.first]


def _drawn(look: NodeView) -> Dependence | None:
    """Random numbers: of each row its own; without rows the same for all of them."""
    return FREE if look.axis is None else ROWS


def _dims(look: NodeView, position: int, name: str = "dim") -> list[int] | None:
    """The dimensions given, from the first on; None for all."""
    given, rank = look.argument(position, name, _LAST.get(look.node.op)), look.rank(look.first)
    if given is None or given == ():
        return None
    return [dim % rank if rank else 0 for dim in (given if isinstance(given, tuple) else (given,))]


def _reduces_rows(look: NodeView, position: int, name: str = "dim") -> bool:
    dims, axis = _dims(look, position, name), look.axis_of(look.first)
    return axis is not None and (dims is None or axis in dims)


def _total(look: NodeView) -> Dependence | None:
    value = look.known[look.first]
    everything = look.node.op.endswith(".default")
    if look.axis_of(look.first) is None or not (everything or _reduces_rows(look, 1)):
        return value
    total = summed(value)
    return total.times(-1) if ".mean" in look.node.op else total


def _reduced(position: int, name: str = "dim") -> _Rule:
    """A reduction that is not linear: of each row by itself, or of what is the same in all rows."""

    def rule(look: NodeView) -> Dependence | None:
        value = look.known[look.first]
        if not _reduces_rows(look, position, name):
            return look.laid_out_as([look.first], function([value]))
        if value.kind == DependenceKind.FREE and look.node.op.split(".")[1] in _OF_EQUALS:
            return value
        raise RowsMixed(ACROSS)

    return rule


def _along(position: int, *, linear: bool = False) -> _Rule:
    """Something along one dimension, or some."""

    def rule(look: NodeView) -> Dependence | None:
        if _reduces_rows(look, position):
            raise RowsMixed(ACROSS)
        value = look.known[look.first]
        return value if linear else look.laid_out_as([look.first], function([value]))

    return rule


def _last_dims(count: Callable[[NodeView], int], *, linear: bool = False) -> _Rule:
    """Something over so many of the last dimensions, on which all that it reads is from each row
    itself.
    """

    def rule(look: NodeView) -> Dependence | None:
        axis = look.axis_of(look.first)
        others = [look.known[ref] for ref in look.refs[1:]]
        if axis is not None and axis >= look.rank(look.first) - count(look):
            raise RowsMixed(ACROSS)
        if any(look.axis_of(ref) is not None for ref in look.refs[1:]):
            return None
        value = look.known[look.first]
        return (
            value
            if linear and not others
            else look.laid_out_as([look.first], function([value, *others]))
        )

    return rule


def _batch_first(look: NodeView) -> Dependence | None:
    """Each entry of the first dimension by itself: what has weights of its own, or normalises
    within a row.
    """
    axis = look.axis_of(look.first)
    if axis is not None and axis > 1 and look.node.op != _PRELU:
        raise RowsMixed(ACROSS)
    if axis not in (None, 0) or any(look.axis_of(ref) is not None for ref in look.refs[1:]):
        return None
    return look.laid_out_as([look.first], function([look.known[ref] for ref in look.refs]))


def _batch_norm(look: NodeView) -> Dependence | None:
    """As in evaluation: in training each micro-batch is normalised by itself, as potluck says."""
    if look.argument(3) is None:
        raise RowsMixed("keeps no statistics, and normalises over the rows")
    return _batch_first(look)


def _differences(look: NodeView) -> Dependence | None:
    """Of neighbours along a dimension; before and behind them may stand other values."""
    if _reduces_rows(look, 2):
        raise RowsMixed(ACROSS)
    return _side_by_side(look)


# --- losses ---


def _reduction(look: NodeView, value: Dependence, has_rows: bool, position: int) -> Dependence:
    kind = look.argument(position, "reduction", 1)
    if kind == 0 or not has_rows:
        return value
    return summed(value) if kind == 2 else summed(value).times(-1)


def _compared(position: int) -> _Rule:
    """A loss entry by entry; then its sum or mean."""

    def rule(look: NodeView) -> Dependence | None:
        values = look.aligned(look.refs)
        if values is None:
            return None
        has_rows = any(look.axis_of(ref) is not None for ref in look.refs)
        return _reduction(look, look.laid_out_as(look.refs, function(values)), has_rows, position)

    return rule


def _classified(look: NodeView) -> Dependence | None:
    """Scores against classes; a mean over classes by number divides by what all of them weigh."""
    x, target = look.first, look.argument(1)
    if look.axis_of(x) != 0 or look.axis_of(target) != 0 or look.rank(x) < 2:
        return None
    values = [look.known[ref] for ref in look.refs]
    if values[0].outer != values[1].outer or look.per_row(x) != look.per_row(target):
        return None
    if look.argument(3, "reduction", 1) == 1 and look.traced.type_of(target).dtype not in FLOATS:
        return None
    return _reduction(look, look.laid_out_as([x], function(values)), True, 3)


def _spatial(look: NodeView) -> int:
    return next((n for n in (1, 3) if f"{n}d" in look.node.op), 2)


_GROUPS: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (KINDS["activation"] + KINDS["arithmetic"] + KINDS["comparison"], _entries),
    (aten("add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar"), _sum),
    (aten("mul.Tensor mul.Scalar"), _times),
    (aten("div.Tensor div.Scalar"), _by),
    (aten("reciprocal"), _reciprocal),
    (aten("addcmul"), _plus_product),
    (aten("where.self masked_fill.Scalar masked_fill.Tensor"), _chosen),
    (aten("select_scatter slice_scatter"), _put_into),
    (aten("_unsafe_view"), shapes.viewed),
    (aten("unsafe_split.Tensor"), shapes.part),
    (aten("eye eye.m linspace logspace tril_indices triu_indices"), lambda look: None),
    (aten("neg contiguous clone detach alias dropout feature_dropout _conj"), _linear_in),
    (aten("rand_like randn_like"), _drawn),
    (aten("to.dtype type_as"), _cast),
    # numbers of two parts: Fourier transforms are sums over their dimensions
    (aten("complex"), _side_by_side),
    (aten("polar"), _entries),
    (aten("view_as_real view_as_complex"), shapes.moved),
    (aten("_fft_r2c _fft_c2c _fft_c2r"), _along(1, linear=True)),
    (aten("sum sum.dim_IntList mean mean.dim"), _total),
    (
        aten("amax amin any.dim all.dim argmax argmin logsumexp var.correction std.correction"),
        _reduced(1),
    ),
    (aten("max min any all max.dim min.dim"), _reduced(1)),
    (aten("linalg_vector_norm"), _reduced(2)),
    (aten("softmax.int log_softmax.int _softmax _log_softmax"), _along(1)),
    (
        aten("glu cummax cummin cumprod logcumsumexp median.dim nanmedian.dim mode")
        + aten("prod.dim_int"),
        _along(1),
    ),
    (aten("kthvalue sort.stable"), _along(2)),
    (aten("sort"), _along(1)),
    (aten("prod median"), _reduced(1)),
    (aten("aminmax"), _reduced(1)),
    (
        aten("any.dims all.dims var_mean.correction std_mean.correction nansum")
        + aten("count_nonzero.dim_IntList"),
        _reduced(1),
    ),
    (aten("topk"), _along(2)),
    (aten("cumsum flip unfold"), _along(1, linear=True)),
    (
        aten(
            "index_copy index_add index_fill.int_Scalar index_fill.int_Tensor scatter.src "
            "scatter.value scatter_add"
        ),
        shapes.put_along,
    ),
    (aten("roll"), _along(2, linear=True)),
    (aten("diff"), _differences),
    (aten("pixel_shuffle pixel_unshuffle"), _last_dims(lambda look: 3, linear=True)),
    (aten("broadcast_tensors"), shapes.broadcast_together),
    (
        aten("avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d"),
        _last_dims(_spatial, linear=True),
    ),
    (
        aten(
            "avg_pool3d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
            "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d "
            "upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
            "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
            "_upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad1d reflection_pad2d "
            "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
        ),
        _last_dims(_spatial, linear=True),
    ),
    (
        aten(
            "max_pool3d max_pool1d_with_indices max_pool2d_with_indices "
            "max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool3d"
        ),
        _last_dims(_spatial),
    ),
    (aten("max_pool1d max_pool2d adaptive_max_pool2d"), _last_dims(_spatial)),
    (aten("upsample_nearest2d.vec upsample_bilinear2d.vec"), _last_dims(_spatial, linear=True)),
    (aten("im2col"), _last_dims(lambda look: 3, linear=True)),
    (aten("col2im"), _last_dims(lambda look: 2, linear=True)),
    (aten("tril triu"), _last_dims(lambda look: 2, linear=True)),
    (aten("layer_norm rms_norm"), _last_dims(lambda look: len(look.argument(1)))),
    (KINDS["convolution"] + aten("group_norm instance_norm prelu native_group_norm"), _batch_first),
    (aten("grid_sampler_2d grid_sampler_3d"), _batch_first),
    (aten("batch_norm"), _batch_norm),
    (aten("linear"), products.linear),
    (aten("matmul mm bmm"), products.matmul),
    (aten("addmm baddbmm"), products.added_matmul),
    (aten("einsum"), products.einsum),
    (aten("scaled_dot_product_attention"), products.attention),
    (aten("lstm.input gru.input rnn_tanh.input rnn_relu.input"), products.recurrent),
    (aten("view reshape flatten.using_ints unflatten.int view_as reshape_as"), shapes.viewed),
    (
        aten(
            "permute transpose.int t numpy_T swapaxes movedim.int unsqueeze squeeze.dim "
            "squeeze.dims"
        ),
        shapes.moved,
    ),
    (aten("squeeze"), shapes.squeezed),
    (aten("expand expand_as"), shapes.given_to_rows),
    (aten("repeat"), shapes.repeated),
    (aten("repeat_interleave.self_int"), shapes.each_repeated),
    (
        aten("select.int slice.Tensor narrow split.Tensor split_with_sizes chunk unbind.int"),
        shapes.part,
    ),
    (aten("index_select gather"), shapes.taken(1)),
    (aten("scatter.src scatter.value scatter_add"), shapes.scattered),
    (aten("index.Tensor"), shapes.indexed),
    (aten("cat stack"), shapes.joined),
    (aten("pad constant_pad_nd"), shapes.padded),
    (aten("embedding"), shapes.looked_up),
    (KINDS["search"], _searched),
    (aten("diagonal"), shapes.diagonal),
    (aten("channel_shuffle"), _batch_first),
    (
        aten(
            "full zeros ones full_like zeros_like ones_like new_zeros new_ones new_full "
            "scalar_tensor fill.Scalar"
        ),
        shapes.made,
    ),
    (aten("fill.Tensor"), shapes.filled),
    (aten("arange arange.start arange.start_step"), shapes.numbered),
    (aten("mse_loss l1_loss smooth_l1_loss huber_loss kl_div"), _compared(2)),
    (aten("binary_cross_entropy"), _compared(3)),
    (aten("binary_cross_entropy_with_logits"), _compared(4)),
    (aten("cross_entropy_loss nll_loss nll_loss_nd"), _classified),
)
# these look at the numbers and sizes among their arguments; convolutions have groups
_SIZED = frozenset(
    {
        *(_entries, _sum, _times, _by, _chosen, _batch_first),
        *(shapes.viewed, shapes.given_to_rows, shapes.repeated, shapes.each_repeated),
        *(shapes.part, shapes.made, shapes.numbered),
    }
)


def _unsized(rule: _Rule) -> _Rule:
    """The rule of an operator whose numbers must be the same for any number of rows."""

    def of_any_batch(look: NodeView) -> Dependence | list[Dependence] | None:
        if look.is_sized:
            raise RowsMixed(NUMBER)
        return rule(look)

    return of_any_batch


RULES: dict[str, _Rule] = {
    name: rule if rule in _SIZED else _unsized(rule) for names, rule in _GROUPS for name in names
}
