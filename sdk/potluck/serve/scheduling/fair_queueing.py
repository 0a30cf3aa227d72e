"""Whose batch a device computes next, where several services share it. Pure.

The worker of an agent computes what it was given in order. So few batches are with it at a time,
and the others wait here: the more urgent first (`priority`), then the service that has had the
least of the device's time (start-time fair queueing; Goyal et al., SIGCOMM 1996). While a batch of
a more urgent service is there, none of a less urgent one follows it: it would keep the next of that
service waiting.

Two batches are there at once, so that the device never waits; but a service whose batch is computed
cannot have the next one waiting yet. Where it has had less of the device than another one, that one
does not take its place: short batches would alternate with long ones, for a small part of the time.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")
AT_ONCE = 2  # one is computed, one is on its way there or back


@dataclass(frozen=True, slots=True)
class _Turn(Generic[T]):
    """A batch, and what its service said of it, see `FairQueue.offer`."""

    batch: T
    priority: int
    seconds: float
    is_followed: bool


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
        self._under_way: dict[str, deque[_Turn[T]]] = {}
        self._waiting: dict[str, deque[_Turn[T]]] = {}
        self._used_s: dict[str, float] = {}  # virtual: of who comes back, no less than the others'

    @property
    def n_under_way(self) -> int:
        """Batches that are on the device."""
        return sum(map(len, self._under_way.values()))

    @property
    def n(self) -> int:
        """Batches that wait or are under way."""
        return self.n_under_way + sum(map(len, self._waiting.values()))

    def offer(
        self,
        service: str,
        batch: T,
        priority: int = 0,
        seconds: float = inf,
        *,
        is_followed: bool = False,
    ) -> None:
        """This batch is to be computed here.

        Parameters
        ----------
        service
            Whose batch it is.
        batch
            What is computed.
        priority
            Larger goes first.
        seconds
            That it computes.
        is_followed
            Whether its service will have another one as soon as it ends.
        """
        queue = self._waiting.setdefault(service, deque())
        if not queue and not self._under_way.get(service):
            busy = [self._used_s[name] for name, waiting in self._waiting.items() if waiting]
            least_s = min(busy, default=self._used_s.get(service, 0.0))
            self._used_s[service] = max(self._used_s.get(service, 0.0), least_s)
        queue.append(_Turn(batch, priority, seconds, is_followed))

    def next(self) -> T | None:
        """What is to go there now; None: nothing, or enough is there."""
        ready = {name: queue[0] for name, queue in self._waiting.items() if queue}
        if not ready or self.n_under_way >= self.at_once:
            return None
        chosen = min(ready, key=lambda name: (-ready[name].priority, self._used_s[name]))
        if self._is_for_next(chosen, ready[chosen]):
            return None
        turn = self._waiting[chosen].popleft()
        self._under_way.setdefault(chosen, deque()).append(turn)
        return turn.batch

    def _is_for_next(self, service: str, turn: _Turn[T]) -> bool:
        """Whether the place of this batch is kept for what follows those that are under way."""
        for name, under_way in self._under_way.items():
            if under_way and under_way[-1].priority > turn.priority:
                return True
            if under_way and under_way[-1].priority == turn.priority and under_way[-1].is_followed:
                used_s = self._used_s[name] + sum(each.seconds for each in under_way)
                if not self._waiting.get(name) and used_s + turn.seconds < self._used_s[service]:
                    return True
        return False

    def done(self, service: str, seconds: float) -> None:
        """A batch of this service has ended, after so long."""
        if under_way := self._under_way.get(service):  # else it was let go, and never began
            under_way.popleft()
        self._used_s[service] = self._used_s.get(service, 0.0) + max(0.0, seconds)

    def take_all(self) -> list[T]:
        """All that wait; the device is gone."""
        waiting = [turn.batch for queue in self._waiting.values() for turn in queue]
        self._waiting.clear()
        return waiting
