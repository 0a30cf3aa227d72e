"""Who announces itself on this network: a hint of names and addresses, never an identity.

Everything in a multicast packet is hostile input: callbacks never raise (one exception ends
zeroconf's thread), names are checked, the list is capped, TXT records are not read. Whether a
device is the one that was paired is decided by the CURVE handshake alone.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from potluck.sessions.events import Address
from potluck_wire.addresses import is_address
from potluck_wire.limits import MAX_SHOWN_DEVICES, SERVICE_TYPE, is_device_name

# whether everybody who is waited for has been found
Enough = Callable[[Mapping[str, tuple[Address, ...]]], bool]

# an address record that is not there within this is asked for again
RESOLVE_MS = 800


class Sightings:
    """What has been seen so far: name -> addresses. Safe from several threads; grows to a cap."""

    def __init__(self, limit: int = MAX_SHOWN_DEVICES) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._found: dict[str, tuple[Address, ...]] = {}
        self.n_refused = 0

    def saw(self, instance: str, port: int | None, hosts: list[str]) -> str | None:
        """Note an announcement; returns the device's name, or None where it does not hold."""
        name = instance.removesuffix("." + SERVICE_TYPE)
        sound = [host for host in hosts if is_address(host)]
        if (
            not is_device_name(name)
            or not sound
            or not isinstance(port, int)
            or not 1 <= port <= 65532
        ):
            self.n_refused += 1
            return None
        with self._lock:
            if name not in self._found and len(self._found) >= self._limit:
                self.n_refused += 1
                return None
            places = tuple(Address(host=host, port=port) for host in sound)
            self._found[name] = tuple(dict.fromkeys((*places, *self._found.get(name, ()))))[:8]
        return name

    def all(self) -> dict[str, tuple[Address, ...]]:
        """Everybody seen, by name."""
        with self._lock:
            return dict(self._found)


def browse(timeout_s: float, *, enough: Enough | None = None) -> dict[str, tuple[Address, ...]]:
    """Listen for `timeout_s` seconds, or until `enough(found)`; returns {name: addresses}."""
    # 70 ms, and only discovery needs it
    from zeroconf import ServiceBrowser, ServiceStateChange, Zeroconf

    sightings, news = Sightings(), threading.Event()
    without_address: deque[str] = deque()  # announced; asked for again, one after the other

    def resolve(zeroconf: Any, name: str) -> None:
        info = zeroconf.get_service_info(SERVICE_TYPE, name, RESOLVE_MS)
        if info is None:
            if len(without_address) < MAX_SHOWN_DEVICES:
                without_address.append(name)
        elif sightings.saw(name, info.port, info.parsed_scoped_addresses()):
            news.set()

    def changed(zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        # a malformed name raises deep inside, and would end the browser's thread
        with suppress(Exception):
            # anybody can send a goodbye for somebody else
            if state_change is ServiceStateChange.Removed:
                return
            resolve(zeroconf, name)

    zeroconf = Zeroconf()
    try:
        browser = ServiceBrowser(zeroconf, SERVICE_TYPE, handlers=[changed])
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0 and not (
            enough and enough(sightings.all())
        ):
            news.wait(min(left_s, 0.2))
            news.clear()
            if without_address:
                with suppress(Exception):
                    resolve(zeroconf, without_address.popleft())
        browser.cancel()
    finally:
        zeroconf.close()
    return sightings.all()
