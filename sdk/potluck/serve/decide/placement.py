"""Which replica of which service goes where: greedy on the requests that would be satisfied.

EPARA, section 3.3 (SSSP, SPF), eqs. (2) and (3). phi counts, per second, the requests and frames
that the handler would satisfy: first on the server where they arrive, then, handed on, on others.
Both are flows of one kind from demand to capacity, so phi is the value of an assignment: monotone
and submodular in the set of replicas. Hence the greedy's guarantee of 1 / (1 + P), and hence gains
that only fall, so that a gain worked out earlier is a bound (lazy evaluation; Minoux, 1978).

Where we differ: the paper solves phi by playing the handler; here it is the closed form above, with
`remote_frac` for what is lost when a request must be handed on. It is exact for steady demand only.
So what room is left goes to bursts: the same again for the demand and 1, 2, ... standard deviations
of a Poisson stream of its grains (`STAFFING`; square-root staffing, Halfin and Whitt, 1981).
Replicas with the same gain are placed in one go. `per_share` divides a gain by what it takes of the
processors (cost-benefit greedy); `place_best` keeps the better of both, so it is never below the
paper's.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil

from potluck.serve.decide.records import Allocation, Replica, Server

Demand = Mapping[tuple[str, str], float]  # (service, server where it arrives) -> per second
Allocations = Mapping[tuple[str, str], Allocation]  # (service, kind of processor)
ROUNDED = 1e-9
# Of requests handed on, those that are satisfied: a hop takes milliseconds of a limit of hundreds.
# Below one, so that a replica goes where its requests arrive if nobody else needs the room.
REMOTE_FRAC = 0.999
STAFFING = (0.0, 1.0, 2.0, 3.0, 5.0, 8.0)  # standard deviations, one after the other
ANYWHERE = ""  # no server in particular


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where every replica is, and the requests per second that this satisfies: eq. (2)."""

    replicas: tuple[Replica, ...] = ()
    satisfied_per_s: float = 0.0

    def of(self, server: str) -> dict[str, int]:
        """Replicas of each service whose queue is on this server."""
        counts: dict[str, int] = {}
        for replica in self.replicas:
            if replica.server == server:
                counts[replica.service] = counts.get(replica.service, 0) + 1
        return counts


def place(
    servers: Sequence[Server],
    allocations: Allocations,
    demand: Demand,
    *,
    pinned: Sequence[Replica] = (),
    remote_frac: float = REMOTE_FRAC,
    per_share: bool = False,
    max_replicas: Mapping[str, int] | None = None,
) -> Placement:
    """Algorithm 1 (SSSP): S1 what is pinned, S2 within servers, S3 across them.

    Parameters
    ----------
    servers
        With their processors.
    allocations
        Per service and kind of processor.
    demand
        Requests or frames per second, by service and by the server where they arrive.
    pinned
        Replicas that stay, whatever they gain (S1).
    remote_frac
        Of the requests that are handed on, the part that is satisfied; 0: none may be.
    per_share
        Whether gains count per part of a processor taken.
    max_replicas
        By service, the most; of those left out any number.
    """
    search = Greedy(
        servers,
        allocations,
        demand,
        remote_frac=remote_frac,
        per_share=per_share,
        max_replicas=max_replicas,
    )
    for replica in pinned:  # S1
        search.pin(replica)
    for deviations in STAFFING:
        search.expect(deviations)
        search.run(across=False)  # S2
        search.run(across=True)  # S3
    return search.placement()


def place_best(
    servers: Sequence[Server],
    allocations: Allocations,
    demand: Demand,
    *,
    pinned: Sequence[Replica] = (),
    remote_frac: float = REMOTE_FRAC,
) -> Placement:
    """Ours: the better of the paper's greedy and of the one by gain per share.

    Parameters
    ----------
    servers
        With their processors.
    allocations
        Per service and kind of processor.
    demand
        Requests or frames per second, by service and by the server where they arrive.
    pinned
        Replicas that stay.
    remote_frac
        Of the requests that are handed on, the part that is satisfied.
    """
    found = (
        place(
            servers,
            allocations,
            demand,
            pinned=pinned,
            remote_frac=remote_frac,
            per_share=per_share,
        )
        for per_share in (False, True)
    )
    return max(found, key=lambda each: each.satisfied_per_s)


