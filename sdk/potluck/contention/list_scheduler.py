"""Transfers as a schedule sends them: one at a time on every medium of their path, the most urgent
first.

Dora, section 4.2: access points cannot be told to share, so spatial sharing becomes temporal. A
transfer once begun is not interrupted; cut into chunks, more urgent ones get in between. Urgency is
the length of what waits behind a task, or the graph's own priorities.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from potluck.simulate.engine import COMPUTE, SimulationState, TaskGraph, Times


def run(graph: TaskGraph, urgency: Sequence[float] | None = None) -> Times:
    """Carry out all tasks; of the transfers whose media are free, those of the greatest `urgency`
    go first.

    Without `urgency`, those of the smallest priority. Computing lanes go by priority as in
    `engine.run`; media are never shared, so that a transfer runs at the full rate of its path. Nor
    are the processors of hosts.
    """
    n_tasks = len(graph.lane)
    lane_of = graph.lane
    route_of = graph.route
    latency_s = graph.latency_s
    rank = [level * n_tasks + task for task, level in enumerate(graph.priority)]
    urgent = rank if urgency is None else _ranked(urgency)
    media = [[medium for medium, _ in route] for route in graph.routes]
    per_byte = [
        max((times / graph.capacity[m] for m, times in route), default=0.0)
        for route in graph.routes
    ]
    n_lanes = max(lane_of, default=-1) + 1
    ready: list[list[int]] = [[] for _ in range(n_lanes)]
    free, open_media = [True] * n_lanes, [True] * len(graph.capacity)
    waiting: list[int] = []  # transfers, the most urgent first
    course, now_s = SimulationState(graph), 0.0
    ends = course.ends
    start_s = course.start_s
    stop = course.stop
    came = course.first()
    touched = list[int]()
    while True:
        for task in came:
            if route_of[task] == COMPUTE:
                heappush(ready[lane_of[task]], rank[task])
                touched.append(lane_of[task])
            else:
                heappush(waiting, urgent[task])
        for lane in touched:
            if free[lane] and ready[lane]:
                task = heappop(ready[lane]) % n_tasks
                free[lane], start_s[task] = False, now_s
                heappush(ends, (now_s + graph.work[task], task))
        came, touched = [], []
        passed: list[int] = []
        n_open = sum(open_media)
        while waiting and (n_open or not graph.capacity):
            key = heappop(waiting)
            task = key % n_tasks
            route, lane = route_of[task], lane_of[task]
            if free[lane] and all(open_media[medium] for medium in media[route]):
                free[lane], start_s[task] = False, now_s
                for medium in media[route]:
                    open_media[medium] = False
                    n_open -= 1
                heappush(ends, (now_s + graph.work[task] * per_byte[route], task))
            else:
                passed.append(key)
        for key in passed:
            heappush(waiting, key)
        if not ends:
            return course.times()
        now_s = ends[0][0]
        while ends and ends[0][0] <= now_s:
            task = heappop(ends)[1]
            if task >= 0:
                course.free_s[task] = now_s
                lane, route = lane_of[task], route_of[task]
                free[lane] = True
                touched.append(lane)
                if route != COMPUTE:
                    for medium in media[route]:
                        open_media[medium] = True
                    if latency_s[route] > 0:
                        heappush(ends, (now_s + latency_s[route], -1 - task))
                        continue
            else:
                task = -1 - task
            stop(task, now_s, came)


def _ranked(urgency: Sequence[float]) -> list[int]:
    """Per task, its place by urgency times the number of tasks, plus itself."""
    ranks = [0] * len(urgency)
    for place, task in enumerate(
        sorted(range(len(urgency)), key=lambda task: (-urgency[task], task))
    ):
        ranks[task] = place * len(urgency) + task
    return ranks


def tails(graph: TaskGraph) -> list[float]:
    """Per task, seconds from its start to the end of all that waits for it, if nothing else were in
    the way.
    """
    found = [0.0] * len(graph.lane)
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
    """Seconds that the task takes with its lane and media for itself."""
    route = graph.route[task]
    if route == COMPUTE:
        return graph.work[task]
    slowest = max(
        (times / graph.capacity[medium] for medium, times in graph.routes[route]), default=0.0
    )
    return graph.work[task] * slowest + graph.latency_s[route]


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
        first = len(cut.lane)
        for i in range(n):
            cut.add(
                graph.lane[task],
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


def insert(graph: TaskGraph, urgency: Sequence[float]) -> Times:
    """Place one task after the other, the most urgent first, each as early as its lane and media
    have room for it.

    `urgency` must fall along every wait, as `tails` does. Unlike `run` this may keep a medium free
    for a transfer that is not ready yet, which is what the best schedules do.
    """
    n_tasks = len(graph.lane)
    start_s = [0.0] * n_tasks
    free_s = [0.0] * n_tasks
    stop_s = [0.0] * n_tasks
    ready_s = [0.0] * n_tasks
    n_media = len(graph.capacity)
    taken: dict[int, list[tuple[float, float]]] = {}  # medium, or n_media + lane -> spans in order
    for task in _by_urgency(graph, urgency):
        route = graph.route[task]
        latency_s = 0.0 if route == COMPUTE else graph.latency_s[route]
        length_s = alone_s(graph, task) - latency_s
        media = [] if route == COMPUTE else [medium for medium, _ in graph.routes[route]]
        rows = [taken.setdefault(key, []) for key in (n_media + graph.lane[task], *media)]
        at_s = _room(rows, ready_s[task], length_s) if length_s > 0 else ready_s[task]
        start_s[task] = at_s
        free_s[task] = at_s + length_s
        stop_s[task] = at_s + length_s + latency_s
        if length_s > 0:
            for row in rows:
                insort(row, (at_s, at_s + length_s))
        for follower in graph.followers[task]:
            ready_s[follower] = max(ready_s[follower], stop_s[task])
    return Times(start_s, free_s, stop_s)


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
