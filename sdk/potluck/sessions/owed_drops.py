"""Runs that devices are to forget: now, or as soon as they are back. Who was away for less than its
agent waits for this notebook still has all of what it took part in.
"""

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

from potluck.errors import DeviceGone
from potluck.sessions.events import RequestAll
from potluck.sessions.link import SessionLink
from potluck_wire.messages import Drop


class OwedDrops:
    """Of all devices of a home.

    Parameters
    ----------
    link
        The home's connection.
    """

    def __init__(self, link: SessionLink) -> None:
        self._link, self._lock = link, threading.Lock()
        self._owed: dict[str, dict[Drop, None]] = {}

    def drop(self, device: str, order: Drop) -> None:
        """Have a device forget an epoch, or a run; where it is away, once it is back.

        Parameters
        ----------
        device
            Its name.
        order
            What it is to forget.
        """
        if not self._link.connected(device):
            self._owe(device, order)
            return
        answer = self._link.ask(RequestAll(requests={device: (order, ())}))
        answer.add_done_callback(partial(self._answered, device, order))

    def joined(self, device: str) -> None:
        """It is back.

        Parameters
        ----------
        device
            Its name.
        """
        with self._lock:
            owed = self._owed.pop(device, {})
        for order in owed:
            self.drop(device, order)

    def _answered(self, device: str, order: Drop, answer: "Future[Any]") -> None:
        if not answer.cancelled() and isinstance(answer.exception(), DeviceGone):
            self._owe(device, order)

    def _owe(self, device: str, order: Drop) -> None:
        with self._lock:
            owed = self._owed.setdefault(device, {})
            if order.epoch == -1:  # the whole run: with all its epochs
                for other in [each for each in owed if each.run == order.run]:
                    del owed[other]
            owed[order] = None
        if self._link.connected(device):  # it came back meanwhile
            self.joined(device)
