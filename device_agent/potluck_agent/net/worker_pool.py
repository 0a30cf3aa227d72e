"""All workers of the moment as the loop sees them, by their numbers: one for each notebook that
computes here.
"""

from collections.abc import Callable, Container, Iterator
from typing import Any

from potluck_agent.core.events import FromWorker, LimitWorker, Span, Store, ToWorker, WorkerDied
from potluck_agent.net.poller import Poller
from potluck_agent.net.worker_supervisor import WorkerSupervisor


class WorkerPool:
    """`start()` gives a new worker link; `may_rest` as for `WorkerSupervisor`."""

    def __init__(
        self, sources: Poller, start: Callable[[], Any], *, may_rest: bool = False
    ) -> None:
        self._sources = sources
        self._start, self._may_rest = start, may_rest
        self._workers: dict[int, WorkerSupervisor] = {}

    def _all(self) -> tuple[WorkerSupervisor, ...]:
        return tuple(self._workers.values())

    def start(self, number: int) -> None:
        """Start that worker; OSError or AgentError where it is impossible."""
        worker = WorkerSupervisor(self._sources, self._start, number, may_rest=self._may_rest)
        worker.start()
        self._workers[number] = worker

    def kill(self, number: int) -> None:
        """End that worker, if there is one."""
        worker = self._workers.pop(number, None)
        if worker is not None:
            worker.kill()

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
