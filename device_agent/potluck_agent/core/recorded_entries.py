"""What a recording holds, and its bytes: each input of the core, and outlines of the actions that
it answered. Pure.

Messages are kept as the wire's own header bytes. Of raw buffers only those are kept that the core
itself reads: the documents of plans, rosters and answers. Of tensors and of models only the sizes
are kept: the core sees no more of them. Keys' secret halves and pairing codes never come into the
core.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_origin

import msgpack

from potluck_agent.core.events import (
    Action,
    Buffer,
    Event,
    FromDisk,
    FromPeer,
    FromWorker,
    KeepLeases,
    KeptOrder,
    KillWorker,
    LimitWorker,
    LinkReset,
    MayStay,
    MemberLost,
    MustLeave,
    PeerRevoked,
    ReadKept,
    ReadMeter,
    RemoveKept,
    Report,
    Sender,
    SetMembers,
    Span,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
    Undone,
    WorkerDied,
    WriteKept,
)
from potluck_agent.core.msgpack_size import check_count
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.limits import MAX_BUFFER_BYTES, MAX_CLOCK_S, MAX_INT, MAX_MESSAGE_BYTES
from potluck_wire.messages import (
    MESSAGES,
    NUMBER_OF,
    Channel,
    Chunk,
    Computed,
    GrantService,
    Leased,
    LoadSegment,
    MeasureTask,
    Message,
    Prepare,
    Roster,
    Value,
    WorkerReady,
)

# in one entry: an answer of the core has some thousand actions at most, each a text of its own
MAX_THINGS = 100_000
# buffers that the core reads
N_READ: dict[type[Message], int] = {
    Roster: 1,
    Prepare: 1,
    GrantService: 1,
    WorkerReady: 1,
    Computed: 1,
}
# actions' messages whose buffers are tensors or models
UNREAD = (Value, Chunk, LoadSegment, MeasureTask)
_PLAIN: dict[str, Any] = {
    kind.__name__: kind
    for kind in (WorkerDied, PeerRevoked, LinkReset, MemberLost, Tick, MustLeave, MayStay, FromDisk)
}


class RecordingError(Exception):
    """A recording that cannot be replayed; the text says where it is broken."""


@dataclass(frozen=True, slots=True)
class Began:
    """The core as it was made: its settings, and the version of the protocol."""

    version: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Handled:
    """The core was given this event."""

    at_s: float
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Survived:
    """An error had to be survived: of the event before (`event` None), or of what could not even be
    read.
    """

    at_s: float
    event: Event | None
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Reached:
    """A data connection of this peer stands."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """What this peer sent is no message."""

    key: str
    channel: str
    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted:
    """Something outside the core raised."""

    what: str
    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """Outlines of the actions that the last input led to, in order."""

    outlines: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Full:
    """The file is as large as it may be: nothing more was recorded."""


Entry = Began | Handled | Survived | Reached | Malformed | Faulted | Answered | Full
_ENTRIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Began, Handled, Survived, Reached, Malformed, Faulted, Answered, Full)
}


def pack(entry: Entry) -> bytes:
    """The entry as msgpack.

    Raises
    ------
    ValueError, OverflowError, TypeError
        Where the entry holds what msgpack does not: a number beyond 64 bits in an action that was
        undone.
    """
    values = [getattr(entry, field.name) for field in fields(entry)]
    plain = (_pack_event(value) if isinstance(value, Event) else value for value in values)
    packed: bytes = msgpack.packb([type(entry).__name__, *plain])
    return packed


def _open(packed: bytes) -> Any:
    check_count(packed, MAX_THINGS)
    return msgpack.unpackb(packed)


def unpack(data: bytes) -> Entry:
    """What `pack` was given; RecordingError where this is no entry."""
    try:
        kind, *values = _open(data)
        if kind in ("Handled", "Survived") and values[1] is not None:
            values[1] = _unpack_event(*values[1])
        if kind == "Answered":
            values = [tuple(values[0])]
        entry: Entry = _made(_ENTRIES[kind], values)
        check(entry)
    except Exception as error:  # written by anybody: it may be anything
        raise RecordingError(
            f"no entry that this version knows ({type(error).__name__}: {error})"
        ) from error
    return entry


def check(record: Any) -> None:
    """Each field is what its type says, within what an agent's core is given; TypeError or
    ValueError where not.
    """
    for field in fields(record):
        value, kind = getattr(record, field.name), field.type
        if isinstance(kind, str):  # the action that was undone is made here, of what is known
            continue
        plain: Any = get_origin(kind) if get_origin(kind) in (dict, tuple) else kind
        wrong = type(value) is not plain if plain in (int, float) else not isinstance(value, plain)
        if wrong and not (kind is float and type(value) is int):  # a rate may be given as one
            raise TypeError(f"{field.name} is no {getattr(plain, '__name__', plain)}")
        if kind in (int, float) and not 0 <= value <= (MAX_INT if kind is int else MAX_CLOCK_S):
            raise ValueError(f"{field.name} is out of range")
        if isinstance(value, Event):
            check(value)
    match record:
        case FromPeer(sender=sender):
            check(sender)
        case Malformed(channel=channel):
            Channel(channel)
        case Answered(outlines=outlines):
            for packed in outlines:
                open_outline(packed)


def outline(action: Action) -> bytes:
    """All that tells this action from another, but for tensors, models and the places of code in a
    report.

    Recording never fails the core: what msgpack does not hold is told by its kind.
    """
    name = type(action).__name__
    try:
        packed: bytes = msgpack.packb([name, *_facts(action)])
    except (ValueError, OverflowError, TypeError):
        packed = msgpack.packb([name])
    return packed


def _facts(action: Action) -> list[Any]:
    row: list[Any] = []
    match action:
        case ToPeer() | ToWorker():
            row = [
                action.key if isinstance(action, ToPeer) else _worker(action.worker),
                _pack_message(action.message),
                [_pack_part(action.message, part) for part in action.buffers],
            ]
        case Store():
            row = [action.offset, len(action.data), *_other(action.worker)]
        case StartWorker():
            row = _other(action.worker)
        case KillWorker():
            row = [action.reason, *_other(action.worker)]
        case LimitWorker():
            row = [action.memory_bytes, action.worker]
        case SetMembers():
            row = [[[member.name, member.key, member.address] for member in action.members]]
        case ReadMeter():
            row = [action.key, action.busy_s, action.radio_s, action.busy_frac]
        case KeepLeases():
            kept = [list(lease.values()) for lease in action.rows]
            row = [action.answer.key, _pack_message(action.answer.message), kept]
        case KeptOrder():
            span = action.place
            row = [action.ticket, action.owner, action.content, action.dtype, *action.shape]
            row += [span.offset, span.nbytes, span.worker]
        case RemoveKept():
            row = [action.owner, action.content]
        case Report():
            row = [action.text.partition("\n")[0].partition("(")[0]]
    return row


def _worker(number: int) -> str:
    """In the place of a peer's key; the first worker was the only one once, and is not told."""
    return f"worker {number}" if number else ""


