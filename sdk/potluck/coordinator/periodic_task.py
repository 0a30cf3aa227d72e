"""Something that is done again and again in the background, until it says that it is over."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# what must not happen and did; silent in an honest home
FAULTS = logging.getLogger("potluck.faults")
MAX_REPORTS = 10  # faults of one task: it may have the same one each time


class PeriodicTask(Protocol):
    """It has begun."""

    def wake(self) -> None:
        """Do it now, and not only when it is time."""

    def join(self) -> None:
        """Wait until it is over."""


class PeriodicTasks(Protocol):
    """How something is done again and again: in threads, or in a test's own time."""

    def __call__(
        self, name: str, every_s: float, work: Callable[[], bool], at_end: Callable[[], None]
    ) -> PeriodicTask:
        """Begin.

        Parameters
        ----------
        name
            What it is.
        every_s
            Seconds between one time and the next.
        work
            Is done; whether it goes on.
        at_end
            Done once, when it does not.
        """


class ThreadedTask:
    """In a thread of its own, which goes on whatever is raised; parameters as for `PeriodicTasks`.

    Parameters
    ----------
    name
        Of the thread.
    every_s
        Seconds between two calls, at most.
    work
        What is called; whether it goes on.
    at_end
        Called once, when it does not.
    """

    def __init__(
        self,
        name: str,
        every_s: float,
        work: Callable[[], bool],
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._every_s = every_s
        self._work = work
        self._at_end = at_end
        self._n_faults = 0
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"potluck {name}", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while True:
            self._news.wait(self._every_s)
            self._news.clear()
            if not self._goes_on():
                break
        self._at_end()

    def _goes_on(self) -> bool:
        try:
            return self._work()
        except Exception:  # the last line of defence
            self._n_faults += 1
            if self._n_faults <= MAX_REPORTS:
                FAULTS.exception("a fault in %s", self._thread.name)
            return True

    def wake(self) -> None:
        """Do it now, and not only when it is time."""
        self._news.set()

    def join(self) -> None:
        """Wait until it is over."""
        if self._thread is not threading.current_thread():
            self._thread.join()


def seconds() -> float:
    """Seconds by a clock that goes on while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How things are done again and again, and by which clock."""

    beats: PeriodicTasks
    clock: Callable[[], float]


THREADS = Pace(beats=ThreadedTask, clock=seconds)
