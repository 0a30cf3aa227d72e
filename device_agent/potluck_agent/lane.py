"""The compute lane: which ready task goes to the worker next, and which are with it. Pure.

A few tasks are with the worker at a time, so that it never waits for the agent; the others wait here, where a more
urgent one can still overtake them.
"""

import heapq
from dataclasses import dataclass

from potluck_agent.executions import Execution

DEPTH = 2  # with the worker: one at work, one behind it; more would delay urgent tasks


@dataclass(frozen=True, slots=True)
class Task:
    """Instruction `index` of an execution, with the worker since `since_s`."""

    execution: Execution
    index: int


class Lane:
    """Ready tasks by (priority, age of the execution, position in the program)."""

    def __init__(self, depth: int = DEPTH) -> None:
        self._depth = depth
        self._ready: list[tuple[int, int, int, Execution]] = []
        self._with_worker: dict[int, Task] = {}
        self._n_tags = 0

    @property
    def busy(self) -> bool:
        """Whether the worker has something to compute."""
        return bool(self._with_worker)

    def offer(self, execution: Execution, index: int) -> None:
        """This task may be queued from now on."""
        priority = execution.instruction(index).priority
        heapq.heappush(self._ready, (priority, execution.order, index, execution))

    def next(self) -> tuple[int, Task] | None:
        """The tag and the task to hand to the worker now, if it has room."""
        while self._ready and len(self._with_worker) < self._depth:
            *_, index, execution = heapq.heappop(self._ready)
            if execution.over:
                continue
            self._n_tags += 1
            task = self._with_worker[self._n_tags] = Task(execution, index)
            return self._n_tags, task
        return None

    def finish(self, tag: int) -> Task | None:
        """The worker is through with it."""
        return self._with_worker.pop(tag, None)

    def clear(self) -> None:
        """The worker is gone, with everything it had."""
        self._ready.clear()
        self._with_worker.clear()
