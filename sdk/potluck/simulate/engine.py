"""The discrete-event engine: tasks on resources, some of them flows over shared media or
processors, under virtual time.

It knows integers only, so that planners can call it without building programs. Deterministic: ties
go to the task added first. Flows over the same media always have the same rate, so they are kept
together: a class of flows has one clock that counts the bytes each of them has got, and a heap of
the readings at which they end. The rates of all classes depend only on how many flows each has, so
every such state is worked out once. A home with a cable for each of many devices has too many:
there it is done once for every island of classes that share media.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from potluck.errors import PlanError
from potluck.simulate.fairness import Route, max_min_rates, processor_rate
from potluck.simulate.islands import Islands

COMPUTE = -1  # the route of a task that is not a transfer
BITS = 20  # of a number of flows at once
FEW = 64  # classes of flows of which every state is kept whole; of more, the rates of each island


@dataclass(slots=True)
class TaskGraph:
    """Tasks 0, 1, 2 ... in parallel lists.

    A resource does one task at a time; of those ready the smallest `priority` goes first and then
    keeps the resource. `work` is seconds, or bytes for a transfer: a flow over the media of its
    `route`, which is done one latency after its last byte has left. One of more than `chunk_bytes`
    gives way to a more urgent one of its resource, and goes on later.

    Resources and routes may belong to a host, whose processor all that happens there shares: of n
    tasks at once each runs at min(1, cores / n) of its speed. What a route inside a host carries,
    and its latency, is work of that processor. So is what an ended task leaves to those who hand
    out the work there: nobody waits for it.
    """

    capacity: list[float] = field(default_factory=list)  # per medium, bytes per second
    cores: list[float] = field(default_factory=list)  # per host
    chunk_bytes: float = 0.0
    routes: list[Route] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)  # per route
    route_host: list[int] = field(default_factory=list)  # per route; -1: between hosts
    # of the computing resources that share a host
    resource_host: dict[int, int] = field(default_factory=dict)
    # of these, seconds of the processor that every ended task leaves to others
    handling_s: dict[int, float] = field(default_factory=dict)
    resource: list[int] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    route: list[int] = field(default_factory=list)
    n_waits: list[int] = field(default_factory=list)
    # tuples of numbers, which Python's collector of cycles passes by: searches keep many graphs
    followers: list[tuple[int, ...]] = field(default_factory=list)
    rates: dict[Hashable, dict[int, float]] = field(default_factory=dict)  # kept by `Flows`

    def on_same_paths(self) -> "TaskGraph":
        """A graph without tasks on these media and routes, for which what is known of their rates
        holds too.
        """
        return replace(self, resource=[], work=[], priority=[], route=[], n_waits=[], followers=[])

    def add_route(self, route: Route, latency_s: float = 0.0, host: int = -1) -> int:
        """A path that transfers can take; returns its number.

        Parameters
        ----------
        route
            Per medium, how often it is crossed.
        latency_s
            Seconds from the last byte sent to the transfer's end.
        host
            Whose processor carries it; -1: the route is between hosts.
        """
        self.routes.append(route)
        self.latency_s.append(latency_s)
        self.route_host.append(host)
        return len(self.routes) - 1

    def add(
        self,
        resource: int,
        work: float,
        *,
        after: Iterable[int] = (),
        priority: int = 0,
        route: int = COMPUTE,
    ) -> int:
        """A task; returns its number.

        Parameters
        ----------
        resource
            Does one task at a time.
        work
            Seconds; of a transfer bytes.
        after
            Numbers of tasks that must be done before.
        priority
            Smaller goes first, of those ready.
        route
            Number of the route of a transfer.
        """
        task = len(self.resource)
        self.resource.append(resource)
        self.work.append(work)
        self.priority.append(priority)
        self.route.append(route)
        self.followers.append(())
        self.n_waits.append(0)
        for before in after:
            self.wait(task, before)
        return task

    def wait(self, task: int, before: int) -> None:
        """`task` starts only when `before` is done."""
        self.followers[before] += (task,)
        self.n_waits[task] += 1


@dataclass(slots=True)
class TaskTimes:
    """Per task: when it started, when it gave its resource free, when it was done (for a transfer,
    a latency later).
    """

    start_s: list[float]
    free_s: list[float]
    stop_s: list[float]


class SimulationState:
    """What has become of the tasks so far, and what ends when. The resources are `run`'s."""

    def __init__(self, graph: TaskGraph) -> None:
        n_tasks = len(graph.resource)
        self.start_s, self.free_s = [-1.0] * n_tasks, [0.0] * n_tasks
        self.stop_s = [0.0] * n_tasks
        # a heap of (time, task, or -1 - task when its resource is already free)
        self.ends: list[tuple[float, int]] = []
        self.n_waits = graph.n_waits.copy()  # per task, how many it still waits for

    def first(self) -> list[int]:
        """The tasks that wait for nothing."""
        return [task for task, count in enumerate(self.n_waits) if not count]

    def times(self) -> TaskTimes:
        """When everything took place.

        Raises
        ------
        PlanError
            Some tasks wait for each other for ever.
        """
        left = [task for task, since in enumerate(self.start_s) if since < 0]
        if left:
            n = len(self.start_s)
            raise PlanError(
                f"{len(left)} of {n} tasks wait for each other for ever, task {left[0]} among them."
            )
        return TaskTimes(self.start_s, self.free_s, self.stop_s)


