"""A core whose every input, and outlines of what it answers, are handed on to be kept.

Pure: `write` does the rest.
"""

from collections.abc import Callable
from dataclasses import asdict

from potluck_agent.core.events import Action, Event
from potluck_agent.core.machine import Core
from potluck_agent.core.outbox import Settings
from potluck_agent.core.recorded_entries import (
    Answered,
    Began,
    Entry,
    Faulted,
    Handled,
    Malformed,
    Reached,
    Survived,
    outline,
)
from potluck_wire.errors import WireError
from potluck_wire.messages import Channel
from potluck_wire.version import show


class RecordedCore(Core):
    """As `Core`. An input is written before the core has it: one that ends the process is in the
    recording.
    """

    def __init__(self, settings: Settings, write: Callable[[Entry], None]) -> None:
        super().__init__(settings)
        self._write = write
        self._unanswered: Event | None = None
        write(Began(show(), asdict(settings)))

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """As `Core.handle`."""
        self._write(Handled(now_s, event))
        self._unanswered = event
        return self._answered(super().handle(event, now_s))

    def survive(self, event: Event, error: Exception, now_s: float) -> list[Action]:
        """As `Core.survive`."""
        is_known = event is self._unanswered
        self._write(
            Survived(
                at_s=now_s,
                event=None if is_known else event,
                error=type(error).__name__,
                text=str(error),
            )
        )
        return self._answered(super().survive(event, error, now_s))

    def malformed(self, key: str, channel: Channel, error: WireError) -> list[Action]:
        """As `Core.malformed`."""
        self._write(Malformed(key=key, channel=channel.value, code=error.code, text=error.text))
        return self._answered(super().malformed(key, channel, error))

    def reach(self, key: str) -> None:
        """As `Core.reach`."""
        self._write(Reached(key))
        super().reach(key)

    def fault(self, what: object, error: Exception) -> None:
        """As `Core.fault`."""
        # else it is one of the core's own, which a replay comes to by itself
        if isinstance(what, str):
            self._write(Faulted(what=what, error=type(error).__name__, text=str(error)))
        super().fault(what, error)

    def _answered(self, actions: list[Action]) -> list[Action]:
        self._unanswered = None
        self._write(Answered(tuple(map(outline, actions))))
        return actions
