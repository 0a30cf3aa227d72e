"""What happens to a server that serves, and what it is to do: the events and actions of `Node`."""

from dataclasses import dataclass

from potluck.serve.scheduling.frame_streams import Grant
from potluck.serve.scheduling.records import Request
from potluck.serve.scheduling.replica_pools import Pool, PoolKey
from potluck_wire.request_handler import ServeRefusal

# --- events


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request, a stream (`fps` above zero) or a frame has come, from a client or a server."""

    request: Request


@dataclass(frozen=True, slots=True)
class TurnCame:
    """A batch of this pool may be computed, from `start_s` on; so many of its replicas, one after
    the other, are told so now.
    """

    pool: PoolKey
    start_s: float
    n_sharing: int = 1


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A batch has ended; its answers are there. `took_s`: its processor was busy with it, without
    what it waited for its turn there; `expected_s`: by itself, as measured; 0: not known.
    """

    pool: PoolKey
    replica: int
    took_s: float = 0.0
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """A batch has ended without answers: its requests are decided anew."""

    pool: PoolKey
    replica: int


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A client's stream is over."""

    service: str
    stream: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer, or the refusal, of a request, frame or stream that was handed on is here."""

    request_id: int
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ServerGone:
    """What was handed on to this server is decided anew, without it."""

    server: str


@dataclass(frozen=True, slots=True)
class Placed:
    """These pools from now on. What waits for one that is gone is decided anew."""

    pools: tuple[Pool, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the answer to `WakeAt`."""


Event = (
    RequestArrived
    | TurnCame
    | BatchDone
    | BatchFailed
    | StreamEnded
    | Settled
    | ServerGone
    | Placed
    | Tick
)


# --- actions


@dataclass(frozen=True, slots=True)
class ComputeBatch:
    """Compute these together; say `BatchDone` or `BatchFailed` after about `seconds`."""

    pool: PoolKey
    replica: int
    requests: tuple[Request, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Open:
    """A stream gets these frames per second here; its frames are expected as requests."""

    pool: PoolKey
    request: Request
    grant: Grant


@dataclass(frozen=True, slots=True)
class HandOn:
    """Hand this request, stream or frame on to a server."""

    request: Request
    server: str


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Tell whoever asked, at once."""

    request: Request
    reason: ServeRefusal


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `Tick` at this time, unless another event comes before."""

    at_s: float


Action = ComputeBatch | Open | HandOn | RefuseRequest | WakeAt
