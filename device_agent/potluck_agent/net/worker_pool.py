"""All workers of the moment as the loop sees them, by their numbers: one for each notebook that
computes here.

Each may take what the owner allows, so one begins when those that were ended have given their
memory back (0.1 s for each GiB).
"""

from collections.abc import Callable, Container, Iterator
from typing import Any

from potluck_agent.core.events import FromWorker, LimitWorker, Span, Store, ToWorker, WorkerDied
from potluck_agent.errors import AgentError
from potluck_agent.net.poller import Poller
from potluck_agent.net.worker_supervisor import WorkerSupervisor
from potluck_wire.messages import FailureCause

MOST_WAIT_S = 5.0  # for the memory of those that were ended; one that a driver holds may stay


class WorkerPool:
    """`start()` gives a new worker link, and `started()` is told of it; `may_rest` as for
    `WorkerSupervisor`.
    """

    def __init__(
        self,
        sources: Poller,
        start: Callable[[], Any],
        started: Callable[[], None],
        *,
        may_rest: bool = False,
    ) -> None:
        self._sources = sources
        self._start, self._started = start, started
        self._may_rest = may_rest
        self._workers: dict[int, WorkerSupervisor] = {}
        self._ending: set[WorkerSupervisor] = set()
        self._asked_s: dict[int, float] = {}  # those that are to start

    def _all(self) -> tuple[WorkerSupervisor, ...]:
        return tuple(self._workers.values())

    def ask(self, number: int, now_s: float) -> None:
        """That worker is to start with the next `start_due` that finds memory for it."""
        self._asked_s[number] = now_s

    def start_due(self, now_s: float) -> Iterator[WorkerDied]:
        """Start those whose time has come; the ends of those that cannot be started.

        To be called some times a second.
        """
        if not self._asked_s:
            return
        self._ending = {each for each in (*self._ending, *self._all()) if each.is_ending}
        for number, asked_s in tuple(self._asked_s.items()):
            if not self._ending or now_s - asked_s > MOST_WAIT_S:
                try:
                    self._begin(number)
                    self._started()
                except (AgentError, OSError) as error:
                    text = f"no worker can be started: {error}"
                    yield WorkerDied(FailureCause.CRASHED, text, number)

    def _begin(self, number: int) -> None:
        self._asked_s.pop(number, None)
        worker = WorkerSupervisor(self._sources, self._start, number, may_rest=self._may_rest)
        worker.start()
        self._workers[number] = worker

    def kill(self, number: int) -> None:
        """End that worker, if there is one, and start none of this number."""
        self._asked_s.pop(number, None)
        worker = self._workers.pop(number, None)
        if worker is not None:
            worker.kill()
            self._ending.add(worker)

    def kill_all(self) -> None:
        """End every worker."""
        for number in tuple(self._workers):
            self.kill(number)

    def view(self, span: Span) -> memoryview:
        """Bytes of a worker's inbound or outbound memory; LookupError where there is no worker."""
        worker = self._workers.get(span.worker)
        if worker is None:
            raise LookupError("its memory is gone with the worker")
        return worker.view(span.arena, span.offset, span.nbytes)

    def store(self, action: Store) -> None:
        """Copy bytes to where they belong; LookupError where there is no worker."""
        span = Span(
            arena="inbound", offset=action.offset, nbytes=len(action.data), worker=action.worker
        )
        self.view(span)[:] = action.data

    def hold(self, action: ToWorker) -> None:
        """Tell a worker this with the next `supply`; WireError where that is no message."""
        if (worker := self._workers.get(action.worker)) is not None:
            worker.hold(action.message, action.buffers)

    def limit(self, action: LimitWorker) -> None:
        """A worker may take so much memory from now on; OSError where that cannot be set."""
        if (worker := self._workers.get(action.worker)) is not None:
            worker.limit(action.memory_bytes)

    def listen(self) -> None:
        """Keep what they wrote to their standard errors."""
        for worker in self._all():
            worker.listen()

    def supply(self) -> None:
        """Pass on what is held for each, all at once."""
        for worker in self._all():
            worker.supply()

    def hung(self, now_s: float, is_working: Callable[[int], bool]) -> Iterator[WorkerDied]:
        """The ends of those that have done nothing for too long; as for `WorkerSupervisor`."""
        for number, worker in tuple(self._workers.items()):
            yield from worker.hung(now_s, is_working(number))

    def has_news(self, ready: Container[Any]) -> bool:
        """Whether one has said something, or is gone."""
        return any(worker.has_news(ready) for worker in self._workers.values())

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of all that there are."""
        return tuple(self._workers)

    def news(
        self, number: int, ready: Container[Any], now_s: float
    ) -> Iterator[FromWorker | WorkerDied]:
        """What this one has said, if it has something to say."""
        worker = self._workers.get(number)
        if worker is not None and worker.has_news(ready):
            yield from worker.news(now_s)
