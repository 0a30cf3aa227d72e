"""What serving decides about: limits, services and how fast they run, requests, and what a server
says of itself.

`Latency`, `Frequency`: what a user asks. `BatchTimes`, `Variant`, `ServiceSpec`: what is served, as
measured. `Allocation`: how it runs on one kind of processor. `Processor`, `Server`, `Replica`:
where. `Request`: what arrives. `ServiceState`, `ServerState`: what servers tell each other. Pure:
the standard library only.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from numbers import Real

from potluck.errors import UserError

BATCHES = tuple(2**power for power in range(10))  # section 4.1: profiled from 2^0 to 2^9
REPLICAS = tuple(2**power for power in range(5))  # section 4.1: from 2^0 to 2^4 side by side
MOST = 1e300  # of any number that is given: what is counted with it stays finite


def check_number(what: str, value: object, *, zero: bool = False) -> None:
    """Raise `UserError` unless `value` is a finite number above zero, or zero where it may be.

    Parameters
    ----------
    what
        The field, for the message.
    value
        What was given.
    zero
        Whether zero will do.

    Raises
    ------
    UserError
        Names the field and what it got.
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 <= value <= MOST or (value == 0 and not zero):  # type: ignore[operator]
        wanted = "zero or more" if zero else "above zero"
        raise UserError(f"{what} must be a finite number, {wanted}, got {value!r}.")


def check_count(what: str, value: object) -> None:
    """Raise `UserError` unless `value` is a whole number above zero.

    Raises
    ------
    UserError
        Names the field and what it got.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{what} must be a whole number above zero, got {value!r}.")


@dataclass(frozen=True, slots=True)
class Latency:
    """Each request is answered within `limit_s` seconds, or does not count.

    >>> Latency(0.2)
    Latency(limit_s=0.2)
    """

    limit_s: float

    def __post_init__(self) -> None:
        check_number("Latency: limit_s", self.limit_s)

    @property
    def tolerance_s(self) -> float:
        """Seconds that one answer may take."""
        return self.limit_s


@dataclass(frozen=True, slots=True)
class Frequency:
    """A stream of `fps` frames per second; each frame is answered within `tolerance_s`.

    By default two periods of the stream. A stream that gets half of its frames counts half
    (EPARA, section 3.3).

    >>> Frequency(fps=30).tolerance_s == 2 / 30
    True
    """

    fps: float
    tolerance_s: float = 0.0

    def __post_init__(self) -> None:
        check_number("Frequency: fps", self.fps)
        check_number("Frequency: tolerance_s", self.tolerance_s, zero=True)
        if not self.tolerance_s:
            object.__setattr__(self, "tolerance_s", 2 / self.fps)


class Category(Enum):
    """Latency or frequency, and whether one processor is enough (EPARA, section 3.1)."""

    LATENCY_ONE = "latency, one processor"
    LATENCY_SEVERAL = "latency, several processors"
    FREQUENCY_ONE = "frequency, one processor"
    FREQUENCY_SEVERAL = "frequency, several processors"

    @property
    def is_frequency(self) -> bool:
        """Whether it is a stream of frames."""
        return self in (Category.FREQUENCY_ONE, Category.FREQUENCY_SEVERAL)

    @property
    def takes_several(self) -> bool:
        """Whether one processor alone misses the limit."""
        return self in (Category.LATENCY_SEVERAL, Category.FREQUENCY_SEVERAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """Seconds of one batch by its number of items, as measured.

    Between two measured sizes it is a straight line. Beyond the largest nothing is known.
    """

    items: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.items or len(self.items) != len(self.seconds):
            raise UserError(
                f"BatchTimes: {len(self.items)} sizes and {len(self.seconds)} times.",
                next_step="Give one time per size.",
            )
        if [*self.items] != sorted({*self.items}) or self.items[0] != 1:
            raise UserError(f"BatchTimes: sizes must rise from 1, got {self.items}.")
        for seconds in self.seconds:
            check_number("BatchTimes: seconds", seconds)

    @property
    def largest(self) -> int:
        """The most items that were measured at once."""
        return self.items[-1]

    def at(self, n_items: int) -> float:
        """Seconds of a batch of so many items.

        Raises
        ------
        UserError
            If more than were measured.
        """
        if not 1 <= n_items <= self.largest:
            raise UserError(f"BatchTimes: {n_items} items, measured from 1 to {self.largest}.")
        place = bisect_left(self.items, n_items)
        if self.items[place] == n_items:
            return self.seconds[place]
        (before, after), (low_s, high_s) = (
            self.items[place - 1 : place + 1],
            self.seconds[place - 1 : place + 1],
        )
        return low_s + (high_s - low_s) * (n_items - before) / (after - before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a service: on one processor of this kind, or split over several.

    `times`: by replication degree, the seconds of a batch while so many replicas run side by side
    on the same processors. `memory_bytes`: of one replica on each of its processors, and
    `item_bytes` more per item of a batch. `across`: its processors may be those of several servers.
    `beyond_s`: what an answer may take beyond its batch where nothing else is asked: its way there
    and back, and chance.
    A split is made by the planners of this project, see `allocate.variant_of_plans`.
    """

    kind: str
    memory_bytes: int
    times: Mapping[int, BatchTimes]
    item_bytes: int = 0
    n_processors: int = 1
    across: bool = False
    beyond_s: float = 0.0

    def __post_init__(self) -> None:
        check_number(f"variant for {self.kind}: memory_bytes", self.memory_bytes, zero=True)
        check_number(f"variant for {self.kind}: item_bytes", self.item_bytes, zero=True)
        check_number(f"variant for {self.kind}: beyond_s", self.beyond_s, zero=True)
        check_count(f"variant for {self.kind}: n_processors", self.n_processors)
        if 1 not in self.times:
            raise UserError(
                f"variant for {self.kind}: no times of one replica alone.",
                next_step="Measure replication degree 1 first.",
            )
        for degree in self.times:
            check_count(f"variant for {self.kind}: replication degree", degree)


