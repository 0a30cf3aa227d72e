"""Who has a device compute next, at one entrance: batches of services, and services that ask
devices themselves, such as those that write texts.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf

from potluck.serve.scheduling.fair_queueing import FairQueue
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


class DeviceTurns:
    """The queue of each device.

    Parameters
    ----------
    clock
        Seconds, monotonic.
    guarded
        The lock under which all of it is called, and what begins computing.
    """

    def __init__(
        self, clock: Callable[[], float], guarded: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._clock, self._guarded = clock, guarded
        self._queues: dict[str, FairQueue[Callable[[], None]]] = {}
        self.backlogs: defaultdict[str, Backlog] = defaultdict(Backlog)
        self._closed = False

    def offer(
        self,
        device: str,
        service: str,
        begin: Callable[[], None],
        priority: int = 0,
        seconds: float = inf,
        *,
        is_followed: bool = False,
    ) -> None:
        """Call `begin` under the lock when it is the turn of this service there. Under the lock.

        Parameters
        ----------
        device
            That computes.
        service
            For whom.
        begin
            Must not wait; `leave` follows.
        priority
            Larger goes first.
        seconds, is_followed
            As of `FairQueue.offer`.
        """
        queue = self._queues.setdefault(device, FairQueue())
        queue.offer(service, begin, priority, seconds, is_followed=is_followed)
        self._pump(device)

    def leave(self, device: str, service: str, seconds: float) -> None:
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
        self._pump(device)

    def _pump(self, device: str) -> None:
        queue = self._queues[device]
        while (begin := queue.next()) is not None:
            begin()

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
        with ExitStack() as begun:
            for device in sorted(set(devices)):  # in one order: nobody waits for one who waits
                came = threading.Event()
                with self._guarded():
                    self.offer(device, service, came.set, priority)
                while not came.wait(LOOK_S) and not self._closed:
                    pass
                begun.callback(self._left, device, service, self._clock())
            yield

    def _left(self, device: str, service: str, since_s: float) -> None:
        with self._guarded():
            self.leave(device, service, self._clock() - since_s)

    def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
