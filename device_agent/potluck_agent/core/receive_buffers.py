"""Values on their way in: where each chunk goes, when the sender gets credit, and who still holds
which place.

A value that finds no room waits, without credit: at most one window per sender is held in the
agent. Credit for a small value may wait, too, until its sender is sent a value anyway, whose header
tells it: one message for two. Pure.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from potluck_agent.core.events import Action, Buffer, FromDisk, Span, Store, ToPeer
from potluck_agent.core.execution import Name
from potluck_agent.core.inbound_space import AGENT, DISK, InboundSpace
from potluck_agent.core.kept_values import KeptValues, OfferedValue
from potluck_agent.core.weight_cache import WeightCache
from potluck_wire.chunks import CreditLedger, Reassembler
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_ITEMS, MAX_TRANSFERS, WINDOW_BYTES
from potluck_wire.messages import Chunk, Credit, RefusalCode, Rejected, Value

# credit waits no longer: the sender keeps its value, and perhaps somebody waits for its end
CREDIT_DELAY_S = 0.2
NO_CACHE = WeightCache(0)


@dataclass(slots=True, kw_only=True, eq=False)
class IncomingValue:
    """One value that is coming in. `offset` None: no room yet; `sink`: only measured, not kept."""

    key: str
    assembly: Reassembler
    about: Hashable
    worker: int = 0  # in whose arena it lies
    sink: bool = False
    may_wait: bool = False  # its credit
    offset: int | None = None
    # (position, bytes), waiting for room
    held: list[tuple[int, Buffer]] = field(default_factory=list)
    held_bytes: int = 0
    start_s: float = 0.0

    @property
    def value(self) -> Value:
        """Its header."""
        return self.assembly.value

    @property
    def span(self) -> Span:
        """Where it is."""
        assert self.offset is not None
        return Span(
            arena="inbound", offset=self.offset, nbytes=self.value.nbytes, worker=self.worker
        )


@dataclass(slots=True, kw_only=True)
class ChunkOutcome:
    """What one chunk leads to: actions, the values that are complete now, and those that are
    rejected, each with the code and why.
    """

    actions: list[Action] = field(default_factory=list)
    complete: list[IncomingValue] = field(default_factory=list)
    rejected: list[tuple[Value, str, str]] = field(default_factory=list)

    def add(self, more: "ChunkOutcome") -> None:
        """What else it leads to."""
        self.actions += more.actions
        self.complete += more.complete
        self.rejected += more.rejected


class ReceiveBuffers:
    """All arrivals for one worker, into its inbound arena of so many bytes. `cache`: what is kept
    of the weights of this notebook, `owner`, and of others; nothing is, without.
    """

    def __init__(
        self, inbound_bytes: int, worker: int = 0, owner: str = "", cache: WeightCache = NO_CACHE
    ) -> None:
        self._worker = worker
        self.space = InboundSpace(inbound_bytes)
        self.kept = KeptValues(owner, worker, cache, lambda: self.space)
        self._arrivals: OrderedDict[tuple[str, int], IncomingValue] = OrderedDict()
        self._queue: deque[IncomingValue] = deque()  # without a place, oldest first
        self._accounts: defaultdict[str, CreditLedger] = defaultdict(CreditLedger)  # by sender
        self._unsettled: dict[str, float] = {}  # senders whose credit waits -> since when

    @property
    def busy(self) -> bool:
        """Whether anything is coming in."""
        return bool(self._arrivals or len(self.kept))

    @property
    def n_arriving(self) -> int:
        """Values that are coming in."""
        return len(self._arrivals)

    def begin(
        self,
        key: str,
        value: Value,
        data: Buffer,
        about: Hashable,
        *,
        sink: bool,
        now_s: float,
        may_wait: bool = False,
    ) -> ChunkOutcome:
        """A value's header with its first chunk. WireError where it does not hold.

        `may_wait`: more goes to and fro between the two, and credit for this value can go along;
        see `along`.
        """
        if (key, value.transfer) in self._arrivals:
            raise WireError(WireCode.CHUNK, f"transfer {value.transfer} has begun already")
        if sum(sender == key for sender, _ in self._arrivals) >= MAX_TRANSFERS:
            text = f"more than {MAX_TRANSFERS} values at once"
            return self._reject(key, value, RefusalCode.MEMORY, text)
        if value.nbytes > self.space.nbytes and not sink:
            text = f"a value of {value.nbytes} bytes, this device takes up to {self.space.nbytes}"
            return self._reject(key, value, RefusalCode.MEMORY, text)
        may_wait = may_wait and value.nbytes <= value.chunk_bytes
        arrival = IncomingValue(
            key=key,
            assembly=Reassembler(value),
            about=about,
            worker=self._worker,
            sink=sink,
            may_wait=may_wait,
            start_s=now_s,
        )
        if not sink and not self._queue:
            arrival.offset = self.space.place(value.nbytes)
        if arrival.offset is None and not sink:
            self._queue.append(arrival)
        self._arrivals[key, value.transfer] = arrival
        return self._accept(arrival, 0, data)

    def offer(self, key: str, value: Value, about: Hashable, now_s: float) -> ChunkOutcome:
        """A value that may be kept here, told by its header. WireError where that does not hold."""
        Reassembler(value)
        offered = OfferedValue(key=key, value=value, about=about, start_s=now_s)
        return ChunkOutcome(actions=self.kept.offer(offered))

    def from_disk(self, event: FromDisk) -> ChunkOutcome:
        """The disk gets on with a value that is kept here, or will be."""
        actions, offered, place = self.kept.progress(event)
        step = ChunkOutcome(actions=actions)
        if offered is not None:
            self.space.lend(offered.offset, AGENT)
            self.space.release(offered.offset, DISK)
            step.complete.append(
                IncomingValue(
                    key=offered.key,
                    assembly=Reassembler(offered.value),
                    about=offered.about,
                    worker=self._worker,
                    offset=offered.offset,
                    start_s=offered.start_s,
                )
            )
            step.actions += self.kept.go_on()
        elif place is not None:
            more = self.release(place, DISK)
            step.actions += more.actions
            step.complete += more.complete
        return step

    def awaits(self, key: str, transfer: int) -> bool:
        """Whether this transfer of that sender is coming in."""
        return (key, transfer) in self._arrivals

    def arriving(self, execution: Name) -> set[str]:
        """The values that are coming in for this execution."""
        values = (arrival.value for arrival in self._arrivals.values())
        return {v.name for v in values if Name.of(v) == execution}

    def chunk(self, key: str, chunk: Chunk, data: Buffer) -> ChunkOutcome:
        """A further chunk. One of a transfer that is not wanted any more is dropped."""
        arrival = self._arrivals.get((key, chunk.transfer))
        return ChunkOutcome() if arrival is None else self._accept(arrival, chunk.index, data)

    def _accept(self, arrival: IncomingValue, index: int, data: Buffer) -> ChunkOutcome:
        try:
            start, _ = arrival.assembly.accept(index, len(data))
        except WireError as error:
            self._drop(arrival)
            return self._reject(arrival.key, arrival.value, RefusalCode.DOCUMENT, error.text)
        if arrival.sink:
            return self._acknowledge(arrival)
        if arrival.offset is not None:
            step = self._acknowledge(arrival)
            step.actions.insert(0, Store(arrival.offset + start, data, self._worker))
            return step
        arrival.held.append((start, data))
        arrival.held_bytes += len(data)
        if self._held_bytes(arrival.key) > WINDOW_BYTES:
            self._drop(arrival)
            text = "more bytes than the credit window allows"
            return self._reject(arrival.key, arrival.value, RefusalCode.MEMORY, text)
        return ChunkOutcome()

    def _held_bytes(self, key: str) -> int:
        return sum(arrival.held_bytes for arrival in self._queue if arrival.key == key)

    def _acknowledge(self, arrival: IncomingValue) -> ChunkOutcome:
        """Credit where it is due."""
        due = self._accounts[arrival.key].take(arrival.assembly, may_wait=arrival.may_wait)
        if not due and arrival.assembly.complete:
            self._unsettled.setdefault(arrival.key, arrival.start_s)
        elif due and self._unsettled.pop(arrival.key, None) is not None:
            due += self._accounts[arrival.key].settle()
        step = ChunkOutcome(actions=[ToPeer(key=arrival.key, message=credit) for credit in due])
        if arrival.assembly.complete:
            del self._arrivals[arrival.key, arrival.value.transfer]
            step.complete.append(arrival)
            if arrival.value.content and arrival.offset is not None:
                step.actions += self.kept.keep(arrival.value, arrival.offset)
        return step

    def along(self, key: str) -> tuple[int, ...]:
        """Transfers whose credit has waited for the value that this peer is sent now."""
        if key not in self._unsettled:
            return ()
        complete = self._accounts[key].completed()
        if len(complete) < MAX_ITEMS:  # else there may be more: that still waits
            del self._unsettled[key]
        return complete

    def credit(self, now_s: float) -> list[ToPeer]:
        """Credit that has waited for too long."""
        due = [key for key, since_s in self._unsettled.items() if now_s >= since_s + CREDIT_DELAY_S]
        for key in due:
            del self._unsettled[key]
        return [
            ToPeer(key=key, message=credit)
            for key in due
            for credit in self._accounts[key].settle()
        ]

    def wake_s(self) -> float | None:
        """When `credit` is to be called again, if no event comes first."""
        return min(self._unsettled.values()) + CREDIT_DELAY_S if self._unsettled else None

    def release(self, offset: int, holder: str = AGENT) -> ChunkOutcome:
        """Somebody lets go of a place; whoever waits for room may get it now."""
        return self._fill() if self.space.release(offset, holder) else ChunkOutcome()

    def _fill(self) -> ChunkOutcome:
        step = ChunkOutcome()
        while self._queue:
            arrival = self._queue[0]
            arrival.offset = self.space.place(arrival.value.nbytes)
            if arrival.offset is None:
                break
            self._queue.popleft()
            step.actions += [
                Store(arrival.offset + start, data, self._worker) for start, data in arrival.held
            ]
            arrival.held, arrival.held_bytes = [], 0
            step.add(self._acknowledge(arrival))
        step.actions += self.kept.go_on()
        return step

    def reset(self, key: str) -> ChunkOutcome:
        """The connection from this sender is a new one: it begins everything anew."""
        for arrival in [
            arrival for (sender, _), arrival in self._arrivals.items() if sender == key
        ]:
            self._drop(arrival)
        self.kept.reset(key)
        self._accounts.pop(key, None)
        self._unsettled.pop(key, None)
        return self._fill()

    def cancel(self, about: Hashable) -> ChunkOutcome:
        """What belongs to this is not wanted any more."""
        step = ChunkOutcome(actions=self.kept.cancel(about))
        for arrival in [arrival for arrival in self._arrivals.values() if arrival.about == about]:
            self._drop(arrival)
            text = "the run has ended"
            step.add(self._reject(arrival.key, arrival.value, RefusalCode.UNKNOWN_RUN, text))
        step.actions += self._fill().actions
        return step

    def settle(self, execution: Name) -> ChunkOutcome:
        """What comes for this execution has nothing more to do here.

        Its senders take it as received.
        """
        step = ChunkOutcome(actions=self.kept.settle(execution))
        for arrival in list(self._arrivals.values()):
            value = arrival.value
            if Name.of(value) == execution:
                self._drop(arrival)
                known = Credit(transfer=value.transfer, received_bytes=value.nbytes, done=True)
                step.actions.append(ToPeer(key=arrival.key, message=known))
        step.actions += self._fill().actions
        return step

    def give_up(self, begun_before_s: float) -> ChunkOutcome:
        """Reject what has waited for room since then."""
        step = ChunkOutcome()
        for arrival in [arrival for arrival in self._queue if arrival.start_s < begun_before_s]:
            self._drop(arrival)
            text = f"no room for {arrival.value.nbytes} bytes"
            step.add(self._reject(arrival.key, arrival.value, RefusalCode.MEMORY, text))
        return step

    def clear(self) -> ChunkOutcome:
        """The arena is gone; everything that was coming is rejected. Measured values go on."""
        step = ChunkOutcome(actions=self.kept.clear())
        self.space = InboundSpace(self.space.nbytes)
        self._queue.clear()
        for arrival in [arrival for arrival in self._arrivals.values() if not arrival.sink]:
            del self._arrivals[arrival.key, arrival.value.transfer]
            self._accounts[arrival.key].forget(arrival.assembly)
            text = "the worker of this device is gone"
            step.add(self._reject(arrival.key, arrival.value, RefusalCode.UNKNOWN_RUN, text))
        return step

    def _drop(self, arrival: IncomingValue) -> None:
        del self._arrivals[arrival.key, arrival.value.transfer]
        self._accounts[arrival.key].forget(arrival.assembly)
        if arrival.offset is not None:
            self.space.release(arrival.offset, AGENT)
        elif not arrival.sink:
            self._queue.remove(arrival)

    def _reject(self, key: str, value: Value, code: str, text: str) -> ChunkOutcome:
        rejected = Rejected(transfer=value.transfer, code=code, text=text)
        action = ToPeer(key=key, message=rejected)
        return ChunkOutcome(actions=[action], rejected=[(value, code, text)])
