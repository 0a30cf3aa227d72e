"""Placement that follows the load: what is loaded and unloaded when the demand has moved.

EPARA places anew at set intervals (section 3.4). Here what is placed stays wherever it can, since
loading a model takes longer than many requests (Fig. 3f): first free room is used, then replicas
give way that nobody needs, then those that satisfy clearly less than what would come (`GAIN`). The
work grows with what has changed, not with the home.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from potluck.serve.scheduling.placement import (
    REMOTE_FRAC,
    ROUNDED,
    STAFFING,
    Allocations,
    Demand,
    Greedy,
    Placement,
)
from potluck.serve.scheduling.records import Allocation, Replica, Server

KEPT_DEVIATIONS = 2.0  # of its demand, that a service keeps replicas for when others want the room
GAIN = 1.25  # times what is lost, that a replica must satisfy to take another's place
MOST_MOVES = 64  # in one go: each is a model that is loaded somewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChange:
    """What changes: replicas to load, then replicas to unload once those answer."""

    load: tuple[Replica, ...] = ()
    unload: tuple[Replica, ...] = ()


class LivePlacement:
    """A placement that is kept up to date.

    Parameters
    ----------
    servers, allocations, demand
        As of `placement.place`.
    pinned
        Replicas that always stay.
    remote_frac
        Of the requests that are handed on, the part that is satisfied.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        allocations: Allocations,
        demand: Demand,
        *,
        pinned: Sequence[Replica] = (),
        remote_frac: float = REMOTE_FRAC,
    ) -> None:
        self.allocations = allocations
        self.greedy = Greedy(servers, allocations, demand, remote_frac=remote_frac)
        self.pinned = Counter(pinned)
        for replica in pinned:
            self.greedy.pin(replica)
        self._fill(None, STAFFING)

    def placement(self) -> Placement:
        """Where every replica is now."""
        return self.greedy.placement()

    def update(self, changes: Mapping[tuple[str, str], float]) -> PlacementChange:
        """The demand of these services at these servers is this now; what has to move?

        Parameters
        ----------
        changes
            Requests or frames per second by service and server; of all others it is as before.
        """
        self.greedy.moves.clear()
        for (service, server), per_s in changes.items():
            self.greedy.ask(service, server, per_s)
        changed = {service for service, _ in changes}
        self._fill(changed, STAFFING[:1])
        for key in sorted(self._short(), key=self._missing, reverse=True):
            self._make_room(key)
        self._fill(changed, STAFFING[1:])
        moved = self.greedy.moves.items()
        return PlacementChange(
            load=tuple(replica for replica, n in moved for _ in range(n)),
            unload=tuple(replica for replica, n in moved for _ in range(-n)),
        )

    def _fill(self, services: Collection[str] | None, staffing: Sequence[float]) -> None:
        """Use the free room for these services."""
        for deviations in staffing:
            self.greedy.expect(deviations)
            self.greedy.run(across=False, services=services)
            self.greedy.run(across=True, services=services)
        self.greedy.expect(0.0)

    def _short(self) -> list[tuple[str, str]]:
        """The allocations of services whose mean demand is not met."""
        return [key for key in self.allocations if self._missing(key) > 0]

    def _missing(self, key: tuple[str, str]) -> float:
        flow = self.greedy.flows[key[0]]
        return max(0.0, flow.waiting - flow.spare - ROUNDED)

    def _make_room(self, key: tuple[str, str]) -> None:
        """Replicas of others give way, one after the other, while that pays."""
        allocation = self.allocations[key]
        for _ in range(MOST_MOVES):
            gain = min(self._missing(key), allocation.rate_per_s)
            victims = self._victims(key, allocation, gain) if gain > 0 else []
            if not victims or len(self.greedy.moves) >= MOST_MOVES:
                return
            for replica in victims:
                self.greedy.remove(replica)
            self._fill({key[0]}, STAFFING[:1])

    def _victims(self, key: tuple[str, str], allocation: Allocation, gain: float) -> list[Replica]:
        """Replicas of one service on one processor that leave room enough, and are worth less."""
        if allocation.variant.n_processors > 1:
            return []  # whole servers would have to be cleared
        cheapest_first = sorted(
            (self._loss(service, kind), service)
            for service, kind in self.allocations
            if kind == key[1] and service != key[0]
        )
        for lost, service in cheapest_first:
            if lost * GAIN >= gain:
                break
            other = self.allocations[service, key[1]]
            for replica, n_same in self.greedy.replicas[service].items():
                n_needed = self._n_needed(allocation, other, replica)
                fits = n_needed <= n_same - self.pinned[replica]
                if fits and (lost * n_needed * GAIN < gain) and len(replica.processors) == 1:
                    return [replica] * n_needed
        return []

    def _n_needed(self, allocation: Allocation, other: Allocation, replica: Replica) -> int:
        """How many replicas of the other service must leave that processor for one of ours."""
        server, index = replica.processors[0]
        room = self.greedy.rooms[server]
        share = (allocation.share_frac - room.shares[index] - ROUNDED) / other.share_frac
        nbytes = (allocation.memory_bytes - room.nbytes[index]) / max(1, other.memory_bytes)
        return max(1, ceil(share), ceil(nbytes))

    def _loss(self, service: str, kind: str) -> float:
        """Requests per second that would not be satisfied with one replica less."""
        flow = self.greedy.flows[service]
        mean = sum(flow.demand.values())
        kept = mean + KEPT_DEVIATIONS * (flow.grain_per_s * mean) ** 0.5
        rate = self.allocations[service, kind].rate_per_s
        lost: float = min(rate, kept - (flow.local + flow.spare - rate))
        return max(0.0, lost)
