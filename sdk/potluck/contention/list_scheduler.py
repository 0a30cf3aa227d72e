"""Transfers as a schedule sends them: one at a time on every medium of their path, the most urgent
first.

Dora, section 4.2: access points cannot be told to share, so spatial sharing becomes temporal. A
transfer once begun is not interrupted; cut into chunks, more urgent ones get in between. Urgency is
the length of what waits behind a task, or the graph's own priorities.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from potluck.simulate import engine
from potluck.simulate.engine import COMPUTE, SimulationState, TaskGraph, TaskTimes


def run(graph: TaskGraph, urgency: Sequence[float] | None = None) -> TaskTimes:
    """Carry out all tasks; of the transfers whose media are free, those of the greatest `urgency`
    go first.

    Without `urgency`, those of the smallest priority. Computing resources go by priority; media are
    never shared, so that a transfer runs at the full rate of its path. Nor are the processors of
    hosts.
    """
    alone = replace(graph, resource_host={}, handling_s={}, route_host=[-1] * len(graph.routes))
    return engine.run(alone, _MostUrgentFirst(graph, urgency))


class _MostUrgentFirst:
    """The transfers that wait for their media."""

    def __init__(self, graph: TaskGraph, urgency: Sequence[float] | None = None) -> None:
        self.changed = False
        self._place = graph.priority if urgency is None else _places(urgency)
        self._waiting: list[tuple[int, int]] = []  # a heap of (place, task)
        self._resource, self._route = graph.resource, graph.route
        self._work = graph.work
        self._media = [[medium for medium, _ in route] for route in graph.routes]
        self._per_byte = [_per_byte(graph, route) for route in range(len(graph.routes))]
        self._is_open = [True] * len(graph.capacity)
        # of routes over no medium, as if there were one that is always open
        self._n_open = len(graph.capacity) or 1

    def add(self, task: int) -> None:
        """It waits from now on."""
        heappush(self._waiting, (self._place[task], task))
        if self._n_open:
            self.changed = True

    def start(self, state: SimulationState, doing: list[int], now_s: float) -> None:
        """Of the transfers whose resource and media are free, the most urgent ones."""
        waiting, is_open = self._waiting, self._is_open
        passed = []
        routes, resources = self._route, self._resource
        media, n_open = self._media, self._n_open
        self.changed = False
        while waiting and n_open:
            place, task = heappop(waiting)
            route, resource = routes[task], resources[task]
            if doing[resource] >= 0:
                passed.append((place, task))
                self.changed = True  # it may be free at any time
                continue
            for medium in media[route]:
                if not is_open[medium]:
                    passed.append((place, task))
                    break
            else:
                doing[resource], state.start_s[task] = task, now_s
                for medium in media[route]:
                    is_open[medium] = False
                    n_open -= 1
                heappush(state.ends, (now_s + self._work[task] * self._per_byte[route], task))
        self._n_open = n_open
        for entry in passed:
            heappush(waiting, entry)

    def release(self, route: int) -> None:
        """Its media are free."""
        if self._waiting:
            self.changed = True
        for medium in self._media[route]:
            self._is_open[medium] = True
            self._n_open += 1


def _per_byte(graph: TaskGraph, route: int) -> float:
    """Seconds per byte of a transfer that has its media for itself."""
    return max((times / graph.capacity[m] for m, times in graph.routes[route]), default=0.0)


def _places(urgency: Sequence[float]) -> list[int]:
    """Per task its place, the most urgent first."""
    places = [0] * len(urgency)
    order = sorted(range(len(urgency)), key=lambda task: (-urgency[task], task))
    for place, task in enumerate(order):
        places[task] = place
    return places


def tails(graph: TaskGraph) -> list[float]:
    """Per task, seconds from its start to the end of all that waits for it, if nothing else were in
    the way.
    """
    found = [0.0] * len(graph.resource)
    for task in reversed(topological(graph)):
        behind = max((found[follower] for follower in graph.followers[task]), default=0.0)
        found[task] = behind + alone_s(graph, task)
    return found


def topological(graph: TaskGraph) -> list[int]:
    """The tasks, each after all that it waits for."""
    waits = graph.n_waits.copy()
    order = [task for task, count in enumerate(waits) if not count]
    for task in order:  # grows while it is walked
        for follower in graph.followers[task]:
            waits[follower] -= 1
            if not waits[follower]:
                order.append(follower)
    return order


def alone_s(graph: TaskGraph, task: int) -> float:
    """Seconds that the task takes with its resource and media for itself."""
    route = graph.route[task]
    if route == COMPUTE:
        return graph.work[task]
    return graph.work[task] * _per_byte(graph, route) + graph.latency_s[route]


def chunked(graph: TaskGraph, chunk_bytes: float) -> tuple[TaskGraph, list[tuple[int, int]]]:
    """The graph with every transfer cut into chunks of at most `chunk_bytes`, sent in order; who
    waits for the transfer waits for the last. Also (first, last) of the new tasks for every old
    one.
    """
    cut = graph.on_same_paths()
    parts: list[tuple[int, int]] = []
    for task, nbytes in enumerate(graph.work):
        route = graph.route[task]
        n = 1 if route == COMPUTE else max(1, int(-(-nbytes // chunk_bytes)))
        first = len(cut.resource)
        for i in range(n):
            cut.add(
                graph.resource[task],
                nbytes / n,
                after=[first + i - 1] if i else (),
                priority=graph.priority[task],
                route=route,
            )
        parts.append((first, first + n - 1))
    for task, followers in enumerate(graph.followers):
        for follower in followers:
            cut.wait(parts[follower][0], parts[task][1])
    return cut, parts


def insert(graph: TaskGraph, urgency: Sequence[float]) -> TaskTimes:
    """Place one task after the other, the most urgent first, each as early as its resource and
    media have room for it.

    `urgency` must fall along every wait, as `tails` does. Unlike `run` this may keep a medium free
    for a transfer that is not ready yet, which is what the best schedules do.
    """
    n_tasks = len(graph.resource)
    start_s = [0.0] * n_tasks
    free_s = [0.0] * n_tasks
    stop_s = [0.0] * n_tasks
    ready_s = [0.0] * n_tasks
    n_media = len(graph.capacity)
    taken: dict[
        int, list[tuple[float, float]]
    ] = {}  # medium, or n_media + resource -> spans in order
    for task in _by_urgency(graph, urgency):
        route = graph.route[task]
        latency_s = 0.0 if route == COMPUTE else graph.latency_s[route]
        length_s = alone_s(graph, task) - latency_s
        media = [] if route == COMPUTE else [medium for medium, _ in graph.routes[route]]
        rows = [taken.setdefault(key, []) for key in (n_media + graph.resource[task], *media)]
        at_s = _room(rows, ready_s[task], length_s) if length_s > 0 else ready_s[task]
        start_s[task] = at_s
        free_s[task] = at_s + length_s
        stop_s[task] = at_s + length_s + latency_s
        if length_s > 0:
            for row in rows:
                insort(row, (at_s, at_s + length_s))
        for follower in graph.followers[task]:
            ready_s[follower] = max(ready_s[follower], stop_s[task])
    return TaskTimes(start_s, free_s, stop_s)


def _by_urgency(graph: TaskGraph, urgency: Sequence[float]) -> list[int]:
    """The tasks with the most urgent first; of equally urgent ones those that others wait for."""
    waits, order = graph.n_waits.copy(), list[int]()
    heap = [(-urgency[task], task) for task in range(len(waits)) if not waits[task]]
    heapify(heap)
    while heap:
        task = heappop(heap)[1]
        order.append(task)
        for follower in graph.followers[task]:
            waits[follower] -= 1
            if not waits[follower]:
                heappush(heap, (-urgency[follower], follower))
    return order


def _room(rows: Sequence[Sequence[tuple[float, float]]], since_s: float, length_s: float) -> float:
    """The earliest time from `since_s` on at which none of the rows has anything for so long."""
    at_s, settled = since_s, 0
    while settled < len(rows):
        settled = 0
        for row in rows:
            moved_s, place = at_s, max(bisect_left(row, (at_s,)) - 1, 0)
            while place < len(row) and row[place][0] < moved_s + length_s - 1e-12:
                moved_s = max(moved_s, row[place][1])
                place += 1
            settled += moved_s == at_s
            at_s = moved_s
    return at_s
