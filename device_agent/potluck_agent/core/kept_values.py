"""Values that a notebook offers because this device may have kept them: read from the disk into the
inbound arena, one at a time, instead of coming over the link; and what comes over it is kept. Pure.

What the disk is at has its place until the disk says that it is through, whatever ends meanwhile.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from potluck_agent.core.events import (
    DONE,
    MOVES,
    Action,
    FromDisk,
    ReadKept,
    RemoveKept,
    Span,
    ToPeer,
    WriteKept,
)
from potluck_agent.core.execution import Name
from potluck_agent.core.inbound_space import DISK, InboundSpace
from potluck_agent.core.weight_cache import WeightCache
from potluck_wire.content import CONTENT_BYTES
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_TRANSFERS
from potluck_wire.messages import Credit, RefusalCode, Rejected, Value, Wanted

# of the arena, what may wait to be written: a slow disk keeps less, and holds nobody up
WRITING_PARTS = 2


@dataclass(slots=True, kw_only=True, eq=False)
class OfferedValue:
    """One that is kept here, and not in its place yet. `value` as its `Value` would be."""

    key: str
    value: Value
    about: Hashable
    start_s: float
    offset: int = -1


@dataclass(slots=True)
class _Write:
    offset: int
    nbytes: int


class KeptValues:
    """Of one notebook, `owner`, whose worker has number `worker`."""

    def __init__(
        self, owner: str, worker: int, cache: WeightCache, space: Callable[[], InboundSpace]
    ) -> None:
        self._owner, self._worker = owner, worker
        self._cache, self._space = cache, space
        self._offered: OrderedDict[tuple[str, int], OfferedValue] = OrderedDict()
        self._reading: OfferedValue | None = None
        self._read_ticket = -1
        self._is_wanted = False  # what is read
        self._writes: dict[int, _Write] = {}
        self._writing_bytes = 0

    def __len__(self) -> int:
        """Values that are kept here and not in their place yet."""
        return len(self._offered) + (self._reading is not None)

    def offer(self, offered: OfferedValue) -> list[Action]:
        """What to do about an offer; WireError where it does not hold."""
        key, value = offered.key, offered.value
        if len(value.content) != CONTENT_BYTES:
            raise WireError(WireCode.TENSOR, f"a content of {len(value.content)} bytes")
        if (key, value.transfer) in self._offered or self._is_reading(key, value.transfer):
            raise WireError(WireCode.CHUNK, f"transfer {value.transfer} has begun already")
        if len(self._offered) >= MAX_TRANSFERS:
            text = f"more than {MAX_TRANSFERS} values at once"
            return [_rejected(offered, RefusalCode.MEMORY, text)]
        is_small = value.nbytes <= self._space().nbytes
        if not is_small or not self._cache.has(self._owner, value.content, value.run):
            return [_wanted(offered)]
        self._offered[key, value.transfer] = offered
        return self.go_on()

    def _is_reading(self, key: str, transfer: int) -> bool:
        reading = self._reading
        return reading is not None and (reading.key, reading.value.transfer) == (key, transfer)

    def go_on(self) -> list[Action]:
        """Read the next one, if there is room for it."""
        if self._reading is not None or not self._offered:
            return []
        offered = next(iter(self._offered.values()))
        value, place = offered.value, self._space().place(offered.value.nbytes, DISK)
        if place is None:
            return []
        del self._offered[offered.key, value.transfer]
        offered.offset = place
        self._reading, self._is_wanted = offered, True
        self._read_ticket = ticket = self._cache.ticket()
        return [self._order(ReadKept, ticket, value, place)]

    def keep(self, value: Value, offset: int) -> list[Action]:
        """A value is here as a whole, at `offset`: write it, if there is room on the disk."""
        nbytes = value.nbytes
        if (
            len(value.content) != CONTENT_BYTES
            or self._writing_bytes + nbytes > self._space().nbytes // WRITING_PARTS
        ):
            return []
        ticket, gone = self._cache.begin(self._owner, value.content, nbytes, value.run)
        actions: list[Action] = [RemoveKept(*each) for each in gone]
        if ticket:
            self._space().lend(offset, DISK)
            self._writes[ticket] = _Write(offset, nbytes)
            self._writing_bytes += nbytes
            actions.append(self._order(WriteKept, ticket, value, offset))
        return actions

    def _order(
        self, kind: type[ReadKept] | type[WriteKept], ticket: int, value: Value, offset: int
    ) -> Action:
        return kind(
            ticket=ticket,
            owner=self._owner,
            content=value.content,
            dtype=value.dtype,
            shape=value.shape,
            place=Span(arena="inbound", offset=offset, nbytes=value.nbytes, worker=self._worker),
        )

    def progress(self, event: FromDisk) -> tuple[list[Action], OfferedValue | None, int | None]:
        """How the disk gets on: (what to do, the value that is in its place now, the place that the
        disk has done with).
        """
        if event.state == MOVES:
            return [], None, None
        if (write := self._writes.pop(event.ticket, None)) is not None:
            self._writing_bytes -= write.nbytes
            return [], None, write.offset
        if event.ticket != self._read_ticket or (reading := self._reading) is None:
            return [], None, None  # of a worker that is gone
        self._reading = None
        if event.state != DONE:
            self._cache.forget(self._owner, reading.value.content)
        if not self._is_wanted:
            return [], None, reading.offset
        if event.state != DONE:
            return [_wanted(reading)], None, reading.offset
        return [_done(reading)], reading, None

    def reset(self, key: str) -> None:
        """The connection from this sender is a new one: it offers everything anew."""
        self._drop(lambda offered: offered.key == key)

    def cancel(self, about: Hashable) -> list[Action]:
        """What belongs to this is not wanted any more."""
        gone = self._drop(lambda offered: offered.about == about)
        text = "the run has ended"
        return [_rejected(offered, RefusalCode.UNKNOWN_RUN, text) for offered in gone]

    def settle(self, execution: Name) -> list[Action]:
        """What is offered for this execution has nothing more to do here."""
        gone = self._drop(lambda offered: Name.of(offered.value) == execution)
        return [_done(offered) for offered in gone]

    def clear(self) -> list[Action]:
        """The arena is another one; what is written of the old one is kept all the same."""
        gone = self._drop(lambda offered: True)
        self._reading, self._read_ticket = None, -1
        self._writes, self._writing_bytes = {}, 0
        text = "the worker of this device is gone"
        return [_rejected(offered, RefusalCode.UNKNOWN_RUN, text) for offered in gone]

    def _drop(self, is_over: Callable[[OfferedValue], bool]) -> list[OfferedValue]:
        gone = [offered for offered in self._offered.values() if is_over(offered)]
        for offered in gone:
            del self._offered[offered.key, offered.value.transfer]
        if self._reading is not None and self._is_wanted and is_over(self._reading):
            self._is_wanted = False
            gone.append(self._reading)
        return gone


def _done(offered: OfferedValue) -> ToPeer:
    value = offered.value
    known = Credit(transfer=value.transfer, received_bytes=value.nbytes, done=True)
    return ToPeer(key=offered.key, message=known)


def _wanted(offered: OfferedValue) -> ToPeer:
    return ToPeer(key=offered.key, message=Wanted(transfer=offered.value.transfer))


def _rejected(offered: OfferedValue, code: str, text: str) -> ToPeer:
    transfer = offered.value.transfer
    return ToPeer(key=offered.key, message=Rejected(transfer=transfer, code=code, text=text))
