"""The decentralised request handler: serve here, hand on, or refuse. A pure function.

EPARA, section 3.2, in the paper's order:

1. timed out: say so;
2. what is placed here is enough: serve here. First by this server alone, then by groups that
   reach across servers, then by edge devices;
3. handed on too often: refuse. Else hand on to a server by eq. (1);
4. else refuse: resources do not suffice.

A server on the request's path is never asked again. One whose queue exceeds the delay of state
exchange plus the limit is left out. `choose` is the step that differs between EPARA, its baselines
and ours; all get the same candidates. Randomness is an argument.

Agents decide by it, the entrance of a home, and the simulator.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Protocol

from potluck_wire.limits import is_device_name

MAX_OFFLOADS = 5  # section 4.1: the paper's default
ROUNDED_S = 1e-9


class AskedRequest(Protocol):
    """What is asked for: one request, or a stream of frames (`fps` above zero).

    `deadline_s`: by when its answer must be back; `arrived_s`: since when that runs. `path`: who
    has had it, in order, the entrance first. `n_offloads`: how often it was handed on. `work`: how
    much longer it takes than one of those that were measured.
    """

    @property
    def service(self) -> str:
        """Which is asked for."""

    @property
    def arrived_s(self) -> float:
        """When it came."""

    @property
    def deadline_s(self) -> float:
        """By when its answer must be back."""

    @property
    def path(self) -> tuple[str, ...]:
        """The servers that it went through, in order."""

    @property
    def n_offloads(self) -> int:
        """How often it was handed on."""

    @property
    def work(self) -> float:
        """How much longer it takes than a usual one."""

    @property
    def fps(self) -> float:
        """Frames per second of a stream; 0: a single request."""


class Way(Enum):
    """How a request is served here, the dearest last."""

    ALONE = "by this server alone"
    ACROSS = "across servers"
    EDGE_DEVICE = "by an edge device"


class ServeRefusal(Enum):
    """Why a request is refused."""

    TIMED_OUT = "timed out"
    OFFLOADED_TOO_OFTEN = "handed on too often"
    INSUFFICIENT = "resources do not suffice"
    UNKNOWN_SERVICE = "no such service"
    QUEUE_FULL = "queue full"
    CANNOT_MEET = "its deadline can no longer be met"


@dataclass(frozen=True, slots=True)
class Serve:
    """Compute it here. `fps`: of a stream, the frames per second that it gets here."""

    way: Way = Way.ALONE
    fps: float = 0.0


@dataclass(frozen=True, slots=True)
class Offload:
    """Hand it on. `fps`: of a stream, the frames per second that it gets here all the same."""

    server: str
    fps: float = 0.0


@dataclass(frozen=True, slots=True)
class Refuse:
    """Say no, and why."""

    reason: ServeRefusal


Decision = Serve | Offload | Refuse


@dataclass(frozen=True, slots=True)
class LocalOption:
    """What this server could do for a request by one way.

    `finish_s`: when its answer would be ready. `free_fps`: what a stream would be granted.
    """

    way: Way
    finish_s: float
    free_fps: float = 0.0


@dataclass(slots=True)
class CandidateServer:
    """Another server that has the service, as last heard of.

    `delay_s` is how old this is: the delay of state exchange. `transfer_s`: until the request would
    be there, and its answer back. `sent`: requests handed to it since it said so.
    """

    server: str
    idle_per_s: float
    queue_s: float
    delay_s: float
    capacity_per_s: float = 0.0
    batch_s: float = 0.0
    transfer_s: float = 0.0
    sent: float = 0.0


# which candidate a request goes to; None: to none of them
Choose = Callable[[AskedRequest, Sequence[CandidateServer], float, Random], CandidateServer | None]


@dataclass(frozen=True, slots=True)
class HandlerRules:
    """What may be set. `splits`: a stream that gets a part here is handed on for the rest."""

    max_offloads: int = MAX_OFFLOADS
    splits: bool = True


EPARA_RULES = HandlerRules()


def decide(
    request: AskedRequest,
    local: Sequence[LocalOption],
    candidates: Callable[[], Sequence[CandidateServer]],
    now_s: float,
    rng: Random,
    choose: Choose,
    rules: HandlerRules = EPARA_RULES,
) -> Decision:
    """What this server does with a request, in the order of section 3.2.

    Parameters
    ----------
    request
        Its path ends with this server.
    local
        What this server could do, the preferred way first; empty where nothing is placed.
    candidates
        Gives the others that have the service; asked for only when it must be handed on.
    now_s
        The time.
    rng
        Randomness.
    choose
        Whom of the candidates; `by_idle_goodput` is EPARA's.
    rules
        How often it may be handed on, and whether streams are split.
    """
    if now_s > request.deadline_s:
        return Refuse(ServeRefusal.TIMED_OUT)
    served = _here(request, local)
    if served is not None and (not request.fps or served.fps >= request.fps - ROUNDED_S):
        return served
    part_fps = served.fps if served is not None else 0.0
    if request.n_offloads >= rules.max_offloads:
        return served or Refuse(ServeRefusal.OFFLOADED_TOO_OFTEN)
    limit_s = request.deadline_s - request.arrived_s
    feasible = [
        each
        for each in candidates()
        if each.server not in request.path and each.queue_s <= each.delay_s + limit_s
    ]
    chosen = choose(request, feasible, now_s, rng) if feasible else None
    if chosen is None:
        return served or Refuse(ServeRefusal.INSUFFICIENT)
    if served is not None and not rules.splits:
        # a stream that cannot be divided goes where it gets more
        return served if chosen.idle_per_s <= part_fps else Offload(chosen.server)
    return Offload(chosen.server, part_fps)


def is_route(path: Sequence[str], first: str, before: Sequence[str] = ()) -> bool:
    """Whether a request can have gone this way: from `first` on, after it was at those `before`.

    Parameters
    ----------
    path
        The devices that are said to have had it.
    first
        Whom it was sent to.
    before
        Who had it by then, in order.
    """
    route = (*before, *path)
    is_short = len({*route}) == len(route) <= 1 + MAX_OFFLOADS
    return tuple(path[:1]) == (first,) and is_short and all(map(is_device_name, path))


def _here(request: AskedRequest, local: Sequence[LocalOption]) -> Serve | None:
    """The preferred way that is enough; for a stream that none is enough for, the best part."""
    if not request.fps:
        for each in local:
            if each.finish_s <= request.deadline_s + ROUNDED_S:
                return Serve(each.way)
        return None
    for each in local:
        if each.free_fps >= request.fps - ROUNDED_S:
            return Serve(each.way, request.fps)
    best = max(local, key=lambda each: each.free_fps, default=None)
    return Serve(best.way, best.free_fps) if best is not None and best.free_fps > 0 else None


def by_idle_goodput(
    request: AskedRequest, candidates: Sequence[CandidateServer], now_s: float, rng: Random
) -> CandidateServer | None:
    """One of the candidates, with probability in proportion to its idle goodput: eq. (1).

    Parameters
    ----------
    request
        What is handed on.
    candidates
        Those that may take it.
    now_s
        The time; not needed here.
    rng
        Randomness.
    """
    return _drawn(candidates, [each.idle_per_s for each in candidates], rng)


def by_spare_finish(
    request: AskedRequest, candidates: Sequence[CandidateServer], now_s: float, rng: Random
) -> CandidateServer | None:
    """Ours: one of those expected to finish it in time, by how many more they could.

    What is known of a candidate is old. Its queue has shrunk since, and grown by what this server
    sent (`sent`) and others may have. A candidate's spare is the number of requests that it could
    still finish before this one's deadline, from the queue expected now. Servers that share stale
    information would all join the same shortest queue. Drawing in proportion to the spare keeps
    them from it (Dahlin, "Interpreting stale load information", TPDS 2000). Where nobody has any,
    eq. (1) decides; one that could not finish it in time even if it were idle is never asked. A
    stream goes where all of it has room, if it has anywhere.

    Parameters
    ----------
    request
        What is handed on.
    candidates
        Those that may take it.
    now_s
        The time.
    rng
        Randomness.
    """
    if request.fps:
        return _for_stream(request, candidates, now_s, rng)
    chosen = _drawn(candidates, [_spare(request, each, now_s) for each in candidates], rng)
    if chosen is None:  # what is known is old: one is asked although nobody seems to have time
        possible = [each for each in candidates if _left_s(request, each, now_s) > 0]
        chosen = by_idle_goodput(request, possible, now_s, rng)
    return chosen


def _for_stream(
    request: AskedRequest, candidates: Sequence[CandidateServer], now_s: float, rng: Random
) -> CandidateServer:
    """One that has room for all of it, if there is one; else by room; else by what it last said.

    Where nobody seems to have any, one is asked all the same: another stream may have ended since,
    and to ask costs little beside all of a stream's frames.
    """
    room = [max(0.0, each.idle_per_s - each.sent) for each in candidates]
    enough = [free if free >= request.fps else 0.0 for free in room]
    idle = [each.idle_per_s for each in candidates]
    for weights in (enough, room, idle):
        if chosen := _drawn(candidates, weights, rng):
            return chosen
    return rng.choice(candidates)


def _drawn(
    candidates: Sequence[CandidateServer], weights: Sequence[float], rng: Random
) -> CandidateServer | None:
    total = sum(weights)
    if total <= 0:
        return None
    drawn = rng.random() * total
    for each, weight in zip(candidates, weights, strict=True):
        drawn -= weight
        if drawn < 0:
            return each
    return max(zip(weights, candidates, strict=True), key=lambda pair: pair[0])[1]


def _spare(request: AskedRequest, candidate: CandidateServer, now_s: float) -> float:
    """Requests that a candidate could still finish before this one's deadline."""
    rate = candidate.capacity_per_s or candidate.idle_per_s
    if rate <= 0:
        return 0.0
    # the queue has drained by what was idle, and grown by what was sent
    queue_s = candidate.queue_s + (candidate.sent - candidate.delay_s * candidate.idle_per_s) / rate
    left_s = _left_s(request, candidate, now_s) - max(0.0, queue_s)
    return left_s * rate if left_s > 0 else 0.0


def _left_s(request: AskedRequest, candidate: CandidateServer, now_s: float) -> float:
    """Seconds to spare, were it idle."""
    return request.deadline_s - now_s - candidate.transfer_s - candidate.batch_s * request.work
