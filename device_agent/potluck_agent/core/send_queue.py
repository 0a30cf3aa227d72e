"""Values on their way out: the device's one send queue. Which chunk leaves next, and when.

Each notebook whose runs send has a lane. Lanes with something to send take turns by bytes
(start-time fair queueing, Goyal et al., SIGCOMM 1996), and each has a window of its own with each
receiver: no notebook's values wait for those of another one. Of all values of a lane, the one with
the smallest priority goes first, as far as its receiver's credit window lets it. So a bulky
gradient delays an urgent activation by no more than that window. It is of a few chunks as large as
the link carries in a moment, and of no more than so many values. A value with a release time is not
among them before that. One with a pace holds its lane for as long as its chunks take at that pace,
or until all that was sent has been credited, and never for long. What waits is kept by group, so
that the sends of an execution that ends go at once. Pure: the time comes in.
"""

import heapq
from collections.abc import Callable, Collection, Container, Hashable
from dataclasses import dataclass, replace
from typing import Any

from potluck_agent.core.events import Span, ToPeer
from potluck_agent.core.grouped_heap import GroupedHeap
from potluck_wire.chunks import SendWindow, largest_chunk_bytes
from potluck_wire.limits import (
    CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    MAX_TRANSFERS,
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
# So long may one chunk hold its lane, whatever its pace. The smallest chunk takes that on a link of
# 26 kbit/s; a pace without such an end would stop every other value of its notebook.
MAX_PACED_S = 5.0
# at once, out of what waits: each costs some 30 us here and in its socket, and others want to be
# heard in between
MAX_AT_ONCE = 256
# beside its bytes, what a chunk counts of its lane's turn: an empty value costs, too
CHUNK_COST_BYTES = 4096

Way = tuple[str, str]  # of a lane to a receiver

_NOT_BEGUN = SendWindow(0, 1)  # of all that wait: there may be many


@dataclass(slots=True, kw_only=True, eq=False)
class Transfer:
    """One value to be sent to `key`, of a run of notebook `owner`. `value` carries everything but
    the transfer's number.

    `about` says whose it is; those of one `group` are cancelled together (by itself: its own).

    `release_s`: not before that; `pace_bytes_per_s`: no faster than that. 0: at once, as fast as it
    goes. `received`: what its header tells of the receiver's own transfers, and tells again on a
    new connection.
    """

    key: str
    value: Value
    place: Span
    priority: int
    about: Hashable
    group: Hashable = None
    owner: str = ""
    release_s: float = 0.0
    pace_bytes_per_s: float = 0.0
    order: int = 0
    number: int = 0
    start_s: float | None = None
    window: SendWindow = _NOT_BEGUN
    received: tuple[int, ...] = ()
    received_of: int = 0  # how often the receiver had begun anew when it told

    def __post_init__(self) -> None:
        if self.group is None:
            self.group = self.about

    @property
    def way(self) -> Way:
        """Where it waits."""
        return self.owner, self.key

    def __lt__(self, other: "Transfer") -> bool:
        return (self.priority, self.order) < (other.priority, other.order)


@dataclass(slots=True)
class SendLane:
    """What is kept of one notebook's turns: up to where it had its share of the link, in bytes."""

    share_bytes: int = 0
    paced_until_s: float = 0.0
    n_paced: int = 0  # begun and not acknowledged
    is_idle: bool = True  # nothing could be sent when something might have been


class SendQueue:
    """All transfers of this device. `link_bytes_per_s` 0: as fast as the network is.

    `along(owner, key)` gives the transfers of that receiver for that notebook's runs that the
    header of its next value shall acknowledge.
    """

    def __init__(
        self,
        *,
        link_bytes_per_s: float = 0.0,
        window_bytes: int = WINDOW_BYTES,
        along: Callable[[str, str], tuple[int, ...]] = lambda owner, key: (),
    ) -> None:
        self._rate, self._along = link_bytes_per_s, along
        self._window_bytes = window_bytes
        limit = (
            max(MIN_CHUNK_BYTES, int(link_bytes_per_s * CHUNK_S))
            if link_bytes_per_s
            else CHUNK_BYTES
        )
        self._chunk_bytes = min(CHUNK_BYTES, limit)
        # by way: not begun, by priority
        self._waiting: dict[Way, GroupedHeap[tuple[int, int, Transfer]]] = {}
        # by way: begun, with chunks that are not sent; a heap
        self._unfinished: dict[Way, list[Transfer]] = {}
        # by way and number: begun and not acknowledged in full
        self._under_way: dict[Way, dict[int, Transfer]] = {}
        self._begun: dict[int, Transfer] = {}  # the same by number
        self._begun_of: dict[Hashable, dict[int, Transfer]] = {}  # the same by group
        self._outstanding: dict[Way, int] = {}  # by way: bytes sent and not credited
        # by receiver: what its link has shown that it carries
        self._fast_chunk_bytes: dict[str, int] = {}
        self._n_anew: dict[str, int] = {}  # by receiver: how often it began anew
        self._reachable: set[str] = set()
        self._n_added = self._n_transfers = 0
        # by way: not to be sent yet, by release time
        self._held: dict[Way, GroupedHeap[tuple[float, int, Transfer]]] = {}
        self._lanes: dict[str, SendLane] = {}
        self._share_bytes = 0  # up to where the lane whose turn was last had its share
        self._pumped_s = 0.0
        self._waits_for: Container[str] = ()
        self._is_cut = False  # more might have been sent
        self._on_air: ToPeer | None = None  # paced: it leaves at `_air_free_s`
        self._air_free_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._under_way or self._waiting or self._held)

    @property
    def n_leaving(self) -> int:
        """Values that wait to be sent, or for their receiver."""
        n_begun = sum(map(len, self._under_way.values()))
        n_waiting = sum(map(len, self._waiting.values()))
        return n_begun + n_waiting + sum(map(len, self._held.values()))

    def reach(self, key: str) -> None:
        """There is a data connection to this receiver."""
        self._reachable.add(key)

    def add(self, transfer: Transfer, now_s: float = 0.0) -> None:
        """Send this when its turn comes."""
        self._lanes.setdefault(transfer.owner, SendLane())
        self._n_added += 1
        transfer.order = self._n_added
        if transfer.release_s > now_s:
            held = self._held.setdefault(transfer.way, GroupedHeap())
            held.push(transfer.group, (transfer.release_s, transfer.order, transfer))
        else:
            self._wait(transfer)

    def _wait(self, transfer: Transfer) -> None:
        waiting = self._waiting.setdefault(transfer.way, GroupedHeap())
        waiting.push(transfer.group, (transfer.priority, transfer.order, transfer))

    def _begin(self, transfer: Transfer) -> None:
        """It is the first of those that wait on its way, and begins."""
        way = transfer.way
        waiting = self._waiting[way]
        waiting.pop()
        if not waiting:
            del self._waiting[way]
        self._n_transfers += 1
        transfer.number = self._n_transfers
        transfer.window = SendWindow(transfer.value.nbytes, self._chunk_bytes_for(transfer))
        self._begun[transfer.number] = transfer
        self._under_way.setdefault(way, {})[transfer.number] = transfer
        self._begun_of.setdefault(transfer.group, {})[transfer.number] = transfer
        self._lanes[transfer.owner].n_paced += transfer.pace_bytes_per_s > 0
        heapq.heappush(self._unfinished.setdefault(way, []), transfer)

    def _end(self, transfer: Transfer) -> None:
        """It is not under way any more."""
        way, n_bytes = transfer.way, transfer.window.outstanding_bytes
        for where in (self._begun, self._under_way[way], self._begun_of[transfer.group]):
            del where[transfer.number]
        if not self._under_way[way]:
            del self._under_way[way]
        if not self._begun_of[transfer.group]:
            del self._begun_of[transfer.group]
        self._outstanding[way] = self._outstanding.get(way, 0) - n_bytes
        lane = self._lanes[transfer.owner]
        lane.n_paced -= transfer.pace_bytes_per_s > 0
        if not lane.n_paced:  # a pace does not outlive what it was for
            lane.paced_until_s = 0.0

    def leave(self, owner: str) -> None:
        """This notebook is gone: forget all that was to be sent for it."""
        for way in [way for way in self._ways() if way[0] == owner]:
            for transfer in tuple(self._under_way.get(way, {}).values()):
                self._end(transfer)
            for table in self._tables:
                table.pop(way, None)
        self._lanes.pop(owner, None)

    @property
    def _tables(self) -> tuple[dict[Way, Any], ...]:
        return self._waiting, self._held, self._unfinished, self._under_way, self._outstanding

    def _ways(self) -> tuple[Way, ...]:
        return tuple({way: None for table in self._tables for way in table})

    def _chunk_bytes_for(self, transfer: Transfer) -> int:
        fast_bytes = self._fast_chunk_bytes.get(transfer.key, self._chunk_bytes)
        return min(fast_bytes, largest_chunk_bytes(transfer.value.nbytes))

    def restart(self, key: str) -> None:
        """The connection to this receiver is a new one: everything under way begins anew.

        Repeats are recognised.
        """
        for transfer in self._disconnect(key):
            transfer.number, transfer.window = 0, _NOT_BEGUN
            self._wait(transfer)

    def _disconnect(self, key: str) -> list[Transfer]:
        """Nothing is under way to this receiver any more; returns what was."""
        ways = [way for way in self._ways() if way[1] == key]
        lost = [transfer for way in ways for transfer in self._under_way.get(way, {}).values()]
        for transfer in lost:
            self._end(transfer)
        for way in ways:
            self._unfinished.pop(way, None)
            self._outstanding.pop(way, None)
        self._fast_chunk_bytes.pop(key, None)
        return lost

    def begin_anew(self, key: str) -> None:
        """This receiver begins its own transfers anew, with new numbers: what we have of the old
        ones is not told.
        """
        self._n_anew[key] = self._n_anew.get(key, 0) + 1

    def cancel(self, groups: Collection[Hashable]) -> None:
        """Forget the transfers of all these, however many wait."""
        for group in groups:
            begun = tuple(self._begun_of.get(group, {}).values())
            for transfer in begun:
                self._end(transfer)
            for way in {transfer.way for transfer in begun} & self._unfinished.keys():
                heap = [transfer for transfer in self._unfinished[way] if transfer.group != group]
                heapq.heapify(heap)
                self._unfinished[way] = heap
            self._drop(self._waiting, group)
            self._drop(self._held, group)

    def _drop(self, heaps: dict[Way, GroupedHeap[Any]], group: Hashable) -> None:
        for way, heap in tuple(heaps.items()):
            heap.drop(group)
            if not heap:
                del heaps[way]

    def forget(self, key: str) -> dict[Hashable, list[Transfer]]:
        """This receiver is gone; returns what it will not get, by group."""
        lost: dict[Hashable, list[Transfer]] = {}
        ways = [way for way in self._ways() if way[1] == key]
        for transfer in self._disconnect(key):
            lost.setdefault(transfer.group, []).append(transfer)
        tables: tuple[dict[Way, GroupedHeap[Any]], ...] = (self._waiting, self._held)
        for heap in [table.pop(way, None) for table in tables for way in ways]:
            for group, entries in (heap.take_all() if heap else {}).items():
                lost.setdefault(group, []).extend([entry[2] for entry in entries])
        self._reachable.discard(key)
        self._n_anew.pop(key, None)
        return lost

    def owner_of(self, key: str, number: int) -> str:
        """For whose run that transfer to this receiver is under way; empty: none is."""
        transfer = self._find(key, number)
        return "" if transfer is None else transfer.owner

    def credited(self, key: str, credit: Credit, now_s: float) -> Transfer | None:
        """The receiver has more of a value; returns the transfer once it has all.

        WireError where that cannot be.
        """
        transfer = self._find(key, credit.transfer)
        if transfer is None:
            return None
        news = transfer.window.credit(credit.received_bytes, credit.done)
        self._outstanding[transfer.way] = self._outstanding.get(transfer.way, 0) - news
        if not transfer.window.done:
            return None
        self._end(transfer)
        self._resize_chunks(transfer, now_s)
        return transfer

    def arrived(self, key: str, number: int, now_s: float) -> Transfer | None:
        """The receiver has all of a value, and says so with one of its own.

        Returns the transfer, if it is news.
        """
        transfer = self._find(key, number)
        if transfer is None:
            return None
        return self.credited(
            key, Credit(transfer=number, received_bytes=transfer.value.nbytes, done=True), now_s
        )

    def _resize_chunks(self, transfer: Transfer, now_s: float) -> None:
        """Size the next chunks for this receiver by how fast it got a value that took more than
        one.
        """
        if (
            self._rate
            or transfer.start_s is None
            or not transfer.window.all_sent
            or transfer.value.nbytes <= CHUNK_BYTES
        ):
            return
        elapsed_s = now_s - transfer.start_s
        fits = transfer.value.nbytes * FAST_CHUNK_S
        chunk_bytes = CHUNK_BYTES
        while chunk_bytes < MAX_CHUNK_BYTES and 2 * chunk_bytes * elapsed_s <= fits:
            chunk_bytes *= 2
        self._fast_chunk_bytes[transfer.key] = chunk_bytes

    def rejected(self, key: str, number: int) -> Transfer | None:
        """The receiver does not want it."""
        transfer = self._find(key, number)
        if transfer is not None:
            self._end(transfer)
        return transfer

    def _find(self, key: str, number: int) -> Transfer | None:
        transfer = self._begun.get(number)
        return transfer if transfer is not None and transfer.key == key else None

    def pump(self, now_s: float, waits_for: Container[str] = ()) -> list[ToPeer]:
        """Everything that may leave by now, or as much of it as leaves at once.

        `waits_for`: of these notebooks something more urgent may come in a moment.
        """
        self._waits_for = waits_for
        self._pumped_s = now_s
        self._is_cut = not self._release(now_s)
        if self._is_cut:  # something more urgent may be among what is left
            return []
        if self._rate:
            return self._pump_paced(now_s)
        sent: list[ToPeer] = []
        while True:
            self._is_cut = len(sent) >= MAX_AT_ONCE
            if self._is_cut:
                break
            chunk = self._next(now_s)
            if chunk is None:
                break
            sent.append(chunk[0])
        return sent

    def _release(self, now_s: float) -> bool:
        """Let wait for its turn what is due by now; False where there is more."""
        n_left = MAX_AT_ONCE
        for way, held in tuple(self._held.items()):
            while (head := held.head()) is not None and head[0] <= now_s:
                if not n_left:
                    return False
                n_left -= 1
                self._wait(held.pop()[2])
            if not held:
                del self._held[way]
        return True

    def _is_due(self, owner: str, now_s: float) -> bool:
        """Whether the last chunk of this lane has had its time, or all of it is there already: a
        link may be faster than was thought.
        """
        is_paced = not self._rate and self._lanes[owner].paced_until_s > now_s
        is_held = is_paced and any(n for way, n in self._outstanding.items() if way[0] == owner)
        return owner not in self._waits_for and not is_held

    def wake_s(self) -> float | None:
        """When `pump` is to be called again, if no event comes first."""
        times = [self._air_free_s] if self._on_air is not None else []
        if self._is_cut:
            times.append(self._pumped_s)
        times += [head[0] for held in self._held.values() if (head := held.head()) is not None]
        owners = {owner for table in (self._under_way, self._waiting) for owner, _ in table}
        until_s = [self._lanes[owner].paced_until_s for owner in owners]
        times += [paced_s for paced_s in until_s if paced_s > self._pumped_s]
        return min(times, default=None)

    def _pump_paced(self, now_s: float) -> list[ToPeer]:
        """A chunk is on the air for its bytes over the rate, and handed over when it has left the
        air.
        """
        sent: list[ToPeer] = []
        if self._on_air is None:
            self._air_free_s = max(self._air_free_s, now_s)
        while self._on_air is None or self._air_free_s <= now_s:
            self._is_cut = len(sent) >= MAX_AT_ONCE
            if self._is_cut:
                break
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
        return self._find(chunk.key, chunk.message.transfer) is not None

    def _next(self, now_s: float) -> tuple[ToPeer, int] | None:
        """The most urgent chunk that has credit, of the lane whose turn it is, and its bytes."""
        best = self._pick(now_s)
        if best is None:
            return None
        if not best.number:
            self._begin(best)
        cut = best.window.advance(self._window_bytes)
        assert cut is not None  # `_has_credit` saw room
        index, start, stop = cut
        self._outstanding[best.way] = self._outstanding.get(best.way, 0) + stop - start
        self._take_turn(best, stop - start, now_s)
        span = replace(best.place, offset=best.place.offset + start, nbytes=stop - start)
        if index:
            return ToPeer(
                key=best.key, message=Chunk(transfer=best.number, index=index), buffers=(span,)
            ), stop - start
        if best.start_s is None:
            best.start_s = now_s
        n_anew = self._n_anew.get(best.key, 0)
        if best.received_of != n_anew or not best.received:
            best.received, best.received_of = self._along(best.owner, best.key), n_anew
        return ToPeer(key=best.key, message=_header(best), buffers=(span,)), stop - start

    def _pick(self, now_s: float) -> Transfer | None:
        """The most urgent transfer that has credit, of the lane that had the least."""
        ready: dict[str, Transfer | None] = {
            owner: None for owner in self._lanes if self._is_due(owner, now_s)
        }
        for way in self._waiting.keys() | self._unfinished.keys():
            owner, key = way
            if owner not in ready or key not in self._reachable:
                continue
            best, transfer = ready[owner], self._head(way)
            if (
                transfer is not None
                and (best is None or transfer < best)
                and self._has_credit(transfer)
            ):
                ready[owner] = transfer
        for owner, best in ready.items():
            self._lanes[owner].is_idle |= best is None
        able = [transfer for transfer in ready.values() if transfer is not None]
        if len(able) < 2:
            return able[0] if able else None
        return min(able, key=lambda each: (self._begins_bytes(each), each))

    def _begins_bytes(self, transfer: Transfer) -> int:
        """When its lane's turn begins; a lane that had nothing to send has nothing to catch up."""
        return max(self._lanes[transfer.owner].share_bytes, self._share_bytes)

    def _take_turn(self, transfer: Transfer, nbytes: int, now_s: float) -> None:
        lane = self._lanes[transfer.owner]
        self._share_bytes = self._begins_bytes(transfer)
        lane.share_bytes = self._share_bytes + nbytes + CHUNK_COST_BYTES
        if transfer.pace_bytes_per_s:
            late_s = 0.0 if lane.is_idle else CATCH_UP_S
            until_s = max(lane.paced_until_s, now_s - late_s) + nbytes / transfer.pace_bytes_per_s
            lane.paced_until_s = min(until_s, now_s + MAX_PACED_S)
        lane.is_idle = False

    def _head(self, way: Way) -> Transfer | None:
        """What is to leave on this way next: something more urgent begins, as long as no more
        values are under way than may be.
        """
        begun = self._unfinished.get(way)
        while begun and (self._begun.get(begun[0].number) is not begun[0] or _is_sent(begun[0])):
            heapq.heappop(begun)
        if not begun:
            self._unfinished.pop(way, None)
        first = begun[0] if begun else None
        waiting = self._waiting.get(way)
        if waiting is None or len(self._under_way.get(way, ())) >= MAX_TRANSFERS:
            return first
        entry = waiting.head()
        assert entry is not None  # one that is empty is not kept
        return entry[2] if first is None or entry[2] < first else first

    def _has_credit(self, transfer: Transfer) -> bool:
        window = transfer.window
        is_begun = transfer.number > 0
        chunk_bytes = window.chunk_bytes if is_begun else self._chunk_bytes_for(transfer)
        left_bytes = transfer.value.nbytes - (window.sent_bytes if is_begun else 0)
        outstanding_bytes = self._outstanding.get(transfer.way, 0) + min(chunk_bytes, left_bytes)
        own_bytes = min(self._window_bytes, WINDOW_CHUNKS * chunk_bytes)
        return outstanding_bytes <= own_bytes or outstanding_bytes <= self._window_of(transfer.way)

    def _window_of(self, way: Way) -> int:
        """By the largest chunks under way: the receiver may owe credit for half as many of them."""
        begun = self._under_way.get(way, {}).values()
        largest = max([other.window.chunk_bytes for other in begun], default=0)
        return min(self._window_bytes, WINDOW_CHUNKS * largest)


def _is_sent(transfer: Transfer) -> bool:
    return transfer.window.all_sent


def _header(transfer: Transfer) -> Value:
    value = transfer.value
    return Value(
        transfer=transfer.number,
        run=value.run,
        epoch=value.epoch,
        program=value.program,
        step=value.step,
        name=value.name,
        dtype=value.dtype,
        shape=value.shape,
        nbytes=value.nbytes,
        chunk_bytes=transfer.window.chunk_bytes,
        received=transfer.received,
    )
