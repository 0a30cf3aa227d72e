"""How much of a connection ZeroMQ holds in memory: it has no bound of its own on a message.

See `potluck_wire.bounded_receive`.
"""

import os
import socket
import sys
from contextlib import suppress
from typing import Any

from potluck_wire.bounded_receive import TCP_INFO_BYTES, Unread, received_bytes

# others count elsewhere in it, or not at all
_TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform.startswith("linux") else None


class ConnectionMemory:
    """The connection of one socket, as it comes and goes."""

    def __init__(self) -> None:
        self._descriptor, self._unread = -1, Unread()
        self._peer: Any = None

    def opened(self, descriptor: int) -> None:
        """The socket has a new connection."""
        self._descriptor, self._unread = descriptor, Unread()
        self._peer = None
        with suppress(OSError), self._borrowed() as tcp:
            self._peer = tcp.getpeername()

    def read(self, frames: list[Any]) -> None:
        """These frames were read of it."""
        self._unread.read(frames)

    def left_bytes(self, *, is_empty: bool) -> int:
        """What came and was not read yet; `is_empty`: no whole message waits."""
        came_bytes = self._came_bytes()
        left_bytes = self._unread.left_bytes(came_bytes)
        if is_empty:
            self._unread.settle(came_bytes)
        return left_bytes

    def cut(self) -> None:
        """Shut the connection down, if it is still there: what waits in it goes, and the other side
        may make a new one.
        """
        with suppress(OSError), self._borrowed() as tcp:
            if tcp.getpeername() == self._peer:
                tcp.shutdown(socket.SHUT_RDWR)

    def _came_bytes(self) -> int:
        """All that came over it; 0 where it is gone, or nobody counts."""
        if _TCP_INFO is None or self._peer is None:
            return 0
        with suppress(OSError), self._borrowed() as tcp:
            if tcp.getpeername() == self._peer:
                info = tcp.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, TCP_INFO_BYTES)
                return received_bytes(info) or 0
        return 0

    def _borrowed(self) -> socket.socket:
        """ZeroMQ's connection as a socket of ours, for a moment."""
        copy = os.dup(self._descriptor)
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=copy)
        except OSError:  # it is gone, and something else has its number: no socket
            os.close(copy)
            raise
