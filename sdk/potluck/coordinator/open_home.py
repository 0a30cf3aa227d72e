"""The one home of a coordinator's keys: open while anything here needs it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potluck.home import Home


class OpenHome:
    """Opened for the first who uses it, closed behind the last.

    Parameters
    ----------
    open_home
        Gives a home with the devices that are there now.
    """

    def __init__(self, open_home: "Callable[[], Home]") -> None:
        self._open, self._lock = open_home, threading.RLock()
        self._home: Home | None = None
        self._n_users = 0

    @contextmanager
    def use(self) -> "Iterator[Home]":
        """Use it in this block."""
        home = self.take()
        try:
            yield home
        finally:
            self.give_back()

    def take(self) -> "Home":
        """It is used from now on, until `give_back`."""
        with self._lock:
            if self._home is None:
                self._home = self._open()
            self._n_users += 1
            return self._home

    def give_back(self) -> None:
        """One uses it no more."""
        with self._lock:
            self._n_users -= 1
            if not self._n_users and self._home is not None:
                self._home.close()
                self._home = None

    def looked_for(self, away: list[str]) -> "Home":
        """The home, after one more look for devices that are not there.

        Parameters
        ----------
        away
            Their names.
        """
        with self._lock:
            assert self._home is not None  # somebody uses it
            if self._n_users == 1:
                self._home.close()
                self._home = self._open()
            else:
                self._home.devices.join(name for name in away if name in self._home.devices)
            return self._home