def _other(number: int) -> list[int]:
    return [number] if number else []


def open_outline(packed: bytes) -> tuple[str, str, Message | None, list[Any]]:
    """(kind of action, key of a peer or "", message, other facts) of an outline.

    RecordingError where it is none.
    """
    try:
        name, *row = _open(packed)
        if name not in ("ToPeer", "ToWorker") or not row:
            return str(name), "", None, row
        key, message, parts = row
        return name, str(key), _unpack_message(message, [b""] * len(parts))[0], parts
    except Exception as error:  # written by anybody: it may be anything
        raise RecordingError(
            f"an action that this version does not know ({type(error).__name__}: {error})"
        ) from error


# --- events ---------------------------------------------------------------------------------------


def _pack_event(event: Event) -> list[Any]:
    name = type(event).__name__
    match event:
        case FromPeer(sender=sender, message=message, buffers=buffers):
            return [
                name,
                [sender.key, sender.role, sender.name],
                _pack_message(message),
                _kept(message, buffers),
            ]
        case FromWorker(message, buffers, worker):
            return [name, _pack_message(message), _kept(message, buffers), worker]
        case Undone(action, text):
            place = action.place if isinstance(action, KeptOrder) else action
            return [name, *_pack_undone(action), text, getattr(place, "worker", 0)]
    return [name, *(getattr(event, field.name) for field in fields(event))]


def _unpack_event(name: str, *row: Any) -> Event:
    if name == "FromPeer":
        sender, message, buffers = row
        message, buffers = _unpack_message(message, _restored(buffers))
        return FromPeer(sender=_made(Sender, sender), message=message, buffers=buffers)
    if name == "FromWorker":
        message, buffers, *worker = row
        return FromWorker(*_unpack_message(message, _restored(buffers)), *worker)
    if name == "Undone":
        kind, key, message, text, *worker = row
        return Undone(_unpack_undone(kind, key, message, *worker), text)
    event: Event = _made(_PLAIN[name], row)
    return event


