"""Connections within a limit: who is let in, and the end of those that have to leave.

It counts a connection from the first moment until it is closed. Any thread may use it.
"""

import socket
import threading
import time
from contextlib import suppress

from potluck.serve.gateway.connection_limit import ConnectionLimit, Who


class LimitedConnections:
    """All connections of one server that are open.

    Parameters
    ----------
    limit
        Who is let in, and who has to leave.
    """

    def __init__(self, limit: ConnectionLimit) -> None:
        self._limit = limit
        self._open: dict[Who, socket.socket] = {}
        self._lock = threading.RLock()

    @property
    def n_leaving(self) -> int:
        """Connections that had to leave and are not closed yet: each has its descriptor, and what
        TLS keeps for it.
        """
        with self._lock:
            return len(self._open) - len(self._limit)

    @property
    def n_mute(self) -> int:
        """Connections that have left and never asked anything."""
        with self._lock:
            return self._limit.n_mute

    def come(self, who: Who, connection: socket.socket) -> bool:
        """Whether this one is let in; for it, whoever has asked nothing for the longest may have
        to leave.

        Parameters
        ----------
        who
            The other end.
        connection
            To it; closed by whoever called this, let in or not.
        """
        with self._lock:
            leaves = self._limit.come(who, time.monotonic())
            if leaves == who:
                return False
            if leaves is not None:
                self.disconnect(leaves)
            self._open[who] = connection
            return True

    def leave(self, who: Who, connection: socket.socket) -> None:
        """This one is closed.

        Parameters
        ----------
        who
            The other end; by now another connection may have it.
        connection
            As it came.
        """
        with self._lock:
            if self._open.get(who) is connection:
                del self._open[who]
                self._limit.leave(who)

    def ask(self, who: Who) -> None:
        """A request is there: its answer may take its time."""
        with self._lock:
            self._limit.ask(who)

    def answer(self, who: Who) -> None:
        """A request is answered."""
        with self._lock:
            self._limit.answer(who, time.monotonic())

    def disconnect(self, who: Who) -> None:
        """Have a connection end; what it was told already still gets there."""
        with self._lock:
            if (connection := self._open.get(who)) is not None:
                with suppress(OSError):  # it is gone
                    connection.shutdown(socket.SHUT_RDWR)

    def sweep(self) -> None:
        """Disconnect those that ask nothing; to be called several times a second."""
        with self._lock:
            for who in self._limit.overdue(time.monotonic()):
                self.disconnect(who)

    def close_all(self) -> None:
        """Close what is left, once nothing else serves it."""
        with self._lock:
            connections = tuple(self._open.values())
        for connection in connections:
            connection.close()
