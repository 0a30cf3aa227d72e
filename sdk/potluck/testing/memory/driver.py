"""The one thread in which everything of a lab in memory happens, whoever is connected to it."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from potluck.testing.memory.clock import VirtualClock


class Driven(Protocol):
    """A notebook's end of the network."""

    @property
    def is_awake(self) -> bool:
        """Whether there is something to look at."""

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for an answer."""

    def look(self) -> bool:
        """Do what was asked for; whether it is still open."""

    def crash(self) -> None:
        """End without a word."""


class Driver:
    """Time passes while somebody waits for an answer, or something is on its way; else it stands.

    `runs_free`: it passes anyway, for what is done again and again.

    Parameters
    ----------
    clock
        Of all.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._links: tuple[Driven, ...] = ()
        self._news = threading.Condition()
        self._orders: deque[Callable[[], None]] = deque()
        self._runs_free = False
        self.thread: threading.Thread | None = None

    def add(self, link: Driven) -> threading.Thread:
        """Serve this one, too; the thread that does."""
        with self._news:
            self._links = (*self._links, link)
            if self.thread is None:
                self.thread = threading.Thread(
                    target=self._loop, name="potluck memory", daemon=True
                )
                self.thread.start()
            self._news.notify_all()
            return self.thread

    def do(self, order: Callable[[], Any]) -> Any:
        """Have something done between two events; returns its result."""
        done: Future[Any] = Future()

        def carry_out() -> None:
            try:
                done.set_result(order())
            except Exception as error:
                done.set_exception(error)

        with self._news:
            is_apart = self.thread not in (None, threading.current_thread())
            if is_apart:
                self._orders.append(carry_out)
                self._news.notify_all()
        if not is_apart:
            return order()
        return done.result()

    def run_free(self, runs_free: bool) -> None:
        """Let time pass although nobody waits; or not any more."""
        with self._news:
            self._runs_free = runs_free
            self._news.notify_all()

    def wake(self) -> None:
        """Somebody has asked for something."""
        with self._news:
            self._news.notify_all()

    def _loop(self) -> None:
        try:
            while self._waited():
                while self._orders:
                    self._orders.popleft()()
                for link in self._links:
                    if not link.look():
                        self._links = tuple(each for each in self._links if each is not link)
                if self._goes_on():
                    self._clock.step()
        finally:
            for link in self._links:  # a fault: nobody is left to wait for
                link.crash()

    def _waited(self) -> bool:
        """Once there is something to do: whether anybody is left."""
        with self._news:
            self._news.wait_for(self._is_awake)
            if self._links or self._orders:
                return True
            self.thread = None
            return False

    def _goes_on(self) -> bool:
        is_waiting = self._runs_free or any(link.is_waiting for link in self._links)
        return is_waiting or not self._clock.is_quiet

    def _is_awake(self) -> bool:
        is_asked = self._orders or any(link.is_awake for link in self._links)
        return bool(is_asked) or self._goes_on() or not self._links