def _made(kind: Any, values: Sequence[Any]) -> Any:
    """A record of its fields, in order; those that are left out have their defaults."""
    names = [field.name for field in fields(kind)]
    if len(values) > len(names):
        raise ValueError(f"{len(values)} fields of {kind.__name__}, which has {len(names)}")
    return kind(**dict(zip(names, values, strict=False)))


def _pack_undone(action: Action) -> list[Any]:
    """Of an action that could not be carried out the core looks at its kind, its message or number,
    and the peer or the worker.
    """
    if isinstance(action, KeptOrder):
        return [type(action).__name__, "", action.ticket]
    message = _pack_message(action.message) if isinstance(action, ToPeer | ToWorker) else None
    return [type(action).__name__, action.key if isinstance(action, ToPeer) else "", message]


def _unpack_undone(kind: str, key: str, message: Any, worker: int = 0) -> Action:
    match kind:
        case "ToPeer":
            return ToPeer(key=key, message=_unpack_message(message)[0])
        case "ToWorker":
            return ToWorker(_unpack_message(message)[0], (), worker)
        case "Store":
            return Store(0, b"", worker)
        case "StartWorker":
            return StartWorker(worker)
        case "LimitWorker":
            return LimitWorker(0, worker)
        case "ReadKept" | "WriteKept":
            place = Span(arena="inbound", offset=0, nbytes=0, worker=worker)
            order = ReadKept if kind == "ReadKept" else WriteKept
            return order(ticket=message, owner="", content=b"", dtype="", shape=(), place=place)
        case "KeepLeases":
            return KeepLeases((), ToPeer(key="", message=Leased()))
    return Report("")  # any other is only counted


# --- messages -------------------------------------------------------------------------------------


def _pack_message(message: Message) -> list[Any]:
    """[number, header as on the wire]; what the wire does not take, as [number, {field: value}]."""
    number = NUMBER_OF[type(message)]
    try:
        return [number, bytes(encode(message, [b""] * MESSAGES[number].buffers[0])[0])]
    except WireError:
        return [number, {field.name: getattr(message, field.name) for field in fields(message)}]


def _unpack_message(
    packed: Any, buffers: Sequence[Buffer] | None = None
) -> tuple[Message, tuple[Buffer, ...]]:
    """The message and its buffers, as strictly checked as on the wire.

    `buffers` None: they are of no interest.
    """
    number, header = packed
    entry = MESSAGES[number]
    if isinstance(header, dict):
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in header.items()
        }
        return entry.type(**values), tuple(buffers or ())
    return decode(
        [header, *([b""] * entry.buffers[0] if buffers is None else buffers)], entry.channel
    )


def _kept(message: Message, buffers: Sequence[Buffer]) -> list[Any]:
    """Buffers that the core reads, and of the others the sizes."""
    n_read = N_READ.get(type(message), 0)
    return [bytes(part) if index < n_read else len(part) for index, part in enumerate(buffers)]


def _restored(kept: Sequence[Any]) -> list[Buffer]:
    """As many bytes as there were; zeros, the same ones for all, where they were left out."""
    n_bytes = sum(part if isinstance(part, int) else len(part) for part in kept)
    if not 0 <= n_bytes <= MAX_MESSAGE_BYTES:
        raise ValueError(f"buffers of {n_bytes} bytes")
    return [_zeros(part) if isinstance(part, int) else bytes(part) for part in kept]


@cache
def _all_zeros() -> memoryview:
    return memoryview(bytes(MAX_BUFFER_BYTES))


def _zeros(nbytes: int) -> memoryview:
    if not 0 <= nbytes <= MAX_BUFFER_BYTES:
        raise ValueError(f"a buffer of {nbytes} bytes")
    return _all_zeros()[:nbytes]


def _pack_part(message: Message, part: Buffer | Span) -> Any:
    """A buffer of an action: where it lies, or its size and (where the recording tells its bytes)
    its checksum.
    """
    if isinstance(part, Span):
        return [part.arena, part.offset, part.nbytes, *_other(part.worker)]
    return len(part) if isinstance(message, UNREAD) else [len(part), zlib.crc32(part)]
