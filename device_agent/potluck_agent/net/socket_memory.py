"""How much of each connection ZeroMQ holds in memory, and the end of those that hold too much.

ZeroMQ itself has no bound on it: see `potluck_wire.bounded_receive`. The system counts the bytes of
a connection, and whoever shuts it down has ZeroMQ forget what was not whole.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck_agent.net.poller import Poller
from potluck_wire.bounded_receive import (
    TCP_INFO_BYTES,
    Unread,
    Untaken,
    acknowledged_bytes,
    received_bytes,
)
from potluck_wire.messages import Channel

# of a socket's monitor
OPENED = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED
WATCHED = OPENED | zmq.EVENT_DISCONNECTED
# Connections over which nothing has come. A stranger has 2 s for the handshake, and would take all
# descriptors of the process in one.
MAX_STRANGERS = 256
SOURCE = int(zmq.SRCFD)  # of a frame: which connection it came over
# others count elsewhere in it, or not at all
_TCP_INFO = getattr(socket, "TCP_INFO", None) if sys.platform.startswith("linux") else None


@dataclass(slots=True, eq=False)
class InboundConnection:
    """One connection of a socket."""

    source: Any
    descriptor: int
    peer: Any
    unread: Unread = field(default_factory=Unread)
    untaken: Untaken = field(default_factory=Untaken)
    left_bytes: int = 0
    is_known: bool = False  # a message came over it: no stranger


class SocketMemory:
    """All connections of some sockets, by socket and descriptor; of those over which nothing has
    come, the newest `most_strangers`.
    """

    def __init__(self, most_strangers: int = MAX_STRANGERS) -> None:
        self._most_strangers = most_strangers
        self._connections: dict[tuple[Any, int], InboundConnection] = {}
        self._strangers: dict[tuple[Any, int], None] = {}  # the oldest first

    @property
    def unread_bytes(self) -> int:
        """Bytes that were here at the last `check`: not read, or not taken by the other side."""
        return sum(connection.left_bytes for connection in self._connections.values())

    def watch(self, source: Any, event: dict[str, Any]) -> None:
        """What the monitor of a socket says: a connection is there, or gone."""
        key = (source, int(event["value"]))
        if event["event"] & OPENED:
            self._strangers.pop(key, None)
            with suppress(OSError), _borrowed(key[1]) as tcp:
                self._connections[key] = InboundConnection(*key, tcp.getpeername())
                if event["event"] == zmq.EVENT_ACCEPTED:
                    self._strangers[key] = None
        elif event["event"] == zmq.EVENT_DISCONNECTED:
            self._connections.pop(key, None)
            self._strangers.pop(key, None)
        while len(self._strangers) > self._most_strangers:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            self.cut(self._connections.get(oldest))

    def hear(self, source: Any, monitor: Any, sources: Poller, most: int | None = None) -> None:
        """All that the monitor of a socket has to say, or no more than the first `most` events."""
        for _ in range(most) if most is not None else repeat(None):
            if not sources.has_message(monitor):
                return
            event: Any = recv_monitor_message(monitor)
            self.watch(source, event)

    def read(self, source: Any, frames: list[Any]) -> None:
        """These frames were read of that socket."""
        connection = self.over(source, frames)
        if connection is not None:
            connection.unread.read(frames)
            connection.is_known = True
            self._strangers.pop((source, connection.descriptor), None)

    def sent(
        self, connection: InboundConnection | None, channel: Channel, frames: Sequence[Any]
    ) -> None:
        """These frames were given to ZeroMQ for that connection, if anybody has told of it.

        Values are not counted: they have windows of their own.
        """
        if connection is not None and channel is not Channel.DATA:
            connection.untaken.sent(frames)

    def over(self, source: Any, frames: list[Any]) -> InboundConnection | None:
        """The connection that these frames came over; None where nobody has told of it yet."""
        return self._connections.get((source, frames[-1].get(SOURCE)))

    def forget(self, source: Any) -> None:
        """This socket is closed."""
        for key in [key for key in self._connections if key[0] is source]:
            del self._connections[key]
            self._strangers.pop(key, None)

    def cut(self, connection: InboundConnection | None) -> None:
        """Shut this connection down, if it is still there, and what waits in it goes; the other
        side may make a new one.
        """
        if connection is None:
            return
        key = connection.source, connection.descriptor
        if self._connections.get(key) is not connection:
            return
        with suppress(OSError), _borrowed(connection.descriptor) as tcp:
            if tcp.getpeername() == connection.peer:
                tcp.shutdown(socket.SHUT_RDWR)

    def check(self, most_bytes: int, is_empty: Callable[[Any], bool]) -> int:
        """Cut the fullest connections, strangers first, until the others hold no more than
        `most_bytes` together.

        `is_empty(socket)`: no whole message waits in it. Returns how many were cut.
        """
        for (source, descriptor), connection in self._connections.items():
            account = _account(descriptor, connection.peer)
            came_bytes = received_bytes(account) or 0
            connection.left_bytes = connection.unread.left_bytes(came_bytes)
            connection.left_bytes += connection.untaken.left_bytes(acknowledged_bytes(account))
            if is_empty(source):
                connection.unread.settle(came_bytes)
        total_bytes, n_cut = self.unread_bytes, 0
        fullest = sorted(
            self._connections.values(), key=lambda each: (each.is_known, -each.left_bytes)
        )
        for connection in fullest:
            if total_bytes <= most_bytes:
                break
            self.cut(connection)
            total_bytes, n_cut = total_bytes - connection.left_bytes, n_cut + 1
        return n_cut


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A connection of ZeroMQ's as a socket of ours, for a moment; it stays ZeroMQ's."""
    copy = os.dup(descriptor)
    try:
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=copy)
    except OSError:  # it is gone, and something else has its number: no socket
        os.close(copy)
        raise
    with tcp:
        yield tcp


def _account(descriptor: int, peer: Any) -> bytes:
    """The system's account of a connection; empty where it is gone, or nobody counts."""
    if _TCP_INFO is None:
        return b""
    with suppress(OSError), _borrowed(descriptor) as tcp:
        if tcp.getpeername() == peer:
            return tcp.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, TCP_INFO_BYTES)
    return b""
