"""Which connections a relay has, and which one has to go when there are too many. Pure."""

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
