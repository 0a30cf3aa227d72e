"""Values on their way out: the device's one network lane. Which chunk leaves next, and when.

Among all values that wait, the one with the smallest priority goes first, as far as its receiver's
credit window lets it; so a bulky gradient delays an urgent activation by no more than that window,
of a few chunks as large as the link carries in a moment. A value with a release time is not among
them before that; one with a pace keeps the lane for as long as its chunks take at that pace, or
until all that was sent has been credited. Pure: the time comes in.
"""

import heapq
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

from potluck_agent.core.events import Span, ToPeer
from potluck_wire.chunks import SendWindow, largest_chunk_bytes
from potluck_wire.limits import (
    CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    WINDOW_BYTES,
    WINDOW_CHUNKS,
)
from potluck_wire.messages import Chunk, Credit, Value

CHUNK_S = 0.25  # an emulated slow link sends smaller chunks, so that each takes at most so long
# a pace is made up for when the loop came that much late for what waited; not more: no bursts
CATCH_UP_S = 0.05
# a link that carries more than the usual chunk in so long gets larger ones: 2 MiB at 100 MiB/s
FAST_CHUNK_S = 0.02


@dataclass(slots=True, kw_only=True, eq=False)
class Transfer:
    """One value to be sent. `value` carries everything but the transfer's number.

    `about` says whose it is.

    `release_s`: not before that; `pace_bytes_per_s`: no faster than that. 0: at once, as fast as it
    goes. `received`: what its header tells of the receiver's own transfers, and tells again on a
    new connection.
    """

    key: str
    value: Value
    place: Span
    priority: int
    about: Hashable
    release_s: float = 0.0
    pace_bytes_per_s: float = 0.0
    order: int = 0
    transfer: int = 0
    start_s: float | None = None
    departure: SendWindow = field(default_factory=lambda: SendWindow(0, 1))
    received: tuple[int, ...] = ()

    def __lt__(self, other: "Transfer") -> bool:
        return (self.priority, self.order) < (other.priority, other.order)


