"""What the agent's core is told and what it answers: events in, actions out, all plain values.

Each notebook that computes here has a worker of its own: `worker` is its number.
"""

from dataclasses import dataclass
from typing import Any

from potluck_wire.messages import Ask, AskEnded, Chunk, Message, Standing, Value

OWNER, MEMBER = "owner", "member"  # a paired notebook; another device of the same home

# what goes to a member on our own connection to it; all else answers on that one's to us
ON_OWN_LINKS = (Value, Chunk, Ask, AskEnded, Standing)

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sent a message, by the CURVE key that its connection was authenticated with.

    `name` is for display.
    """

    key: str
    role: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bytes that the edge has to look up: `arena` is inbound, outbound, or zeros (made up, for
    measuring links).
    """

    arena: str
    offset: int
    nbytes: int
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDevice:
    """Another device of this home: `address` is HOST:PORT with its base port, `others` are those at
    which other notebooks say that it is, that use it as much.
    """

    name: str
    key: str
    address: str
    others: tuple[str, ...] = ()


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FromPeer:
    """A message from an authenticated peer, on the socket of its channel."""

    sender: Sender
    message: Message
    buffers: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class FromWorker:
    """A message from a worker."""

    message: Message
    buffers: tuple[Buffer, ...] = ()
    worker: int = 0


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker is gone, and nobody asked for it. `cause` is a FailureCause."""

    cause: str
    text: str
    worker: int = 0


@dataclass(frozen=True, slots=True)
class PeerRevoked:
    """The owner of this device trusts this key no longer."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReset:
    """The data connection to or from this peer is a new one: what was under way on the old one is
    lost.
    """

    key: str
    incoming: bool = True
    outgoing: bool = True


@dataclass(frozen=True, slots=True)
class MemberLost:
    """There has been no connection to this device for long.

    What waits for it will not get there.
    """

    key: str


@dataclass(frozen=True, slots=True)
class Undone:
    """This action could not be carried out; `text` says why."""

    action: "Action"
    text: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MustLeave:
    """The device has to leave, and why: what is under way has `within_s` seconds to move elsewhere.

    `for_good`: then the agent ends.
    """

    reason: str
    within_s: float
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class MayStay:
    """It need not leave any more."""


@dataclass(frozen=True, slots=True)
class FromDisk:
    """How `ReadKept` or `WriteKept` number `ticket` gets on: it moves, is done, or has failed."""

    ticket: int
    worker: int
    state: str


DONE, FAILED = "done", "failed"  # of `FromDisk`
MOVES = "moves"

Event = (
    FromPeer
    | FromWorker
    | WorkerDied
    | PeerRevoked
    | LinkReset
    | MemberLost
    | Undone
    | Tick
    | MustLeave
    | MayStay
    | FromDisk
)

# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToPeer:
    """Send this to the peer with this key, on the message's own channel."""

    key: str
    message: Message
    buffers: tuple[Buffer | Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Copy these bytes to `offset` of the inbound arena."""

    offset: int
    data: Buffer
    worker: int = 0


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker."""

    worker: int = 0


@dataclass(frozen=True, slots=True)
class ToWorker:
    """Tell a worker."""

    message: Message
    buffers: tuple[Buffer, ...] = ()
    worker: int = 0


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker; it will not be reported as died."""

    reason: str
    worker: int = 0


@dataclass(frozen=True, slots=True)
class LimitWorker:
    """From now on a worker may take so much for tensors: others have the rest."""

    memory_bytes: int
    worker: int = 0


@dataclass(frozen=True, slots=True)
class SetMembers:
    """These devices may send values here and may be sent to; nobody else but the owners."""

    members: tuple[PeerDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMeter:
    """Send a `Reading` to this peer. Seconds of computing and of radio since the agent started.

    `busy_frac` lately. `tells_battery`: the peer knows that field.
    """

    key: str
    busy_s: float
    radio_s: float
    busy_frac: float
    tells_battery: bool = True


@dataclass(frozen=True, slots=True)
class KeepLeases:
    """Write these rows to disk, in place of those before; once they are there, send the answer. Of
    several in a row the last one's rows are enough.
    """

    rows: tuple[dict[str, Any], ...]
    answer: ToPeer


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOrder:
    """Of weights that are kept for notebook `owner`; `place`: where they lie, or belong."""

    ticket: int
    owner: str
    content: bytes
    dtype: str
    shape: tuple[int, ...]
    place: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKept(KeptOrder):
    """Bring those of this content to their place; answered by `FromDisk`, as done only where they
    have that content.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteKept(KeptOrder):
    """Keep those that lie there, if they have this content; answered by `FromDisk`."""


@dataclass(frozen=True, slots=True)
class RemoveKept:
    """Keep those of this content no longer; without one, nothing of this notebook."""

    owner: str
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Report:
    """Something happened that must not: keep this text for the owner."""

    text: str


Action = (
    ToPeer
    | Store
    | StartWorker
    | ToWorker
    | KillWorker
    | LimitWorker
    | SetMembers
    | ReadMeter
    | KeepLeases
    | ReadKept
    | WriteKept
    | RemoveKept
    | Report
)
