"""Who has a device compute next, at one entrance: batches of services, and services that ask
devices themselves, such as those that write texts.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from potluck.serve.scheduling.fair_queueing import FairQueue, WaitingBatch
from potluck.serve.scheduling.learned_pace import LearnedPace

LOOK_S = 1.0  # how often who waits looks whether all has ended


class Backlog:
    """When one device is done with the calls that it was given: it computes one after the other.
    How much longer than was measured they take is learned from those that end.
    """

    def __init__(self) -> None:
        self._seconds: dict[object, float] = {}  # of each call by itself, in order
        self._first_s = 0.0  # when the first of them began
        self._pace = LearnedPace()

    @property
    def pace(self) -> float:
        """How many times longer than was measured a call takes."""
        return self._pace.mean

    @property
    def is_empty(self) -> bool:
        """Whether the device is idle."""
        return not self._seconds

    def until_s(self, now_s: float) -> float:
        """When a call that is made now would begin.

        Parameters
        ----------
        now_s
            The time.
        """
        if not self._seconds:
            return now_s
        return max(now_s, self._first_s + self.pace * sum(self._seconds.values()))

    def begun(self, call: object, seconds: float, now_s: float) -> None:
        """This call is made.

        Parameters
        ----------
        call
            What `ended` will be told.
        seconds
            That it takes by itself.
        now_s
            The time.
        """
        if not self._seconds:
            self._first_s = now_s
        self._seconds[call] = seconds

    def ended(self, call: object, now_s: float) -> float:
        """This call has ended: the next one begins. Says how many seconds it took, without what it
        waited for those before it; 0 is not known.

        Parameters
        ----------
        call
            As `begun` was told.
        now_s
            The time.
        """
        is_first = call is next(iter(self._seconds), None)
        seconds = self._seconds.pop(call, 0.0)
        took_s = now_s - self._first_s if is_first else 0.0
        self._first_s = now_s
        if is_first:
            self._pace.learn(took_s, seconds)
        return took_s


@dataclass(frozen=True, slots=True)
class Turn:
    """Who would have the next one on a device, and what is called under the lock when it comes."""

    batch: WaitingBatch
    begin: Callable[[], None]


class DeviceTurns:
    """The turns on each device.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    guarded
        The lock under which all of it is called; whoever leaves it gives the turns that are due.
    """

    def __init__(
        self, clock: Callable[[], float], guarded: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._clock, self._guarded = clock, guarded
        self.backlogs: defaultdict[str, Backlog] = defaultdict(Backlog)
        self._queues: defaultdict[str, FairQueue] = defaultdict(FairQueue)
        # of services that ask devices themselves
        self._waiting: defaultdict[str, dict[threading.Event, WaitingBatch]] = defaultdict(dict)
        self._closed = False

    def give(self, offered: Mapping[str, Sequence[Turn]]) -> bool:
        """Give one turn; whether there was one to give. Under the lock.

        Parameters
        ----------
        offered
            By device, what waits besides those that ask devices themselves.
        """
        devices = dict.fromkeys([*offered, *self._waiting])
        for device in sorted(devices, key=self.n_under_way):
            turns = [*offered.get(device, ()), *self._asking(device)]
            batches = [each.batch for each in turns]
            chosen = self._queues[device].next(batches, self.start_s(device))
            if chosen is not None:
                next(each for each in turns if each.batch is chosen).begin()
                return True
        return False

    @property
    def is_asked(self) -> bool:
        """Whether a service that asks devices itself waits for one. Under the lock."""
        return any(self._waiting.values())

    def _asking(self, device: str) -> Iterator[Turn]:
        for came, batch in self._waiting[device].items():
            yield Turn(batch, partial(self._came, device, came))

    def start_s(self, device: str) -> float:
        """When a batch that goes there now would begin. Under the lock.

        Parameters
        ----------
        device
            That computes.
        """
        return self.backlogs[device].until_s(self._clock())

    def has_room(self, device: str) -> bool:
        """Whether one more may be there. Under the lock.

        Parameters
        ----------
        device
            That computes.
        """
        return self._queues[device].has_room

    def n_under_way(self, device: str) -> int:
        """Turns that have come there, and have not ended. Under the lock.

        Parameters
        ----------
        device
            That computes.
        """
        return self._queues[device].n_under_way

    def begun(self, device: str, batch: WaitingBatch) -> None:
        """A turn has begun; `left` follows. Under the lock.

        Parameters
        ----------
        device
            That computes.
        batch
            As it was offered.
        """
        self._queues[device].begun(batch)

    def left(self, device: str, service: str, seconds: float) -> None:
        """A turn has ended. Under the lock.

        Parameters
        ----------
        device
            That computed.
        service
            For whom.
        seconds
            That the device computed for it.
        """
        self._queues[device].done(service, seconds)

    @contextmanager
    def turn(self, service: str, devices: Collection[str], priority: int = 0) -> Iterator[None]:
        """Inside, it is the turn of this service on these devices; waits for it, in any thread.

        Parameters
        ----------
        service
            Its name.
        devices
            All that it needs at once.
        priority
            Larger goes first.
        """
        batch = WaitingBatch(service=service, priority=priority)
        with ExitStack() as begun:
            for device in sorted(set(devices)):  # in one order: nobody waits for one who waits
                begun.enter_context(self._turn_on(device, batch))
            yield

    @contextmanager
    def _turn_on(self, device: str, batch: WaitingBatch) -> Iterator[None]:
        came, since_s = threading.Event(), self._clock()
        with self._guarded():
            self._waiting[device][came] = batch
        try:
            while not came.wait(LOOK_S) and not self._closed:
                pass
            since_s = self._clock()
            yield
        finally:
            with self._guarded():
                if self._waiting[device].pop(came, None) is None:  # else it never came
                    self.left(device, batch.service, self._clock() - since_s)

    def _came(self, device: str, came: threading.Event) -> None:
        self.begun(device, self._waiting[device].pop(came))
        came.set()

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
