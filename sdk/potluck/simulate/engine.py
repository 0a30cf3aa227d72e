"""The discrete-event engine: tasks on lanes, some of them flows over shared media, under virtual time.

It knows integers only, so that planners can call it without building programs. Deterministic: ties go to the task
added first.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from potluck.errors import PlanError
from potluck.simulate.fairness import Route, max_min_rates

COMPUTE = -1  # the route of a task that is not a transfer


@dataclass(slots=True)
class TaskGraph:
    """Tasks 0, 1, 2 ... in parallel lists.

    A lane does one task at a time; of those ready the smallest `priority` goes first and then keeps the lane. `work` is
    seconds, or bytes for a transfer: a flow over the media of its `route`, which is done one latency after its last
    byte has left. A transfer gives way to a more urgent one of its lane, as between two chunks, and goes on later.
    """

    capacity: list[float] = field(default_factory=list)  # per medium, bytes per second
    routes: list[Route] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)  # per route
    lane: list[int] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    route: list[int] = field(default_factory=list)
    n_waits: list[int] = field(default_factory=list)
    followers: list[list[int]] = field(default_factory=list)

    def add_route(self, route: Route, latency_s: float = 0.0) -> int:
        """A path that transfers can take; returns its number."""
        self.routes.append(route)
        self.latency_s.append(latency_s)
        return len(self.routes) - 1

    def add(self, lane: int, work: float, *, after: Iterable[int] = (), priority: int = 0, route: int = COMPUTE) -> int:
        """A task; returns its number."""
        task = len(self.lane)
        self.lane.append(lane)
        self.work.append(work)
        self.priority.append(priority)
        self.route.append(route)
        self.followers.append([])
        self.n_waits.append(0)
        for before in after:
            self.wait(task, before)
        return task

    def wait(self, task: int, before: int) -> None:
        """`task` starts only when `before` is done."""
        self.followers[before].append(task)
        self.n_waits[task] += 1


@dataclass(slots=True)
class Times:
    """Per task: when it started, when it gave its lane free, when it was done (for a transfer, a latency later)."""

    start_s: list[float]
    free_s: list[float]
    stop_s: list[float]


def run(graph: TaskGraph) -> Times:
    """Carry out all tasks; `PlanError` when some wait for each other for ever."""
    n_tasks = len(graph.lane)
    n_waits = graph.n_waits.copy()
    n_lanes = max(graph.lane, default=-1) + 1
    ready: list[list[tuple[int, int]]] = [[] for _ in range(n_lanes)]
    doing = [-1] * n_lanes  # the task that has the lane
    left_bytes = graph.work.copy()  # of a transfer that has given way
    times = Times([-1.0] * n_tasks, [0.0] * n_tasks, [0.0] * n_tasks)
    ends: list[tuple[float, int, int]] = []  # (time, task, 1 when its lane is already free)
    rest: dict[int, float] = {}  # flows under way -> bytes left at `flows_s`
    rates: dict[int, float] = {}
    flows_s = now_s = 0.0
    lane_of, work, priority, route, followers = graph.lane, graph.work, graph.priority, graph.route, graph.followers
    touched = set(range(n_lanes))
    n_done = 0
    for task in range(n_tasks):
        if not n_waits[task]:
            heappush(ready[lane_of[task]], (priority[task], task))
    while True:
        flows_changed = False
        for lane in sorted(touched):
            if not ready[lane]:
                continue
            current = doing[lane]
            if current >= 0:
                if current not in rest or ready[lane][0] > (priority[current], current):
                    continue
                _advance(rest, rates, now_s - flows_s)
                flows_s = now_s
                left_bytes[current] = rest.pop(current)
                heappush(ready[lane], (priority[current], current))
                flows_changed = True
            task = heappop(ready[lane])[1]
            doing[lane] = task
            if times.start_s[task] < 0:
                times.start_s[task] = now_s
            if route[task] == COMPUTE:
                heappush(ends, (now_s + work[task], task, 0))
            elif work[task] <= 0 or not graph.routes[route[task]]:
                heappush(ends, (now_s, task, 0))
            else:
                _advance(rest, rates, now_s - flows_s)
                flows_s = now_s
                rest[task] = left_bytes[task]
                flows_changed = True
        touched.clear()
        if flows_changed:
            rates = max_min_rates({task: graph.routes[route[task]] for task in rest}, graph.capacity)
        flow_end_s = min((flows_s + left / rates[task] for task, left in rest.items()), default=float("inf"))
        if not ends and not rest:
            break
        now_s = min(flow_end_s, ends[0][0]) if ends else flow_end_s
        if flow_end_s <= now_s:
            ended = [task for task, left in rest.items() if flows_s + left / rates[task] <= now_s + 1e-12 * now_s]
            _advance(rest, rates, now_s - flows_s)
            flows_s = now_s
            for task in ended:
                del rest[task]
                heappush(ends, (now_s, task, 0))
            rates = max_min_rates({task: graph.routes[route[task]] for task in rest}, graph.capacity)
        while ends and ends[0][0] <= now_s:
            _, task, freed = heappop(ends)
            if not freed:
                times.free_s[task] = now_s
                doing[lane_of[task]] = -1
                touched.add(lane_of[task])
                if route[task] != COMPUTE and graph.latency_s[route[task]] > 0:
                    heappush(ends, (now_s + graph.latency_s[route[task]], task, 1))
                    continue
            times.stop_s[task] = now_s
            n_done += 1
            for follower in followers[task]:
                n_waits[follower] -= 1
                if not n_waits[follower]:
                    heappush(ready[lane_of[follower]], (priority[follower], follower))
                    touched.add(lane_of[follower])
    if n_done < n_tasks:
        stuck = next(task for task in range(n_tasks) if times.start_s[task] < 0)
        raise PlanError(f"{n_tasks - n_done} of {n_tasks} tasks wait for each other for ever, task {stuck} among them.")
    return times


def _advance(rest: dict[int, float], rates: dict[int, float], elapsed_s: float) -> None:
    """Let every flow run on at its rate."""
    if elapsed_s > 0:
        for task in rest:
            rest[task] -= rates[task] * elapsed_s
