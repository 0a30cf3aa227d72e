"""The socket of the entrance: it lets in whom the door lets in, counts every descriptor from the
first moment (before TLS has shaken hands), and parts from those who have to leave.
"""

import errno
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from potluck.serve.gateway.connection_limit import ConnectionLimit, Who

NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MAX_TURNED_AWAY = 64  # at one go; then others of this thread have their turn


class Guest(socket.socket):
    """A connection that is let in.

    Parameters
    ----------
    accepted
        As it came; taken over.
    leaves
        Called when it is closed.
    """

    def __init__(self, accepted: socket.socket, leaves: Callable[[], None]) -> None:
        kind = accepted.family, accepted.type, accepted.proto
        super().__init__(*kind, fileno=accepted.detach())
        self._leaves = leaves

    def close(self) -> None:
        """Close it; whoever waits for room has it now."""
        self._leaves()
        super().close()


class Listener(socket.socket):
    """Listens; used by one thread alone.

    Parameters
    ----------
    bound
        A socket with its address; taken over.
    door
        Who is let in.
    """

    def __init__(self, bound: socket.socket, door: ConnectionLimit) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._door = door
        self._guests: dict[Who, Guest] = {}
        self._reserve: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next one that is let in.

        Raises
        ------
        BlockingIOError
            Nobody else is there.
        """
        for _ in range(MAX_TURNED_AWAY):
            try:
                accepted, address = super().accept()
            except OSError as error:
                if error.errno not in NONE_LEFT:
                    raise
                self._turn_away()
                continue
            guest = self._let_in(accepted, address[:2])
            if guest is not None:
                return guest, address
        raise BlockingIOError

    def _let_in(self, accepted: socket.socket, who: Who) -> Guest | None:
        leaves = self._door.come(who, time.monotonic())
        if leaves == who:
            accepted.close()
            return None
        if leaves is not None:
            self.part(leaves)
        guest = Guest(accepted, lambda: self._left(who, guest))
        self._guests[who] = guest
        return guest

    def _left(self, who: Who, guest: Guest) -> None:
        if self._guests.get(who) is guest:
            del self._guests[who]
            self._door.leave(who)

    def _turn_away(self) -> None:
        """No descriptor is left: one that is kept for this lets the next one be closed."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY)

    def part(self, who: Who) -> None:
        """Have a connection end; what it was told already still gets there."""
        guest = self._guests.get(who)
        if guest is not None:
            with suppress(OSError):  # it is gone
                guest.shutdown(socket.SHUT_RDWR)

    def part_all(self, whom: Iterable[Who]) -> None:
        """Have these connections end."""
        for who in whom:
            self.part(who)

    def close_all(self) -> None:
        """Close what is left, once nothing else serves it."""
        for guest in tuple(self._guests.values()):
            guest.close()

    def sweep(self) -> None:
        """Part from those that ask nothing."""
        self.part_all(self._door.overdue(time.monotonic()))

    def close(self) -> None:
        """Listen no more; who is in stays."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        super().close()
