"""How a value depends on the rows of a batch, and what arithmetic makes of it. Pure: no torch.

With n rows x_1 ... x_n, a value is n^degree times one of these. What has an axis of rows has one
entry for each row.

    FREE     c             the same for any batch, and for each row
    ROWS     f(x_i)        with an axis of rows: each entry depends on its own row alone
    SUM      sum_j f(x_j)  without an axis of rows
    LINEAR   f(x_i) + (1 / n) sum_j g(x_j), with an axis of rows: its sums over rows are sums
    COUNT    i             with an axis of rows: the number of the row

A mean over rows is a SUM of degree -1, and a loss that is divided among devices must be one. What
is none of these mixes rows (`RowsMixed`); MIXED and UNKNOWN values say why.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum


class DependenceKind(IntEnum):
    """The kinds of dependence; in a sum of values, the greatest of those with (or without) an axis
    of rows holds.
    """

    FREE = 0
    ROWS = 1
    LINEAR = 2
    SUM = 3
    COUNT = 4
    MIXED = 5
    UNKNOWN = 6


class RowsMixed(Exception):
    """An operator makes something of several rows that is no sum over them; its text says what."""


NOT_LINEAR = "is not linear in a sum over the rows"
NUMBER = "depends on the number of rows"
PAIRS = "pairs rows with each other"
ACROSS = "works across the rows"
NUMBERS = "numbers the rows"


@dataclass(frozen=True, slots=True)
class Dependence:
    """How a value depends on the rows; `why` says what a MIXED or UNKNOWN one comes from.

    Along its axis of rows it has `outer` groups, one after the other, of an entry (or several) for
    each row.
    """

    kind: DependenceKind
    degree: int = 0
    outer: int = 1
    why: str = ""

    def times(self, degree: int) -> "Dependence":
        """It times n^degree."""
        return replace(self, degree=self.degree + degree)


FREE = Dependence(DependenceKind.FREE)
ROWS = Dependence(DependenceKind.ROWS)
MEAN = Dependence(DependenceKind.SUM, -1)


def over_rows(value: Dependence) -> Dependence:
    """A value without an axis of rows, given to each row."""
    return (
        Dependence(DependenceKind.LINEAR, value.degree + 1)
        if value.kind == DependenceKind.SUM
        else value
    )


def together(values: Iterable[Dependence]) -> Dependence:
    """The sum of values that all have an axis of rows, or that all have none.

    Or these, side by side.
    """
    # as constants count
    found = [replace(v, degree=v.degree + 1) if v.kind == DependenceKind.SUM else v for v in values]
    kinds = {value.kind for value in found}
    if DependenceKind.COUNT in kinds:
        raise RowsMixed(NUMBERS)
    if len({value.degree for value in found}) > 1:
        raise RowsMixed("adds what grows with the number of rows to what does not")
    if DependenceKind.SUM in kinds:
        return Dependence(DependenceKind.SUM, found[0].degree - 1)
    return Dependence(max(kinds), found[0].degree)


def product(a: Dependence, b: Dependence) -> Dependence:
    """The product of two values, of which both have an axis of rows, or none."""
    kinds = {a.kind, b.kind}
    if DependenceKind.COUNT in kinds:
        raise RowsMixed(NUMBERS)
    if DependenceKind.FREE in kinds:
        return Dependence(max(kinds), a.degree + b.degree)
    if kinds == {DependenceKind.ROWS}:
        return Dependence(DependenceKind.ROWS, a.degree + b.degree)
    raise RowsMixed(NOT_LINEAR)


def inverse(value: Dependence) -> Dependence:
    """One by a value."""
    if value.kind in (DependenceKind.FREE, DependenceKind.ROWS):
        return replace(value, degree=-value.degree)
    raise RowsMixed(NOT_LINEAR)


def function(values: Iterable[Dependence]) -> Dependence:
    """Any function of such values, entry by entry, which need not be linear."""
    kinds, degrees = {DependenceKind.FREE}, set[int]()
    for value in values:
        kinds.add(value.kind)
        degrees.add(value.degree)
    if DependenceKind.COUNT in kinds:
        raise RowsMixed(NUMBERS)
    if kinds & {DependenceKind.SUM, DependenceKind.LINEAR}:
        raise RowsMixed(NOT_LINEAR)
    if degrees - {0}:
        raise RowsMixed(NUMBER)
    return Dependence(max(kinds))


def summed(value: Dependence) -> Dependence:
    """The sum over the axis of rows."""
    if value.kind == DependenceKind.COUNT:
        raise RowsMixed(NUMBERS)
    if value.kind == DependenceKind.FREE:
        return Dependence(DependenceKind.FREE, value.degree + 1)
    return Dependence(DependenceKind.SUM, value.degree)
