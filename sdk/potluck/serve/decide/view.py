"""What a server knows of the others, as candidates for a request: from the ring, with what it has
handed on since.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from potluck.serve.decide.handler import Candidate
from potluck.serve.decide.ring import Ring

TransferS = Callable[[str, str], float]  # (server, service) -> there, and the answer back


class View(Protocol):
    """Where candidates come from: the ring in a home, snapshots in the simulator."""

    def candidates(self, service: str, now_s: float) -> Sequence[Candidate]:
        """The other servers that have it."""

    def sent(self, service: str, server: str, amount: float) -> None:
        """A request, or so many frames per second, was handed on to it.

        Parameters
        ----------
        service
            Which is asked for.
        server
            Who has the request now.
        amount
            1 for a request; of a stream, frames per second.
        """


class NoView:
    """Of a server that is alone, or that hands nothing on."""

    def candidates(self, service: str, now_s: float) -> Sequence[Candidate]:
        """Nobody."""
        return ()

    def sent(self, service: str, server: str, amount: float) -> None:
        """Nothing is handed on.

        Parameters
        ----------
        service
            Which is asked for.
        server
            Who has the request now.
        amount
            1 for a request; of a stream, frames per second.
        """


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
        self._sent: dict[tuple[str, str], tuple[int, float]] = {}  # version, amount

    def candidates(self, service: str, now_s: float) -> list[Candidate]:
        """The other servers that have it, as last heard of."""
        found = []
        for server, (state, delay_s) in self.ring.states(now_s).items():
            row = state.services.get(service)
            if row is None:
                continue
            version, sent = self._sent.get((service, server), (state.version, 0.0))
            found.append(
                Candidate(
                    server=server,
                    idle_per_s=row.idle_per_s,
                    queue_s=row.queue_s,
                    delay_s=delay_s,
                    capacity_per_s=row.capacity_per_s,
                    batch_s=row.batch_s,
                    transfer_s=self.transfer_s(server, service),
                    sent=sent if version == state.version else 0.0,
                )
            )
        return found

    def sent(self, service: str, server: str, amount: float) -> None:
        """A request, or so many frames per second, was handed on to it.

        Parameters
        ----------
        service
            Which is asked for.
        server
            Who has the request now.
        amount
            1 for a request; of a stream, frames per second.
        """
        known = self.ring.states(float("-inf")).get(server)
        version = known[0].version if known else -1
        before, total = self._sent.get((service, server), (version, 0.0))
        self._sent[service, server] = (version, amount + (total if before == version else 0.0))
