"""Virtual time: what happens next happens now. Pure."""

import heapq
from collections.abc import Callable
from itertools import count

Callback = Callable[[], None]


class VirtualClock:
    """A queue of what will happen, in order of time and then of arrival.

    `now_s` jumps to the next one. `is_quiet` where nothing is left but what repeats: ticks.
    """

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s
        self._queue: list[tuple[float, int, bool, Callback]] = []
        self._numbers, self._n_work = count(), 0

    @property
    def is_quiet(self) -> bool:
        """Whether only ticks are left."""
        return self._n_work == 0

    def after(self, delay_s: float, callback: Callback, *, repeats: bool = False) -> float:
        """Let this happen in so many seconds; returns when.

        Parameters
        ----------
        delay_s
            Virtual seconds from now.
        callback
            What happens.
        repeats
            It is a tick.
        """
        at_s = self.now_s + max(0.0, delay_s)
        self._n_work += not repeats
        heapq.heappush(self._queue, (at_s, next(self._numbers), repeats, callback))
        return at_s

    def step(self) -> None:
        """The next one happens."""
        at_s, _, repeats, callback = heapq.heappop(self._queue)
        self.now_s = max(self.now_s, at_s)
        self._n_work -= not repeats
        callback()
