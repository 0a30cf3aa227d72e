"""The connections of a coordinator's socket: how many there may be, and how much may wait."""

from collections import deque
from typing import Any

import zmq

from potluck.sessions.socket_memory import ConnectionMemory

WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
MAX_STRANGERS = 256  # connections over which nothing has come
MAX_OF_A_KEY = 16  # each request has one of its own
MAX_UNREAD_BYTES = 32 << 20  # of all together
SOURCE = int(zmq.SRCFD)  # of a frame: which connection it came over


class SocketConnections:
    """All of one socket, by descriptor."""

    def __init__(self) -> None:
        self._inflows: dict[int, ConnectionMemory] = {}
        self._strangers: dict[int, None] = {}  # the oldest first
        self._of_key: dict[str, deque[ConnectionMemory]] = {}

    def watch(self, event: dict[str, Any]) -> None:
        """What the monitor of the socket says: one is there, or gone."""
        number = int(event["value"])
        gone = self._inflows.pop(number, None)
        self._strangers.pop(number, None)
        for inlets in self._of_key.values():
            if gone is not None and gone in inlets:
                inlets.remove(gone)
        if event["event"] == zmq.EVENT_ACCEPTED:
            self._inflows[number] = inflow = ConnectionMemory()
            inflow.opened(number)
            self._strangers[number] = None
        while len(self._strangers) > MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            self._inflows[oldest].cut()

    def read(self, frames: list[Any], *, is_message: bool) -> None:
        """These frames came over one of them; whoever sends what is no message, or has too many
        connections, loses one.
        """
        number = frames[-1].get(SOURCE)
        inflow = self._inflows.get(number)
        if inflow is None:
            return
        inflow.read(frames)
        self._strangers.pop(number, None)
        if not is_message:
            inflow.cut()
            return
        inlets = self._of_key.setdefault(str(frames[-1].get("User-Id")), deque())
        if inflow not in inlets:
            inlets.append(inflow)
        if len(inlets) > MAX_OF_A_KEY:
            inlets.popleft().cut()

    def check(self, *, is_empty: bool) -> None:
        """Cut the fullest ones, strangers first, until the others hold no more than they may.

        Parameters
        ----------
        is_empty
            No whole message waits in the socket.
        """
        left = {
            number: inflow.left_bytes(is_empty=is_empty) for number, inflow in self._inflows.items()
        }
        total = sum(left.values())
        for number in sorted(left, key=lambda n: (n not in self._strangers, -left[n])):
            if total <= MAX_UNREAD_BYTES:
                return
            self._inflows[number].cut()
            total -= left[number]
