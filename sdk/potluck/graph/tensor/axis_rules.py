"""The rules of division by tensor: per operator, how a result lies among devices whose operands are
cut along columns, heads or channels.

What belongs together (a column, a group of heads, a channel) is a unit. A cut axis is `outer` times
all units times `inner` entries of each: queries, keys and values in one product have an outer of 3,
and the entries of a head are inner ones. A rule says None where it knows no way. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from potluck.graph.traced import Traced
from potluck_wire.graph import Expression, Node, Ref, Sym, evaluate, node_refs
from potluck_wire.operators import KINDS


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis of `outer` times so many units of `inner` entries; each device has some of the
    units.
    """

    axis: int
    outer: int
    inner: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Each device has a summand of the same shape."""


PARTIAL = Partial()
Layout = Cut | Partial
Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an operator on cut operands gives, and what each device computes instead of it.

    `results`: one layout for each item. `states`: parameters and buffers that are cut, too;
    `slices`: whole values of which a device takes its own entries. `arguments` makes the arguments
    by position for a number of units. `once`: the place of an argument that one device alone adds,
    a bias.
    """

    results: tuple[Layout, ...]
    states: Mapping[int, Cut] = field(default_factory=dict)
    slices: Mapping[Ref, Cut] = field(default_factory=dict)
    arguments: Callable[[int], Arguments] | None = None
    once: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A node as its rule sees it. `layouts`: of the values it reads that are not whole."""

    traced: Traced
    value: int
    units: int
    layouts: Mapping[Ref, Layout]
    sizes: Mapping[str, int]  # of symbols, that no other number is by chance

    @property
    def node(self) -> Node:
        """The node."""
        return self.traced.graph.nodes[self.value - self.traced.graph.first_node]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its first result."""
        return self.shape_of(Ref(self.value, 0))

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """The argument at that position or of that name."""
        if len(self.node.args) > position:
            return self.node.args[position]
        return dict(self.node.kwargs).get(name, default)

    def shape_of(self, ref: Ref) -> tuple[int, ...]:
        """The shape of a value."""
        return tuple(evaluate(size, self.sizes) for size in self.traced.type_of(ref).shape)

    def layout(self, ref: Any) -> Layout | None:
        """How a value lies; None where it is whole, or no value."""
        return self.layouts.get(ref) if isinstance(ref, Ref) else None

    def cut(self, ref: Any) -> Cut | None:
        """How a value is cut; None where it is not."""
        found = self.layout(ref)
        return found if isinstance(found, Cut) else None

    def is_state(self, ref: Any) -> bool:
        """Whether this is a parameter or a buffer."""
        graph = self.traced.graph
        return isinstance(ref, Ref) and len(graph.inputs) <= ref.value < graph.first_node

    def pattern(self, size: int, outer: int = 1) -> Cut | None:
        """The cut of a first axis of that size; None where the units do not go into it."""
        whole, rest = divmod(size, outer * self.units)
        return None if rest else Cut(0, outer, whole)


_Rule = Callable[[View], Effect | None]


def local(size: Expression, units: int, n: int) -> "Expression | None":
    """A size with `n` of so many units of it; None where that cannot be said.

    >>> local(12, 4, 1), local(("*", 8, "batch"), 4, 3)
    (3, ('*', 6, 'batch'))
    """
    if isinstance(size, int):
        return None if size % units else size // units * n
    if isinstance(size, tuple) and size[0] == "*":
        for place, factor in enumerate(size[1:], start=1):
            if isinstance(factor, int) and factor % units == 0:
                mine = factor // units * n
                return (*size[:place], mine, *size[place + 1 :])
    return None


def _sized(argument: Any, units: int, n: int) -> Any:
    """An argument that is a size, likewise; -1 is what is left."""
    if isinstance(argument, Sym):
        return Sym(local(argument.expression, units, n) or 0)
    return argument if argument == -1 else local(argument, units, n)


def _can(argument: Any, units: int) -> bool:
    size = argument.expression if isinstance(argument, Sym) else argument
    return size == -1 or local(size, units, 1) is not None


# --- where a division begins ---------------------------------------------------------------------


def columns(view: View, outer: int) -> Effect | None:
    """A product with a weight of which each device has some columns, or channels."""
    rule = _SOURCES.get(view.node.op)
    return rule(view, outer) if rule and not view.layouts else None


def _linear_columns(view: View, outer: int) -> Effect | None:
    weight, bias = view.argument(1), view.argument(2, "bias")
    return _columns(view, len(view.shape) - 1, {weight: 0, bias: 0}, outer)


def _addmm_columns(view: View, outer: int) -> Effect | None:
    bias, weight = view.argument(0), view.argument(2)
    if view.node.kwargs or not isinstance(bias, Ref) or len(view.shape_of(bias)) != 1:
        return None
    return _columns(view, 1, {weight: 1, bias: 0}, outer)