class SendQueue:
    """All parcels of this device. `link_bytes_per_s` 0: as fast as the network is.

    `along(key)` gives the transfers of that receiver that the header of its next value shall
    acknowledge.
    """

    def __init__(
        self,
        *,
        link_bytes_per_s: float = 0.0,
        window_bytes: int = WINDOW_BYTES,
        along: Callable[[str], tuple[int, ...]] = lambda key: (),
    ) -> None:
        self._rate, self._along = link_bytes_per_s, along
        self._window_bytes = window_bytes
        limit = (
            max(MIN_CHUNK_BYTES, int(link_bytes_per_s * CHUNK_S))
            if link_bytes_per_s
            else CHUNK_BYTES
        )
        self._chunk_bytes = min(CHUNK_BYTES, limit)
        # by receiver: heaps of parcels with unsent chunks
        self._waiting: dict[str, list[Transfer]] = {}
        # by receiver and transfer: not acknowledged in full
        self._under_way: dict[tuple[str, int], Transfer] = {}
        self._outstanding: dict[str, int] = {}  # by receiver: bytes sent and not credited
        # by receiver: what its link has shown that it carries
        self._fast_chunk_bytes: dict[str, int] = {}
        self._reachable: set[str] = set()
        self._n_parcels = self._n_transfers = 0
        self._held: list[tuple[float, int, Transfer]] = []  # by release time: a heap
        self._paced_until_s = self._pumped_s = 0.0
        self._is_idle = True  # nothing could be sent when something might have been
        self._on_air: ToPeer | None = None  # paced: it leaves at `_air_free_s`
        self._air_free_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._under_way or self._held)

    def reach(self, key: str) -> None:
        """There is a data connection to this receiver."""
        self._reachable.add(key)

    def lose(self, key: str) -> None:
        """There is none any more."""
        self._reachable.discard(key)

    def add(self, parcel: Transfer, now_s: float = 0.0) -> None:
        """Send this when its turn comes."""
        self._n_parcels += 1
        parcel.order = self._n_parcels
        if parcel.release_s > now_s:
            heapq.heappush(self._held, (parcel.release_s, parcel.order, parcel))
        else:
            self._begin(parcel)

    def _begin(self, parcel: Transfer) -> None:
        self._n_transfers += 1
        parcel.transfer = self._n_transfers
        parcel.departure = SendWindow(parcel.value.nbytes, self._chunk_bytes_for(parcel))
        self._under_way[parcel.key, parcel.transfer] = parcel
        heapq.heappush(self._waiting.setdefault(parcel.key, []), parcel)

    def _chunk_bytes_for(self, parcel: Transfer) -> int:
        fast_bytes = self._fast_chunk_bytes.get(parcel.key, self._chunk_bytes)
        return min(fast_bytes, largest_chunk_bytes(parcel.value.nbytes))

    def restart(self, key: str) -> None:
        """The connection to this receiver is a new one: everything under way begins anew.

        Repeats are recognised.
        """
        again = sorted(
            parcel for (receiver, _), parcel in self._under_way.items() if receiver == key
        )
        self._waiting.pop(key, None)
        self._outstanding.pop(key, None)
        self._fast_chunk_bytes.pop(key, None)
        for parcel in again:
            del self._under_way[key, parcel.transfer]
            self._begin(parcel)

    def unburden(self, key: str) -> None:
        """This receiver begins its own transfers anew, with new numbers: what we have of the old
        ones is not told.
        """
        for (receiver, _), parcel in self._under_way.items():
            if receiver == key:
                parcel.received = ()

    def cancel(self, about: Collection[Hashable]) -> None:
        """Forget the parcels of all these."""
        if not about:
            return
        cancelled = [parcel for parcel in self._under_way.values() if parcel.about in about]
        for parcel in cancelled:
            self._end(parcel)
        for key in {parcel.key for parcel in cancelled}:
            heap = [parcel for parcel in self._waiting.get(key, ()) if parcel.about not in about]
            heapq.heapify(heap)
            self._waiting[key] = heap
        self._keep([held for held in self._held if held[2].about not in about])

    def _keep(self, held: list[tuple[float, int, Transfer]]) -> None:
        self._held = held
        heapq.heapify(held)

    def forget(self, key: str) -> tuple[Transfer, ...]:
        """This receiver is gone; returns what it will not get."""
        lost = tuple(parcel for (receiver, _), parcel in self._under_way.items() if receiver == key)
        for parcel in lost:
            self._end(parcel)
        lost += tuple(parcel for _, _, parcel in self._held if parcel.key == key)
        self._keep([held for held in self._held if held[2].key != key])
        self._waiting.pop(key, None)
        self._outstanding.pop(key, None)
        self._fast_chunk_bytes.pop(key, None)
        self._reachable.discard(key)
        return lost

    def credited(self, key: str, credit: Credit, now_s: float) -> Transfer | None:
        """The receiver has more of a value; returns the parcel once it has all.

        WireError where that cannot be.
        """
        parcel = self._under_way.get((key, credit.transfer))
        if parcel is None:
            return None
        news = parcel.departure.credit(credit.received_bytes, credit.done)
        self._outstanding[key] = self._outstanding.get(key, 0) - news
        if not parcel.departure.done:
            return None
        self._end(parcel)
        self._judge(parcel, now_s)
        return parcel

    def arrived(self, key: str, transfer: int, now_s: float) -> Transfer | None:
        """The receiver has all of a value, and says so with one of its own.

        Returns the parcel, if it is news.
        """
        parcel = self._under_way.get((key, transfer))
        if parcel is None:
            return None
        return self.credited(
            key, Credit(transfer=transfer, received_bytes=parcel.value.nbytes, done=True), now_s
        )

    def _judge(self, parcel: Transfer, now_s: float) -> None:
        """Size the next chunks for this receiver by how fast it got a value that took more than
        one.
        """
        if (
            self._rate
            or parcel.start_s is None
            or not parcel.departure.all_sent
            or parcel.value.nbytes <= CHUNK_BYTES
        ):
            return
        elapsed_s = now_s - parcel.start_s
        fits = parcel.value.nbytes * FAST_CHUNK_S
        chunk_bytes = CHUNK_BYTES
        while chunk_bytes < MAX_CHUNK_BYTES and 2 * chunk_bytes * elapsed_s <= fits:
            chunk_bytes *= 2
        self._fast_chunk_bytes[parcel.key] = chunk_bytes

    def rejected(self, key: str, transfer: int) -> Transfer | None:
        """The receiver does not want it."""
        parcel = self._under_way.get((key, transfer))
        if parcel is not None:
            self._end(parcel)
        return parcel

    def _end(self, parcel: Transfer) -> None:
        del self._under_way[parcel.key, parcel.transfer]
        self._outstanding[parcel.key] = (
            self._outstanding.get(parcel.key, 0) - parcel.departure.outstanding_bytes
        )

    def pump(self, now_s: float) -> list[ToPeer]:
        """Everything that may leave by now."""
        self._pumped_s = now_s
        while self._held and self._held[0][0] <= now_s:
            self._begin(heapq.heappop(self._held)[2])
        if self._rate:
            return self._pump_paced(now_s)
        sent = []
        while self._is_due(now_s):
            chunk = self._next(now_s)
            self._is_idle = chunk is None
            if chunk is None:
                break
            sent.append(chunk[0])
        return sent

    def _is_due(self, now_s: float) -> bool:
        """Whether the last chunk has had its time, or all is there already: a link may be faster
        than was thought.
        """
        return self._paced_until_s <= now_s or not any(self._outstanding.values())

    def wake_s(self) -> float | None:
        """When `pump` is to be called again, if no event comes first."""
        times = [self._air_free_s] if self._on_air is not None else []
        if self._held:
            times.append(self._held[0][0])
        if self._paced_until_s > self._pumped_s and self._under_way:
            times.append(self._paced_until_s)
        return min(times, default=None)

    def _pump_paced(self, now_s: float) -> list[ToPeer]:
        """A chunk is on the air for its bytes over the rate, and handed over when it has left the
        air.
        """
        sent: list[ToPeer] = []
        if self._on_air is None:
            self._air_free_s = max(self._air_free_s, now_s)
        while self._on_air is None or self._air_free_s <= now_s:
            if self._on_air is not None:
                if self._is_wanted(self._on_air):
                    sent.append(self._on_air)
                self._on_air = None
            chunk = self._next(self._air_free_s)
            if chunk is None:
                break
            self._on_air, nbytes = chunk
            self._air_free_s += nbytes / self._rate
        return sent

    def _is_wanted(self, chunk: ToPeer) -> bool:
        assert isinstance(chunk.message, Value | Chunk)
        return (chunk.key, chunk.message.transfer) in self._under_way

    def _next(self, now_s: float) -> tuple[ToPeer, int] | None:
        """The most urgent chunk that has credit, and its bytes."""
        best: Transfer | None = None
        for key in tuple(self._waiting):
            parcel = self._head(key) if key in self._reachable else None
            if parcel is not None and (best is None or parcel < best) and self._has_credit(parcel):
                best = parcel
        if best is None:
            return None
        cut = best.departure.advance(self._window_bytes)
        assert cut is not None  # `_has_credit` saw room
        index, start, stop = cut
        self._outstanding[best.key] = self._outstanding.get(best.key, 0) + stop - start
        if best.pace_bytes_per_s:
            late_s = 0.0 if self._is_idle else CATCH_UP_S
            self._paced_until_s = (
                max(self._paced_until_s, now_s - late_s) + (stop - start) / best.pace_bytes_per_s
            )
        span = Span(best.place.arena, best.place.offset + start, stop - start)
        if index:
            return ToPeer(
                best.key, Chunk(transfer=best.transfer, index=index), (span,)
            ), stop - start
        if best.start_s is None:
            best.start_s = now_s
        best.received = best.received or self._along(best.key)
        return ToPeer(best.key, _header(best), (span,)), stop - start

    def _head(self, key: str) -> Transfer | None:
        heap = self._waiting.get(key)
        while heap:
            parcel = heap[0]
            if (
                self._under_way.get((key, parcel.transfer)) is parcel
                and not parcel.departure.all_sent
            ):
                return parcel
            heapq.heappop(heap)
        self._waiting.pop(key, None)
        return None

    def _has_credit(self, parcel: Transfer) -> bool:
        departure = parcel.departure
        nbytes = min(departure.chunk_bytes, departure.nbytes - departure.sent_bytes)
        outstanding_bytes = self._outstanding.get(parcel.key, 0) + nbytes
        own_bytes = min(self._window_bytes, WINDOW_CHUNKS * departure.chunk_bytes)
        return outstanding_bytes <= own_bytes or outstanding_bytes <= self._window_of(parcel.key)

    def _window_of(self, key: str) -> int:
        """By the largest chunks under way: the receiver may owe credit for half as many of them."""
        largest = max(
            other.departure.chunk_bytes for (to, _), other in self._under_way.items() if to == key
        )
        return min(self._window_bytes, WINDOW_CHUNKS * largest)


def _header(parcel: Transfer) -> Value:
    value = parcel.value
    return Value(
        transfer=parcel.transfer,
        run=value.run,
        epoch=value.epoch,
        program=value.program,
        step=value.step,
        name=value.name,
        dtype=value.dtype,
        shape=value.shape,
        nbytes=value.nbytes,
        chunk_bytes=parcel.departure.chunk_bytes,
        received=parcel.received,
    )