class TransferQueue(Protocol):
    """Lets transfers have their media for themselves, one after the other."""

    changed: bool  # some transfer may start that could not before

    def add(self, task: int) -> None:
        """A transfer is ready."""

    def start(self, state: SimulationState, doing: list[int], now_s: float) -> None:
        """Start those that may: set when, and when their last byte will have left.

        Parameters
        ----------
        state
            Gets both times.
        doing
            Per resource, the task that has it, or -1.
        now_s
            Virtual time.
        """

    def release(self, route: int) -> None:
        """The last byte of a transfer on this route has left."""


def run(graph: TaskGraph, queue: TransferQueue | None = None) -> TaskTimes:
    """Carry out all tasks. Transfers share their media fairly, or take turns as `queue` says.

    It is the one loop of virtual time, and one function for speed: with a call for what starts at
    each moment it took a tenth longer.

    Parameters
    ----------
    graph
        The tasks.
    queue
        Of the transfers, where these have their media for themselves; then processors of hosts
        must not be shared either.

    Raises
    ------
    PlanError
        Some tasks wait for each other for ever.
    """
    n_tasks, resource_of = len(graph.resource), graph.resource
    work, route_of = graph.work, graph.route
    # rank % n_tasks is the task
    rank = [level * n_tasks + task for task, level in enumerate(graph.priority)]
    n_resources = max(resource_of, default=-1) + 1
    ready: list[list[int]] = [[] for _ in range(n_resources)]  # ranks
    doing = [-1] * n_resources  # the task that has the resource
    state, flows = SimulationState(graph), Flows(graph)
    class_of, class_of_resource = flows.class_of, flows.class_of_resource
    handling_s = graph.handling_s
    ends, start_s = state.ends, state.start_s
    free_s, stop_s = state.free_s, state.stop_s
    n_waits, followers = state.n_waits, graph.followers
    came, touched = state.first(), list[int]()
    flow_end_s, now_s = inf, 0.0
    while True:
        for task in came:
            resource = resource_of[task]
            if queue is None or route_of[task] == COMPUTE:
                heappush(ready[resource], rank[task])
                touched.append(resource)
            else:
                queue.add(task)
        came = []
        for resource in touched:  # start the most urgent of each
            waiting = ready[resource]
            if not waiting:
                continue
            current = doing[resource]
            if current >= 0:
                if waiting[0] > rank[current] or current not in flows.marks:
                    continue
                if route_of[current] == COMPUTE or work[current] <= graph.chunk_bytes:
                    continue  # it gives way to nobody
                flows.pause(current, now_s)
                heappush(waiting, rank[current])
            task = heappop(waiting) % n_tasks
            doing[resource] = task
            if start_s[task] < 0:
                start_s[task] = now_s
            route = route_of[task]
            number = class_of_resource.get(resource, -1) if route == COMPUTE else class_of[route]
            if number >= 0 and work[task] > 0:
                flows.start(task, number, now_s)
            else:  # what is over no medium takes no time
                heappush(ends, (now_s + work[task] if route == COMPUTE else now_s, task))
        touched = []
        if queue is not None and queue.changed:
            queue.start(state, doing, now_s)
        if flows.changed:
            flow_end_s = flows.next_end_s(now_s)
        if flow_end_s == inf and not ends:
            return state.times()
        now_s = ends[0][0] if ends and ends[0][0] < flow_end_s else flow_end_s
        if flow_end_s <= now_s:
            for task in flows.take_ended(now_s):
                if task < n_tasks:
                    heappush(ends, (now_s, task))
                elif route_of[task - n_tasks] != COMPUTE:
                    heappush(ends, (now_s, n_tasks - 1 - task))
        while ends and ends[0][0] <= now_s:
            task = heappop(ends)[1]
            if task >= 0:
                free_s[task] = now_s
                resource, route = resource_of[task], route_of[task]
                doing[resource] = -1
                touched.append(resource)
                if route != COMPUTE:
                    if queue is not None:
                        queue.release(route)
                    if graph.latency_s[route] > 0:
                        if graph.route_host[route] < 0:
                            heappush(ends, (now_s + graph.latency_s[route], -1 - task))
                        else:
                            flows.start(n_tasks + task, class_of[route], now_s)
                        continue
                elif resource in handling_s:
                    flows.start(n_tasks + task, class_of_resource[resource], now_s)
            else:
                task = -1 - task
            stop_s[task] = now_s
            for follower in followers[task]:
                n_waits[follower] -= 1
                if not n_waits[follower]:
                    came.append(follower)


