"""What goes into the controller and what comes out: events and actions, plain frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from potluck.errors import PotluckError
from potluck.sessions.traffic import Place, Raw
from potluck_wire.messages import Channel, Message

Payload = tuple[Message, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an agent listens: its base port; the other channels are at fixed offsets from it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """Open a session with a device. Resolves with its `Session`."""

    ticket: int = 0
    device: str
    address: Address
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSession:
    """Close the session with a device in good order."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActUnder:
    """From now on every plan is prepared under this lease and term."""

    lease: str
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAll:
    """Ask each device one thing. Resolves with {device: (reply, buffers)} when all have answered;
    one refusal fails it."""

    ticket: int = 0
    requests: Mapping[str, Payload]


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkProbe:
    """Send a device so many bytes that it throws away.

    Resolves with the seconds until it has them all.
    """

    ticket: int = 0
    device: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartExecution:
    """Execute a program of that name once on each device, with these values from here.

    Resolves with an `ExecutionResult`.

    `expects[device]` names the values that come back, each with its most bytes;
    `instructions[device]` is how many its program has. `stream`: where it is not empty, a device
    starts it after its earlier executions of the same run and stream are done (steps of training
    change the weights). `together`: all devices begin at one moment, after those executions, and
    are told when that is by their own clocks. `request`: nothing depends on it, so where an
    operator fails over its values it ends alone, with `RequestFailed`. `follows`: more values
    from here do, as `FeedExecution`; devices may wait for them.
    """

    ticket: int = 0
    run: str
    epoch: int
    program: str
    step: int
    devices: tuple[str, ...]
    feeds: Mapping[str, Mapping[str, Raw]] = field(default_factory=dict)
    expects: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    instructions: Mapping[str, int] = field(default_factory=dict)
    stream: str = ""
    together: bool = False
    request: bool = False
    follows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedExecution:
    """One more value from here for a device that is at an execution; nothing where that is over.

    `is_last`: no other one follows.
    """

    device: str
    place: Place
    name: str
    raw: Raw
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskService:
    """Ask a device for a service that was granted there, with these values from here. Resolves with
    a `ServiceAnswer`.

    `expects`: the outputs, each with its most bytes. `rows`: of the inputs. `grace_s`: for how long
    after its time a late answer is of use.
    """

    ticket: int = 0
    device: str
    service: str
    left_s: float
    rows: int = 1
    grace_s: float = 0.0
    feeds: Mapping[str, Raw]
    expects: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelExecution:
    """Nobody waits for that ticket any more; what it started is dropped."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message came in from a device."""

    device: str
    message: Message
    buffers: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """The connection to a device is broken, or was refused: `error` says how."""

    device: str
    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event = (
    OpenSession
    | CloseSession
    | ActUnder
    | RequestAll
    | UplinkProbe
    | StartExecution
    | FeedExecution
    | AskService
    | CancelExecution
    | Received
    | ConnectionLost
    | Tick
)


# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Make the three connections to a device."""

    device: str
    address: Address
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """Close them."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message to a device, on the channel that the table names."""

    device: str
    channel: Channel
    message: Message
    buffers: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """A ticket has its result."""

    ticket: int
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A ticket has failed."""

    ticket: int
    error: PotluckError


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Something to show: a power reading, a device that went away."""

    device: str
    message: Any


Action = Connect | Disconnect | Send | Resolve | Reject | Notification


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An open session: what the device says of itself."""

    device: str
    name: str
    version: tuple[int, int]
    capability: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What one device did in one execution, on the notebook's clock: (instruction id, start_s,
    stop_s).
    """

    rows: tuple[tuple[int, float, float], ...]
    busy_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """One execution that went well: the values that came home and what each device did when.

    `kept_bytes`: of values from here that devices had kept, and that were not sent.
    """

    run: str
    epoch: int
    program: str
    step: int
    outputs: Mapping[tuple[str, str], Raw]
    timelines: Mapping[str, Timeline]
    start_s: float
    stop_s: float
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnswer:
    """What a service answered: the outputs, the devices that the request went through, the entrance
    first, and the seconds that each had it.
    """

    outputs: Mapping[str, Raw]
    path: tuple[str, ...]
    hops_s: tuple[float, ...]
