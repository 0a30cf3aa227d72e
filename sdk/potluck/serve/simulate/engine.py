"""The event-driven simulator: arrivals, batches, hand-overs and state exchange under virtual time.

Every decision is made by the same `ServerNode` that the runtime drives. Only computing, sending and
the exchange's messages are played: a batch takes what was profiled, a message a latency and its
bytes over the bandwidth (EPARA, section 5.2). The frames of a stream are not played one by one: a
stream gets the rate that it was granted, and its frames count by that rate (section 3.3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf
from random import Random

from potluck.serve.scheduling.allocate import allocate_all
from potluck.serve.scheduling.events import (
    Action,
    BatchDone,
    ComputeBatch,
    HandOn,
    Open,
    Placed,
    RefuseRequest,
    RequestArrived,
    StreamEnded,
    Tick,
    WakeAt,
)
from potluck.serve.scheduling.known_servers import NoView, View
from potluck.serve.scheduling.node import ServerNode
from potluck.serve.scheduling.placement import Demand, Placement
from potluck.serve.scheduling.records import (
    Allocation,
    Request,
    Server,
    ServiceSpec,
    by_name,
    check_number,
)
from potluck.serve.scheduling.replica_pools import pools_by_server
from potluck.serve.simulate.arrivals import Arrival
from potluck.serve.simulate.outcome import ServingOutcome, Tally
from potluck.serve.simulate.scheme import Place, Scheme, ServerKnowledge
from potluck.serve.simulate.state_snapshots import (
    ExactView,
    ExchangeGroup,
    NamesOnly,
    RingSnapshots,
)

MOST_PLAYED = 5000  # requests of the period, to tell placements apart
HOP, DONE, TICK, END, EXCHANGE = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is simulated. `demand`: what placement is told of requests per second."""

    servers: Sequence[Server]
    services: Sequence[ServiceSpec]
    arrivals: Sequence[Arrival]
    demand: Demand
    duration_s: float
    interval_s: float = 0.1
    latency_s: float = 0.5e-3
    bytes_per_s: float = 1.25e9  # the testbed's switch: 10 Gbit/s (Table 4)
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("Scenario: duration_s", self.duration_s)
        check_number("Scenario: interval_s", self.interval_s)
        check_number("Scenario: latency_s", self.latency_s, zero=True)
        check_number("Scenario: bytes_per_s", self.bytes_per_s)


@dataclass(slots=True)
class _Stream:
    """A stream while it lasts: who computes frames of it, and how many so far."""

    request: Request
    stop_s: float = 0.0
    granted_fps: float = 0.0
    servers: list[int] = field(default_factory=list)


