"""Rows of a micro-batch over the devices of a stage, and which rows pass from whom to whom over a
cut.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Overlap(NamedTuple):
    """Rows [start, stop) of the micro-batch lie with device `left` before the cut and device
    `right` behind it.
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


def overlaps(left: Sequence[int], right: Sequence[int]) -> tuple[Overlap, ...]:
    """Every transfer over the cut between stages of these shares, in row order.

    >>> overlaps((5, 3), (4, 4))
    (Overlap(left=0, right=0, start=0, stop=4), Overlap(left=0, right=1, start=4, stop=5), \
Overlap(left=1, right=1, start=5, stop=8))
    """
    before, behind = intervals(left), intervals(right)
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
