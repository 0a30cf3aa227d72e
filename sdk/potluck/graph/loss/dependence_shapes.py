"""The rules of dependence for what moves, takes and joins entries, and for tensors made from sizes.
Pure: no torch.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from potluck.graph.loss.dependence import (
    FREE,
    NUMBER,
    NUMBERS,
    PAIRS,
    Dependence,
    DependenceKind,
    RowsMixed,
    function,
    over_rows,
    product,
    together,
)
from potluck.graph.loss.node_view import N_ROWS, NodeView, outer_of, shape_at
from potluck_wire.graph import Ref, Sym

_SOME = "takes some of the rows"
_NOTHING = (0,)  # what joins anything, as a cache of keys begins


def viewed(look: NodeView) -> Dependence | None:
    """A reshape: the groups that come before the rows stay before them."""
    value = look.known[look.first]
    axis = look.axis_of(look.first)
    own = look.axis
    if axis is None or own is None:
        return value if axis == own else None
    before, now = prod(look.shape_of(look.first)[:axis]) * value.outer, prod(look.shape[:own])
    outer = before // now if before % now == 0 else 0
    if not outer or outer_of(look.shape, own, 1) % outer:
        return None
    return replace(value, outer=outer)


def moved(look: NodeView) -> Dependence | None:
    """Dimensions in another order, or new ones, of one entry."""
    return look.known[look.first]


def given_to_rows(look: NodeView) -> Dependence | None:
    """Broadcast to another shape, perhaps to the rows."""
    value = look.known[look.first]
    if look.axis is None or look.axis_of(look.first) is not None:
        return value
    return over_rows(value)


def broadcast_together(look: NodeView) -> list[Dependence] | None:
    values = look.aligned(look.refs)
    return None if values is None else [replace(v, outer=look.outer(look.refs)) for v in values]


def repeated(look: NodeView) -> Dependence | None:
    axis, value = look.axis_of(look.first), look.known[look.first]
    if axis is None or look.axis is None:
        return given_to_rows(look)
    times = look.shape[look.axis] // look.shape_of(look.first)[axis]
    return replace(value, outer=value.outer * times)


def each_repeated(look: NodeView) -> Dependence | None:
    return None if look.argument(2, "dim") is None else moved(look)


def squeezed(look: NodeView) -> Dependence | None:
    # a batch of one row would go, too
    return None if look.axis_of(look.first) is not None else look.known[look.first]


def part(look: NodeView) -> Dependence | None:
    """A part along one dimension, or parts."""
    split = any(word in look.node.op for word in ("split", "chunk"))
    dim = look.argument(2 if split else 1, "dim", 0)
    axis, value = look.axis_of(look.first), look.known[look.first]
    if axis is None or dim % look.rank(look.first) != axis:
        if look.is_sized:
            raise RowsMixed(NUMBER)
        return value
    if _is_whole(look):
        return value
    if value.kind == DependenceKind.FREE and look.axis is None and look.per_row(look.first) == 1:
        return value  # every row is like any other
    if not split and not _is_by_groups(look):
        raise RowsMixed(_SOME)
    if (
        split
        and look.axis is not None
        and value.outer > 1
        and look.per_row(look.first) == value.outer
    ):
        n_parts, uneven = divmod(look.shape_of(look.first)[axis], look.shape[axis])
        if not uneven and len(look.shapes) == n_parts and value.outer % n_parts == 0:
            return replace(value, outer=value.outer // n_parts)
    if look.per_row(look.first) == 1:
        raise RowsMixed(_SOME)
    return None


def _is_whole(look: NodeView) -> bool:
    """Whether the part is all there is."""
    return (
        look.axis is not None
        and look.rank(look.first) == len(look.shape)
        and (
            look.shape == look.shape_of(look.first)
            and len(look.shapes) == 1
            and look.argument(4, "step", 1) == 1
        )
    )


def _is_by_groups(look: NodeView) -> bool:
    """Whether a part begins, and ends, at a multiple of the number of rows."""
    size = shape_at((look.traced.type_of(look.first).shape[look.axis_of(look.first) or 0],))[0]
    bounds = [look.argument(place) for place in (2, 3)]
    found = [
        shape_at((bound.expression,))[0] if isinstance(bound, Sym) else bound
        for bound in bounds
        if bound is not None
    ]
    return all(bound >= size or bound % N_ROWS == 0 for bound in found)


def _chosen(look: NodeView, value: Dependence, indices: list[Dependence]) -> Dependence:
    """Entries of a value, chosen by indices: linear in the value."""
    given = over_rows(value) if look.axis is not None else value
    return product(given, function(indices))


def taken(position: int) -> Callable[[NodeView], Dependence | None]:
    """Entries along a dimension, by an index that may be of each row."""

    def rule(look: NodeView) -> Dependence | None:
        index, axis = look.argument(2, "index"), look.axis_of(look.first)
        dim = look.argument(position, "dim") % max(look.rank(look.first), 1)
        if axis == dim:
            if look.per_row(look.first) == 1:
                raise RowsMixed(_SOME)
            return None
        values = [look.known[look.first], look.known[index]]
        if axis is not None and look.axis_of(index) not in (None, axis):
            return None
        layouts = {
            (look.known[ref].outer, look.per_row(ref))
            for ref in look.refs
            if look.axis_of(ref) is not None
        }
        if len(layouts) > 1:
            return None
        if (
            look.node.op.startswith("aten.index_select")
            and look.axis_of(index) is not None
            and axis is not None
        ):
            return None
        return look.laid_out_as([look.first, index], _chosen(look, values[0], values[1:]))

    return rule


def scattered(look: NodeView) -> Dependence | None:
    """Entries put into places along a dimension, by an index, each row's into that row."""
    axis, refs = look.axis_of(look.first), look.refs
    if axis is None or look.argument(1, "dim") % look.rank(look.first) == axis:
        return None
    if any(look.axis_of(ref) != axis for ref in refs):
        return None
    if len({(look.known[ref].outer, look.per_row(ref)) for ref in refs}) > 1:
        return None
    numbers = [look.number(number) for number in look.numbers[1:]]  # behind the dimension
    values = [look.known[ref] for ref in refs]
    return look.laid_out_as(refs, function([*values, *numbers]))


