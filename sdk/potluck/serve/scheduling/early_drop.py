"""Who is given up when not all that wait can be met any more. Pure.

A batch is done for all of it at once, so it must be small where its most urgent request has little
time left. While all can be met so, that is right. In overload it is a trap: smaller batches serve
less in a second, what waits behind them has even less time left, and soon every batch is of one
request. There whoever is too urgent for a large batch is given up, as by the early drop of Nexus
(SOSP 2019), unless more would be lost by that.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import islice
from math import inf

from potluck.serve.scheduling.records import Request

ROUNDED_S = 1e-9  # a moment that two sums of seconds may differ by


def fitting(waiting: Sequence[Request], now_s: float, batch_s: Sequence[float]) -> int:
    """How many, from the first on, can go together with all of them in time; 1 at least.

    Parameters
    ----------
    waiting
        In the order of urgency.
    now_s
        When the batch starts.
    batch_s
        Seconds of a batch of n; index 0 is unused.
    """
    work, earliest_s = 0.0, inf
    for n_taken, request in enumerate(waiting, 1):
        work, earliest_s = max(work, request.work), min(earliest_s, request.deadline_s)
        if n_taken > 1 and now_s + batch_s[n_taken] * work > earliest_s + ROUNDED_S:
            return n_taken - 1
    return len(waiting)


def given_up(
    waiting: Sequence[Request],
    now_s: float,
    free_s: Sequence[float],
    batch_s: Sequence[float],
    most: int,
) -> list[Request]:
    """Those without whom more of the others are met: none of them where a smaller batch loses less.

    Parameters
    ----------
    waiting
        In the order of urgency; all of them have the same priority.
    now_s
        When the batch starts.
    free_s
        When each of the other replicas is idle.
    batch_s
        Seconds of a batch of n; index 0 is unused.
    most
        Of a batch.
    """
    size = _fastest(waiting, now_s, batch_s, most)
    n_small = fitting(waiting[:size], now_s, batch_s)
    if n_small >= size:
        return []
    small_end_s = now_s + batch_s[n_small] * max(each.work for each in waiting[:n_small])
    n_lost_small = _n_lost(waiting[n_small:], [*free_s, small_end_s], batch_s, size)
    if not n_lost_small or n_lost_small < _n_lost(waiting, [*free_s, now_s], batch_s, size):
        return []
    return late(waiting, now_s, batch_s[size], size)


def late(
    waiting: Iterable[Request], start_s: float, seconds: float, n_wanted: int
) -> list[Request]:
    """Those in front of so many others that would be late.

    Parameters
    ----------
    waiting
        In the order of urgency.
    start_s
        When their batch starts.
    seconds
        That it takes, for requests of the work of 1.
    n_wanted
        Who are in time: what comes after them is not looked at.
    """
    found: list[Request] = []
    n_met = 0
    for request in waiting:
        if n_met == n_wanted:
            break
        if _is_met(request, start_s, seconds):
            n_met += 1
        else:
            found.append(request)
    return found


def _is_met(request: Request, start_s: float, seconds: float) -> bool:
    return start_s + seconds * request.work <= request.deadline_s + ROUNDED_S


def _fastest(waiting: Sequence[Request], now_s: float, batch_s: Sequence[float], most: int) -> int:
    """The size of batch by which the most are served in a second."""
    sizes = [most >> halved for halved in range(most.bit_length())]
    met = {size: sum(_is_met(each, now_s, batch_s[size]) for each in waiting) for size in sizes}
    return max(sizes, key=lambda size: min(size, met[size]) / batch_s[size])


def _n_lost(
    waiting: Sequence[Request], free_s: list[float], batch_s: Sequence[float], size: int
) -> int:
    """How many would be late if the replicas computed batches of this size from then on."""
    heapify(free_s)
    n_lost, n_seen = 0, 0
    while n_seen < len(waiting):
        n = min(size, len(waiting) - n_seen)
        n_late = len(late(islice(waiting, n_seen, None), free_s[0], batch_s[n], n))
        n_lost, n_seen = n_lost + n_late, n_seen + n_late + n
        heapreplace(free_s, free_s[0] + batch_s[n])
    return n_lost
