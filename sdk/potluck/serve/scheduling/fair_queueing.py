"""Whose batch a device computes next, where several services share it. Pure.

The worker of an agent computes what it was given in order. So few batches are with it at a time,
and what waits stays in the queues of its services, where each batch is made up at its turn.

The turn goes to the service that has had the least of the device's time (start-time fair queueing;
Goyal et al., SIGCOMM 1996); the time of a more urgent one counts for less (`priority`). But small
batches serve little in the time that they take. So whoever can wait for a fuller one lets those
go first who cannot: theirs is full, or after all others it would be too late for them. Below what
the device can do, nobody takes it whole with batches of one; above, all batches are full.

Two batches are there at once, so that the device never waits; but a service whose batch is computed
may have the next one there only if that is full and has time left, as others have whose requests
come meanwhile. Where one that may not has had less of the device than another one, that one does
not take its place: its batches would alternate with longer ones, for a small part of the time.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

AT_ONCE = 2  # one is computed, one is on its way there or back
MORE = 8.0  # times the time of one of the next lower priority, where both want all of it
MOST = 99  # priorities beyond it are as this one


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingBatch:
    """What a service would compute next on a device. `seconds`: that it takes. `latest_s`: until
    when a full one could begin instead; None: it gains nothing by waiting. `may_begin`: False
    where this must wait for one of the service that is on the device.
    """

    service: str
    priority: int = 0
    seconds: float = 0.0
    latest_s: float | None = None
    is_full: bool = False
    may_begin: bool = True

    def can_wait(self, start_s: float) -> bool:
        """Whether it may begin so late, and would be fuller."""
        return self.latest_s is not None and not self.is_full and start_s <= self.latest_s

    def can_follow(self, start_s: float, others_s: Iterable[float] = ()) -> bool:
        """Whether it may go there behind one of its service, to begin so late: it is full, so that
        it gains nothing by waiting, and has as much time left as it takes, so that the one before
        may take longer than expected. So have others of which a request comes meanwhile.

        Parameters
        ----------
        start_s
            When it would begin.
        others_s
            Until when those of the other services there could begin, were they asked for now.
        """
        if self.latest_s is None or not self.is_full:
            return False
        return all(start_s + self.seconds <= latest_s for latest_s in (self.latest_s, *others_s))


class FairQueue:
    """The turns on one device.

    >>> queue = FairQueue(at_once=1)
    >>> birds, chat = WaitingBatch(service="birds"), WaitingBatch(service="chat")
    >>> queue.next([birds, chat], 0.0).service
    'birds'
    >>> queue.begun(birds)
    >>> queue.next([birds, chat], 0.0)
    >>> queue.done("birds", 0.5)
    >>> queue.next([birds, chat], 0.5).service
    'chat'
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.at_once = at_once
        self._under_way: dict[str, deque[WaitingBatch]] = {}
        self._used_s: dict[str, float] = {}  # by priority; of who comes back, as the others' least
        self._least_s = 0.0
        self._present: set[str] = set()

    @property
    def n_under_way(self) -> int:
        """Batches that are on the device."""
        return sum(map(len, self._under_way.values()))

    @property
    def has_room(self) -> bool:
        """Whether one more may be there."""
        return self.n_under_way < self.at_once

    def next(self, waiting: Sequence[WaitingBatch], start_s: float) -> WaitingBatch | None:
        """Whose turn it is; None: nobody's, enough is there, or the place is kept.

        Parameters
        ----------
        waiting
            All that would be computed here next.
        start_s
            When the next one would begin.
        """
        if not self.has_room or not any(each.may_begin for each in waiting):
            return None
        self._note_present(each.service for each in waiting)
        all_s = sum(each.seconds for each in waiting)
        must_go = [each for each in waiting if not each.can_wait(start_s + all_s - each.seconds)]
        are_late = any(each.latest_s is not None for each in must_go)
        ready = must_go if are_late else waiting
        chosen = min(ready, key=lambda each: (self._after_s(each), -each.priority))
        if not chosen.may_begin or self._is_kept_from(chosen):
            return None
        # they owe nothing to those who let them go first, and each other what they did
        used_s = self._used_s[chosen.service]
        let_go = [self._used_s[each.service] for each in waiting if each not in ready]
        forgiven_s = used_s - min([used_s, *let_go])
        for service in {each.service for each in ready}:
            self._used_s[service] -= forgiven_s
        return chosen

    def _is_kept_from(self, batch: WaitingBatch) -> bool:
        """Whether the place is for the next batch of a more urgent service that is here: what it
        will have to compute is not all there yet.
        """
        return any(
            under_way[-1].priority > batch.priority
            and self._used_s[name] + _counted_s(under_way[-1], under_way[-1].seconds)
            <= self._used_s[batch.service]
            for name, under_way in self._under_way.items()
        )

    def _note_present(self, waiting: Iterable[str]) -> None:
        """Who was away has saved nothing: it comes to where the batches that are here began."""
        present = {*waiting, *self._under_way}
        stayed = [self._began_s(name) for name in present & self._present]
        self._least_s = max([self._least_s, *([min(stayed)] if stayed else [])])
        for name in present - self._present:
            self._used_s[name] = max(self._used_s.get(name, 0.0), self._least_s)
        self._present = present

    def _began_s(self, service: str) -> float:
        """What it had used when its first batch began that is here; of who has none, up to now."""
        under_way = self._under_way.get(service, ())
        return self._used_s[service] - sum(_counted_s(each, each.seconds) for each in under_way)

    def _after_s(self, batch: WaitingBatch) -> float:
        """The less, the sooner. One that has to wait counts as begun: else each short batch would
        keep the device waiting for the next one.
        """
        used_s = self._used_s[batch.service]
        return used_s if batch.may_begin else used_s + _counted_s(batch, batch.seconds)

    def begun(self, batch: WaitingBatch) -> None:
        """This one is computed.

        Parameters
        ----------
        batch
            As `next` gave it, or one that takes its turn elsewhere.
        """
        self._under_way.setdefault(batch.service, deque()).append(batch)
        self._count(batch, batch.seconds)

    def done(self, service: str, seconds: float) -> None:
        """The first batch of this service that is here has ended, after so long.

        Parameters
        ----------
        service
            Whose.
        seconds
            That the device computed for it.
        """
        under_way = self._under_way[service]
        batch = under_way.popleft()
        if not under_way:
            del self._under_way[service]
        self._count(batch, max(0.0, seconds) - batch.seconds)

    def _count(self, batch: WaitingBatch, seconds: float) -> None:
        used_s = self._used_s.get(batch.service, self._least_s)
        self._used_s[batch.service] = used_s + _counted_s(batch, seconds)


def _counted_s(batch: WaitingBatch, seconds: float) -> float:
    """What so many seconds of its service count for."""
    return seconds / MORE ** max(-MOST, min(MOST, batch.priority))