def _channels(view: View, outer: int) -> Effect | None:
    weight, bias = view.argument(1), view.argument(2, "bias")
    if view.argument(6, "groups", 1) != 1:
        return None
    return _columns(view, 1, {weight: 0, bias: 0}, outer)


def _columns(view: View, axis: int, states: Mapping[Any, int], outer: int) -> Effect | None:
    found = view.pattern(view.shape[axis], outer)
    given = {ref: dim for ref, dim in states.items() if ref is not None}
    if found is None or not all(map(view.is_state, given)):
        return None
    cuts = {ref.value: Cut(dim, found.outer, found.inner) for ref, dim in given.items()}
    return Effect(results=(Cut(axis, found.outer, found.inner),), states=cuts)


# --- operators on cut operands -------------------------------------------------------------------


def _element_wise(view: View) -> Effect | None:
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


def _inert(view: View) -> Effect | None:
    """Dropout that drops nothing."""
    drops = view.argument(2, "train", True) and view.argument(1, "p", 0.5) != 0
    layout = view.layout(view.argument(0))
    return None if drops or layout is None else Effect(results=(layout,))


def _linear(view: View) -> Effect | None:
    """Along the cut axis a sum of products; along another one a product as ever."""
    x, weight, bias = view.argument(0), view.argument(1), view.argument(2, "bias")
    cut = view.cut(x)
    if cut is None or view.layout(weight) is not None:
        return None
    if cut.axis != len(view.shape_of(x)) - 1:
        return Effect(results=(cut,))
    return _summed(view, weight, Cut(1, cut.outer, cut.inner), None if bias is None else 2)


def _addmm(view: View) -> Effect | None:
    cut, weight = view.cut(view.argument(1)), view.argument(2)
    if cut is None or cut.axis != 1 or view.node.kwargs or view.layout(view.argument(0)):
        return None
    return _summed(view, weight, Cut(0, cut.outer, cut.inner), 0)


def _summed(view: View, weight: Any, cut: Cut, once: int | None) -> Effect | None:
    if not view.is_state(weight):
        return None
    return Effect(results=(PARTIAL,), states={weight.value: cut}, once=once)


def _convolution(view: View) -> Effect | None:
    """Of cut channels a sum; where each group is a channel, its own filters."""
    x, weight, bias = view.argument(0), view.argument(1), view.argument(2, "bias")
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


def _by_channel(view: View) -> Effect | None:
    """Batch normalisation and prelu, which keep numbers per channel."""
    cut = view.cut(view.argument(0))
    refs = node_refs(view.node)[1:]
    if cut is None or cut.axis != 1 or not all(map(view.is_state, refs)):
        return None
    mine = Cut(0, cut.outer, cut.inner)
    return Effect(
        results=(cut,), states={ref.value: mine for ref in refs if view.shape_of(ref)[0] != 1}
    )


def _normalised(view: View) -> Effect | None:
    """Over the last dimensions; its weights are whole."""
    cut = view.cut(view.argument(0))
    return _same(cut) if cut and cut.axis < len(view.shape) - len(view.argument(1)) else None


def _pooled(view: View) -> Effect | None:
    cut = view.cut(view.argument(0))
    return _same(cut) if cut and cut.axis == 1 else None


def _same(cut: Cut) -> Effect:
    return Effect(results=(cut,))


def _padded(view: View) -> Effect | None:
    cut = view.cut(view.argument(0))
    padded = len(view.argument(1)) // 2
    return _same(cut) if cut and cut.axis < len(view.shape) - padded else None


def _matmul(view: View) -> Effect | None:
    """Both cut along the same batch dimension, along what is summed, or one along the result."""
    a, b = view.argument(0), view.argument(1)
    left, right = view.cut(a), view.cut(b)
    rank, ranks = len(view.shape), (len(view.shape_of(a)), len(view.shape_of(b)))
    if min(ranks) < 2 or ranks[0] != ranks[1]:
        return None
    if left and right:
        if left == right and left.axis < rank - 2:
            return _same(left)
        sums = (left.axis, right.axis) == (rank - 1, rank - 2)
        alike = (left.outer, left.inner) == (right.outer, right.inner)
        return Effect(results=(PARTIAL,)) if sums and alike else None
    if left and left.axis == rank - 2 and view.layout(b) is None:
        return _same(left)
    if right and right.axis == rank - 1 and view.layout(a) is None:
        return _same(right)
    return None


def _fit(view: View, queries: Cut, keys: Cut) -> bool:
    """Whether the heads of keys are cut as those of the queries that read them."""
    same = (queries.axis, queries.outer) == (keys.axis, keys.outer)
    grouped = bool(view.argument(7, "enable_gqa", False))
    return same and (grouped or keys.inner == queries.inner)


