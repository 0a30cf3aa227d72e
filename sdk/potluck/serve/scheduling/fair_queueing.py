"""Whose batch a device computes next, where several services share it. Pure.

The worker of an agent computes what it was given in order. So few batches are with it at a time,
and the others wait here: the more urgent first (`priority`), then the service that has had the
least of the device's time (start-time fair queueing; Goyal et al., SIGCOMM 1996).
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
AT_ONCE = 2  # one is computed, one is on its way there or back


class FairQueue(Generic[T]):
    """The batches for one device.

    >>> queue = FairQueue[str](at_once=1)
    >>> queue.offer("birds", "b1"), queue.offer("birds", "b2"), queue.offer("chat", "c1")
    (None, None, None)
    >>> queue.next(), queue.next()
    ('b1', None)
    >>> queue.done("birds", 0.5)
    >>> queue.next()
    'c1'
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.at_once = at_once
        self.n_under_way = 0
        self._waiting: dict[str, deque[tuple[int, T]]] = {}
        self._used_s: dict[str, float] = {}  # virtual: of who comes back, no less than the others'

    @property
    def n(self) -> int:
        """Batches that wait or are under way."""
        return self.n_under_way + sum(map(len, self._waiting.values()))

    def offer(self, service: str, batch: T, priority: int = 0) -> None:
        """This batch is to be computed here.

        Parameters
        ----------
        service
            Whose batch it is.
        batch
            What is computed.
        priority
            Larger goes first.
        """
        queue = self._waiting.setdefault(service, deque())
        if not queue:
            busy = [self._used_s[name] for name, waiting in self._waiting.items() if waiting]
            least_s = min(busy, default=self._used_s.get(service, 0.0))
            self._used_s[service] = max(self._used_s.get(service, 0.0), least_s)
        queue.append((priority, batch))

    def next(self) -> T | None:
        """What is to go there now; None: nothing, or enough is there."""
        ready = [name for name, queue in self._waiting.items() if queue]
        if not ready or self.n_under_way >= self.at_once:
            return None
        chosen = min(ready, key=lambda name: (-self._waiting[name][0][0], self._used_s[name]))
        self.n_under_way += 1
        return self._waiting[chosen].popleft()[1]

    def done(self, service: str, seconds: float) -> None:
        """A batch of this service has ended, after so long."""
        self.n_under_way -= 1
        self._used_s[service] = self._used_s.get(service, 0.0) + max(0.0, seconds)

    def take_all(self) -> list[T]:
        """All that wait; the device is gone."""
        waiting = [batch for queue in self._waiting.values() for _, batch in queue]
        self._waiting.clear()
        return waiting
