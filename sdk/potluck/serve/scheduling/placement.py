"""Which replica of which service goes where: greedy on the requests that would be satisfied.

EPARA, section 3.3 (SSSP, SPF), eqs. (2) and (3). phi counts, per second, the requests and frames
that the handler would satisfy: first on the server where they arrive, then, handed on, on others.
Both are flows of one kind from demand to capacity, so phi is the value of an assignment: monotone
and submodular in the set of replicas. Hence the greedy's guarantee of 1 / (1 + P), and hence gains
that only fall, so that a gain worked out earlier is a bound (lazy evaluation; Minoux, 1978).

Where we differ: the paper solves phi by playing the handler. Here it is the closed form above, with
`remote_frac` for what is lost when a request must be handed on. It is exact for steady demand only.
So what room is left goes to bursts: the same again for the demand and 1, 2, ... standard deviations
of a Poisson stream of its grains (`STAFFING`; square-root staffing, Halfin and Whitt, 1981).
Replicas with the same gain are placed in one go. `per_share` divides a gain by what it takes of the
processors (cost-benefit greedy); `place_best` keeps the better of both, so it is never below the
paper's.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil

from potluck.serve.scheduling.records import Allocation, Replica, Server

Demand = Mapping[tuple[str, str], float]  # (service, server where it arrives) -> per second
Allocations = Mapping[tuple[str, str], Allocation]  # (service, kind of processor)
ROUNDED = 1e-9
# Of requests handed on, those that are satisfied: a hop takes milliseconds of a limit of hundreds.
# Below one, so that a replica goes where its requests arrive if nobody else needs the room.
REMOTE_FRAC = 0.999
STAFFING = (0.0, 1.0, 2.0, 3.0, 5.0, 8.0)  # standard deviations, one after the other
CLEARLY = 1.02  # times as good
LEAST_FRAC = 0.002  # of a replica's rate: what gains less only spares a hop


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
    """Ours: the paper's greedy, or the one by gain per share where that is clearly better.

    phi leaves out how requests wait for each other, so a difference below `CLEARLY` says nothing.

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
    papers, by_share = (
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
    return by_share if by_share.satisfied_per_s > CLEARLY * papers.satisfied_per_s else papers


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
    waiting: float = 0.0  # demand that its own server cannot take, and that of bursts
    burst: float = 0.0
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

    def remove(self, server: str, capacity: float) -> None:
        """It is there no more."""
        before = self.capacity[server]
        demand = self.demand.get(server, 0.0)
        local = min(before, demand) - min(before - capacity, demand)
        self.capacity[server] = before - capacity
        self.local -= local
        self.waiting += local
        self.spare -= capacity - local

    def ask(self, server: str, per_s: float) -> None:
        """The mean demand there from now on."""
        before, capacity = self.demand.get(server, 0.0), self.capacity.get(server, 0.0)
        local = min(per_s, capacity) - min(before, capacity)
        self.demand[server] = per_s
        self.local += local
        self.waiting += per_s - before - local
        self.spare -= local

    def expect(self, deviations: float) -> None:
        """So many standard deviations more than the mean demand, wherever they are served."""
        total = sum(self.demand.values()) if deviations else 0.0
        burst = deviations * (self.grain_per_s * total) ** 0.5
        self.waiting += burst - self.burst
        self.burst = burst

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

    def has(self, kind: str, share: float, nbytes: float, n_processors: int) -> bool:
        if n_processors > 1:
            return bool(self.find(kind, share, nbytes, n_processors))
        free_bytes, kinds = self.nbytes, self.kinds
        for index, free in enumerate(self.shares):
            if free >= share - ROUNDED and free_bytes[index] >= nbytes and kinds[index] == kind:
                return True
        return False

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


class _Places:
    """The servers that one allocation may go to, the best first: where most of its requests wait.

    A server without room is not asked again, unless something was removed there (`freed`).
    """

    def __init__(self, flow: _Flow, quiet_first: Sequence[str]) -> None:
        self.flow = flow
        self.busy = [(-per_s, server) for server, per_s in flow.demand.items()]
        heapify(self.busy)
        self.quiet = quiet_first
        self.freed: list[str] = []  # servers whose room came back
        self.n_quiet_full = 0  # at the front of `quiet`

    def waiting_at(self, server: str) -> float:
        """Requests that arrive there and are not served there."""
        return self.flow.demand.get(server, 0.0) - self.flow.capacity.get(server, 0.0)

    def look_again(self, server: str) -> None:
        """More waits there now."""
        heappush(self.busy, (-self.waiting_at(server), server))

    def best(self, has_room: Callable[[str], bool]) -> str:
        """The server where one more replica gains most; empty if none has room."""
        while self.busy:
            known, server = self.busy[0]
            waiting = self.waiting_at(server)
            if waiting <= ROUNDED or not has_room(server):
                heappop(self.busy)
            elif -known > waiting + ROUNDED:
                heapreplace(self.busy, (-waiting, server))
            else:
                return server
        while self.freed:
            if has_room(self.freed[-1]):
                return self.freed[-1]
            self.freed.pop()
        while self.n_quiet_full < len(self.quiet):
            server = self.quiet[self.n_quiet_full]
            if has_room(server):
                return server
            self.n_quiet_full += 1
        return ""


class Greedy:
    """Algorithm 2 (SPF) with lazy evaluation; see `place` for the parameters.

    Of one service, a replica gains most where most of its requests wait, and the gain falls with
    every replica. So each allocation has one entry in the heap, and its servers a heap of their
    own.

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
        # by service, its replicas and how many are the same
        self.replicas: dict[str, dict[Replica, int]] = {service: {} for service, _ in allocations}
        self.moves: dict[Replica, int] = {}  # replicas placed, less those removed
        self.flows: dict[str, _Flow] = {}
        self.meet(demand)

    def meet(self, demand: Demand) -> None:
        """This is the mean demand from now on; what is placed stays."""
        before, demands = self.flows, dict.fromkeys(self.rooms, 0.0)
        self.flows = {
            service: _Flow({}, each.grain_per_s) for (service, _), each in self.allocations.items()
        }
        for (service, server), per_s in demand.items():
            if server in demands and per_s > 0 and service in self.flows:
                self.flows[service].demand[server] = per_s
                demands[server] += per_s
        for service, flow in self.flows.items():
            flow.waiting = sum(flow.demand.values())
            flow.n_replicas = before[service].n_replicas if before else 0
            for server, capacity in before[service].capacity.items() if before else ():
                flow.add(server, capacity)
        # what goes anywhere leaves room where many requests arrive, and fills one server first
        self._quiet_first = sorted(demands, key=demands.__getitem__)
        self._places: dict[tuple[str, str, bool], _Places] = {}

    def ask(self, service: str, server: str, per_s: float) -> None:
        """The mean demand of a service at a server is this from now on.

        Parameters
        ----------
        service, server
            Which and where; others than those of the home are passed over.
        per_s
            Requests or frames per second.
        """
        if service in self.flows and server in self.rooms:
            self.flows[service].ask(server, per_s)
            for (name, _, _), places in self._places.items():
                if name == service:
                    places.look_again(server)

    def pin(self, replica: Replica) -> None:
        """Place this one, whatever it gains (S1)."""
        allocation = self.allocations[replica.service, replica.kind]
        for server, index in replica.processors:
            self.rooms[server].take(index, allocation.share_frac, allocation.memory_bytes)
        self._count(replica, allocation)

    def remove(self, replica: Replica) -> None:
        """Take this one away again."""
        allocation = self.allocations[replica.service, replica.kind]
        for server, index in replica.processors:
            self.rooms[server].take(index, -allocation.share_frac, -allocation.memory_bytes)
        same = self.replicas[replica.service]
        same[replica] -= 1
        if not same[replica]:
            del same[replica]
        self.moves[replica] = self.moves.get(replica, 0) - 1
        for (service, _, _), places in self._places.items():
            for server, _ in replica.processors:
                places.freed.append(server)
                if service == replica.service:
                    places.look_again(server)
        flow = self.flows[replica.service]
        flow.n_replicas -= 1
        flow.remove(replica.server, allocation.rate_per_s)

    def expect(self, deviations: float) -> None:
        """Gains count for so many standard deviations above the mean demand from now on."""
        for flow in self.flows.values():
            flow.expect(deviations)

    def placement(self) -> Placement:
        """What has been placed so far."""
        self.expect(0.0)
        satisfied = sum(flow.satisfied(self.remote_frac) for flow in self.flows.values())
        replicas = tuple(
            each for same in self.replicas.values() for each, n in same.items() for _ in range(n)
        )
        return Placement(replicas=replicas, satisfied_per_s=satisfied)

    def run(self, *, across: bool, services: Collection[str] | None = None) -> None:
        """Place while something is gained: within servers (S2), or across them (S3).

        Parameters
        ----------
        across
            Whether the processors of a replica may be in several servers.
        services
            Only these; all if left out.
        """
        places = {
            key: self._places_of(key, across)
            for key, allocation in self.allocations.items()
            if (services is None or key[0] in services)
            and (not across or (allocation.variant.across and allocation.variant.n_processors > 1))
        }
        heap = [(-self._most(key, each), key) for key, each in places.items()]
        heapify(heap)
        while heap:
            _, key = heappop(heap)
            allocation = self.allocations[key]
            server = self._where(key, places[key], across)
            gain = self._gain(key[0], allocation, server) if server else 0.0
            if gain <= LEAST_FRAC * allocation.rate_per_s * self._per(allocation):
                continue  # gains only fall
            if heap and -gain > heap[0][0] + ROUNDED:
                heappush(heap, (-gain, key))
                continue
            if across:
                self._place_across(key, allocation, places[key])
            else:
                self._place(key, allocation, server)
            heappush(heap, (-gain, key))

    def _places_of(self, key: tuple[str, str], across: bool) -> _Places:
        known = self._places.get((*key, across))
        if known is None:
            known = _Places(self.flows[key[0]], self._quiet_first)
            self._places[(*key, across)] = known
        return known

    def _most(self, key: tuple[str, str], places: _Places) -> float:
        """A bound on the first gain: as if all of it were served where it arrives."""
        highest = max((-entry[0] for entry in places.busy[:1]), default=0.0)
        allocation = self.allocations[key]
        local = min(highest, allocation.rate_per_s)
        return (local + self.remote_frac * (allocation.rate_per_s - local)) * self._per(allocation)

    def _per(self, allocation: Allocation) -> float:
        taken = allocation.share_frac * allocation.variant.n_processors
        return 1 / taken if self.per_share else 1.0

    def _where(self, key: tuple[str, str], places: _Places, across: bool) -> str:
        allocation = self.allocations[key]
        share, nbytes = allocation.share_frac, float(allocation.memory_bytes)
        n_processors = 1 if across else allocation.variant.n_processors
        rooms = self.rooms
        return places.best(lambda name: rooms[name].has(key[1], share, nbytes, n_processors))

    def _gain(self, service: str, allocation: Allocation, server: str) -> float:
        flow = self.flows[service]
        if flow.n_replicas >= self.max_replicas.get(service, flow.n_replicas + 1):
            return 0.0
        gain = flow.gain(server, allocation.rate_per_s, self.remote_frac)
        return gain * self._per(allocation)

    def _place(self, key: tuple[str, str], allocation: Allocation, server: str) -> None:
        """As many as gain the same on this server."""
        share, nbytes = allocation.share_frac, float(allocation.memory_bytes)
        room, n_processors = self.rooms[server], allocation.variant.n_processors
        for _ in range(self._n_alike(key[0], server, allocation.rate_per_s)):
            found = room.find(key[1], share, nbytes, n_processors)
            if not found:
                return
            for index in found:
                room.take(index, share, nbytes)
            processors = tuple((server, index) for index in found)
            replica = Replica(service=key[0], kind=key[1], processors=processors)
            self._count(replica, allocation)

    def _n_alike(self, service: str, server: str, rate_per_s: float) -> int:
        """Replicas that would gain the same there, one after the other."""
        flow = self.flows[service]
        room = flow.demand.get(server, 0.0) - flow.capacity.get(server, 0.0)
        alike = int(min(room, flow.waiting - flow.spare) / rate_per_s + ROUNDED)
        n_allowed = self.max_replicas.get(service, flow.n_replicas + alike) - flow.n_replicas
        return max(1, min(alike, n_allowed))

    def _place_across(self, key: tuple[str, str], allocation: Allocation, places: _Places) -> None:
        """On the processors of a hypothetical server that has all of them (S3)."""
        share, nbytes = allocation.share_frac, float(allocation.memory_bytes)
        wanted, found = allocation.variant.n_processors, list[tuple[str, int]]()
        demand = places.flow.demand
        busiest_first = sorted(self.rooms, key=lambda name: -demand.get(name, 0.0))
        for name in busiest_first:
            room = self.rooms[name]
            fitting = [i for i in range(len(room.shares)) if room.fits(i, key[1], share, nbytes)]
            found += [(name, index) for index in fitting]
            if len(found) >= wanted:
                break
        if len(found) < wanted:
            places.busy, places.n_quiet_full = [], len(places.quiet)  # nor will it ever fit
            return
        for server, index in found[:wanted]:
            self.rooms[server].take(index, share, nbytes)
        replica = Replica(service=key[0], kind=key[1], processors=tuple(found[:wanted]))
        self._count(replica, allocation)

    def _count(self, replica: Replica, allocation: Allocation) -> None:
        same = self.replicas[replica.service]
        same[replica] = same.get(replica, 0) + 1
        self.moves[replica] = self.moves.get(replica, 0) + 1
        flow = self.flows[replica.service]
        flow.n_replicas += 1
        flow.add(replica.server, allocation.rate_per_s)