def guarantee(allocations: Iterable[Allocation]) -> float:
    """1 / (1 + P) of eq. (3): the part of the optimum that the greedy reaches at least.

    It holds where each server has at most one processor that is not filled.

    Parameters
    ----------
    allocations
        Of all services.
    """
    shares = [each.share_frac for each in allocations]
    sizes = [each.memory_bytes for each in allocations if each.memory_bytes > 0]
    matroids = ceil(max(shares) / min(shares) - ROUNDED)
    matroids += ceil(max(sizes) / min(sizes) - ROUNDED) if sizes else 0
    return 1 / (1 + matroids)


@dataclass(slots=True)
class _Flow:
    """One service's demand and capacity, by server, and what is left of each over all of them."""

    demand: dict[str, float]
    grain_per_s: float = 0.0
    capacity: dict[str, float] = field(default_factory=dict)
    local: float = 0.0  # satisfied where it arrives
    spare: float = 0.0  # capacity that its own server does not need
    waiting: float = 0.0  # demand that its own server cannot take
    n_replicas: int = 0

    def gain(self, server: str, capacity: float, remote_frac: float) -> float:
        """What more capacity there would satisfy."""
        room = self.demand.get(server, 0.0) - self.capacity.get(server, 0.0)
        local = min(capacity, room) if room > 0 else 0.0
        remote = min(self.waiting - local, self.spare + capacity - local)
        return local + remote_frac * (remote - min(self.waiting, self.spare))

    def add(self, server: str, capacity: float) -> None:
        """It is there now."""
        before = self.capacity.get(server, 0.0)
        room = self.demand.get(server, 0.0) - before
        local = min(capacity, room) if room > 0 else 0.0
        self.capacity[server] = before + capacity
        self.local += local
        self.waiting -= local
        self.spare += capacity - local

    def under(self, mean: Mapping[str, float], deviations: float) -> "_Flow":
        """The same capacity, for so many standard deviations more than the mean demand."""
        total = sum(mean.values())
        more = 1 + deviations * (self.grain_per_s / total) ** 0.5 if total else 1.0
        demand = {server: more * per_s for server, per_s in mean.items()}
        local = sum(min(per_s, self.capacity.get(server, 0.0)) for server, per_s in demand.items())
        return _Flow(
            demand=demand,
            grain_per_s=self.grain_per_s,
            capacity=self.capacity,
            local=local,
            spare=sum(self.capacity.values()) - local,
            waiting=sum(demand.values()) - local,
            n_replicas=self.n_replicas,
        )

    def satisfied(self, remote_frac: float) -> float:
        """Its part of eq. (2)."""
        return self.local + remote_frac * max(0.0, min(self.waiting, self.spare))


class _Room:
    """What is free on one server's processors."""

    __slots__ = ("kinds", "nbytes", "server", "shares")

    def __init__(self, server: Server) -> None:
        self.server = server.name
        self.kinds = [processor.kind for processor in server.processors]
        self.shares = [1.0] * len(self.kinds)
        self.nbytes = [float(processor.memory_bytes) for processor in server.processors]

    def fits(self, index: int, kind: str, share: float, nbytes: float) -> bool:
        return (
            self.shares[index] >= share - ROUNDED
            and self.nbytes[index] >= nbytes
            and self.kinds[index] == kind
        )

    def find(self, kind: str, share: float, nbytes: float, n_processors: int) -> list[int]:
        """The fullest processors that fit, as many as are needed; empty if there are not."""
        if n_processors == 1:
            best, best_share = -1, 2.0
            for index, free in enumerate(self.shares):
                if free < best_share and self.fits(index, kind, share, nbytes):
                    best, best_share = index, free
            return [best] if best >= 0 else []
        fitting = [
            index for index in range(len(self.shares)) if self.fits(index, kind, share, nbytes)
        ]
        if len(fitting) < n_processors:
            return []
        return sorted(fitting, key=lambda index: self.shares[index])[:n_processors]

    def take(self, index: int, share: float, nbytes: float) -> None:
        self.shares[index] -= share
        self.nbytes[index] -= nbytes


