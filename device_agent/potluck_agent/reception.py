"""The pairing port: plain TCP, one visitor at a time, everything decided by the desk."""

import socket
import time
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

from potluck_agent.pairing import Desk, Reply
from potluck_agent.sources import Sources
from potluck_wire.pairing import Paired

READ_BYTES = 1024


class Reception:
    """Visitors of the pairing port. `trust(paired)` stores a key and says whether it could.

    `fault` is told what a visitor's bytes raised that nothing may raise; the visitor has to go.
    """

    def __init__(
        self,
        listener: socket.socket,
        sources: Sources,
        desk: Desk,
        trust: Callable[[Paired], bool],
        fault: Callable[[object, Exception], None],
    ) -> None:
        self._listener, self._sources, self._desk, self._trust = listener, sources, desk, trust
        self._fault = fault
        self._visitor: socket.socket | None = None
        sources.register(listener.fileno())

    def serve(self, ready: Container[Any]) -> None:
        """Look at whoever has something to say."""
        if self._visitor is not None and self._visitor.fileno() in ready:
            try:
                self._read(self._visitor)
            except Exception as error:
                self._fault("a visitor of the pairing port", error)
                self.hang_up()
        if self._listener.fileno() in ready:
            self._welcome()

    def tick(self, now_s: float) -> None:
        """Nobody may hold the desk for long."""
        if self._desk.overdue(now_s):
            self.hang_up()

    def hang_up(self) -> None:
        """The visitor, if there is one, has to go."""
        self._desk.leave()
        if self._visitor is not None:
            self._sources.unregister(self._visitor.fileno())
            self._visitor.close()
            self._visitor = None

    def _welcome(self) -> None:
        try:
            visitor, _ = self._listener.accept()
        except OSError:
            return
        visitor.setblocking(False)
        reply = self._desk.arrive(time.monotonic())
        if reply.close:
            _answer(visitor, reply)
            visitor.close()
            return
        self._visitor = visitor
        self._sources.register(visitor.fileno())

    def _read(self, visitor: socket.socket) -> None:
        try:
            data = visitor.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.hang_up()
            return
        reply = self._desk.receive(data, time.monotonic())
        if reply.paired is not None and not self._trust(reply.paired):
            self.hang_up()  # not kept: then the other side must not believe that it is paired
            return
        _answer(visitor, reply)
        if reply.close:
            self.hang_up()


def _answer(visitor: socket.socket, reply: Reply) -> None:
    with suppress(OSError):  # some hundred bytes: they fit into any socket's buffer
        visitor.sendall(reply.data)
