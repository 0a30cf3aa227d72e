"""Which connections a relay has, and which one has to go when there are too many. Pure.

Time comes in as an argument.
"""

import ipaddress
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from potluck_wire.limits import (
    RELAY_MAX_ADMITTED,
    RELAY_MAX_ADMITTED_EACH,
    RELAY_MAX_PENDING,
    RELAY_MAX_PENDING_EACH,
)

Waiting = TypeVar("Waiting")
NETWORK_BITS = 64
MAX_COUNTED = 4096  # addresses


def origin(address: str) -> str:
    """Who counts as one: an address, and of IPv6 its network of 64 bits, of which one computer may
    have all addresses. A link's own addresses (fe80::) are one each.
    """
    if ":" not in address:
        return address
    six = ipaddress.IPv6Address(address.partition("%")[0])
    if six.ipv4_mapped is not None:
        return str(six.ipv4_mapped)
    if six.is_link_local:
        return address
    return str(ipaddress.IPv6Network((six, NETWORK_BITS), strict=False))


class ArrivalRate:
    """How many connections of one origin are taken in a second: `per_s`, and `at_once` after a
    time in which there were none (a token bucket).
    """

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._left: dict[str, tuple[float, float]] = {}  # how many, and when that was; oldest first

    def __len__(self) -> int:
        return len(self._left)

    def admit(self, came_from: str, now_s: float) -> bool:
        """One more comes. Whether it is taken."""
        left, counted_s = self._left.pop(came_from, (float(self._at_once), now_s))
        left = min(self._at_once, left + (now_s - counted_s) * self._per_s)
        self._left[came_from] = (left - 1 if left >= 1 else left), now_s
        if len(self._left) > MAX_COUNTED:  # who has not come for the longest time has most left
            del self._left[next(iter(self._left))]
        return left >= 1


def most_crowding(waiting: Mapping[Waiting, str]) -> tuple[Waiting, int]:
    """Of those who wait, the oldest first, with their addresses: the oldest of the address that has
    most, and how many it has. So one address takes no places but its own.
    """
    busiest, most = Counter(waiting.values()).most_common(1)[0]
    return next(each for each, address in waiting.items() if address == busiest), most


@dataclass(frozen=True, slots=True, eq=False)
class Visit:
    """One connection to a device: the key of the device, and where the visitor came from."""

    device: str
    address: str


class Visits:
    """Those that are waiting to be let in, the oldest first, and those that were."""

    def __init__(self) -> None:
        self._pending: dict[Visit, str] = {}  # with their addresses
        self._admitted: dict[Visit, None] = {}

    def __len__(self) -> int:
        return len(self._pending) + len(self._admitted)

    def arrive(self, visit: Visit) -> Visit | None:
        """One more waits. Returns whose place is needed: the oldest of the address that has too
        many, or the most of all, so that one stranger takes no places but its own.
        """
        self._pending[visit] = visit.address
        oldest, most = most_crowding(self._pending)
        fits = len(self._pending) <= RELAY_MAX_PENDING and most <= RELAY_MAX_PENDING_EACH
        return None if fits else oldest

    def admit(self, visit: Visit) -> bool:
        """The device has let it in. Whether there is room for it."""
        of_device = sum(each.device == visit.device for each in self._admitted)
        if of_device >= RELAY_MAX_ADMITTED_EACH or len(self._admitted) >= RELAY_MAX_ADMITTED:
            return False
        self._pending.pop(visit, None)
        self._admitted[visit] = None
        return True

    def leave(self, visit: Visit) -> None:
        """It is over; twice is fine."""
        self._pending.pop(visit, None)
        self._admitted.pop(visit, None)
