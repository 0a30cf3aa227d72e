"""Who of many has something to say: ZeroMQ sockets and plain descriptors in one wait.

`zmq.Poller` asks every socket at every wake. Here the system says which descriptors moved, and only
those sockets are asked, and the ones that were used since: what a socket does for us may swallow
the sign that more has come.
"""

import selectors
from typing import Any

import zmq

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)  # plain numbers: zmq's own flags are slow


class Poller:
    """Sockets (ZeroMQ) and descriptors (plain numbers) that are waited for."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._used: set[Any] = set()

    def register(self, source: Any) -> None:
        """Wait for this one, too."""
        if isinstance(source, int):
            self._selector.register(source, READ, source)
            return
        self._selector.register(source.get(zmq.FD), READ, source)
        self._used.add(source)

    def unregister(self, source: Any) -> None:
        """No more; call it before the source is closed."""
        self._selector.unregister(source if isinstance(source, int) else source.get(zmq.FD))
        self._used.discard(source)

    def watch(self, descriptor: int, events: int) -> None:
        """Wait for these events of a registered descriptor."""
        self._selector.modify(descriptor, events, descriptor)

    def use(self, socket: Any) -> None:
        """Something is sent through this ZeroMQ socket. (What is read is counted already.)"""
        self._used.add(socket)

    def has_message(self, socket: Any) -> bool:
        """Whether a message waits in this ZeroMQ socket.

        One that has none is not asked again until it moves.
        """
        if socket.get(_EVENTS) & _READABLE:
            return True
        self._used.discard(socket)
        return False

    def is_empty(self, socket: Any) -> bool:
        """Whether no message waits in it; one that does is found by the next `wait`, too."""
        self._used.add(socket)  # to ask a socket swallows its sign
        return not self.has_message(socket)

    def wait(self, seconds: float) -> set[Any]:
        """Those that have something to say, after at most so long."""
        ready = {socket for socket in tuple(self._used) if self.has_message(socket)}
        for key, _ in self._selector.select(0 if ready else seconds):
            source = key.data
            if isinstance(source, int):
                ready = ready | {source}
            elif self.has_message(source):
                self._used.add(source)
        return ready | self._used

    def close(self) -> None:
        """Wait for nobody any more."""
        self._selector.close()
