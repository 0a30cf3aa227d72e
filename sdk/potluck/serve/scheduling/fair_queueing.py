"""Whose batch a device computes next, where several services share it. Pure.

The worker of an agent computes what it was given in order. So few batches are with it at a time,
and the others wait here: the more urgent first (`priority`), then the service that has had the
least of the device's time (start-time fair queueing; Goyal et al., SIGCOMM 1996). While a batch of
a more urgent service is there, none of a less urgent one follows it: it would keep the next of that
service waiting.
"""

from collections import deque
from itertools import chain
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
        self._under_way: dict[str, deque[int]] = {}  # by service: the priorities of its batches
        self._waiting: dict[str, deque[tuple[int, T]]] = {}
        self._used_s: dict[str, float] = {}  # virtual: of who comes back, no less than the others'

    @property
    def n_under_way(self) -> int:
        """Batches that are on the device."""
        return sum(map(len, self._under_way.values()))

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
        most_urgent = max(chain.from_iterable(self._under_way.values()), default=None)
        if most_urgent is not None and self._waiting[chosen][0][0] < most_urgent:
            return None
        priority, batch = self._waiting[chosen].popleft()
        self._under_way.setdefault(chosen, deque()).append(priority)
        return batch

    def done(self, service: str, seconds: float) -> None:
        """A batch of this service has ended, after so long."""
        if under_way := self._under_way.get(service):  # else it was let go, and never began
            under_way.popleft()
        self._used_s[service] = self._used_s.get(service, 0.0) + max(0.0, seconds)

    def take_all(self) -> list[T]:
        """All that wait; the device is gone."""
        waiting = [batch for queue in self._waiting.values() for _, batch in queue]
        self._waiting.clear()
        return waiting
