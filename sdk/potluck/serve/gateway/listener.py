"""The socket of the entrance: it takes whom the limit lets in, and counts every descriptor from the
first moment, before TLS has shaken hands.
"""

import errno
import gc
import os
import socket
from collections.abc import Callable
from contextlib import suppress

from potluck.serve.gateway.connection_limit import ConnectionLimit, Who
from potluck.serve.gateway.limited_connections import LimitedConnections

NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MAX_TURNED_AWAY = 64  # at one go; then others of this thread have their turn
# Connections that ended without a request, and may be left to the garbage collector: asyncio has
# the error of a handshake refer to itself, and with it 0.3 MiB of TLS. Among millions of objects
# Python looks at the oldest only after many thousands of them.
MAX_MUTE = 512
MAX_LEAVING = 64  # and are not closed yet; nobody comes in meanwhile


class LimitedConnection(socket.socket):
    """A connection that is let in. What is written is sent at once: an answer goes as a head and a
    body, and the body would wait for the head's receipt, which clients hold back for 40 ms.

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
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
    limit
        Who is let in.
    is_tls
        What is said over its connections is encrypted.
    """

    def __init__(
        self, bound: socket.socket, limit: ConnectionLimit, *, is_tls: bool = False
    ) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self.connections = LimitedConnections(limit)
        self._reserve: int | None = os.open(os.devnull, os.O_RDONLY)
        self._is_tls = is_tls
        self._n_collected = 0  # of those that ended without a request

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next one that is let in.

        Raises
        ------
        BlockingIOError
            Nobody else is there; or those that had to leave are to be closed first, as who comes
            faster than others are closed would take every descriptor.
        """
        if self.connections.n_leaving >= MAX_LEAVING:
            raise BlockingIOError
        if self._is_tls and self.connections.n_mute >= self._n_collected + MAX_MUTE:
            self._n_collected = self.connections.n_mute
            gc.collect()
        for _ in range(MAX_TURNED_AWAY):
            try:
                accepted, address = super().accept()
            except OSError as error:
                if error.errno not in NONE_LEFT:
                    raise
                self._turn_away()
                continue
            connection = self._let_in(accepted, address[:2])
            if connection is not None:
                return connection, address
        raise BlockingIOError

    def _let_in(self, accepted: socket.socket, who: Who) -> LimitedConnection | None:
        connection = LimitedConnection(accepted, lambda: self.connections.leave(who, connection))
        if self.connections.come(who, connection):
            return connection
        connection.close()
        return None

    def _turn_away(self) -> None:
        """No descriptor is left: one that is kept for this lets the next one be closed."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._reserve = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        """Listen no more; who is in stays."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        super().close()
