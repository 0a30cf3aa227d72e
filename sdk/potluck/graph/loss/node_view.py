"""A node as the rules of dependence see it: its arguments, and where the rows of the batch lie in
them. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from potluck.graph.loss.dependence import (
    FREE,
    NUMBER,
    PAIRS,
    Dependence,
    DependenceKind,
    RowsMixed,
    over_rows,
)
from potluck.graph.traced import SEQUENCE, Traced
from potluck_wire.graph import (
    BATCH,
    Expression,
    Node,
    Ref,
    Shape,
    Sym,
    evaluate,
    node_refs,
    symbols_in,
    symbols_of,
)
from potluck_wire.operators import aten

N_ROWS = 1_000_003  # primes: no size of a model has them as factors
# what these give is what they read, in other dimensions
_MOVING = frozenset(
    aten(
        "view _unsafe_view reshape flatten.using_ints unflatten.int view_as reshape_as unsqueeze "
        "squeeze squeeze.dim squeeze.dims permute transpose.int t numpy_T swapaxes movedim.int "
        "expand expand_as repeat select.int slice.Tensor narrow contiguous clone detach alias "
        "to.dtype type_as"
    )
)
_SIZES = {BATCH: N_ROWS, SEQUENCE: 1_000_033}


def shape_at(shape: Shape) -> tuple[int, ...]:
    """A shape at sizes that show what divides what."""
    return tuple(evaluate(size, _SIZES) for size in shape)


def row_axes(shape: Shape) -> list[int]:
    """The dimensions whose size depends on the number of rows."""
    return [axis for axis, size in enumerate(shape) if BATCH in symbols_in(size)]


def outer_of(shape: tuple[int, ...], axis: int, inner: int) -> int:
    """How many groups an axis of rows has, of which each has `inner` entries for a row; 0 where
    there is no such.
    """
    n_entries = N_ROWS * inner
    return shape[axis] // n_entries if n_entries and shape[axis] % n_entries == 0 else 0


def degree(number: Any) -> int:
    """k where a number (an argument) is c n^k with any n rows.

    Raises Mixes for others that depend on n.
    """
    if not isinstance(number, Sym) or BATCH not in symbols_in(number.expression):
        return 0
    numbers_of_rows = (2, 3, *_bounds(number.expression), N_ROWS, 2 * N_ROWS, 3 * N_ROWS)
    one, *at = (evaluate(number.expression, {**_SIZES, BATCH: n}) for n in (1, *numbers_of_rows))
    for k in range(4):
        if one and all(value == n**k * one for n, value in zip(numbers_of_rows, at, strict=True)):
            return k
    raise RowsMixed(NUMBER)


def _bounds(expression: Expression) -> list[int]:
    """Numbers of rows about each constant: where `max`, `min` and whole divisions by it begin or
    cease to differ.
    """
    if isinstance(expression, int):
        return [n for n in (expression - 1, expression, expression + 1) if 0 < n <= 3 * N_ROWS]
    return (
        []
        if isinstance(expression, str)
        else [n for operand in expression[1:] for n in _bounds(operand)]
    )


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, the shapes of its results, and how each value made before it depends on the rows."""

    traced: Traced
    node: Node
    shapes: tuple[Shape, ...]
    known: Mapping[Ref, Dependence]

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """The argument at that position or of that name."""
        return self.node.argument(position, name, default)

    @property
    def refs(self) -> list[Ref]:
        """The values that it reads."""
        return list(node_refs(self.node))

    @property
    def without_rows(self) -> bool:
        """Whether nothing that it reads, and no result, depends on the rows or on their number."""
        constant = all(self.axis_of(ref) is None and self.known[ref] == FREE for ref in self.refs)
        sized = any(
            row_axes((number.expression,)) for number in self.numbers if isinstance(number, Sym)
        )
        return constant and not sized and not any(row_axes(shape) for shape in self.shapes)

    @property
    def numbers(self) -> list[Any]:
        """The numbers among its arguments."""
        arguments = (*self.node.args, *(value for _, value in self.node.kwargs))
        return [a for a in arguments if isinstance(a, Sym | int | float)]

    @property
    def is_sized(self) -> bool:
        """Whether one of its arguments, or a part of one, depends on the number of rows."""
        return any(
            BATCH in symbols_of(a) for a in (*self.node.args, *(v for _, v in self.node.kwargs))
        )

    @property
    def keeps_places(self) -> bool:
        """Whether what it reads stands at the same places of the axis of rows in its result."""
        own, axis = self.axis_of(self.first), self.axis
        return (
            self.node.op in _MOVING
            and None not in (own, axis)
            and self.shape[axis or 0] == self.shape_of(self.first)[own or 0]
        )

    @property
    def first(self) -> Ref:
        """The value that is its first argument."""
        ref = self.node.args[0]
        assert isinstance(ref, Ref)
        return ref

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its first result, at sizes that show what divides what."""
        return shape_at(self.shapes[0])

    @property
    def axis(self) -> int | None:
        """The axis of rows of its first result."""
        axes = row_axes(self.shapes[0])
        return axes[0] if axes else None

    def shape_of(self, ref: Ref) -> tuple[int, ...]:
        """The shape of a value, at the same sizes."""
        return shape_at(self.traced.type_of(ref).shape)

    def rank(self, ref: Ref) -> int:
        return len(self.traced.type_of(ref).shape)

    def axis_of(self, ref: Ref) -> int | None:
        """The axis of rows of a value."""
        axes = row_axes(self.traced.type_of(ref).shape)
        return axes[0] if axes else None

    def per_row(self, ref: Ref) -> int:
        """How many entries a row has along the axis of rows."""
        axis = self.axis_of(ref)
        return 1 if axis is None else self.shape_of(ref)[axis] // N_ROWS

    def from_last(self, ref: Ref) -> int | None:
        """The axis of rows, counted from the last dimension: as broadcasting aligns values."""
        axis = self.axis_of(ref)
        return None if axis is None else axis - self.rank(ref)

    def aligned(self, refs: list[Ref]) -> list[Dependence] | None:
        """The dependences of values that are broadcast to one shape.

        None where it is not known which rows meet.

        Raises Mixes where rows of one meet all rows of another.
        """
        having = [ref for ref in refs if self.axis_of(ref) is not None]
        if len({self.from_last(ref) for ref in having}) > 1:
            raise RowsMixed(PAIRS)
        if not having:
            return [self.known[ref] for ref in refs]
        if len({(self.known[ref].outer, self.per_row(ref)) for ref in having}) > 1:
            return None
        return [self.known[ref] if ref in having else over_rows(self.known[ref]) for ref in refs]

    def outer(self, refs: list[Ref]) -> int:
        """The groups along the axis of rows of the first of these values that has one."""
        return next((self.known[ref].outer for ref in refs if self.axis_of(ref) is not None), 1)

    def laid_out_as(self, refs: list[Ref], value: Dependence) -> Dependence:
        """A dependence, with the groups of rows that these values have."""
        return replace(value, outer=self.outer(refs))

    def number(self, value: Any) -> Dependence:
        """A number among the arguments, as a value."""
        return Dependence(DependenceKind.FREE, degree(value))
