"""Shared media in user space: bytes of every flow go over at the rate that max-min fairness gives
it, as in the simulator. Packets that get lost cost what TCP makes of them. Pure.

Loss. Somebody's connection crosses a lossy medium by TCP, so nothing is missing in the end. What is
lost is sent again: of a medium that loses a part p, 1 - p is left. And a sender that has too little
under way to notice waits for its time-out: `timeouts` says how often, fitted to long flows in
namespaces of this lab (Linux 6.18, cubic, paths of 0.2 and 2 MB/s). Goodput is that of namespaces
within an eighth where up to 2 % of the packets are lost on the way. Up to 10 % it is within a
factor of 2.5, and two runs of the kernel differ as much.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import count
from math import inf, prod
from random import Random

from potluck.records import Network
from potluck.simulate.fairness import Route, max_min_rates

PIECE_S = 0.004  # on the path alone: what is handed on at once
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 1024, 64 * 1024
PACKET_BYTES = 1448  # what a packet carries of ours
TIMEOUT_S = 0.2  # the least of Linux and of most others; it does not stretch with a lab


def timeouts(loss_frac: float) -> float:
    """How often a steady sender waits for a time-out, by packet, where so many get lost on the way.

    >>> round(timeouts(0.04), 4), round(timeouts(0.1), 3)
    (0.0038, 0.122)
    """
    return 770.0 * float(loss_frac**3.8)


@dataclass(slots=True)
class _SharedFlow:
    route: Route
    loss: tuple[tuple[str, int], ...]
    pieces: deque[int] = field(default_factory=deque)
    left_bytes: float = 0.0  # of the first piece
    wakes_s: float = inf  # while it waits for a time-out
    endless: bool = False


class Airtime:
    """The media of a network and what is on its way over them, as of the latest moment that it was
    told.
    """

    def __init__(self, network: Network, rng: Random) -> None:
        self._paths, self._rng = network.paths, rng
        self._index = {medium.name: index for index, medium in enumerate(network.media)}
        self._capacity = [medium.capacity_bytes_per_s for medium in network.media]
        self._loss = dict.fromkeys(self._index, 0.0)
        self._flows: dict[int, _SharedFlow] = {}
        self._numbers = count()
        self._now_s = 0.0
        # of those that send; None where that has changed
        self._rates: dict[int, float] | None = None
        self._over: list[tuple[int, float]] = []

    # --- what happens -----------------------------------------------------------------------------

    def shape(self, medium: str, bytes_per_s: float, now_s: float) -> None:
        """Another rate from now on."""
        self._pass(now_s)
        self._capacity[self._index[medium]] = bytes_per_s
        self._rates = None

    def lose(self, medium: str, loss_frac: float, now_s: float) -> None:
        """From now on this part of the packets is lost at every crossing."""
        self._pass(now_s)
        self._loss[medium] = loss_frac
        self._rates = None

    def open(self, source: str, target: str) -> int:
        """A new flow; returns its number."""
        path, number = self._paths[source, target], next(self._numbers)
        self._flows[number] = _SharedFlow(
            route=tuple((self._index[name], times) for name, times in path.media), loss=path.media
        )
        return number

    def fill(self, source: str, target: str, now_s: float) -> int:
        """A flow that always has something to send: somebody else's."""
        number = self.open(source, target)
        if self._flows[number].route:
            self._flows[number].endless = True
            self.put(number, MAX_PIECE_BYTES, now_s)
        return number

    def put(self, flow: int, nbytes: int, now_s: float) -> None:
        """A piece more to send, behind the others of its flow."""
        self._pass(now_s)
        found = self._flows[flow]
        found.pieces.append(nbytes)
        if len(found.pieces) == 1:
            found.left_bytes, self._rates = nbytes, None

    def close(self, flow: int, now_s: float) -> None:
        """This flow is over; what it has not sent yet never arrives."""
        self._pass(now_s)
        del self._flows[flow]
        self._rates = None

    # --- what comes of it -------------------------------------------------------------------------

    def over(self, now_s: float) -> list[tuple[int, float]]:
        """The pieces that have gone over since the last call: whose, and when; in order.

        By hand: two flows of 1,000 bytes each over ("air", 2) at 1e4 bytes/s have 2,500 bytes/s
        each: over after 0.4 s.
        """
        self._pass(now_s)
        done, self._over = self._over, []
        return [(flow, over_s) for flow, over_s in done if flow in self._flows]

    @property
    def next_s(self) -> float:
        """When the next piece is over, if nothing else happens.

        Infinity where nothing is on its way.
        """
        return min(self._ends(), default=(inf, 0))[0]

    def piece_bytes(self, source: str, target: str) -> int:
        """How much is handed on at once."""
        return int(
            min(max(self._alone(source, target) * PIECE_S, MIN_PIECE_BYTES), MAX_PIECE_BYTES)
        )

    def pieces_in(self, source: str, target: str, seconds: float) -> int:
        """How many pieces go over in so many seconds where nobody else sends; two at least."""
        alone = self._alone(source, target)
        return (
            2
            if alone == inf
            else max(2, int(alone * seconds / self.piece_bytes(source, target)) + 1)
        )

    def latency_s(self, source: str, target: str) -> float:
        """What a path takes beside its bytes."""
        return self._paths[source, target].latency_s

    def _alone(self, source: str, target: str) -> float:
        media = self._paths[source, target].media
        return min(
            (self._capacity[self._index[name]] / times for name, times in media), default=inf
        )

    # --- time -------------------------------------------------------------------------------------

    def _pass(self, now_s: float) -> None:
        """Let everything happen that happens until now."""
        while (first := min(self._ends(), default=(inf, 0)))[0] <= now_s:
            at_s, number = first
            self._move(at_s)
            flow = self._flows[number]
            if flow.wakes_s == inf and (stall_s := self._stall_s(flow)) > 0:
                flow.wakes_s, self._rates = at_s + stall_s, None
            else:
                self._end_piece(number, flow)
        self._move(now_s)

    def _move(self, to_s: float) -> None:
        passed_s, self._now_s = to_s - self._now_s, max(to_s, self._now_s)
        if passed_s > 0:
            for number, rate in self._sending().items():
                flow = self._flows[number]
                flow.left_bytes = max(0.0, flow.left_bytes - rate * passed_s)

    def _end_piece(self, number: int, flow: _SharedFlow) -> None:
        nbytes = flow.pieces.popleft()
        if flow.endless:
            flow.pieces.append(nbytes)
        else:
            self._over.append((number, self._now_s))
        if flow.wakes_s < inf or not flow.pieces:
            flow.wakes_s, self._rates = inf, None
        flow.left_bytes = flow.pieces[0] if flow.pieces else 0.0

    def _ends(self) -> list[tuple[float, int]]:
        """When the first piece of each flow is over, or it is awake."""
        sending = [
            (self._now_s + self._flows[n].left_bytes / rate, n)
            for n, rate in self._sending().items()
        ]
        return sending + [
            (flow.wakes_s, n) for n, flow in self._flows.items() if flow.wakes_s < inf
        ]

    def _sending(self) -> dict[int, float]:
        """The rates of those that send."""
        if self._rates is None:
            routes = {
                n: flow.route
                for n, flow in self._flows.items()
                if flow.pieces and flow.wakes_s == inf
            }
            carried = [
                rate * (1 - lost)
                for rate, lost in zip(self._capacity, self._loss.values(), strict=True)
            ]
            self._rates = max_min_rates(routes, carried)
        return self._rates

    def _stall_s(self, flow: _SharedFlow) -> float:
        """The time-outs behind a piece; where nothing follows it, its last packet is missed by none
        that come later.
        """
        lost = 1 - prod((1 - self._loss[name]) ** times for name, times in flow.loss)
        if not lost:
            return 0.0
        packets = flow.pieces[0] / PACKET_BYTES
        expected = packets * timeouts(lost) + (
            lost if len(flow.pieces) == 1 and not flow.endless else 0.0
        )
        return TIMEOUT_S * (int(expected) + (self._rng.random() < expected % 1))