def _attention(view: View) -> Effect | None:
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


def _reshaped(view: View, sizes_at: int | None, before: int = 0) -> Effect | None:
    """The cut axis is a part of one of the result's: the entries before and after it are whole.

    The sizes are those of the axes from `before` on.
    """
    x, new = view.argument(0), view.shape
    cut, old = view.cut(x), view.shape_of(x)
    if cut is None:
        return None
    outside = prod(old[: cut.axis]) * cut.outer
    inside = cut.inner * prod(old[cut.axis + 1 :])
    for axis, size in enumerate(new):
        outer, rest = divmod(outside, prod(new[:axis]))
        inner, left = divmod(inside, prod(new[axis + 1 :]))
        if not rest and not left and outer * view.units * inner == size:
            return _at(view, Cut(axis, outer, inner), sizes_at, axis - before)
    return None


def _at(view: View, cut: Cut, sizes_at: int | None, place: int) -> Effect | None:
    """A result with this cut, whose size is one of the arguments."""
    if local(view.traced.type_of(Ref(view.value, 0)).shape[cut.axis], view.units, 1) is None:
        return None
    if sizes_at is None or not 0 <= place < len(view.argument(sizes_at)):
        return _same(cut)
    sizes = view.argument(sizes_at)
    if not _can(sizes[place], view.units):
        return None

    def arguments(n: int) -> Arguments:
        mine = (*sizes[:place], _sized(sizes[place], view.units, n), *sizes[place + 1 :])
        return (*view.node.args[:sizes_at], mine, *view.node.args[sizes_at + 1 :])

    return Effect(results=(cut,), arguments=arguments)


def _viewed(view: View) -> Effect | None:
    return _partial(view) or _reshaped(view, 1)


def _unflattened(view: View) -> Effect | None:
    dim = view.argument(1) % len(view.shape_of(view.argument(0)))
    return _partial(view) or _reshaped(view, 2, dim)


def _squeezed(view: View) -> Effect | None:
    return _partial(view) or _reshaped(view, None)


def _partial(view: View) -> Effect | None:
    """A sum may wait behind what only moves entries."""
    is_sum = isinstance(view.layout(view.argument(0)), Partial)
    return Effect(results=(PARTIAL,)) if is_sum else None


def _expanded(view: View) -> Effect | None:
    x, sizes = view.argument(0), view.argument(1)
    cut = view.cut(x)
    if cut is None:
        return None
    axis = cut.axis + len(view.shape) - len(view.shape_of(x))
    return _at(view, Cut(axis, cut.outer, cut.inner), 1, axis) if sizes is not None else None


def _moved(view: View) -> Effect | None:
    """A permutation of the dimensions."""
    if _partial(view):
        return _partial(view)
    cut, rank = view.cut(view.argument(0)), len(view.shape)
    if cut is None:
        return None
    order = [*reversed(range(rank))]
    if view.node.op == "aten.permute.default":
        order = [dim % rank for dim in view.argument(1)]
    elif view.node.op in ("aten.transpose.int", "aten.swapaxes.default"):
        a, b = view.argument(1) % rank, view.argument(2) % rank
        order = [*range(rank)]
        order[a], order[b] = order[b], order[a]
    return _same(Cut(order.index(cut.axis), cut.outer, cut.inner))


def _repeated(view: View) -> Effect | None:
    """Each entry so many times in a row: heads that share keys and values."""
    cut, times = view.cut(view.argument(0)), view.argument(1)
    dim = view.argument(2, "dim")
    if cut is None or not isinstance(times, int) or dim is None:
        return None
    if dim % len(view.shape) != cut.axis:
        return _same(cut)
    return _same(Cut(cut.axis, cut.outer, cut.inner * times))


