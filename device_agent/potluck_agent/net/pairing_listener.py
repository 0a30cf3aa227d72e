"""The pairing port: plain TCP, one visitor at a time, everything decided by the pairing window.

Its window is opened and watched by commands beside the agent (`control_files.py`).
"""

import socket
import time
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from typing import Any

from potluck_agent import control_files
from potluck_agent.core.pairing_window import PairingWindow, Reply
from potluck_agent.errors import AgentError
from potluck_agent.net.event_log import EventLog
from potluck_agent.net.poller import Poller
from potluck_wire.limits import PAIRING_TRIES
from potluck_wire.pairing import Paired

READ_BYTES = 1024


class PairingListener:
    """Visitors of the pairing port.

    `trust(paired)` stores a key and says whether it could; `journal` is for the owner. `fault`
    is told what a visitor's bytes raised that nothing may raise; the visitor has to go.
    """

    def __init__(
        self,
        listener: socket.socket,
        sources: Poller,
        window: PairingWindow,
        trust: Callable[[Paired], bool],
        state_dir: Path,
        journal: EventLog,
        fault: Callable[[object, Exception], None],
    ) -> None:
        self._listener = listener
        self._sources = sources
        self._window = window
        self._trust = trust
        self._state_dir = state_dir
        self._journal = journal
        self._fault = fault
        self._n_wrong_told = 0
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
        """What the owner asks for happens; nobody may hold the port for long."""
        if self._window.overdue(now_s):
            self.hang_up()
        try:
            window = control_files.requested_window(self._state_dir)
            if window is not None:
                secret, window_s = window
                self._set_window(secret, window_s, now_s)
            self._publish_tries()
        except (AgentError, OSError) as error:  # of its directory: the disk is full, or gone
            self._journal.note_state("pairing", f"the pairing window cannot be kept up: {error}")
            if self._window.n_wrong >= PAIRING_TRIES:
                control_files.give_window_up(self._state_dir)

    def _set_window(self, secret: str, window_s: float | None, now_s: float) -> None:
        """A new window begins with all its tries.

        Of one that is closed there is no more to tell.
        """
        if secret:
            self._window.open(secret, now_s, window_s=window_s)
            self._n_wrong_told = -1
            self._journal.window(window_s)
        else:
            self._window.close()
            self._n_wrong_told = self._window.n_wrong

    def _publish_tries(self) -> None:
        """The owner, who may be showing a code, learns that somebody typed a wrong one."""
        n_wrong = self._window.n_wrong
        if n_wrong == self._n_wrong_told:
            return
        self._n_wrong_told, left = n_wrong, PAIRING_TRIES - n_wrong
        control_files.publish_tries(self._state_dir, left)
        if n_wrong:
            text = f"a wrong pairing code was typed; {control_files.tries(left)}"
            self._journal.note(text)

    def hang_up(self) -> None:
        """The visitor, if there is one, has to go."""
        self._window.leave()
        if self._visitor is not None:
            self._sources.unregister(self._visitor.fileno())
            self._visitor.close()
            self._visitor = None

    def _welcome(self) -> None:
        try:
            visitor, (address, *_) = self._listener.accept()
        except OSError:
            return
        visitor.setblocking(False)
        reply = self._window.arrive(time.monotonic())
        self._journal.visitor(address, refused=reply.close)
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
        reply = self._window.receive(data, time.monotonic())
        if reply.paired is not None and not self._trust(reply.paired):
            self.hang_up()  # not kept: then the other side must not believe that it is paired
            control_files.give_window_up(self._state_dir)
            return
        _answer(visitor, reply)
        if reply.paired is not None:
            try:
                control_files.publish_paired(self._state_dir, reply.paired.key)
            except AgentError as error:
                self._journal.note_state("pairing", str(error))
                control_files.give_window_up(self._state_dir)
        if reply.close:
            self.hang_up()


def _answer(visitor: socket.socket, reply: Reply) -> None:
    with suppress(OSError):  # some hundred bytes: they fit into any socket's buffer
        visitor.sendall(reply.data)
