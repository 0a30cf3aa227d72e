"""How often each device is asked for readings of its meter: as often as the one who wants them most
often. Pure but for the link.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count

from potluck.errors import PotluckError
from potluck.sessions.events import RequestAll
from potluck.sessions.link import SessionLink
from potluck_wire.messages import Meter


class Metering:
    """Who wants readings, and what the devices were asked. A device takes one period from each
    notebook, so that runs and people share it.

    Parameters
    ----------
    link
        The home's connection.
    ready
        Tells which devices have a session.
    """

    def __init__(self, link: SessionLink, ready: Callable[[], Iterable[str]]) -> None:
        self._link, self._ready = link, ready
        self._wanted: dict[int, tuple[frozenset[str] | None, float]] = {}
        self._requested_s: dict[str, float] = {}
        self._numbers, self._lock = count(), threading.Lock()

    def want(self, devices: Iterable[str] | None, period_s: float) -> int:
        """Have readings of these devices (None: of all, also those that come later) every
        `period_s` seconds or more often; returns a number for `enough`.
        """
        with self._lock:
            number = next(self._numbers)
            self._wanted[number] = frozenset(devices) if devices is not None else None, period_s
        self.ask()
        return number

    def enough(self, number: int) -> None:
        """Whoever was given that number wants no more."""
        with self._lock:
            known = self._wanted.pop(number, None) is not None
        if known:
            self.ask()

    def forget(self, device: str) -> None:
        """Its session is another one, or ended: it has to be asked again."""
        with self._lock:
            self._requested_s.pop(device, None)

    def period_s(self, device: str) -> float:
        """How often a device is wanted to tell; 0: not at all."""
        return min(
            (
                period_s
                for devices, period_s in self._wanted.values()
                if devices is None or device in devices
            ),
            default=0.0,
        )

    def ask(self) -> None:
        """Ask every device that was asked for something else before."""
        with self._lock:
            changed = {
                name: self.period_s(name)
                for name in self._ready()
                if self.period_s(name) != self._requested_s.get(name, 0.0)
            }
            self._requested_s |= changed
        for name, period_s in changed.items():
            with suppress(PotluckError):  # it, or the home, is gone
                self._link.ask(RequestAll(requests={name: (Meter(period_s=period_s), ())}))
