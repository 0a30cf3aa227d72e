"""The compute queue: which ready task goes to the worker next, and which are with it. Pure.

A few tasks are with the worker at a time, so that it never waits for the agent and both wake
seldom. The others wait here, where a more urgent one can still overtake them."""

from collections.abc import Iterator
from dataclasses import dataclass

from potluck_agent.core.execution import Execution, Name
from potluck_agent.core.grouped_heap import GroupedHeap
from potluck_wire.limits import MIB

DEPTH = 2  # with the worker at least: one at work, one behind it
AHEAD_BYTES = 4 * MIB  # about as much as orders of tasks may take that it is not at work on
VALUE_BYTES = 512  # a name, with that of its execution, up to three times in one order
# more, while they take less than this in all, as they did before: so long may an urgent one wait
AHEAD_S = 0.05


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """Instruction `index` of an execution, with the worker.

    `usual_ns`: how long it took when it was done before. `nbytes`: about how long its order is.
    """

    execution: Execution
    index: int
    usual_ns: int
    nbytes: int


def _queued(execution: Execution, index: int) -> QueuedTask:
    instruction, layout = execution.instruction(index), execution.layout
    n_values = len(instruction.inputs) + len(instruction.outputs)
    nbytes = len(layout.attrs[index]) + VALUE_BYTES * n_values
    # whatever takes longer, or nobody knows how long, leaves no room for another one
    usual_s = min(layout.took_s[index], AHEAD_S)
    return QueuedTask(execution, index, round(usual_s * 1e9), nbytes)


class ComputeQueue:
    """Ready tasks by (priority, age of the execution, position in the program)."""

    def __init__(self) -> None:
        self._ready: GroupedHeap[tuple[int, int, int, Execution]] = GroupedHeap()
        self._with_worker: dict[int, QueuedTask] = {}
        self._n_tags = 0
        # of all that are with the worker: very many small ones may be, and each is asked about
        self._ahead_ns = self._ahead_bytes = 0

    @property
    def busy(self) -> bool:
        """Whether the worker has something to compute."""
        return bool(self._with_worker)

    @property
    def with_worker(self) -> Iterator[Name]:
        """The executions that the worker has tasks of."""
        return (task.execution.name for task in self._with_worker.values())

    def offer(self, execution: Execution, index: int) -> None:
        """This task may be queued from now on."""
        priority = execution.instruction(index).priority
        self._ready.push(execution.name, (priority, execution.order, index, execution))

    def drop(self, execution: Execution) -> None:
        """It is over: nothing more of it goes to the worker."""
        self._ready.drop(execution.name)

    def next(self) -> tuple[int, QueuedTask] | None:
        """The tag and the task to hand to the worker now, if it has room."""
        if not self._ready or not self._has_room():
            return None
        *_, index, execution = self._ready.pop()
        self._n_tags += 1
        task = self._with_worker[self._n_tags] = _queued(execution, index)
        self._ahead_ns += task.usual_ns
        self._ahead_bytes += task.nbytes
        return self._n_tags, task

    def _has_room(self) -> bool:
        if len(self._with_worker) < DEPTH:
            return True
        return self._ahead_ns < AHEAD_S * 1e9 and self._ahead_bytes < AHEAD_BYTES

    def finish(self, tag: int, took_s: float | None = None) -> QueuedTask | None:
        """The worker is through with it, after so long; None: it failed."""
        task = self._with_worker.pop(tag, None)
        if task is not None:
            self._ahead_ns -= task.usual_ns
            self._ahead_bytes -= task.nbytes
            if took_s is not None:
                task.execution.layout.took_s[task.index] = took_s
        return task

    def clear(self) -> None:
        """The worker is gone, with everything it had."""
        self._ready.take_all()
        self._with_worker.clear()
        self._ahead_ns = self._ahead_bytes = 0