def indexed(look: NodeView) -> Dependence | None:
    """x[i, j, ...]: rows numbered by `arange`, tables looked up for each row, and entries within a
    row.
    """
    x, indices = look.first, look.argument(1)
    given = [ref for ref in indices if isinstance(ref, Ref)]
    axis, value = look.axis_of(x), look.known[x]
    if len({look.rank(ref) for ref in given if look.axis_of(ref) is not None}) > 1:
        return None
    numbers = [ref for ref in given if look.known[ref].kind == DependenceKind.COUNT]
    places = {look.from_last(ref) for ref in given} - {None}
    others = look.aligned([ref for ref in given if ref not in numbers])
    if others is None:
        return None
    if axis is None:
        return None if numbers else look.laid_out_as(given, _chosen(look, value, others))
    at_axis = indices[axis] if axis < len(indices) else None
    # x[arange(n), i]: of each row, in their order
    if isinstance(at_axis, Ref) and numbers == [at_axis]:
        having = [ref for ref in (x, *given) if look.axis_of(ref) is not None and ref != at_axis]
        layouts = {(look.known[ref].outer, look.per_row(ref)) for ref in having}
        if len(places) > 1 or len(layouts) > 1 or look.per_row(at_axis) != look.per_row(x):
            return None
        return replace(_chosen(look, value, others), outer=value.outer)
    if isinstance(at_axis, Ref):
        raise RowsMixed(_SOME)
    if any(look.axis_of(ref) is not None for ref in given):
        return None
    return look.laid_out_as([x], _chosen(look, value, others))