Slo = Latency | Frequency


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A model that is served under a limit, with all that was measured of it.

    `priority`: larger goes first. `max_queue`: requests that may wait on one server; more are
    refused at once. `load_s`: seconds until a replica answers after it was asked for.
    """

    name: str
    slo: Slo
    variants: tuple[Variant, ...]
    input_bytes: int = 0
    output_bytes: int = 0
    load_s: float = 0.0
    priority: int = 0
    max_queue: int = 1024

    def __post_init__(self) -> None:
        if not self.name:
            raise UserError("a service needs a name.")
        if not self.variants:
            raise UserError(f"service {self.name}: nothing says how fast it runs anywhere.")
        check_number(f"service {self.name}: input_bytes", self.input_bytes, zero=True)
        check_number(f"service {self.name}: output_bytes", self.output_bytes, zero=True)
        check_number(f"service {self.name}: load_s", self.load_s, zero=True)
        check_count(f"service {self.name}: max_queue", self.max_queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """How a service runs on one kind of processor: the operators' settings (EPARA, section 3.1).

    `batch` is BS, `replicas` MT, `multi_frame` MF, `groups` DP of eq. (4), `streams` the
    inter-request count of eq. (5), `variant.n_processors` MP. `batch_s[n]`: seconds of a batch of n
    items (index 0 is unused). A replica takes `share_frac` (a_l) of each of its processors and
    `memory_bytes` (b_l) there. `grain_per_s`: the least that its demand changes by, which is one
    stream, or one request within the limit.
    """

    service: str
    category: Category
    variant: Variant
    batch: int
    replicas: int
    batch_s: tuple[float, ...]
    memory_bytes: int
    multi_frame: int = 1
    streams: int = 1
    groups: int = 1
    grain_per_s: float = 0.0

    @property
    def share_frac(self) -> float:
        """The part of each processor that one replica takes."""
        return 1 / self.replicas

    @property
    def rate_per_s(self) -> float:
        """Items per second of one replica with full batches."""
        return self.batch / self.batch_s[self.batch]

    def filled(self, n_streams: int) -> int:
        """Items of a batch that so many streams fill; without multi-frame one of each."""
        return max(1, min(self.batch, n_streams * self.multi_frame))

    def frames_per_s(self, n_streams: int) -> float:
        """Frames per second of one replica that so many streams share."""
        filled = self.filled(n_streams)
        return filled / self.batch_s[filled]


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One accelerator, or one device's processor, as placement sees it."""

    kind: str
    memory_bytes: int

    def __post_init__(self) -> None:
        check_number(f"processor {self.kind}: memory_bytes", self.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A device that takes part, with its processors.

    `is_edge_device`: it gives what it has, but may leave at any moment and is no entrance.
    """

    name: str
    processors: tuple[Processor, ...]
    is_edge_device: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise UserError("a server needs a name.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a service on its processors: (server, index) each.

    `server` is where its queue is: the first of them.
    """

    service: str
    kind: str
    processors: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if not self.processors:
            raise UserError(f"a replica of {self.service} needs a processor.")

    @property
    def server(self) -> str:
        """Where its requests wait."""
        return self.processors[0][0]

    @property
    def is_across(self) -> bool:
        """Whether its processors are those of several servers."""
        return len({server for server, _ in self.processors}) > 1


@dataclass(frozen=True, slots=True)
class Request:
    """What arrived: one request, or a stream of frames (`fps` above zero).

    `deadline_s`: by when its answer must be back. `path`: the servers that it went through, in
    order, the entrance first (EPARA, section 3.2). `work`: how much longer it takes than one of
    those that were measured, such as an answer of twice as many tokens. `n_frames`: of a stream.
    A frame is a request of its own, with the `id` of its stream as `stream` and its place there.
    """

    id: int
    service: str
    arrived_s: float
    deadline_s: float
    path: tuple[str, ...] = ()
    work: float = 1.0
    priority: int = 0
    fps: float = 0.0
    n_frames: int = 1
    stream: int | None = None
    frame: int = 0

    @property
    def n_offloads(self) -> int:
        """How often it was handed on."""
        return max(0, len(self.path) - 1)

    def through(self, server: str) -> "Request":
        """The same request, at this server now."""
        if self.path and self.path[-1] == server:
            return self
        return self.with_path((*self.path, server), self.deadline_s)

    def anew(self, now_s: float) -> "Request":
        """The same, decided anew: a stream is asked for now, since it may go on for long."""
        if not self.fps:
            return self
        limit_s = self.deadline_s - self.arrived_s
        return replace(self, arrived_s=now_s, deadline_s=now_s + limit_s)

    def with_path(self, path: tuple[str, ...], deadline_s: float) -> "Request":
        """The same request with another path and deadline.

        Parameters
        ----------
        path
            The servers that it went through.
        deadline_s
            By when its answer must be back there.
        """
        return Request(  # `dataclasses.replace` takes five times as long, once per request
            self.id,
            self.service,
            self.arrived_s,
            deadline_s,
            path,
            self.work,
            self.priority,
            self.fps,
            self.n_frames,
            self.stream,
            self.frame,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """What a server says of one service: all in requests (or frames) per second, and seconds.

    `capacity_per_s` is the theoretical goodput, `idle_per_s` what of it was not used in the last
    whole interval of state exchange (eq. 1), `queue_s` the expected time of what waits.
    """

    capacity_per_s: float
    idle_per_s: float
    queue_s: float = 0.0
    batch_s: float = 0.0  # of a batch as it is usual there: what a request takes once it starts

    def __post_init__(self) -> None:
        # one comparison for all, since a server says thousands of these a second
        if 0 <= self.capacity_per_s + self.idle_per_s + self.queue_s + self.batch_s < inf:
            least = min(self.capacity_per_s, self.idle_per_s, self.queue_s, self.batch_s)
            if least >= 0:
                return
        for name in ("capacity_per_s", "idle_per_s", "queue_s", "batch_s"):
            check_number(f"ServiceState: {name}", getattr(self, name), zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What one server says of itself. `version` counts up with every statement."""

    server: str
    version: int
    services: Mapping[str, ServiceState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.version, int) or self.version < 0:
            raise UserError(f"state of {self.server}: version {self.version!r} is no count.")


def by_name(services: Sequence[ServiceSpec]) -> dict[str, ServiceSpec]:
    """The services by their names.

    Raises
    ------
    UserError
        If two have the same name.
    """
    named = {service.name: service for service in services}
    if len(named) < len(services):
        names = [service.name for service in services]
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"two services are called {twice!r}.", next_step="Rename one.")
    return named
