"""A thread that wakes somebody up at the times that are asked for, and again and again besides."""

import threading
from collections.abc import Callable


class Alarm:
    """Rings.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    every_s
        Between two rings that nobody asked for, at most.
    rings
        Called in the alarm's thread, with whether it was asked for, and whether `every_s` is over.
    """

    def __init__(
        self, clock: Callable[[], float], every_s: float, rings: Callable[[bool, bool], None]
    ) -> None:
        self._clock, self._every_s = clock, every_s
        self._rings = rings
        self._at_s: float | None = None
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._keep_ringing, name="potluck serve", daemon=True).start()

    def at(self, at_s: float) -> None:
        """Ring then, unless it rings before: who is woken up asks anew.

        Parameters
        ----------
        at_s
            By the clock.
        """
        with self._changed:
            if self._at_s is None or at_s < self._at_s:
                self._at_s = at_s
                self._changed.notify_all()

    def close(self) -> None:
        """It rings no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _keep_ringing(self) -> None:
        rang_s = self._clock()
        while not self._closed:
            with self._changed:
                due_s = min(self._at_s or float("inf"), rang_s + self._every_s)
                self._changed.wait(max(0.0, min(self._every_s, due_s - self._clock())))
                is_due = self._at_s is not None and self._at_s <= self._clock()
                self._at_s = None if is_due else self._at_s
            is_over = self._clock() >= rang_s + self._every_s
            rang_s = self._clock() if is_over else rang_s
            if is_due or is_over:
                self._rings(is_due, is_over)