class Greedy:
    """Algorithm 2 (SPF) with lazy evaluation; see `place` for the parameters.

    Parameters
    ----------
    servers, allocations, demand, remote_frac, per_share, max_replicas
        As of `place`.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        allocations: Allocations,
        demand: Demand,
        *,
        remote_frac: float = REMOTE_FRAC,
        per_share: bool = False,
        max_replicas: Mapping[str, int] | None = None,
    ) -> None:
        self.allocations = allocations
        self.remote_frac = remote_frac
        self.per_share = per_share
        self.max_replicas = max_replicas or {}
        self.rooms = {server.name: _Room(server) for server in servers}
        self.flows = {
            service: _Flow({}, each.grain_per_s) for (service, _), each in allocations.items()
        }
        for (service, server), per_s in demand.items():
            if service in self.flows and per_s > 0:
                flow = self.flows[service]
                flow.demand[server] = flow.demand.get(server, 0.0) + per_s
                flow.waiting += per_s
        self._mean = {service: dict(flow.demand) for service, flow in self.flows.items()}
        self._deviations = 0.0
        self.replicas: list[Replica] = []
        # what goes anywhere leaves room where many requests arrive, and fills one server first
        asked = dict.fromkeys(self.rooms, 0.0)
        for (_, server), per_s in demand.items():
            if server in asked:
                asked[server] += per_s
        self._quiet_first = sorted(self.rooms, key=lambda name: asked[name])
        # per service, kind and step: servers that may have room for what goes anywhere
        self._turn: dict[tuple[str, str, bool], deque[str]] = {}

    def pin(self, replica: Replica) -> None:
        """Place this one, whatever it gains (S1)."""
        allocation = self.allocations[replica.service, replica.kind]
        for server, index in replica.processors:
            self.rooms[server].take(index, allocation.share_frac, allocation.memory_bytes)
        self._count(replica, allocation)

    def expect(self, deviations: float) -> None:
        """Gains count for so many standard deviations above the mean demand from now on."""
        if deviations != self._deviations:
            self._deviations = deviations
            self.flows = {
                service: flow.under(self._mean[service], deviations)
                for service, flow in self.flows.items()
            }

    def placement(self) -> Placement:
        """What has been placed so far."""
        self.expect(0.0)
        satisfied = sum(flow.satisfied(self.remote_frac) for flow in self.flows.values())
        return Placement(replicas=tuple(self.replicas), satisfied_per_s=satisfied)

    def run(self, *, across: bool) -> None:
        """Place while something is gained: within servers (S2), or across them (S3)."""
        heap = self._entries(across)
        heapify(heap)
        while heap:
            _, service, kind, server = heappop(heap)
            allocation = self.allocations[service, kind]
            gain = self._gain(service, allocation, server)
            if gain <= ROUNDED:
                continue
            if heap and -gain > heap[0][0] + ROUNDED:
                heappush(heap, (-gain, service, kind, server))
                continue
            placed = self._place(service, kind, allocation, server, across)
            if placed:
                next_gain = self._gain(service, allocation, server)
                if next_gain > ROUNDED:
                    heappush(heap, (-next_gain, service, kind, server))

    def _entries(self, across: bool) -> list[tuple[float, str, str, str]]:
        """(-gain, service, kind, server): one per server with demand, one for anywhere."""
        entries = []
        kinds_of = {name: dict.fromkeys(room.kinds) for name, room in self.rooms.items()}
        for (service, kind), allocation in self.allocations.items():
            wide = allocation.variant.across and allocation.variant.n_processors > 1
            if across and not wide:
                continue
            if not across:
                for server in self.flows[service].demand:
                    if kind in kinds_of.get(server, ()):
                        gain = self._gain(service, allocation, server)
                        entries.append((-gain, service, kind, server))
            gain = self._gain(service, allocation, ANYWHERE)
            entries.append((-gain, service, kind, ANYWHERE))
        return entries

    def _gain(self, service: str, allocation: Allocation, server: str) -> float:
        flow = self.flows[service]
        if flow.n_replicas >= self.max_replicas.get(service, flow.n_replicas + 1):
            return 0.0
        gain = flow.gain(server, allocation.rate_per_s, self.remote_frac)
        if self.per_share:
            gain /= allocation.share_frac * allocation.variant.n_processors
        return gain

    def _place(
        self, service: str, kind: str, allocation: Allocation, server: str, across: bool
    ) -> bool:
        """As many as gain the same on this server; or one anywhere."""
        share, nbytes = allocation.share_frac, float(allocation.memory_bytes)
        n_processors = allocation.variant.n_processors
        if across:
            return self._place_across(service, kind, allocation)
        if server == ANYWHERE:
            server = self._somewhere(service, kind, share, nbytes, n_processors)
            if not server:
                return False
            n_copies = 1
        else:
            n_copies = self._n_alike(service, server, allocation.rate_per_s)
        placed = False
        for _ in range(n_copies):
            found = self.rooms[server].find(kind, share, nbytes, n_processors)
            if not found:
                break
            for index in found:
                self.rooms[server].take(index, share, nbytes)
            processors = tuple((server, index) for index in found)
            self._count(Replica(service=service, kind=kind, processors=processors), allocation)
            placed = True
        return placed

    def _n_alike(self, service: str, server: str, rate_per_s: float) -> int:
        """Replicas that would gain the same there, one after the other."""
        flow = self.flows[service]
        room = flow.demand.get(server, 0.0) - flow.capacity.get(server, 0.0)
        alike = int(min(room, flow.waiting - flow.spare) / rate_per_s + ROUNDED)
        most = self.max_replicas.get(service, flow.n_replicas + alike) - flow.n_replicas
        return max(1, min(alike, most))

    def _somewhere(
        self, service: str, kind: str, share: float, nbytes: float, n_processors: int
    ) -> str:
        """The first server that has room; empty if none has.

        Room never comes back, so one without any is not asked again.
        """
        turn = self._turn.setdefault((service, kind, False), deque(self._quiet_first))
        while turn:
            if self.rooms[turn[0]].find(kind, share, nbytes, n_processors):
                return turn[0]
            turn.popleft()
        return ""

    def _place_across(self, service: str, kind: str, allocation: Allocation) -> bool:
        """On the processors of a hypothetical server that has all of them (S3)."""
        share, nbytes = allocation.share_frac, float(allocation.memory_bytes)
        turn = self._turn.setdefault((service, kind, True), deque(self._quiet_first))
        found: list[tuple[str, int]] = []
        while turn and len(found) < allocation.variant.n_processors:
            room = self.rooms[turn[0]]
            fitting = [i for i in range(len(room.shares)) if room.fits(i, kind, share, nbytes)]
            found += [(turn[0], index) for index in fitting]
            if len(found) < allocation.variant.n_processors:
                turn.popleft()
        if len(found) < allocation.variant.n_processors:
            return False
        processors = tuple(found[: allocation.variant.n_processors])
        for server, index in processors:
            self.rooms[server].take(index, share, nbytes)
        turn.extendleft(reversed(dict.fromkeys(name for name, _ in processors[:-1])))
        asked = self.flows[service].demand  # its queue is where most of its requests arrive
        ordered = tuple(sorted(processors, key=lambda each: -asked.get(each[0], 0.0)))
        self._count(Replica(service=service, kind=kind, processors=ordered), allocation)
        return True

    def _count(self, replica: Replica, allocation: Allocation) -> None:
        self.replicas.append(replica)
        flow = self.flows[replica.service]
        flow.n_replicas += 1
        flow.add(replica.server, allocation.rate_per_s)
