"""What is done again and again, in the time of a lab in memory, until whoever does it is killed."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potluck.testing.memory.lab import MemoryLab

_FAULTS = logging.getLogger("potluck.faults")


class Life:
    """Of one process that a test plays: `is_over` once it was killed."""

    def __init__(self) -> None:
        self.is_over = False


class MemoryTask:
    """Done between two other events.

    Parameters
    ----------
    lab, life
        Whose time it is, and who does it.
    every_s, work, at_end
        As for `potluck.coordinator.periodic_task.PeriodicTasks`.
    """

    def __init__(
        self,
        lab: "MemoryLab",
        life: Life,
        every_s: float,
        work: Callable[[], bool],
        at_end: Callable[[], None],
    ) -> None:
        self._lab = lab
        self._life = life
        self._every_s = every_s
        self._work, self._at_end = work, at_end
        self._over = threading.Event()
        lab.after(every_s, self._next)

    def _next(self) -> None:
        if self._life.is_over:
            self._over.set()
        elif self._goes_on():
            self._lab.clock.after(self._every_s, self._next, repeats=True)
        else:  # it may wait for what happens in this thread
            threading.Thread(target=self._end, daemon=True).start()

    def _goes_on(self) -> bool:
        try:
            return self._work()
        except Exception:
            _FAULTS.exception("a fault in what is done again and again")
            return False

    def _end(self) -> None:
        if not self._life.is_over:
            self._at_end()
        self._over.set()

    def wake(self) -> None:
        """The next time comes soon enough."""

    def join(self) -> None:
        """Wait until it is over."""
        if threading.current_thread() is not self._lab.driver.thread:
            self._over.wait()
