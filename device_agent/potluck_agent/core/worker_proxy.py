"""The core's view of its worker: absent, starting or ready; what it owes an answer for.

Whether it hangs. Pure.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from potluck_agent.core.events import Buffer, KillWorker, LimitWorker, StartWorker, ToWorker
from potluck_agent.core.outbox import Outbox, Settings
from potluck_wire.limits import MAX_BEHIND_BYTES
from potluck_wire.messages import (
    Compute,
    Computed,
    ComputeFailed,
    LoadSegment,
    MeasuredTask,
    MeasureTask,
    Message,
    SegmentLoaded,
    WorkerReady,
)
from potluck_wire.replies import check_cause, check_moments
from potluck_wire.statement import read_facts

HANG_TASKS = 10  # times the longest task so far
ORDER_BYTES = 512  # about what an order takes beside its documents

ABSENT = "absent"
STARTING = "starting"
READY = "ready"
COMPUTING = "computing"  # only told: ready, and it owes an answer


class BusyTime:
    """Seconds in which any worker of this device computed."""

    def __init__(self) -> None:
        self.total_s = self._done_s = 0.0

    def add(self, start_s: float, stop_s: float) -> None:
        """One computed from then to then; what another one did meanwhile is not counted twice."""
        self.total_s += max(0.0, stop_s - max(start_s, self._done_s))
        self._done_s = max(self._done_s, stop_s)


class WorkerProxy:
    """Messages for a worker that is not ready yet wait here. `number`: by which the edge knows it.

    `busy` counts what it computes.
    """

    def __init__(
        self, settings: Settings, out: Outbox, number: int = 0, busy: BusyTime | None = None
    ) -> None:
        self._settings, self._out = settings, out
        self.number = number
        self._busy = busy or BusyTime()
        self.state = ABSENT
        self.facts: dict[str, Any] = {}
        self.n_finished = 0  # tasks done since the agent started: the progress that a pulse tells
        self.computed_s = 0.0  # since the agent started
        self.held_bytes = 0  # of tensors, the most that it was seen to hold
        self.limit_bytes = settings.memory_bytes
        self._backlog: list[tuple[ToWorker, int]] = []  # with `_sent_bytes` at each
        # tag, slot or measurement -> `_sent_bytes` at each such order
        self._owed: dict[int | str, deque[int]] = {}
        # by us and by the worker, which goes through its orders in turn
        self._sent_bytes = self._taken_bytes = 0
        self._heard_s = self._done_s = 0.0
        self._idle_s = self._longest_s = 0.0
        self._owes_s = 0.0  # when it was told what it owes, after it had owed nothing

    @property
    def is_working(self) -> bool:
        """Whether it owes an answer."""
        return bool(self._owed)

    @property
    def behind_bytes(self) -> int:
        """About how much waits here, or in its pipe, until the worker comes to it."""
        return self._sent_bytes - self._taken_bytes if self._owed or self._backlog else 0

    def crowded(self, nbytes: int = 0) -> str:
        """Why it is told nothing more with so many bytes of documents, for what waits is in memory;
        empty: it is.
        """
        behind_bytes = self.behind_bytes
        if not behind_bytes or behind_bytes + nbytes <= MAX_BEHIND_BYTES:
            return ""
        return (
            f"the worker is busy, and orders of {behind_bytes} bytes wait for it; ask again later"
        )

    def need(self, now_s: float) -> None:
        """Have a worker started, if there is none."""
        if self.state == ABSENT:
            self.state, self._heard_s = STARTING, now_s
            self.limit_bytes = self._settings.memory_bytes
            self._out.add(StartWorker(self.number))

    def send(self, message: Message, buffers: Sequence[Buffer], now_s: float) -> None:
        """Send this, as soon as there is a worker; nothing is kept for one that nobody started."""
        order = ToWorker(message, tuple(buffers), self.number)
        if self.state == STARTING:
            self._backlog.append((order, self._count(order)))
        elif self.state == READY:
            self._send(order, self._count(order), now_s)

    def _count(self, order: ToWorker) -> int:
        if not self._owed and not self._backlog:  # it is idle: what it was told before it has taken
            self._taken_bytes = self._sent_bytes
        self._sent_bytes += ORDER_BYTES + sum(map(len, order.buffers))
        return self._sent_bytes

    def _send(self, order: ToWorker, sent_bytes: int, now_s: float) -> None:
        if (answer := _answer(order.message)) is not None:
            if not self._owed:
                self._heard_s = self._owes_s = now_s
            self._owed.setdefault(answer, deque()).append(sent_bytes)
        self._out.add(order)

    def receive(self, message: Message, buffers: Sequence[Buffer], now_s: float) -> None:
        """The worker said something. WireError where that cannot be.

        Only what is due ends its silence: it may have been taken over, and say anything else
        without end.
        """
        answer = _answer(message)
        is_due = answer in self._owed
        match message:
            case WorkerReady() if self.state == STARTING:
                self.facts = read_facts(buffers[0])
                self.state = READY
                self._heard_s = self._idle_s = now_s
                backlog, self._backlog = self._backlog, []
                for order, sent_bytes in backlog:
                    self._send(order, sent_bytes, now_s)
            case Computed() if is_due:
                check_moments(message, now_s)
                self.n_finished += 1
                start_s = max(message.start_s, self._owes_s)  # not before it was told
                # one after the other
                self.computed_s += max(0.0, message.stop_s - max(start_s, self._done_s))
                # nor more than it may: what it says of itself gives it no more
                self.held_bytes = max(self.held_bytes, min(message.memory_bytes, self.limit_bytes))
                self._busy.add(start_s, message.stop_s)
                self._done_s = message.stop_s
                self._longest_s = max(self._longest_s, message.stop_s - start_s)
            case ComputeFailed() if is_due:
                check_cause(message)
            case MeasuredTask() if is_due:  # a measurement is work, too: readings of power tell it
                self._busy.add(max(self._heard_s, self._done_s), now_s)
                self._done_s = now_s
        if answer is not None and is_due:
            self._heard_s = self._idle_s = now_s
            self._taken_bytes = max(self._taken_bytes, self._owed[answer].popleft())
            if not self._owed[answer]:
                del self._owed[answer]

    def moved(self, now_s: float) -> None:
        """Something the worker may be waiting for has happened."""
        self._heard_s = max(self._heard_s, now_s)

    def overdue_s(self, now_s: float) -> float | None:
        """For how long it has been silent, if that is too long; else None."""
        silent_s = now_s - self._heard_s
        if self.state == STARTING:
            return silent_s if silent_s > self._settings.start_s else None
        if self.state != READY or not self._owed:
            return None
        return (
            silent_s
            if silent_s > max(self._settings.hang_s, HANG_TASKS * self._longest_s)
            else None
        )

    def idle_s(self, now_s: float) -> float:
        """For how long it has been ready and owed nothing."""
        return now_s - self._idle_s if self.state == READY and not self._owed else 0.0

    def limit(self, memory_bytes: int) -> None:
        """It may take so much for tensors from now on; one that is not ready hears it later."""
        if self.state == READY and memory_bytes != self.limit_bytes:
            self.limit_bytes = memory_bytes
            self._out.add(LimitWorker(memory_bytes, self.number))

    def kill(self, reason: str) -> None:
        """End it."""
        if self.state != ABSENT:
            self._out.add(KillWorker(reason, self.number))
        self.gone()

    def gone(self) -> None:
        """There is none any more."""
        self.state, self.held_bytes = ABSENT, 0
        self._backlog = []
        self._owed.clear()


def _answer(message: Message) -> int | str | None:
    """What an order and its answer have in common; None: it is neither.

    So nothing counts that nobody asked for.
    """
    match message:
        case Compute(tag=tag) | Computed(tag=tag):
            return tag
        case LoadSegment(slot=slot) | SegmentLoaded(slot=slot):
            return slot
        case MeasureTask(task=task) | MeasuredTask(task=task):
            return task
        case ComputeFailed():
            return message.tag if message.tag >= 0 else message.slot
    return None