class Flows:
    """The flows under way, by class of equal media or of one host.

    All is brought up to date when the set changes.

    Flow n_tasks + t is the latency of transfer t, where that is work of a processor, or what task t
    left to others.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self.capacity, self.cores = graph.capacity, graph.cores
        self.media = list(dict.fromkeys(route for route in graph.routes if route))
        n_hosts, hosts = len(self.cores), graph.route_host
        # of hosts first: their number is fixed
        numbers = {route: n_hosts + i for i, route in enumerate(self.media)}
        # per route; -1: over no medium
        self.class_of = [
            host if host >= 0 else numbers.get(route, -1)
            for route, host in zip(graph.routes, hosts, strict=True)
        ]
        self.class_of_resource = graph.resource_host
        # flow -> the reading of its class's clock at which it ends
        self.marks: dict[int, float] = {}
        self.changed = False
        self._left = graph.work.copy()  # bytes of a flow that was paused; seconds of a processor
        if graph.handling_s or any(host >= 0 for host in hosts):
            self._count_seconds(graph)
        self._class: dict[int, int] = {}  # flow -> class
        self._clock = [0.0] * (n_hosts + len(self.media))  # what every flow of the class has got
        self._heaps: list[list[tuple[float, int]]] = [[] for _ in self._clock]
        self._count: dict[int, int] = {}  # class -> flows, of the classes that have some
        self._key = 0  # the same as one number, BITS bits per class, where there are few
        self._rates: dict[int, float] = {}
        self._since_s = 0.0
        self._known = graph.rates  # how many flows each class has -> the rate of each class
        self._islands = self._apart() if len(self._clock) > FEW else None

    def _count_seconds(self, graph: TaskGraph) -> None:
        """Transfers inside a host as work of its processor: seconds at the rate of the path, then
        those of latency; and what computing tasks leave.
        """
        per_byte = [
            max((times / graph.capacity[m] for m, times in route), default=0.0)
            for route in graph.routes
        ]
        tails = [0.0] * len(graph.work)
        for task, route in enumerate(graph.route):
            if route == COMPUTE:
                tails[task] = graph.handling_s.get(graph.resource[task], 0.0)
            elif graph.route_host[route] >= 0:
                self._left[task] *= per_byte[route]
                tails[task] = graph.latency_s[route]
        self._left += tails

    def _apart(self) -> Islands:
        """A host's tasks share nothing with other classes."""
        crossed = [tuple(medium for medium, _ in route) for route in self.media]
        return Islands([()] * len(self.cores) + crossed, self._shared, self._known)

    def start(self, flow: int, number: int, now_s: float) -> None:
        """A flow begins, or goes on with what it has left.

        Parameters
        ----------
        flow
            Number of the task; n_tasks + t for the latency of transfer t, or what task t leaves.
        number
            Of its class.
        now_s
            Virtual time.
        """
        self._advance(now_s)
        count = self._count.get(number, 0)
        if not count:
            self._clock[number] = 0.0
            self._heaps[number].clear()
        self._count[number] = count + 1
        if self._islands is None:
            self._key += 1 << BITS * number
        else:
            self._islands.touch(number, count + 1)
        self._class[flow] = number
        mark = self.marks[flow] = self._clock[number] + self._left[flow]
        heappush(self._heaps[number], (mark, flow))

    def pause(self, flow: int, now_s: float) -> None:
        """A flow gives way; its mark in the heap is dead from now on."""
        self._advance(now_s)
        self._left[flow] = self.marks[flow] - self._clock[self._class[flow]]
        self._drop(flow)

    def next_end_s(self, now_s: float) -> float:
        """When the next flow ends, at the rates of the flows there are now."""
        self._since_s, self.changed = now_s, False
        rates = self._islands.rates(self._count) if self._islands else self._known.get(self._key)
        if rates is None:
            rates = self._known[self._key] = self._shared(self._count)
        self._rates = rates
        marks, clock = self.marks, self._clock
        soonest_s = inf
        for number, rate in rates.items():
            heap = self._heaps[number]
            mark, flow = heap[0]
            while marks.get(flow) != mark:
                heappop(heap)
                mark, flow = heap[0]
            left_s = (mark - clock[number]) / rate
            if left_s < soonest_s:
                soonest_s = left_s
        return now_s + soonest_s if soonest_s > 0 else now_s

    def _shared(self, counts: Mapping[int, int]) -> dict[int, float]:
        """The rate of each class when it has so many flows."""
        n_hosts = len(self.cores)
        routes = {
            number: tuple((medium, times * n) for medium, times in self.media[number - n_hosts])
            for number, n in counts.items()
            if number >= n_hosts
        }
        on_hosts = {
            number: processor_rate(self.cores[number], n)
            for number, n in counts.items()
            if number < n_hosts
        }
        return max_min_rates(routes, self.capacity) | on_hosts

    def take_ended(self, now_s: float) -> list[int]:
        """The flows that end now; they are gone."""
        ended: list[int] = []
        self._advance(now_s)
        for number, rate in [*self._rates.items()]:
            heap = self._heaps[number]
            reached = self._clock[number] + rate * 1e-12 * now_s
            while heap and (heap[0][0] <= reached or self.marks.get(heap[0][1]) != heap[0][0]):
                mark, flow = heappop(heap)
                if self.marks.get(flow) == mark:
                    ended.append(flow)
                    self._drop(flow)
        return ended

    def _drop(self, flow: int) -> None:
        self.changed = True
        del self.marks[flow]
        number = self._class.pop(flow)
        self._count[number] -= 1
        if self._islands is None:
            self._key -= 1 << BITS * number
        else:
            self._islands.touch(number, self._count[number])
        if not self._count[number]:
            del self._count[number]

    def _advance(self, now_s: float) -> None:
        self.changed = True
        elapsed_s = now_s - self._since_s
        if elapsed_s > 0:
            for number, rate in self._rates.items():
                self._clock[number] += rate * elapsed_s
            self._since_s = now_s
