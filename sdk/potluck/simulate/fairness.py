"""How flows share media: max-min fairness by progressive filling (Bertsekas and Gallager, Data
Networks, 6.5.2).

And how tasks share a processor: the same, each bounded by one core.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

Route = tuple[tuple[int, int], ...]  # (medium, how often it is crossed)


def max_min_rates(flows: Mapping[int, Route], capacity: Sequence[float]) -> dict[int, float]:
    """Bytes per second of each flow: all rates rise together.

    A flow stops when one of its media is full.

    Per medium, the sum of rate times crossings is at most its capacity. A flow over no medium is
    infinitely fast.

    >>> max_min_rates({0: ((0, 1),), 1: ((0, 1), (1, 1)), 2: ((1, 1),)}, [10.0, 4.0])
    {1: 2.0, 2: 2.0, 0: 8.0}
    """
    rates = {flow: float("inf") for flow, route in flows.items() if not route}
    left = {flow: route for flow, route in flows.items() if route}
    room = {medium: capacity[medium] for route in left.values() for medium, _ in route}
    crossings, users = dict.fromkeys(room, 0), {medium: list[int]() for medium in room}
    for flow, route in left.items():
        for medium, times in route:
            crossings[medium] += times
            users[medium].append(flow)
    # the level at which each medium is full; those that were true once are passed over
    levels = [(room[medium] / n, medium) for medium, n in crossings.items()]
    heapify(levels)
    while left:
        level, full = heappop(levels)
        if not crossings[full] or level != room[full] / crossings[full]:
            continue
        touched = set[int]()
        for flow in users[full]:
            if flow not in left:
                continue
            rates[flow] = level
            for medium, times in left.pop(flow):
                room[medium] = max(0.0, room[medium] - level * times)
                crossings[medium] -= times
                touched.add(medium)
        for medium in touched:
            if crossings[medium]:
                heappush(levels, (room[medium] / crossings[medium], medium))
    return rates


def processor_rate(cores: float, n_tasks: int) -> float:
    """The part of its own speed at which each of `n_tasks` runs on so many cores.

    >>> processor_rate(2.0, 1), processor_rate(2.0, 4)
    (1.0, 0.5)
    """
    return min(1.0, cores / n_tasks)
