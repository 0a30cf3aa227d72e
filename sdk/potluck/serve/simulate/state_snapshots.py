"""What simulated servers know of each other: states as the ring would have brought them, or exact.

A ring without losses brings the state of a server d places away d - 1 intervals after it was said,
as the tests of `scheduling.state_exchange` show. So states are kept once per round for a whole
group of servers, instead of once per server that knows them.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from potluck.serve.scheduling.known_servers import HandedOn
from potluck.serve.scheduling.node import ServerNode
from potluck.serve.scheduling.records import ServiceState
from potluck_wire.request_handler import CandidateServer

Rows = Sequence[ServiceState | None]


class ExchangeGroup:
    """Servers that exchange states with each other, in a ring by their order.

    Parameters
    ----------
    nodes
        Of the group.
    interval_s
        Between two rounds.
    """

    def __init__(self, nodes: Sequence[ServerNode], interval_s: float) -> None:
        self.nodes = nodes
        self.names = [node.name for node in nodes]
        self.interval_s = interval_s
        self.place = {name: index for index, name in enumerate(self.names)}
        self.holders: dict[str, list[int]] = {}
        # by round, the newest last: per service the states of its holders
        self.rounds: deque[tuple[float, Mapping[str, Rows]]] = deque(maxlen=len(nodes) // 2 + 1)
        self.n_rounds = 0

    def settle(self) -> None:
        """The placement has changed: who has what is counted anew."""
        self.holders = {}
        self.rounds.clear()
        for index, node in enumerate(self.nodes):
            for service in node.hosted():
                self.holders.setdefault(service, []).append(index)

    def begin(self) -> None:
        """The ring has been going on for long when the first request comes."""
        rows = self._states_at(0.0)
        n_rounds = self.rounds.maxlen or 0
        self.rounds.extend((-ago * self.interval_s, rows) for ago in range(n_rounds, 0, -1))

    def exchange(self, now_s: float) -> None:
        """One round: everybody says its state."""
        self.rounds.append((now_s, self._states_at(now_s)))
        self.n_rounds += 1

    def _states_at(self, now_s: float) -> dict[str, Rows]:
        states = [node.state(now_s).services for node in self.nodes]
        return {
            service: [states[index].get(service) for index in holders]
            for service, holders in self.holders.items()
        }

    def rounds_ago(self, by: int, of: int) -> int:
        """Rounds ago that this server said what the other one knows now."""
        hops = abs(by - of)
        return min(hops, len(self.nodes) - hops) - 1


class RingSnapshots:
    """The view of one server of a group.

    Parameters
    ----------
    group
        Whose states are exchanged.
    index
        Of this server there.
    transfer_s
        By service, seconds to another server and for the answer back.
    """

    def __init__(self, group: ExchangeGroup, index: int, transfer_s: Mapping[str, float]) -> None:
        self.group = group
        self.index = index
        self.transfer_s = transfer_s
        self._handed_on = HandedOn()
        self._kept: dict[str, tuple[int, list[CandidateServer]]] = {}

    def candidates(self, service: str, now_s: float) -> list[CandidateServer]:
        """The others of the group that have it, as the ring has told of them."""
        n_rounds, found = self._kept.get(service, (-1, []))
        if n_rounds != self.group.n_rounds:
            found = self._look(service, now_s)
            self._kept[service] = (self.group.n_rounds, found)
        return found

    def _look(self, service: str, now_s: float) -> list[CandidateServer]:
        group, found = self.group, []
        transfer_s = self.transfer_s.get(service, 0.0)
        for number, holder in enumerate(group.holders.get(service, ())):
            ago = group.rounds_ago(self.index, holder)
            if holder == self.index or ago >= len(group.rounds):
                continue
            stated_s, rows = group.rounds[-1 - ago]
            row = rows[service][number]
            if row is not None:
                name = group.names[holder]
                found.append(
                    CandidateServer(
                        name,
                        row.idle_per_s,
                        row.queue_s,
                        now_s - stated_s,
                        row.capacity_per_s,
                        row.batch_s,
                        transfer_s,
                        self._handed_on.since(service, name, stated_s),
                    )
                )
        return found

    def sent(self, service: str, server: str, amount: float, now_s: float) -> None:
        """A request, or so many frames per second, was handed on to it.

        Parameters
        ----------
        service, server, amount, now_s
            As of `scheduling.known_servers.View.sent`.
        """
        self._handed_on.add(service, server, amount, now_s)
        for each in self._kept.get(service, (0, []))[1]:
            if each.server == server:
                each.sent += amount
                return


class ExactView:
    """Everybody's state at this very moment: what a central scheduler would have at best.

    Parameters
    ----------
    group
        Whose states are seen.
    index
        Of this server there.
    transfer_s
        By service, seconds to another server and for the answer back.
    """

    def __init__(self, group: ExchangeGroup, index: int, transfer_s: Mapping[str, float]) -> None:
        self.group = group
        self.index = index
        self.transfer_s = transfer_s

    def candidates(self, service: str, now_s: float) -> list[CandidateServer]:
        """The others of the group that have it."""
        found = []
        for holder in self.group.holders.get(service, ()):
            row = self.group.nodes[holder].now(service, now_s)
            if holder != self.index and row is not None:
                found.append(
                    CandidateServer(
                        self.group.names[holder],
                        row.idle_per_s,
                        row.queue_s,
                        0.0,
                        row.capacity_per_s,
                        row.batch_s,
                        self.transfer_s.get(service, 0.0),
                    )
                )
        return found

    def sent(self, service: str, server: str, amount: float, now_s: float) -> None:
        """Nothing to note: the next look is exact again.

        Parameters
        ----------
        service, server, amount, now_s
            As of `scheduling.known_servers.View.sent`.
        """


class NamesOnly:
    """All others of the group, whatever they have and do.

    Parameters
    ----------
    group
        Whose names are known.
    index
        Of this server there.
    transfer_s
        By service, seconds to another server and for the answer back.
    """

    def __init__(self, group: ExchangeGroup, index: int, transfer_s: Mapping[str, float]) -> None:
        names = [name for place, name in enumerate(group.names) if place != index]
        self._others = [CandidateServer(name, 1.0, 0.0, 0.0, 1.0) for name in names]

    def candidates(self, service: str, now_s: float) -> list[CandidateServer]:
        """All others."""
        return self._others

    def sent(self, service: str, server: str, amount: float, now_s: float) -> None:
        """Nothing is known anyway.

        Parameters
        ----------
        service, server, amount, now_s
            As of `scheduling.known_servers.View.sent`.
        """
