"""What a server knows of the others, as candidates for a request: from the ring, with what it has
handed on since.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from potluck.serve.scheduling.state_exchange import Ring
from potluck_wire.request_handler import CandidateServer

MOST_NOTED = 1000  # of one service to one server: more would fill any queue
TransferS = Callable[[str, str], float]  # (server, service) -> there, and the answer back


class View(Protocol):
    """Where candidates come from: the ring in a home, snapshots in the simulator."""

    def candidates(self, service: str, now_s: float) -> Sequence[CandidateServer]:
        """The other servers that have it."""

    def sent(self, service: str, server: str, amount: float, now_s: float) -> None:
        """A request, or so many frames per second, was handed on.

        Parameters
        ----------
        service
            Which is asked for.
        server
            Who has the request now.
        amount
            1 for a request; of a stream, frames per second.
        now_s
            The time.
        """


class NoView:
    """Of a server that is alone, or that hands nothing on."""

    def candidates(self, service: str, now_s: float) -> Sequence[CandidateServer]:
        """Nobody."""
        return ()

    def sent(self, service: str, server: str, amount: float, now_s: float) -> None:
        """Nothing is handed on.

        Parameters
        ----------
        service, server, amount, now_s
            As of `View.sent`.
        """


class HandedOn:
    """What was handed on to each server, and when: since its last state, it may not know of it."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], deque[tuple[float, float]]] = {}

    def add(self, service: str, server: str, amount: float, now_s: float) -> None:
        """Note it.

        Parameters
        ----------
        service, server, amount, now_s
            As of `View.sent`.
        """
        self._sent.setdefault((service, server), deque(maxlen=MOST_NOTED)).append((now_s, amount))

    def since(self, service: str, server: str, stated_s: float) -> float:
        """What was handed on after this moment; older notes are forgotten.

        Parameters
        ----------
        service, server
            Which, and to whom.
        stated_s
            When the server said its last state.
        """
        noted = self._sent.get((service, server))
        if noted is None:
            return 0.0
        while noted and noted[0][0] <= stated_s:
            noted.popleft()
        return sum(amount for _, amount in noted)


class RingView:
    """Candidates from the states that the ring has brought here.

    Parameters
    ----------
    ring
        This server's part in the exchange.
    transfer_s
        Seconds until a request of a service is on a server, and its answer back.
    """

    def __init__(self, ring: Ring, transfer_s: TransferS) -> None:
        self.ring = ring
        self.transfer_s = transfer_s
        self._handed_on = HandedOn()

    def candidates(self, service: str, now_s: float) -> list[CandidateServer]:
        """The other servers that have it, as last heard of."""
        found = []
        for server, (state, delay_s) in self.ring.states(now_s).items():
            row = state.services.get(service)
            if row is None:
                continue
            found.append(
                CandidateServer(
                    server=server,
                    idle_per_s=row.idle_per_s,
                    queue_s=row.queue_s,
                    delay_s=delay_s,
                    capacity_per_s=row.capacity_per_s,
                    batch_s=row.batch_s,
                    transfer_s=self.transfer_s(server, service),
                    sent=self._handed_on.since(service, server, now_s - delay_s),
                )
            )
        return found

    def sent(self, service: str, server: str, amount: float, now_s: float) -> None:
        """A request, or so many frames per second, was handed on to it.

        Parameters
        ----------
        service, server, amount, now_s
            As of `View.sent`.
        """
        self._handed_on.add(service, server, amount, now_s)