def joined(look: NodeView) -> Dependence | None:
    """Side by side along a dimension; along the rows, each part is a group."""
    parts = [ref for ref in look.argument(0) if look.traced.type_of(ref).shape != _NOTHING]
    if not parts:
        return None
    values, axes = [look.known[ref] for ref in parts], {look.axis_of(ref) for ref in parts}
    if len(axes) > 1:
        raise RowsMixed("puts the rows beside others")
    (axis,) = axes
    if axis is None:
        return together(values)
    layouts = {(value.outer, look.per_row(ref)) for value, ref in zip(values, parts, strict=True)}
    if len(layouts) > 1:
        return None
    stacked = "stack" in look.node.op
    along = not stacked and look.argument(1, "dim", 0) % look.rank(parts[0]) == axis
    return replace(together(values), outer=values[0].outer * (len(parts) if along else 1))


def padded(look: NodeView) -> Dependence | None:
    """More entries along the last dimensions, of a value."""
    axis, amounts = look.axis_of(look.first), look.argument(1)
    place = None if axis is None else 2 * (look.rank(look.first) - 1 - axis)
    if place is not None and any(amount != 0 for amount in amounts[place : place + 2]):
        raise RowsMixed("puts the rows beside others")
    fill, value = (
        look.argument(3 if look.node.op == "aten.pad.default" else 2, "value", 0),
        look.known[look.first],
    )
    if fill in (0, None):
        return value
    return look.laid_out_as(
        [look.first], together([value, FREE if axis is not None else look.number(fill)])
    )


def put_along(look: NodeView) -> Dependence | None:
    """A value, or a number, put into another one (or added to it) at places along a dimension that
    is not that of the rows.
    """
    base, index = look.first, look.argument(2, "index")
    source, axis = look.argument(3), look.axis_of(base)
    scatters = "scatter" in look.node.op
    is_value = isinstance(source, Ref) and look.rank(source) > 0
    beside = [*([source] if is_value else ()), *([index] if scatters else ())]
    if any(look.axis_of(ref) != axis for ref in beside) or (
        axis is not None and look.argument(1, "dim") % look.rank(base) == axis
    ):
        return None
    if not scatters and look.axis_of(index) is not None:
        return None
    layouts = {(look.known[ref].outer, look.per_row(ref)) for ref in (base, *beside)}
    if axis is not None and len(layouts) > 1:
        return None
    parts = [look.known[base]]
    if isinstance(source, Ref):
        part = look.known[source] if is_value or axis is None else over_rows(look.known[source])
        parts.append(product(part, look.number(look.argument(4, "alpha", 1))))
    elif source != 0:
        parts.append(FREE if axis is not None else look.number(source))
    put = product(function([look.known[index]]), together(parts))
    return look.laid_out_as([base], put)


def looked_up(look: NodeView) -> Dependence | None:
    table, index = look.first, look.argument(1)
    if look.axis_of(table) is not None:
        return None
    return look.laid_out_as([index], _chosen(look, look.known[table], [look.known[index]]))


def diagonal(look: NodeView) -> Dependence | None:
    rank = look.rank(look.first)
    dims = {look.argument(2, "dim1", 0) % rank, look.argument(3, "dim2", 1) % rank}
    if look.axis_of(look.first) in dims:
        raise RowsMixed(PAIRS)
    return moved(look)


# --- made from sizes ---


def made(look: NodeView) -> Dependence | None:
    """The same number everywhere."""
    fill = next(
        (
            look.argument(place, "fill_value")
            for word, place in _FILLS.items()
            if word in look.node.op
        ),
        0,
    )
    if isinstance(fill, Ref):
        return None
    return look.number(fill)


_FILLS = {"new_full": 2, "full": 1, "scalar_tensor": 0, "fill.Scalar": 1}


def filled(look: NodeView) -> Dependence | None:
    """One value everywhere, in the shape of another."""
    value = look.known[look.argument(1)]
    return over_rows(value) if look.axis is not None else value


def numbered(look: NodeView) -> Dependence | None:
    """0, 1, 2, ... : of as many as there are rows, their numbers."""
    start = look.argument(0) if "start" in look.node.op else 0
    if look.axis is None:
        if look.is_sized:
            raise RowsMixed(NUMBER)
        return FREE
    counts_rows = start == 0 and look.argument(2, "step", 1) == 1 and outer_of(look.shape, 0, 1) > 0
    if not counts_rows:
        raise RowsMixed(NUMBERS)
    return Dependence(DependenceKind.COUNT)
