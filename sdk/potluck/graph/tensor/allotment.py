"""How many units each device gets: whole ones, as near as can be to the wished proportion."""

from collections.abc import Sequence
from itertools import accumulate
from math import inf

from potluck.errors import ModelError

TOLERANCE_FRAC = 0.1  # by which a device may get more than its wished part


def allotted(n_units: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Units by shares, the largest remainders first.

    >>> allotted(32, (1, 2, 2, 4)), allotted(3, (1, 1))
    ((4, 7, 7, 14), (2, 1))
    """
    total = sum(shares)
    found = [n_units * share // total for share in shares]
    rests = [(n_units * share) % total for share in shares]
    for lane in sorted(range(len(shares)), key=lambda i: -rests[i])[: n_units - sum(found)]:
        found[lane] += 1
    return tuple(found)


def spans(n_units: int, shares: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The units [start, stop) of each device, in their order."""
    stops = tuple(accumulate(allotted(n_units, shares)))
    return tuple(zip((0, *stops), stops, strict=False))


def excess_frac(n_units: int, shares: Sequence[int]) -> float:
    """By which part a device gets more than wished, at most; infinite where one gets nothing."""
    found, total = allotted(n_units, shares), sum(shares)
    if min(found) == 0:
        return inf
    pairs = zip(found, shares, strict=True)
    return max(n * total / (n_units * share) for n, share in pairs) - 1


def check(what: str, n_units: int, shares: Sequence[int], tolerance_frac: float) -> None:
    """Refuse a proportion that whole units miss.

    Parameters
    ----------
    what
        Whose units they are.
    n_units
        Their number.
    shares
        The wished proportion.
    tolerance_frac
        By which part a device may get more than that.

    Raises
    ------
    ModelError
        A device would get nothing, or too much; says the number of units and the nearest division.
    """
    found, excess = allotted(n_units, shares), excess_frac(n_units, shares)
    wished, nearest = ":".join(map(str, shares)), ":".join(map(str, found))
    if min(found) == 0:
        raise ModelError(
            f"{what} has {n_units} parts that stay whole (columns, heads or groups of heads, "
            f"channels), too few for {wished}: the nearest is {nearest}.",
            next_step=f"Divide it among at most {n_units} devices, or in a more even proportion.",
        )
    if excess > tolerance_frac:
        raise ModelError(
            f"{what} has {n_units} parts that stay whole (columns, heads or groups of heads, "
            f"channels), which cannot be divided {wished}: the nearest is {nearest}, "
            f"{excess:.0%} more than wished for one device.",
            next_step=f"Wish for {nearest}, or allow it with tolerance_frac={excess:.2g} or more.",
        )
