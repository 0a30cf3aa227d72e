"""A recording played to a fresh core: what it answers now, and where that is not what was answered
then. Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    RecordingError,
    Survived,
    check,
    outline,
)
from potluck_wire.errors import WireError
from potluck_wire.messages import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One input at `at_s` of the device's clock, and outlines of the answers: of the replay, and of
    the recording.

    `recorded` None: the recording tells no answer, because it ends here or such an input has none.
    `note`: what went otherwise in the replay, beside the answers.
    """

    at_s: float
    entry: Entry
    replayed: tuple[bytes, ...]
    recorded: tuple[bytes, ...] | None
    note: str = ""

    @property
    def differs(self) -> bool:
        """Whether the fresh core did something else."""
        return bool(self.note) or (self.recorded is not None and self.recorded != self.replayed)


def replay(entries: Iterable[Entry]) -> Iterator[Replayed]:
    """Play them in order; RecordingError where they do not begin with the settings of a core."""
    remaining = iter(entries)
    began = next(remaining, None)
    if not isinstance(began, Began):
        raise RecordingError("it does not begin with the settings of an agent")
    try:
        settings = Settings(**began.settings)
        check(settings)
        player = _Player(Core(settings))
    # written by anybody: what is not looked at, the core stumbles over
    except Exception as error:
        raise RecordingError(f"its settings are those of another version ({error})") from error
    yield Replayed(at_s=0.0, entry=began, replayed=(), recorded=None)
    pending: Entry | None = None
    for entry in remaining:
        if isinstance(entry, Answered):
            if pending is None:
                raise RecordingError("it has answers to nothing")
            yield _played(player, pending, entry.outlines)
            pending = None
            continue
        if pending is not None:
            yield _played(player, pending, None)
        pending = entry
    if pending is not None:
        yield _played(player, pending, None)


def _played(player: "_Player", entry: Entry, recorded: tuple[bytes, ...] | None) -> Replayed:
    try:
        return player.play(entry, recorded)
    except RecordingError:
        raise
    # an agent's loop never tells its core such a thing; whoever wrote the file did
    except Exception as error:
        raise RecordingError(
            f"it has a {type(entry).__name__} that no agent is told "
            f"({type(error).__name__}: {error})"
        ) from error


class _Player:
    """The fresh core, and what it raised over the last event."""

    def __init__(self, core: Core) -> None:
        self._core, self._now_s = core, 0.0
        self._last: Event | None = None
        self._raised: Exception | None = None

    def play(self, entry: Entry, recorded: tuple[bytes, ...] | None) -> Replayed:
        note = ""
        actions: list[Action] = []
        match entry:
            case Handled(at_s, event):
                self._now_s = at_s
                self._last = event
                self._raised = None
                try:
                    actions = self._core.handle(event, at_s)
                except Exception as error:  # as in the agent: what follows is how it was survived
                    self._raised = error
                    if recorded is not None:
                        note = f"the replay raised {type(error).__name__}: {error}"
                        actions = self._core.survive(event, error, at_s)
            case Survived():
                note, actions = self._survive(entry)
            case Malformed(key=key, channel=channel, code=code, text=text):
                actions = self._core.malformed(key, Channel(channel), WireError(code, text))
            case Reached(key):
                self._core.reach(key)
            case Faulted(what=what, error=error_name, text=text):
                self._core.fault(what, _error(error_name, text))
            case _:  # `Full`: nothing was done
                pass
        outlines = tuple(map(outline, actions))
        return Replayed(
            at_s=self._now_s, entry=entry, replayed=outlines, recorded=recorded, note=note
        )

    def _survive(self, entry: Survived) -> tuple[str, list[Action]]:
        self._now_s = entry.at_s
        event = entry.event or self._last
        if event is None:
            raise RecordingError("it tells of an error over no event")
        error, note = self._raised, ""
        if error is None or entry.event is not None:
            error = _error(entry.error, entry.text)
            note = (
                ""
                if entry.event is not None
                else f"the agent raised {entry.error}, the replay did not"
            )
        elif type(error).__name__ != entry.error:
            note = f"the agent raised {entry.error}, the replay {type(error).__name__}: {error}"
        return note, self._core.survive(event, error, entry.at_s)


def _error(name: str, text: str) -> Exception:
    """One that looks like that one."""
    kind = type(name, (Exception,), {})
    made: Exception = kind(text)
    return made
