"""Dynamic batching: the requests of one service on one server, by deadline, in batches for its
replicas. A pure machine: `handle(event, now_s) -> actions`.

A request waits for a fuller batch only as long as its limit allows: a batch starts when it is full,
or when the slack of its most urgent request is used up (`wait_frac` of it; 0 starts at once). What
has missed its deadline, or with `early_drop` what can no longer hold it (as in Nexus, SOSP 2019,
and Clockwork, OSDI 2020), is given back instead of computed.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

from potluck.serve.scheduling.early_drop import ROUNDED_S, fitting, given_up, late
from potluck.serve.scheduling.fair_queueing import AT_ONCE, WaitingBatch
from potluck.serve.scheduling.learned_pace import LearnedPace
from potluck.serve.scheduling.records import Request


@dataclass(frozen=True, slots=True)
class RequestQueued:
    """A request that is to be computed here."""

    request: Request


@dataclass(frozen=True, slots=True)
class ReplicaTurn:
    """A replica may start a batch, which begins at `start_s`. So many replicas, it among them, may
    start one now: they share what waits.
    """

    start_s: float
    n_sharing: int = 1


@dataclass(frozen=True, slots=True)
class ReplicaFree:
    """The batch of this replica has ended, well or not. `took_s`: of its processor, where by
    itself it was expected to take `expected_s`; 0: not known.
    """

    replica: int
    took_s: float = 0.0
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueTick:
    """Time has passed: the answer to `WakeQueueAt`."""


@dataclass(frozen=True, slots=True)
class Resized:
    """The service has other replicas now: those below `n_replicas` start batches."""

    n_replicas: int


@dataclass(frozen=True, slots=True)
class StartBatch:
    """Compute these on this replica; it is expected to take `seconds`."""

    replica: int
    requests: tuple[Request, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class GiveBack:
    """This request is not computed here, and why."""

    request: Request
    reason: str


@dataclass(frozen=True, slots=True)
class WakeQueueAt:
    """Call again at this time, unless something comes before."""

    at_s: float


Event = RequestQueued | ReplicaTurn | ReplicaFree | QueueTick | Resized
Action = StartBatch | GiveBack | WakeQueueAt

TIMED_OUT = "timed out"
CANNOT_MEET = "its deadline can no longer be met"
QUEUE_FULL = "queue full"


class Batcher:
    """One service's queue on one server, in front of its replicas.

    Parameters
    ----------
    batch_s
        Seconds of a batch of n items; index 0 is unused. Its length says the largest batch.
    n_replicas
        Batches at once.
    max_queue
        Requests that may wait.
    wait_frac
        Part of the slack of the most urgent request that a batch may wait to become fuller.
    early_drop
        Whether what cannot hold its deadline any more is given back before it is computed.
    busy
        Replicas that still compute for an earlier queue.
    alone_s
        As `batch_s`, with nothing computed beside it; default: the same. A batch is made smaller
        for its most urgent request only where it would be too late even so: beside others that are
        idle just then it is done sooner, and smaller batches serve less.
    by_turns
        Whether others compute there, too: a batch is made up when `ReplicaTurn`, else as soon as a
        replica is idle.
    """

    def __init__(
        self,
        batch_s: Sequence[float],
        n_replicas: int = 1,
        *,
        max_queue: int = 1024,
        wait_frac: float = 0.0,
        early_drop: bool = True,
        busy: Iterable[int] = (),
        alone_s: Sequence[float] = (),
        by_turns: bool = False,
    ) -> None:
        self.batch_s = tuple(batch_s)
        self.largest = len(self.batch_s) - 1
        self.n_replicas = n_replicas
        self.max_queue = max_queue
        self.wait_frac = wait_frac
        self.early_drop = early_drop
        self.alone_s = tuple(alone_s) or self.batch_s
        self.by_turns = by_turns
        self._own_s = self.alone_s if by_turns else self.batch_s  # of one that begins
        self._pace = LearnedPace()
        # of each replica that computes, when it is expected to be idle
        self._until_s = dict.fromkeys(busy, 0.0)
        # in order: (less urgent, deadline, order, request)
        self._queue: list[tuple[int, float, int, Request]] = []
        self._n_seen = 0
        self._queued_work = 0.0

    @property
    def n_queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def n_running(self) -> int:
        """Replicas that compute."""
        return len(self._until_s)

    def waiting(self, now_s: float) -> WaitingBatch | None:
        """What it would compute next, were it its turn; None: nothing, as yet.

        Parameters
        ----------
        now_s
            The time.
        """
        if not self._queue or self._latest_start_s(now_s) > now_s + ROUNDED_S:
            return None
        first, n_rows = self._queue[0][3], min(self.largest, len(self._queue))
        return WaitingBatch(
            service=first.service,
            priority=first.priority,
            seconds=self._pace.mean * self.alone_s[n_rows],
            latest_s=first.deadline_s - self.full_s(first.work),
            is_full=self.is_full,
            may_begin=bool(self._idle()),
        )

    def full_s(self, work: float = 1.0) -> float:
        """Seconds of a full batch, at the most.

        Parameters
        ----------
        work
            Of its requests, see `Request`.
        """
        return self._pace.safe * self.alone_s[self.largest] * work

    def queue_s(self, now_s: float) -> float:
        """Expected seconds until a request that came now would start."""
        return max(0.0, self._start_s(now_s) - now_s)

    @property
    def is_full(self) -> bool:
        """Whether there is a full batch that waits."""
        return len(self._queue) >= self.largest

    def finish_s(self, now_s: float, work: float = 1.0, beside_frac: float = 1.0) -> float:
        """When a request that came now would be done at the latest, if none more urgent follows.

        One that must wait is expected in a full batch, since others may join it.

        Parameters
        ----------
        now_s
            The time.
        work
            Of the request, see `Request`.
        beside_frac
            Of what `batch_s` expects to be computed beside each batch, the part that is.
        """
        start_s = self._start_s(now_s, beside_frac)
        if start_s > now_s:
            return start_s + self._pace.safe * self._beside_s(self.largest, beside_frac) * work
        return start_s + self._beside_s(len(self._queue) % self.largest + 1, beside_frac) * work

    def _beside_s(self, n_rows: int, beside_frac: float) -> float:
        alone_s = self.alone_s[n_rows]
        return alone_s + beside_frac * (self.batch_s[n_rows] - alone_s)

    def _start_s(self, now_s: float, beside_frac: float = 1.0) -> float:
        if not self.n_replicas:
            return inf
        n_batches = len(self._queue) // self.largest
        free_s = self._free_s(now_s)
        if not n_batches:
            return free_s[0]
        turns, replica = divmod(n_batches, self.n_replicas)
        mean_work = self._queued_work / len(self._queue)
        full_s = self._pace.mean * self._beside_s(self.largest, beside_frac)
        return free_s[replica] + turns * full_s * mean_work

    def _free_s(self, now_s: float) -> list[float]:
        """When each replica is idle, the soonest first."""
        busy_s = sorted(max(now_s, until_s) for until_s in self._until_s.values())
        latest_s = busy_s[-self.n_replicas :]
        return [now_s] * (self.n_replicas - len(latest_s)) + latest_s

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What is to be done now."""
        actions: list[Action] = []
        match event:
            case RequestQueued(request):
                if len(self._queue) >= self.max_queue:
                    return [GiveBack(request, QUEUE_FULL)]
                self._push(request)
            case ReplicaFree(replica, took_s, expected_s):
                self._until_s.pop(replica, None)
                of_full = min(1.0, expected_s / self.alone_s[self.largest])
                self._pace.learn(took_s, expected_s, of_full)
            case Resized(n_replicas):
                self.n_replicas = n_replicas  # one beyond goes on, and starts nothing more
            case QueueTick() | ReplicaTurn():
                pass
        if self.early_drop:  # who can no longer be met hears it now, not when a replica is idle
            self._give_back(late(self._in_order(), now_s, self._own_s[1], 1), now_s, actions)
        if isinstance(event, ReplicaTurn):
            self._start(max(now_s, event.start_s), event.n_sharing, actions)
        else:
            self._start_ready(now_s, actions)
        return actions

    def take_all(self) -> list[Request]:
        """All that wait, to be served elsewhere; nothing waits here any more."""
        waiting = [*self._in_order()]
        self._leave(waiting)
        return waiting

    def _push(self, request: Request) -> None:
        self._n_seen += 1
        self._queued_work += request.work
        insort(self._queue, (-request.priority, request.deadline_s, self._n_seen, request))

    def _leave(self, requests: Iterable[Request]) -> None:
        """These wait no more."""
        left = {each.id for each in requests}
        if left:
            self._queue = [entry for entry in self._queue if entry[3].id not in left]
            self._queued_work = sum(each.work for each in self._in_order())

    def _start_ready(self, now_s: float, actions: list[Action]) -> None:
        """Start batches while there are requests and idle replicas; by turns, only wake up."""
        while self._queue and (idle := self._idle()):
            start_s = self._latest_start_s(now_s)
            if start_s > now_s + ROUNDED_S:
                actions.append(WakeQueueAt(start_s))
                return
            if self.by_turns:
                return
            self._start(now_s, len(idle), actions)

    def _start(self, start_s: float, n_sharing: int, actions: list[Action]) -> None:
        """Start one batch, which begins then, if anybody can still be met so."""
        if not (idle := self._idle()):
            return
        if batch := self._batch(start_s, self._share(n_sharing), actions):
            work, replica = max(request.work for request in batch), idle[0]
            seconds = self._own_s[len(batch)] * work
            self._until_s[replica] = start_s + self._pace.mean * seconds
            actions.append(StartBatch(replica, tuple(batch), seconds))

    def _idle(self) -> list[int]:
        """Replicas that may start a batch; by turns, also those that a full one would follow to."""
        may_follow = self.by_turns and self.is_full
        n_places = AT_ONCE * self.n_replicas if may_follow else self.n_replicas
        return [replica for replica in range(n_places) if replica not in self._until_s]

    def _share(self, n_sharing: int) -> int:
        """Of a batch that starts now, the most: what waits, or its part of it where idle replicas
        that share it are done sooner.
        """
        whole = min(self.largest, len(self._queue))
        part = min(self.largest, -(-len(self._queue) // n_sharing))
        return part if self.batch_s[part] < self.batch_s[whole] else whole

    def _latest_start_s(self, now_s: float) -> float:
        """Until when the next batch may wait for more requests."""
        n_queued = len(self._queue)
        if not self.wait_frac or n_queued >= self.largest:
            return now_s
        arrived_s = self._queue[0][3].arrived_s
        most_urgent_s = min(entry[1] for entry in self._queue)
        slack_s = most_urgent_s - self.batch_s[n_queued] - arrived_s
        return arrived_s + self.wait_frac * slack_s

    def _batch(self, now_s: float, most: int, actions: list[Action]) -> list[Request]:
        """The most urgent requests that can still be met; the others are given back."""
        seconds = self._own_s[1] if self.early_drop else 0.0
        self._give_back(late(self._in_order(), now_s, seconds, most), now_s, actions)
        first = [*islice(self._in_order(), most)]
        if self.early_drop:
            paced_s = [self._pace.safe * seconds for seconds in self.alone_s]
            if fitting(first, now_s, paced_s) < len(first):
                alike = [each for each in self._in_order() if each.priority == first[0].priority]
                others_s = self._free_s(now_s)[1:]
                self._give_back(given_up(alike, now_s, others_s, paced_s, most), now_s, actions)
                first = [*islice(self._in_order(), most)]
                first = first[: fitting(first, now_s, paced_s)]
        self._leave(first)
        return first

    def _in_order(self) -> Iterator[Request]:
        return (entry[3] for entry in self._queue)

    def _give_back(self, these: Sequence[Request], now_s: float, actions: list[Action]) -> None:
        self._leave(these)
        for request in these:
            reason = TIMED_OUT if request.deadline_s < now_s else CANNOT_MEET
            actions.append(GiveBack(request, reason))
