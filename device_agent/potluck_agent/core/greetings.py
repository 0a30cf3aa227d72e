"""Notebooks that have greeted: each is welcomed once a worker has said what it can do. Pure."""

from typing import Any

from potluck_agent.core.graceful_leave import GracefulLeave
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.sessions import NotebookSession
from potluck_agent.core.worker_proxy import READY, STARTING
from potluck_agent.core.workspaces import Workspaces
from potluck_wire.documents import dump
from potluck_wire.messages import RefusalCode, Welcome
from potluck_wire.version import VERSION


class Greetings:
    """`sessions` and `workspaces` are those of the core. `facts`: what a worker has said of itself;
    None: none has yet.
    """

    def __init__(
        self,
        settings: Settings,
        out: Outbox,
        sessions: dict[str, NotebookSession],
        workspaces: Workspaces,
        departure: GracefulLeave,
    ) -> None:
        self._settings, self._out = settings, out
        self._sessions, self._workspaces = sessions, workspaces
        self._departure = departure
        self.facts: dict[str, Any] | None = None

    @property
    def statement(self) -> dict[str, Any]:
        """What this device can do and accepts, and why it leaves."""
        return self._departure.stated(self._settings.statement(self.facts or {}))

    def answer(self, now_s: float) -> None:
        """Welcome those who wait, if a worker is ready; else one is started for them."""
        greeting = {key: each for key, each in self._sessions.items() if each.hello is not None}
        states = {each.worker.state for each in self._workspaces}
        if READY not in states:
            if greeting and STARTING not in states:
                self._workspaces.open(next(iter(greeting))).worker.need(now_s)
            return
        for key, session in greeting.items():
            session.hello = None
            welcome = Welcome(major=VERSION[0], minor=VERSION[1], name=self._settings.name)
            self._out.send(key, welcome, (dump(self.statement),))
            session.available = None
            self._workspaces.tell_what_is_left(key, session)

    def refuse(self, text: str) -> tuple[str, ...]:
        """No worker starts, and why: the notebooks that waited for one, whose sessions end."""
        greeting = {key: each.hello for key, each in self._sessions.items() if each.hello}
        for key, hello in greeting.items():
            self._sessions[key].hello = None
            self._out.refuse(key, hello, RefusalCode.BACKEND, text)
        return tuple(greeting)