def _parted(view: View) -> Effect | None:
    """Along another dimension as ever; along the cut one only between its outer parts."""
    x = view.argument(0)
    cut, types = view.cut(x), view.traced.types[view.value]
    position = 1 if view.node.op == "aten.glu.default" else 2
    dim = view.argument(position, "dim", -1 if position == 1 else 0)
    if cut is None:
        return None
    if dim % len(view.shape_of(x)) != cut.axis:
        return Effect(results=(cut,) * len(types))
    results = []
    for item in range(len(types)):
        outer, rest = divmod(view.shape_of(Ref(view.value, item))[cut.axis], view.units * cut.inner)
        if rest or not outer:
            return None
        results.append(Cut(cut.axis, outer, cut.inner))
    if position == 1 or view.node.op == "aten.chunk.default":
        return (
            Effect(results=tuple(results)) if cut.outer % (2 if position == 1 else 1) == 0 else None
        )
    sizes = view.argument(1)

    def arguments(n: int) -> Arguments:
        mine = (
            tuple(size // view.units * n for size in sizes)
            if isinstance(sizes, tuple)
            else sizes // view.units * n
        )
        return (view.node.args[0], mine, *view.node.args[2:])

    return Effect(results=tuple(results), arguments=arguments)


def _along(position: int, default: int | None = None) -> _Rule:
    """Something along another dimension, which keeps all dimensions."""

    def rule(view: View) -> Effect | None:
        cut = view.cut(view.argument(0))
        dim = view.argument(position, "dim", default)
        if cut is None or not isinstance(dim, int) or dim % len(view.shape) == cut.axis:
            return None
        return Effect(results=(cut,) * len(view.traced.types[view.value]))

    return rule


def _taken(view: View) -> Effect | None:
    """One entry, or each, of another dimension, which goes away."""
    x = view.argument(0)
    cut = view.cut(x)
    if cut is None:
        return None
    dim = view.argument(1, "dim", 0) % len(view.shape_of(x))
    mine = Cut(cut.axis - (dim < cut.axis), cut.outer, cut.inner)
    return None if dim == cut.axis else Effect(results=(mine,) * len(view.traced.types[view.value]))


def _joined(view: View) -> Effect | None:
    """Concatenation along another dimension."""
    parts, dim = view.argument(0), view.argument(1, "dim", 0) % len(view.shape)
    cuts = {view.cut(ref) for ref in parts}
    if len(cuts) != 1 or None in cuts:
        return None
    (cut,) = cuts
    return None if cut is None or cut.axis == dim else _same(cut)


def _reduced(view: View) -> Effect | None:
    """Sums, means and extremes over other dimensions."""
    x, dims = view.argument(0), view.argument(1, "dim")
    cut = view.cut(x)
    if cut is None or dims is None or dims == ():
        return None
    rank = len(view.shape_of(x))
    over = {dim % rank for dim in (dims if isinstance(dims, tuple) else (dims,))}
    if cut.axis in over:
        return None
    keeps = len(view.shape) == rank
    axis = cut.axis if keeps else cut.axis - sum(dim < cut.axis for dim in over)
    return _same(Cut(axis, cut.outer, cut.inner))


def _names(text: str) -> tuple[str, ...]:
    return tuple(f"aten.{word}" if "." in word else f"aten.{word}.default" for word in text.split())


_SOURCES: dict[str, Callable[[View, int], Effect | None]] = {
    "aten.linear.default": _linear_columns,
    "aten.addmm.default": _addmm_columns,
    "aten.conv1d.default": _channels,
    "aten.conv2d.default": _channels,
    "aten.conv3d.default": _channels,
    "aten.conv1d.padding": _channels,
    "aten.conv2d.padding": _channels,
}
_SPECIAL = _names("softmax.int log_softmax.int _softmax _log_softmax glu prelu")
_UNARY = _names("contiguous clone detach alias")
_GROUPS: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (tuple(n for n in KINDS["activation"] if n not in _SPECIAL), _element_wise),
    (KINDS["arithmetic"] + KINDS["comparison"], _element_wise),
    (_UNARY, lambda view: _partial(view) or _element_wise(view)),
    (_names("dropout feature_dropout"), _inert),
    (_names("linear"), _linear),
    (_names("addmm"), _addmm),
    (_names("conv1d conv2d conv3d conv1d.padding conv2d.padding"), _convolution),
    (_names("batch_norm prelu"), _by_channel),
    (_names("layer_norm rms_norm"), _normalised),
    (
        _names(
            "max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d "
            "adaptive_max_pool2d upsample_nearest2d.vec upsample_bilinear2d.vec"
        ),
        _pooled,
    ),
    (_names("constant_pad_nd"), _padded),
    (_names("matmul bmm"), _matmul),
    (_names("scaled_dot_product_attention"), _attention),
    (_names("view reshape _unsafe_view"), _viewed),
    (_names("unflatten.int"), _unflattened),
    (_names("flatten.using_ints unsqueeze squeeze.dim squeeze.dims"), _squeezed),
    (_names("expand"), _expanded),
    (_names("permute transpose.int swapaxes"), _moved),
    (_names("repeat_interleave.self_int"), _repeated),
    (_names("split.Tensor split_with_sizes chunk glu"), _parted),
    (_names("softmax.int log_softmax.int _softmax _log_softmax slice.Tensor narrow"), _along(1, 0)),
    (_names("unbind.int select.int"), _taken),
    (_names("cat"), _joined),
    (_names("mean.dim sum.dim_IntList amax amin"), _reduced),
)
RULES: dict[str, _Rule] = {name: rule for names, rule in _GROUPS for name in names}
