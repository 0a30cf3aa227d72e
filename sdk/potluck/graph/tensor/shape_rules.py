"""The rules of division by tensor for what moves entries and computes nothing: views, splits, moved
dimensions. A sum that is still to be taken waits behind them. Pure.
"""

from dataclasses import replace
from math import prod
from typing import Any

from potluck.graph.tensor.layouts import (
    PARTIAL,
    Arguments,
    Cut,
    Effect,
    LayoutView,
    Partial,
    Rule,
    local,
    same,
)
from potluck_wire.graph import Ref, Sym


def _sized(argument: Any, units: int, n: int) -> Any:
    """An argument that is a size, likewise; -1 is what is left."""
    if isinstance(argument, Sym):
        return Sym(local(argument.expression, units, n) or 0)
    return argument if argument == -1 else local(argument, units, n)


def _can(argument: Any, units: int) -> bool:
    size = argument.expression if isinstance(argument, Sym) else argument
    return size == -1 or local(size, units, 1) is not None


def _reshaped(view: LayoutView, sizes_at: int | None, before: int = 0) -> Effect | None:
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


def _at(view: LayoutView, cut: Cut, sizes_at: int | None, place: int) -> Effect | None:
    """A result with this cut, whose size is one of the arguments."""
    if local(view.traced.type_of(Ref(view.value, 0)).shape[cut.axis], view.units, 1) is None:
        return None
    if sizes_at is None or not 0 <= place < len(view.argument(sizes_at)):
        return same(cut)
    sizes = view.argument(sizes_at)
    if not _can(sizes[place], view.units):
        return None

    def arguments(n: int) -> Arguments:
        mine = (*sizes[:place], _sized(sizes[place], view.units, n), *sizes[place + 1 :])
        return (*view.node.args[:sizes_at], mine, *view.node.args[sizes_at + 1 :])

    return Effect(results=(cut,), arguments=arguments)


def viewed(view: LayoutView) -> Effect | None:
    """A view or reshape, whose sizes are its second argument."""
    return partial(view) or _reshaped(view, 1)


def unflattened(view: LayoutView) -> Effect | None:
    """One axis as several."""
    dim = view.argument(1) % len(view.shape_of(view.argument(0)))
    return partial(view) or _reshaped(view, 2, dim)


def flattened(view: LayoutView) -> Effect | None:
    """What is told no sizes: flatten and unsqueeze."""
    return partial(view) or _reshaped(view, None)


def squeezed(view: LayoutView) -> Effect | None:
    """Without axes of one entry, which the cut one is not, though a device may have one of it."""
    x, dims = view.argument(0), view.argument(1)
    cut, rank = view.cut(x), len(view.shape_of(x))
    if cut is None or cut.axis not in (dim % rank for dim in _tuple(dims)):
        return flattened(view)
    found = _reshaped(view, None) if isinstance(dims, tuple) else None
    others = tuple(dim for dim in _tuple(dims) if dim % rank != cut.axis)
    return found and replace(found, arguments=lambda _: (x, others))


def _tuple(dims: Any) -> tuple[Any, ...]:
    return dims if isinstance(dims, tuple) else (dims,)


def partial(view: LayoutView) -> Effect | None:
    """A sum may wait behind what only moves entries."""
    is_sum = isinstance(view.layout(view.argument(0)), Partial)
    return Effect(results=(PARTIAL,)) if is_sum else None


def expanded(view: LayoutView) -> Effect | None:
    """Other axes repeated, or more of them in front."""
    x, sizes = view.argument(0), view.argument(1)
    cut = view.cut(x)
    if cut is None:
        return None
    axis = cut.axis + len(view.shape) - len(view.shape_of(x))
    return _at(view, Cut(axis, cut.outer, cut.inner), 1, axis) if sizes is not None else None


def moved(view: LayoutView) -> Effect | None:
    """A permutation of the dimensions."""
    if partial(view):
        return partial(view)
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
    return same(Cut(order.index(cut.axis), cut.outer, cut.inner))


def repeated(view: LayoutView) -> Effect | None:
    """Each entry so many times in a row: heads that share keys and values."""
    cut, times = view.cut(view.argument(0)), view.argument(1)
    dim = view.argument(2, "dim")
    if cut is None or not isinstance(times, int) or dim is None:
        return None
    if view.argument(3, "output_size") is not None:
        return None
    if dim % len(view.shape) != cut.axis:
        return same(cut)
    return same(Cut(cut.axis, cut.outer, cut.inner * times))


def parted(view: LayoutView) -> Effect | None:
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


def along(position: int, default: int | None = None) -> Rule:
    """Something along another dimension, which keeps all dimensions."""

    def rule(view: LayoutView) -> Effect | None:
        cut = view.cut(view.argument(0))
        dim = view.argument(position, "dim", default)
        if cut is None or not isinstance(dim, int) or dim % len(view.shape) == cut.axis:
            return None
        return Effect(results=(cut,) * len(view.traced.types[view.value]))

    return rule


def taken(view: LayoutView) -> Effect | None:
    """One entry, or each, of another dimension, which goes away."""
    x = view.argument(0)
    cut = view.cut(x)
    if cut is None:
        return None
    dim = view.argument(1, "dim", 0) % len(view.shape_of(x))
    mine = Cut(cut.axis - (dim < cut.axis), cut.outer, cut.inner)
    return None if dim == cut.axis else Effect(results=(mine,) * len(view.traced.types[view.value]))


def joined(view: LayoutView) -> Effect | None:
    """Concatenation along another dimension."""
    parts, dim = view.argument(0), view.argument(1, "dim", 0) % len(view.shape)
    cuts = {view.layout(ref) for ref in parts} - {None}
    if len(cuts) != 1:
        return None
    (cut,) = cuts
    if not isinstance(cut, Cut) or cut.axis == dim:
        return None
    whole = [ref for ref in parts if view.layout(ref) is None]
    if any(map(view.is_state, whole)):
        return None
    return Effect(results=(cut,), slices=dict.fromkeys(whole, cut))


def reduced(view: LayoutView) -> Effect | None:
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
    return same(Cut(axis, cut.outer, cut.inner))
