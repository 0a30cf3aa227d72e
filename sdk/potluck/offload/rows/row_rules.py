"""Access patterns as rules: per operator, which rows of its inputs it needs.

A rule says None where it is global. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from potluck.graph.traced import Traced
from potluck_wire.graph import Node, Ref, evaluate, node_refs
from potluck_wire.operators import KINDS, aten

ELEMENT_WISE = "element-wise"
BLOCK_WISE = "block-wise"
ROW_WISE = "row-wise"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPattern:
    """Rows of one input, `count` along `axis`, that output rows [start, stop) need.

    Before clipping they are floor((start * mul + low) / div) to floor(((stop - 1) * mul + high) /
    div), both included.
    """

    axis: int
    count: int
    mul: int = 1
    low: int = 0
    high: int = 0
    div: int = 1

    def window(self, start: int, stop: int) -> tuple[int, int]:
        """The rows [first, last) that output rows [start, stop) need, before clipping: they may lie
        in the padding.
        """
        return (start * self.mul + self.low) // self.div, (
            (stop - 1) * self.mul + self.high
        ) // self.div + 1

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        """The rows [first, last) that output rows [start, stop) need; empty for an empty interval.

        A window of nothing but padding takes the row next to it, so that no operator runs on no
        rows at all.
        """
        if start >= stop:
            return 0, 0
        first, last = self.window(start, stop)
        return min(max(first, 0), self.count - 1), max(min(last, self.count), 1)


@dataclass(frozen=True, slots=True)
class OperatorView:
    """A node as its rule sees it: arguments by position, sizes of the example, and the axis of each
    value read.
    """

    traced: Traced
    node: Node
    shape: tuple[int, ...]  # of the output, or of its first item
    axes: Mapping[int, int | None]  # value -> its axis; a value that is not in there is a constant

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """The argument at that position or of that name.

        Parameters
        ----------
        position
            Among those by position.
        name
            Among those by name.
        default
            Where it is absent.
        """
        return self.node.argument(position, name, default)

    def shape_of(self, ref: Ref) -> tuple[int, ...]:
        return shape_of(self.traced, ref)

    def axis_of(self, ref: Ref) -> int | None:
        return self.axes.get(ref.value)

    def first(self) -> tuple[Ref, tuple[int, ...], int] | None:
        """The first argument, its shape and its axis, where it is one value that has rows."""
        ref = self.argument(0)
        axis = self.axis_of(ref) if isinstance(ref, Ref) else None
        return None if axis is None else (ref, self.shape_of(ref), axis)


Found = tuple[str, int, dict[Ref, AccessPattern]]  # kind, axis of the output, reads
_Rule = Callable[[OperatorView], Found | None]


def shape_of(traced: Traced, ref: Ref) -> tuple[int, ...]:
    if ref.value >= len(traced.types) or not traced.types[ref.value]:
        return ()
    return tuple(evaluate(size, traced.hints) for size in traced.type_of(ref).shape)


def _element_wise(view: OperatorView) -> Found | None:
    """Operands are aligned at their last dimensions, as broadcasting does.

    Those with rows must agree on the axis.
    """
    rank = len(view.shape)
    operands = [(ref, view.shape_of(ref)) for ref in dict.fromkeys(node_refs(view.node))]
    axes = [(rank - len(s), view.axes.get(r.value)) for r, s in operands]
    cut = {before + axis for before, axis in axes if axis is not None}
    if len(cut) != 1:
        return None
    (axis,) = cut
    reads = {}
    for ref, shape in operands:
        own = axis - (rank - len(shape))
        if own >= 0 and shape[own] == view.shape[axis] > 1:
            reads[ref] = AccessPattern(axis=own, count=shape[own])
        elif own >= 0 and shape[own] != 1:
            return None
    return ELEMENT_WISE, axis, reads


def _by_channel(view: OperatorView) -> Found | None:
    """Element-wise with a number per channel (dimension 1): batch normalisation in evaluation,
    prelu.
    """
    first = view.first()
    if first is None or first[2] == 1:
        return None
    ref, shape, axis = first
    return ELEMENT_WISE, axis, {ref: AccessPattern(axis=axis, count=shape[axis])}


def _window(view: OperatorView, kernel: int, stride: int, padding: int, dilation: int) -> Found:
    ref, shape, axis = view.first() or (Ref(0), (), 0)
    reads = AccessPattern(
        axis=axis,
        count=shape[axis],
        mul=stride,
        low=-padding,
        high=dilation * (kernel - 1) - padding,
    )
    return BLOCK_WISE, axis, {ref: reads}


def _convolution(view: OperatorView) -> Found | None:
    """A window of rows per row; numbers per spatial dimension are (input, weight, bias, stride,
    padding, dilation).
    """
    first = view.first()
    if first is None or first[2] < 2:
        return None
    dim, n_spatial = first[2] - 2, len(first[1]) - 2
    weight = view.shape_of(view.argument(1))
    stride, dilation = (
        per_dim(view.argument(i, n, 1), n_spatial)[dim] for i, n in ((3, "stride"), (5, "dilation"))
    )
    padding = view.argument(4, "padding", 0)
    if isinstance(padding, str):
        total = dilation * (weight[2 + dim] - 1) if padding == "same" else 0
        return _window(view, weight[2 + dim], stride, total // 2, dilation)
    return _window(view, weight[2 + dim], stride, per_dim(padding, n_spatial)[dim], dilation)


def _transposed(view: OperatorView) -> Found | None:
    """Output row o hears input rows i with o = i stride - padding + k dilation for a row k of the
    kernel.

    A row that lies between those of two input rows, and hears neither, takes the one before it.
    """
    first = view.first()
    if first is None or first[2] < 2:
        return None
    ref, shape, axis = first
    dim, n_spatial = axis - 2, len(shape) - 2
    weight = view.shape_of(view.argument(1))
    stride = per_dim(view.argument(3, "stride", 1), n_spatial)[dim]
    padding = per_dim(view.argument(4, "padding", 0), n_spatial)[dim]
    dilation = per_dim(view.argument(7, "dilation", 1), n_spatial)[dim]
    reach = dilation * (weight[2 + dim] - 1)
    reads = AccessPattern(
        axis=axis,
        count=shape[axis],
        low=padding - max(reach - stride + 1, 0),
        high=padding,
        div=stride,
    )
    return BLOCK_WISE, axis, {ref: reads}


def _pooling(view: OperatorView) -> Found | None:
    """Maximum: kernel, stride, padding, dilation, ceil_mode.

    Average: ..., ceil_mode, count_include_pad, divisor.
    """
    first = view.first()
    if first is None or first[2] < 2:
        return None
    dim, n_spatial = first[2] - 2, len(first[1]) - 2
    maximum = "max_pool" in view.node.op
    kernel = view.argument(1, "kernel_size")
    stride = view.argument(2, "stride", ()) or kernel
    padding = per_dim(view.argument(3, "padding", 0), n_spatial)
    dilation = per_dim(view.argument(4, "dilation", 1), n_spatial)[dim] if maximum else 1
    ceil_mode = view.argument(5 if maximum else 4, "ceil_mode", False)
    uneven = not maximum and any(padding) and not view.argument(5, "count_include_pad", True)
    if ceil_mode or uneven:
        return None  # the windows at the edge are not like the others
    return _window(
        view,
        per_dim(kernel, n_spatial)[dim],
        per_dim(stride, n_spatial)[dim],
        padding[dim],
        dilation,
    )


def _nearest(view: OperatorView) -> Found | None:
    """Each row is repeated a whole number of times."""
    first = view.first()
    if first is None or first[2] != 2 or view.shape[2] % first[1][2]:
        return None
    ref, shape, axis = first
    return (
        BLOCK_WISE,
        axis,
        {ref: AccessPattern(axis=axis, count=shape[axis], div=view.shape[2] // shape[2])},
    )


def _bilinear(view: OperatorView) -> Found | None:
    """A row between two rows, at a whole multiple of their number: row o looks at (o + 1/2) / n -
    1/2.
    """
    first = view.first()
    if (
        first is None
        or first[2] != 2
        or view.shape[2] % first[1][2]
        or view.argument(2, "align_corners")
    ):
        return None
    ref, shape, axis = first
    scales = view.argument(3, "scale_factors")
    if (
        scales is not None
        and tuple(n * s for n, s in zip(shape[2:], scales, strict=True)) != view.shape[2:]
    ):
        return None
    n = view.shape[2] // shape[2]
    return (
        BLOCK_WISE,
        axis,
        {ref: AccessPattern(axis=axis, count=shape[axis], mul=2, low=1 - n, high=1 + n, div=2 * n)},
    )


def _padded(view: OperatorView) -> Found | None:
    """Constant padding; (left, right) from the last dimension on."""
    first = view.first()
    if first is None:
        return None
    ref, shape, axis = first
    if view.argument(2, "mode", "constant") != "constant" and view.node.op == "aten.pad.default":
        return None
    before = padding_of(view.argument(1), len(shape), axis)
    return (
        BLOCK_WISE,
        axis,
        {ref: AccessPattern(axis=axis, count=shape[axis], low=-before[0], high=-before[0])},
    )


def padding_of(amounts: Any, rank: int, axis: int) -> tuple[int, int]:
    """What `constant_pad_nd` puts before and behind that axis.

    Rows that it takes away count negative.

    Parameters
    ----------
    amounts
        As the operator has them: before and behind, the last axis first.
    rank
        Number of axes.
    axis
        Which one.
    """
    place = 2 * (rank - 1 - axis)
    return (amounts[place], amounts[place + 1]) if place + 1 < len(amounts) else (0, 0)


def _shuffled(view: OperatorView) -> Found | None:
    first = view.first()
    factor = view.argument(1)
    if first is None or first[2] != len(first[1]) - 2 or not isinstance(factor, int):
        return None
    ref, shape, axis = first
    if "unshuffle" in view.node.op:
        return (
            BLOCK_WISE,
            axis,
            {ref: AccessPattern(axis=axis, count=shape[axis], mul=factor, high=factor - 1)},
        )
    return BLOCK_WISE, axis, {ref: AccessPattern(axis=axis, count=shape[axis], div=factor)}


def _linear(view: OperatorView) -> Found | None:
    first = view.first()
    if first is None or first[2] == len(first[1]) - 1 or view.axis_of(view.argument(1)) is not None:
        return None
    ref, shape, axis = first
    return ROW_WISE, axis, {ref: AccessPattern(axis=axis, count=shape[axis])}


def _matmul(view: OperatorView) -> Found | None:
    """Rows of the left factor, with all of the right one."""
    first, other = view.first(), view.argument(1)
    if (
        first is None
        or first[2] != len(first[1]) - 2
        or not isinstance(other, Ref)
        or other == first[0]
    ):
        return None
    ref, shape, axis = first
    if len(view.shape) != len(shape) or len(view.shape_of(other)) > len(shape):
        return None
    return ROW_WISE, axis, {ref: AccessPattern(axis=axis, count=shape[axis])}


def _attention(view: OperatorView) -> Found | None:
    """Rows of the queries, all keys and values.

    A mask with a row per query is cut like the queries.
    """
    query, key, value = (view.argument(i) for i in range(3))
    first = view.first()
    causal = view.argument(5, "is_causal", False)
    if first is None or first[2] != len(first[1]) - 2 or query in (key, value) or causal:
        return None
    ref, shape, axis = first
    reads = {ref: AccessPattern(axis=axis, count=shape[axis])}
    mask = view.argument(3, "attn_mask")
    if isinstance(mask, Ref):
        rank, mask_shape = len(shape), view.shape_of(mask)
        own = axis - (rank - len(mask_shape))
        if view.axis_of(mask) not in (None, own):
            return None
        if own >= 0 and mask_shape[own] == shape[axis]:
            reads[mask] = AccessPattern(axis=own, count=shape[axis])
    return ROW_WISE, axis, reads


def _normalised(view: OperatorView) -> Found | None:
    """Normalisation over the last dimensions."""
    first, over = view.first(), view.argument(1)
    if first is None or first[2] >= len(first[1]) - len(over):
        return None
    ref, shape, axis = first
    return ROW_WISE, axis, {ref: AccessPattern(axis=axis, count=shape[axis])}


def _along(position: int) -> _Rule:
    """Something along one dimension, given at that position of the arguments, which keeps all
    dimensions.
    """

    def rule(view: OperatorView) -> Found | None:
        first = view.first()
        dim = view.argument(position, "dim", 0)
        if first is None or not isinstance(dim, int) or dim % len(first[1]) == first[2]:
            return None
        ref, shape, axis = first
        return ROW_WISE, axis, {ref: AccessPattern(axis=axis, count=shape[axis])}

    return rule


def _joined(view: OperatorView) -> Found | None:
    """Concatenation along another dimension than the rows."""
    parts, dim = view.argument(0), view.argument(1, "dim", 0) % len(view.shape)
    axes = {view.axis_of(ref) for ref in parts}
    if len(axes) != 1 or None in axes or dim in axes:
        return None
    (axis,) = axes
    if axis is None:
        return None
    return (
        ELEMENT_WISE,
        axis,
        {ref: AccessPattern(axis=axis, count=view.shape[axis]) for ref in parts},
    )


def _reduced(view: OperatorView) -> Found | None:
    """Sums, means and extremes over other dimensions than the rows."""
    first = view.first()
    dims = view.argument(1, "dim")
    if first is None or dims is None or dims == ():
        return None
    ref, shape, axis = first
    over = {dim % len(shape) for dim in (dims if isinstance(dims, tuple) else (dims,))}
    if axis in over:
        return None
    keeps = len(view.shape) == len(shape)
    own = axis if keeps else axis - sum(dim < axis for dim in over)
    return ROW_WISE, own, {ref: AccessPattern(axis=axis, count=shape[axis])}


def _taken(view: OperatorView) -> Found | None:
    """One entry, or each, of another dimension, which goes away."""
    first = view.first()
    if first is None:
        return None
    ref, shape, axis = first
    dim = view.argument(1, "dim", 0) % len(shape)
    return (
        None
        if dim == axis
        else (ROW_WISE, axis - (dim < axis), {ref: AccessPattern(axis=axis, count=shape[axis])})
    )


def _viewed(view: OperatorView) -> Found | None:
    """A reshape that keeps rows whole: one output row is a part of an input row, or several of
    them.
    """
    first = view.first()
    if first is None:
        return None
    ref, shape, axis = first
    outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
    for own in range(1, len(view.shape)):
        if prod(view.shape[:own]) != outer or view.shape[own] == 1:
            continue
        own_inner = prod(view.shape[own + 1 :])
        if inner % own_inner == 0:
            return (
                ROW_WISE,
                own,
                {ref: AccessPattern(axis=axis, count=shape[axis], div=inner // own_inner)},
            )
        if own_inner % inner == 0:
            n = own_inner // inner
            return (
                ROW_WISE,
                own,
                {ref: AccessPattern(axis=axis, count=shape[axis], mul=n, high=n - 1)},
            )
    return None


def _moved(view: OperatorView) -> Found | None:
    """A permutation of the dimensions."""
    first = view.first()
    if first is None:
        return None
    ref, shape, axis = first
    rank = len(shape)
    order = list(range(rank))
    if view.node.op == "aten.permute.default":
        order = [dim % rank for dim in view.argument(1)]
    elif view.node.op in ("aten.transpose.int", "aten.swapaxes.default"):
        a, b = view.argument(1) % rank, view.argument(2) % rank
        order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    return ROW_WISE, order.index(axis), {ref: AccessPattern(axis=axis, count=shape[axis])}


def _embedded(view: OperatorView) -> Found | None:
    indices = view.argument(1)
    axis = view.axis_of(indices)
    if axis is None:
        shape = view.shape_of(indices)
        axis = 1 if indices.value in view.axes and len(shape) == 2 and shape[1] > 1 else None
    if axis is None:
        return None
    return ROW_WISE, axis, {indices: AccessPattern(axis=axis, count=view.shape[axis])}


def per_dim(value: Any, n: int) -> tuple[int, ...]:
    """An argument that is one number for all spatial dimensions, or one for each."""
    numbers = value if isinstance(value, tuple) else (value,)
    return numbers if len(numbers) == n else (numbers[0] if numbers else 1,) * n


_SPECIAL = aten("softmax.int log_softmax.int _softmax _log_softmax glu prelu")
_GROUPS: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (tuple(n for n in KINDS["activation"] if n not in _SPECIAL), _element_wise),
    (KINDS["arithmetic"] + KINDS["comparison"] + KINDS["random"], _element_wise),
    (aten("contiguous clone detach alias"), _element_wise),
    (aten("batch_norm prelu"), _by_channel),
    (aten("conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding"), _convolution),
    (aten("conv_transpose1d conv_transpose2d.input"), _transposed),
    (aten("max_pool1d max_pool2d avg_pool1d avg_pool2d"), _pooling),
    (aten("upsample_nearest2d.vec"), _nearest),
    (aten("upsample_bilinear2d.vec"), _bilinear),
    (aten("pad constant_pad_nd"), _padded),
    (aten("pixel_shuffle pixel_unshuffle"), _shuffled),
    (aten("linear"), _linear),
    (aten("matmul bmm"), _matmul),
    (aten("scaled_dot_product_attention"), _attention),
    (aten("layer_norm rms_norm"), _normalised),
    (
        aten(
            "softmax.int log_softmax.int _softmax _log_softmax split.Tensor split_with_sizes "
            "chunk slice.Tensor narrow"
        ),
        _along(1),
    ),
    (aten("unbind.int select.int"), _taken),
    (aten("cat"), _joined),
    (aten("mean.dim sum.dim_IntList amax amin"), _reduced),
    (
        aten("view reshape flatten.using_ints unflatten.int unsqueeze squeeze.dim squeeze.dims"),
        _viewed,
    ),
    (aten("permute transpose.int swapaxes t numpy_T"), _moved),
    (aten("embedding"), _embedded),
)
RULES: dict[str, _Rule] = {name: rule for names, rule in _GROUPS for name in names}
# The second argument of `split` and `chunk` is a size; their dimension is the third.
RULES |= {name: _along(2) for name in aten("split.Tensor split_with_sizes chunk")}
