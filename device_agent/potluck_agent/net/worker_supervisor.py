"""One worker as the loop sees it: started, fed, read and ended.

Its news are events for the core.
"""

from collections.abc import Callable, Container, Iterator
from typing import Any

from potluck_agent.core.events import FromWorker, WorkerDied
from potluck_agent.net.poller import READ, WRITE, Poller
from potluck_agent.net.stall_detector import STILL_S, StallDetector
from potluck_agent.worker.launch import ENDING_S, SOON_S
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_BEHIND_BYTES, MAX_MESSAGE_BYTES
from potluck_wire.messages import FailureCause, Forget, Message

# An order that changes nothing: a worker that waits for room reads it, one that hangs does not.
NOTHING = Forget(prefix="nothing")
# More waits for no worker that reads: one that was taken over may answer what it has not read, and
# is told the next all the same.
MOST_UNSENT_BYTES = MAX_BEHIND_BYTES + MAX_MESSAGE_BYTES


class WorkerSupervisor:
    """The worker of this number; `start()` gives a new worker link.

    `may_rest`: it may do nothing for long while there is work, as one does that plays a slower
    device, or whose accelerator computes.
    """

    def __init__(
        self, sources: Poller, start: Callable[[], Any], number: int = 0, *, may_rest: bool = False
    ) -> None:
        self._sources, self._number = sources, number
        self._start = start
        self._may_rest = may_rest
        self._worker: Any = None
        self._stillness: StallDetector | None = None
        self._events = 0
        self._closed_s: float | None = None  # its pipe, and it goes on
        self._killed: Any = None

    def view(self, arena: str, offset: int, nbytes: int) -> memoryview:
        """Bytes of its inbound or outbound memory; LookupError where there is no worker."""
        if self._worker is None:
            raise LookupError("its memory is gone with the worker")
        view: memoryview = getattr(self._worker, arena).view(offset, nbytes)
        return view

    def hold(self, message: Message, buffers: tuple[Any, ...]) -> None:
        """Tell it this with the next `supply`; WireError where that is no message."""
        if self._worker is not None:
            self._worker.hold(message, buffers)

    def limit(self, memory_bytes: int) -> None:
        """It may take so much from now on; OSError where that cannot be set."""
        if self._worker is not None:
            self._worker.limit(memory_bytes)

    def start(self) -> None:
        """Start a worker; OSError or AgentError where that is impossible."""
        self._worker = self._start()
        self._stillness = None if self._may_rest else StallDetector(self._worker.pid)
        self._events, self._closed_s = READ, None
        self._sources.register(self._worker.socket.fileno())

    def _stop_reading(self) -> None:
        if self._events:
            self._sources.unregister(self._worker.socket.fileno())
            self._events = 0

    def kill(self) -> None:
        """End it, if there is one."""
        if self._worker is not None:
            self._stop_reading()
            self._worker.kill()
            self._killed, self._worker = self._worker, None

    @property
    def is_ending(self) -> bool:
        """Whether it was ended, and the system has not given its memory back yet."""
        if self._killed is not None and self._killed.has_ended(0):
            self._killed = None
        return self._killed is not None

    def listen(self) -> None:
        """Keep what it wrote to its standard error."""
        if self._worker is not None:
            self._worker.listen()

    def supply(self) -> None:
        """Pass on what is held for it, all at once: it wakes once.

        Poll for room in the pipe only while it is full.
        """
        if self._worker is None or self._closed_s is not None:
            return
        self._worker.flush()
        events = READ | WRITE if self._worker.wants_write else READ
        if events != self._events:
            self._events = events
            self._sources.watch(self._worker.socket.fileno(), events)

    def hung(self, now_s: float, is_working: bool) -> Iterator[WorkerDied]:
        """The end of one that has done nothing for too long, though it owes an answer; or that has
        closed its pipe.

        To be asked some times a second.
        """
        worker = self._worker
        if worker is not None and self._closed_s is not None:
            if worker.has_ended(0) or now_s - self._closed_s > ENDING_S:
                yield self._end(*worker.exit_reason(0))
            return
        if worker is None or self._stillness is None:
            return
        still_s = self._stillness.look(now_s, has_work=is_working)
        if still_s > STILL_S and worker.has_unread:
            text = (
                f"the worker was stopped, or hung: it had work and did nothing for {still_s:.1f} s"
            )
            yield self._end(FailureCause.HUNG, text)
        elif still_s > STILL_S / 2 and not worker.has_unread:
            worker.hold(NOTHING)

    def has_news(self, ready: Container[Any]) -> bool:
        """Whether it has said something, or is gone."""
        return self._worker is not None and self._worker.socket.fileno() in ready

    def _end(self, cause: str, text: str) -> WorkerDied:
        self.kill()
        return WorkerDied(cause, text, self._number)

    def news(self, now_s: float) -> Iterator[FromWorker | WorkerDied]:
        """What it has said; the end of one that broke the protocol or is gone.

        Stops where it was ended meanwhile. Whether one that closed its pipe goes on is seen later:
        nobody else waits for that.
        """
        worker = self._worker
        messages: list[tuple[Message, Any]] = []
        reason: tuple[str, str] | None = None
        try:
            messages = worker.receive()
            if messages and worker.unsent_bytes > MOST_UNSENT_BYTES:
                messages = []
                raise WireError(WireCode.STATE, "it answers and does not read")
        except WireError as error:
            reason = (FailureCause.CRASHED, f"the worker broke the protocol: {error}")
        for message, buffers in messages:
            if self._worker is worker:
                yield FromWorker(message, buffers, self._number)
        if self._worker is not worker:
            return
        if reason is not None:
            yield self._end(*reason)
        elif worker.closed and worker.has_ended(SOON_S):
            yield self._end(*worker.exit_reason(0))
        elif worker.closed:
            self._stop_reading()
            self._closed_s = now_s
