"""The best split for every bandwidth: searched for at some, at more where that may pay, each used
where it is better.

More bandwidth never hurts: between two bandwidths nothing is better than the best split at the
higher one. So it is known how much the splits of both ends can lose half-way at most, and the next
search is where that is most.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from potluck.offload.plan.split import Split, Splitter, rank

# of the way between two bandwidths, until it is known where to turn from one split to the next
HALVINGS = 5
# of the best one's seconds or joules: less is worth neither a search nor an entry
LOSS_FRAC = 0.005

Found = tuple[tuple[float, Split], ...]  # from so many bytes per second on, this split
# at a bandwidth, given splits that may be good there too
Best = Callable[[float, Sequence[Split]], Split | None]


def over(
    bandwidths: Sequence[float],
    splitter: Splitter,
    best: Best,
    *,
    max_searches: int = 0,
    deadline_s: float | None = None,
) -> Found:
    """The split for any bandwidth from the first on: searched for at these, and where it may pay,
    at `max_searches` in all.

    None of `best`: nothing can be done there, as by whoever needs a link.

    Parameters
    ----------
    bandwidths
        Bytes per second, ascending.
    splitter
        The problem, prepared.
    best
        Called with a bandwidth and splits that are near.
    max_searches
        Searches in all.
    deadline_s
        Seconds; default: as soon as possible.
    """
    known: dict[float, Split] = {}
    for bytes_per_s in bandwidths:
        if split := best(bytes_per_s, tuple(known.values())[-1:]):
            known[bytes_per_s] = split
    _compare(splitter, known, deadline_s)
    gaps: list[tuple[float, float, float]] = []  # what may be lost, below zero; low, high
    news = list(pairwise(sorted(known)))
    for _ in range(max_searches - len(bandwidths)):
        for low, high in news:
            may_lose = _lost(
                splitter, (known[low], known[high]), known[high], (low + high) / 2, deadline_s
            )
            heapq.heappush(gaps, (-may_lose, low, high))
        if not gaps or -gaps[0][0] <= LOSS_FRAC:
            break
        _, low, high = heapq.heappop(gaps)
        middle, news = (low + high) / 2, []
        if split := best(middle, (known[low], known[high])):
            known[middle], news = split, [(low, middle), (middle, high)]
    _compare(splitter, known, deadline_s)
    least_frac = LOSS_FRAC if max_searches > len(bandwidths) else 0.0
    return _turning(splitter, sorted(known.items(), key=lambda row: row[0]), deadline_s, least_frac)


def _compare(splitter: Splitter, known: dict[float, Split], deadline_s: float | None) -> None:
    """What is better than what was found at the bandwidth next to it, takes its place."""
    rates = sorted(known)
    for a, b in (*pairwise(rates), *pairwise(reversed(rates))):
        tried = splitter.tried(known[a].divisions, b, known[a].tiles)
        if tried and rank(tried, deadline_s) < rank(known[b], deadline_s):
            known[b] = tried


def turn(
    splitter: Splitter,
    lower: tuple[float, Split],
    upper: tuple[float, Split],
    *,
    deadline_s: float | None = None,
) -> float:
    """Between two bandwidths, each with its split: from where on the upper one's is the better of
    the two.

    Parameters
    ----------
    splitter
        The problem, prepared.
    lower, upper
        Bytes per second, and the split there.
    deadline_s
        Seconds; default: as soon as possible.
    """
    (low, below), (high, above) = lower, upper
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        tried = [splitter.tried(split.divisions, middle, split.tiles) for split in (above, below)]
        ranks = [rank(split, deadline_s) if split else (math.inf, math.inf) for split in tried]
        low, high = (low, middle) if ranks[0] <= ranks[1] else (middle, high)
    return high


def _turning(
    splitter: Splitter,
    known: Sequence[tuple[float, Split]],
    deadline_s: float | None,
    least_frac: float,
) -> Found:
    """Each split from where on it is better than the one before.

    What gains no more than so much is left out.
    """
    found = list(known[:1])
    for (before, _), (bytes_per_s, split) in pairwise(known):
        kept = found[-1][1]
        if _lost(splitter, (kept,), split, bytes_per_s, deadline_s) > least_frac:
            found.append(
                (turn(splitter, (before, kept), (bytes_per_s, split), deadline_s=deadline_s), split)
            )
    return tuple(found)


def _lost(
    splitter: Splitter,
    splits: Sequence[Split],
    best: Split,
    bytes_per_s: float,
    deadline_s: float | None,
) -> float:
    """How much more than `best` these splits take at least, at this bandwidth, of what is to be
    saved.
    """
    tried = (splitter.tried(split.divisions, bytes_per_s, split.tiles) for split in splits)
    if deadline_s is None or best.latency_s > deadline_s:
        return min(
            (_excess(split.latency_s, best.latency_s) for split in tried if split), default=math.inf
        )
    soon = (split.energy_j for split in tried if split and split.latency_s <= deadline_s)
    return min((_excess(energy_j, best.energy_j) for energy_j in soon), default=math.inf)


def _excess(more: float, less: float) -> float:
    return more / less - 1 if less > 0 else 0.0
