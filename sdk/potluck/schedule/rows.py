"""Rows of a micro-batch over the devices of a stage, and which rows pass from whom to whom over a
cut; also between micro-batches of two sizes.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

MOST_KEPT = 1 << 14  # cuts that a search asks about again and again


class Overlap(NamedTuple):
    """Rows [start, stop) of the micro-batch behind the cut lie with device `left` before it and
    device `right` behind it.
    """

    left: int
    right: int
    start: int
    stop: int


def intervals(shares: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Contiguous half-open row intervals, in the order of the devices: shares (5, 3) are (0, 5) and
    (5, 8).
    """
    stops = tuple(accumulate(shares))
    return tuple(zip((0, *stops), stops, strict=False))


def overlaps(left: Sequence[int], right: Sequence[int], lead: int = 0) -> tuple[Overlap, ...]:
    """Every transfer over the cut between stages of these shares, in row order.

    >>> overlaps((5, 3), (4, 4))
    (Overlap(left=0, right=0, start=0, stop=4), Overlap(left=0, right=1, start=4, stop=5), \
Overlap(left=1, right=1, start=5, stop=8))
    >>> overlaps((4,), (5, 3), 4)
    (Overlap(left=0, right=0, start=4, stop=5), Overlap(left=0, right=1, start=5, stop=8))

    Parameters
    ----------
    left, right
        Rows of each device before and behind the cut.
    lead
        The row of the right micro-batch at which the left one begins; 0 where both are the same.
    """
    return _overlaps(tuple(left), tuple(right), lead)


@lru_cache(MOST_KEPT)
def _overlaps(left: tuple[int, ...], right: tuple[int, ...], lead: int) -> tuple[Overlap, ...]:
    before = [(lead + start, lead + stop) for start, stop in intervals(left)]
    behind = intervals(right)
    found = list[Overlap]()
    i = 0
    j = 0
    while i < len(before) and j < len(behind):
        start, stop = max(before[i][0], behind[j][0]), min(before[i][1], behind[j][1])
        if start < stop:
            found.append(Overlap(i, j, start, stop))
        if before[i][1] <= behind[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def meeting(n: int, others: int, m: int) -> range:
    """Which of `others` micro-batches of a step share rows with number `m` of `n` of them.

    >>> meeting(4, 4, 1), meeting(4, 8, 1), meeting(8, 4, 3)
    (range(1, 2), range(2, 4), range(1, 2))

    Parameters
    ----------
    n
        Micro-batches of one stage.
    others
        Those of another, a multiple or a divisor of `n`.
    m
        One of the first.
    """
    if others >= n:
        each = others // n
        return range(m * each, (m + 1) * each)
    one = m // (n // others)
    return range(one, one + 1)
