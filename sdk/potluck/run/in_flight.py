"""The requests of a run that are under way: who finishes a compiled plan waits for them, who
recovers gives them up.
"""

import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, NamedTuple

from potluck.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from potluck.graph.traced import Type
    from potluck.run.device_group import DeviceGroup
    from potluck.schedule import Compiled
    from potluck.sessions.events import ExecutionResult


class NoProgram(Exception):
    """Devices have no program for requests of so many rows."""


class CachesGone(Exception):
    """What earlier requests left to this one is nowhere: devices, or their pieces of the model,
    are others now.
    """


class RunRequest(NamedTuple):
    """One that was handed out: to whom, what was compiled for it, its first row, the rows that it
    takes, how many of them are wanted, and the types of what it must answer.
    """

    future: "Future[ExecutionResult]"
    group: "DeviceGroup"
    compiled: "Compiled"
    start: int
    batch: int
    wanted: int
    types: "Mapping[str, Type]"


class RequestsInFlight:
    """Of one run, by epoch. For any thread."""

    def __init__(self) -> None:
        self._futures: dict[int, set[Future[ExecutionResult]]] = {}
        self._lock = threading.Lock()

    def add(self, epoch: int, future: "Future[ExecutionResult]") -> None:
        """One was handed out.

        Parameters
        ----------
        epoch
            Of the compiled plan that answers it.
        future
            Its answer.
        """
        with self._lock:
            under_way = self._futures.setdefault(epoch, set())
            under_way.difference_update([other for other in under_way if _is_over(other)])
            under_way.add(future)

    @property
    def n_unanswered(self) -> int:
        """Those that are under way, or were lost with a device."""
        with self._lock:
            return sum(not _is_over(f) for futures in self._futures.values() for f in futures)

    def finish(self, epoch: int) -> None:
        """Wait for all of an epoch that takes no new ones."""
        with self._lock:
            futures = self._futures.pop(epoch, set())
        wait(futures)

    def give_up(self) -> None:
        """Nobody will answer them."""
        with self._lock:
            futures = [future for under_way in self._futures.values() for future in under_way]
            self._futures.clear()
        for future in futures:
            future.cancel()


def _is_over(future: "Future[ExecutionResult]") -> bool:
    """Whether a request needs no other answer: it has one, or its values have none."""
    if not future.done() or future.cancelled():
        return False
    return future.exception() is None or isinstance(future.exception(), RequestFailed)