class ServingSimulation:
    """One scenario by one scheme.

    Parameters
    ----------
    scenario
        What is simulated.
    scheme
        How it is served.
    clock
        If given, every decision about a request is timed with it, into `handling_s`.
    placement
        If given, this one is used instead of the scheme's.
    """

    by_turns = False  # of services, on what computes

    def __init__(
        self,
        scenario: Scenario,
        scheme: Scheme,
        clock: Callable[[], float] | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.scenario = scenario
        self.scheme = scheme
        self.clock = clock
        self.handling_s: list[float] = []
        self.services = by_name(scenario.services)
        named = self.services.items()
        self.to_s = {name: self._send_s(each.input_bytes) for name, each in named}
        self.back_s = {name: self._send_s(each.output_bytes) for name, each in named}
        self.size = scheme.group or len(scenario.servers)
        self.allocations = self._allocated()
        self.placement = placement or self._placed()
        self.nodes = [self._node(server.name) for server in scenario.servers]
        self.index = {node.name: index for index, node in enumerate(self.nodes)}
        self.groups = self._groups()
        self.outcome = ServingOutcome(duration_s=scenario.duration_s)
        self._heap: list[tuple[float, int, int, int, object]] = []
        self._n = self._n_entered = 0
        self._streams: dict[int, _Stream] = {}
        self._wake_s: dict[int, float] = {}
        self._deadline_s: dict[int, float] = {}

    def _allocated(self) -> dict[tuple[str, str], Allocation]:
        """Parts that suit the demand of one group."""
        scenario, n_groups = self.scenario, -(-len(self.scenario.servers) // self.size)
        of_group = {key: per_s / n_groups for key, per_s in scenario.demand.items()}
        return allocate_all(scenario.services, scenario.servers, self.scheme.operators, of_group)

    def _placed(self) -> Placement:
        """By the scheme; of several placements the one that serves the first requests best."""
        scenario, scheme = self.scenario, self.scheme
        found = [self._by_group(each) for each in (scheme.place, *scheme.alternatives)]
        if len(found) == 1 or found.count(found[0]) == len(found):
            return found[0]
        part = replace(scenario, arrivals=scenario.arrivals[:MOST_PLAYED])
        return max(found, key=lambda each: self._played(part, each))

    def _by_group(self, place: Place) -> Placement:
        """Each group is placed alone, since it serves alone."""
        servers, demand = self.scenario.servers, self.scenario.demand
        if self.size >= len(servers):
            return place(servers, self.allocations, demand)
        group_of = {server.name: index // self.size for index, server in enumerate(servers)}
        parts: dict[int, dict[tuple[str, str], float]] = {}
        for (service, server), per_s in demand.items():
            parts.setdefault(group_of[server], {})[service, server] = per_s
        placed = [
            place(servers[start : start + self.size], self.allocations, parts.get(number, {}))
            for number, start in enumerate(range(0, len(servers), self.size))
        ]
        return Placement(
            replicas=tuple(replica for each in placed for replica in each.replicas),
            satisfied_per_s=sum(each.satisfied_per_s for each in placed),
        )

    def _played(self, part: Scenario, placement: Placement) -> float:
        return type(self)(part, self.scheme, placement=placement).run().satisfied

    def _send_s(self, nbytes: int) -> float:
        return self.scenario.latency_s + nbytes / self.scenario.bytes_per_s

    def _node(self, name: str) -> ServerNode:
        rng = Random(f"{self.scenario.seed}/{name}")
        policy, by_turns = self.scheme.policy(), self.by_turns
        return ServerNode(
            name, self.services, NoView(), rng, policy, self.back_s, by_turns=by_turns
        )

    def _groups(self) -> list[ExchangeGroup]:
        """Pools and views of all servers, group by group."""
        pools = pools_by_server(self.placement, self.allocations)
        for node in self.nodes:
            node.handle(Placed(pools.get(node.name, ())), 0.0)
        size = self.size
        groups = []
        transfer_s = {
            name: self.to_s[name] + self.back_s[name] + self.scheme.handling_s
            for name in self.services
        }
        for start in range(0, len(self.nodes), size):
            group = ExchangeGroup(self.nodes[start : start + size], self.scenario.interval_s)
            group.settle()
            if self.scheme.knows is ServerKnowledge.RING:
                group.begin()
            groups.append(group)
            for index, node in enumerate(group.nodes):
                node.view = self._view(group, index, transfer_s)
        return groups

    def _view(self, group: ExchangeGroup, index: int, transfer_s: Mapping[str, float]) -> View:
        match self.scheme.knows:
            case ServerKnowledge.RING:
                return RingSnapshots(group, index, transfer_s)
            case ServerKnowledge.NOW:
                return ExactView(group, index, transfer_s)
            case ServerKnowledge.NAMES:
                return NamesOnly(group, index, transfer_s)
            case ServerKnowledge.NOTHING:
                return NoView()

    def _at(self, at_s: float, code: int, index: int, what: object) -> None:
        self._n += 1
        heappush(self._heap, (at_s, self._n, code, index, what))

    def run(self) -> ServingOutcome:
        """Play it to the end: until every request has been answered or refused."""
        self.begin()
        while (at_s := self.next_s()) < inf:
            self.play(at_s)
        return self.outcome

    def begin(self) -> None:
        """Before anything happens."""
        self.outcome.n_replicas = len(self.placement.replicas)
        self._at(0.0, EXCHANGE, 0, None)

    def next_s(self) -> float:
        """When something happens next; never again: infinity."""
        heap_s = self._heap[0][0] if self._heap else inf
        if self._n_entered < len(self.scenario.arrivals):
            return min(heap_s, self.scenario.arrivals[self._n_entered].request.arrived_s)
        return heap_s

    def play(self, now_s: float) -> None:
        """What happens next; of several at one time, a request that comes goes first.

        Parameters
        ----------
        now_s
            The time: `next_s()`, or later where a clock says so.
        """
        arrivals = self.scenario.arrivals
        heap_s = self._heap[0][0] if self._heap else inf
        if self._n_entered < len(arrivals):
            arrival = arrivals[self._n_entered]
            if arrival.request.arrived_s <= heap_s:
                self._n_entered += 1
                self._enter(arrival, now_s)
                return
        _, _, code, index, what = heappop(self._heap)
        self.outcome.n_events += 1
        if code == EXCHANGE:
            self._exchange(now_s)
        else:
            self._event(code, index, what, now_s)

    @property
    def _is_over(self) -> bool:
        """Whether nothing happens any more."""
        return not self._heap and self._n_entered == len(self.scenario.arrivals)

    def _enter(self, arrival: Arrival, now_s: float) -> None:
        """A request comes to its entrance."""
        request = arrival.request
        self.outcome.n_events += 1
        self.outcome.n_requests += 1
        tally = self.outcome.tallies.setdefault(request.service, Tally())
        tally.n_asked += request.n_frames if request.fps else 1
        self._deadline_s[request.id] = request.deadline_s
        if request.fps:
            self._streams[request.id] = _Stream(request)
        index = self.index[arrival.server]
        clock = self.clock
        if clock is None:
            actions = self.nodes[index].handle(RequestArrived(request), now_s)
        else:
            began_s = clock()
            actions = self.nodes[index].handle(RequestArrived(request), now_s)
            self.handling_s.append(clock() - began_s)
        self._follow(index, actions, now_s)

    def _event(self, code: int, index: int, what: object, now_s: float) -> None:
        node = self.nodes[index]
        if code == DONE:
            assert isinstance(what, ComputeBatch)
            for request in what.requests:
                self._answered(request, index, now_s)
            self._follow(index, node.handle(BatchDone(what.pool, what.replica), now_s), now_s)
        elif code == HOP:
            assert isinstance(what, Request)
            self._follow(index, node.handle(RequestArrived(what), now_s), now_s)
        elif code == TICK:
            self._wake_s.pop(index, None)
            self._follow(index, node.handle(Tick(), now_s), now_s)
        elif code == END:
            self._end(what, now_s)

    def _exchange(self, now_s: float) -> None:
        for group in self.groups:
            if self.scheme.knows is ServerKnowledge.RING:
                self.outcome.n_events += len(group.nodes)
                group.exchange(now_s)
        if not self._is_over:
            self._at(now_s + self.scenario.interval_s, EXCHANGE, 0, None)

    def _follow(self, index: int, actions: Sequence[Action], now_s: float) -> None:
        """Play what a server has decided."""
        for action in actions:
            match action:
                case ComputeBatch():
                    self._compute(index, action, now_s)
                case HandOn(request, server):
                    self.outcome.n_offloads += 1
                    there_s = now_s + self.scheme.handling_s + self.to_s[request.service]
                    self._at(there_s, HOP, self.index[server], request)
                case Open(_, request, grant):
                    self._opened(request, grant.total_fps, index, now_s)
                case RefuseRequest(request, reason):
                    self.outcome.refused[reason] += 1
                    self._refused(request, now_s)
                case WakeAt(at_s):
                    if at_s < self._wake_s.get(index, float("inf")):
                        self._wake_s[index] = at_s
                        self._at(at_s, TICK, index, None)

    def _compute(self, index: int, start: ComputeBatch, now_s: float) -> None:
        """A batch begins, and will be done."""
        self._at(now_s + start.seconds, DONE, index, start)

    def _refused(self, request: Request, now_s: float) -> None:
        """Nothing follows."""

    def _answered(self, request: Request, index: int, now_s: float) -> None:
        """Its answer goes straight to the entrance, if it is not there already."""
        back_s = 0.0 if len(request.path) == 1 else self.back_s[request.service]
        tally = self.outcome.tallies[request.service]
        if now_s + back_s <= self._deadline_s.pop(request.id) + 1e-9:
            tally.satisfied += 1
        else:
            tally.late += 1

    def _opened(self, request: Request, fps: float, index: int, now_s: float) -> None:
        stream = self._streams[request.id]
        stream.granted_fps += fps
        stream.servers.append(index)
        if not stream.stop_s:
            stream.stop_s = now_s + request.n_frames / stream.request.fps
            self._at(stream.stop_s, END, index, request.id)

    def _end(self, what: object, now_s: float) -> None:
        assert isinstance(what, int)
        stream = self._streams.pop(what)
        request = stream.request
        met = min(1.0, stream.granted_fps / request.fps)
        self.outcome.tallies[request.service].satisfied += met * request.n_frames
        for index in dict.fromkeys(stream.servers):
            ended = StreamEnded(request.service, request.id)
            self._follow(index, self.nodes[index].handle(ended, now_s), now_s)


def simulate(scenario: Scenario, scheme: Scheme) -> ServingOutcome:
    """What a scheme would make of a scenario.

    Parameters
    ----------
    scenario
        Servers, services and requests.
    scheme
        How it is served.
    """
    return ServingSimulation(scenario, scheme).run()
