"""`potluck agent replay`: what happened, in words, one line for each input of the core and each of
its actions.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from potluck_agent import record_file
from potluck_agent.core.events import FromPeer, FromWorker, Tick, Undone
from potluck_agent.core.recorded_entries import (
    Began,
    Entry,
    Faulted,
    Full,
    Handled,
    Malformed,
    Reached,
    RecordingError,
    Survived,
    open_outline,
    unpack,
)
from potluck_agent.core.replay import Replayed, replay
from potluck_agent.errors import AgentError
from potluck_wire.fingerprint import fingerprint
from potluck_wire.messages import Message
from potluck_wire.version import show

MAX_WORD_BYTES = 60  # of one field's value
MAX_LINE = 2000  # characters: the texts in a recording are as long as strangers like


def run(path: Path, say: Callable[[str], None]) -> int:
    """Play a recording and say what happened; 1 where the replay went otherwise than the recording.

    Raises
    ------
    AgentError
        Where the recording cannot be read or is broken.
    """
    try:
        return _run(path, say)
    except RecordingError as error:
        raise AgentError(_printable(f"{path}: {error}.")) from error


def _run(path: Path, say: Callable[[str], None]) -> int:
    words = _Words()
    n_inputs = 0
    n_differing = 0
    first = ""
    for step in replay(_entries(path)):
        n_inputs += not isinstance(step.entry, Began | Full)
        for line in _lines(words, step):
            say(_printable(line))
        if step.differs:
            n_differing += 1
            first = first or words.time(step)
    if n_differing:
        say(f"{n_inputs} inputs; the replay differs at {n_differing} of them, first at {first}")
        return 1
    say(f"{n_inputs} inputs; the replay did the same")
    return 0


def _lines(words: "_Words", step: Replayed) -> list[str]:
    try:
        return list(words.lines(step))
    except RecordingError:
        raise
    except Exception as error:  # written by anybody: facts of an action may be anything
        raise RecordingError(f"it has what no agent does ({type(error).__name__})") from error


def _entries(path: Path) -> Iterator[Entry]:
    for number, data in enumerate(record_file.read(path), 1):
        try:
            yield unpack(data)
        except RecordingError as error:
            raise RecordingError(f"entry {number} is {error}") from error


class _Words:
    """Times since the first input, and peers by the names that they had."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._names: dict[str, str] = {}

    def time(self, step: Replayed) -> str:
        """Since the first input that has a time."""
        if self._first_s is None:
            self._first_s = step.at_s
        return f"+{step.at_s - self._first_s:.3f} s"

    def lines(self, step: Replayed) -> Iterator[str]:
        """What is said of a step: nothing of a mere tick."""
        entry = step.entry
        if isinstance(entry, Began):
            settings = entry.settings
            name = settings.get("name")
            yield f"recorded by {name} with protocol {entry.version}, replayed with {show()}"
            return
        if isinstance(entry, Full):
            yield "the file was full: nothing more was recorded"
            return
        time = self.time(step)
        if (
            isinstance(entry, Handled)
            and isinstance(entry.event, Tick)
            and not step.replayed
            and not step.differs
        ):
            return
        yield f"{time:>12}  {self._input(entry)}"
        for outline in step.replayed:
            yield f"{'':12}    -> {self._action(outline)}"
        if step.note:
            yield f"{'':12}    DIFFERS: {step.note}"
        if step.recorded is not None and step.recorded != step.replayed:
            yield from self._difference(step.recorded, step.replayed)

    def _difference(
        self, recorded: tuple[bytes, ...], replayed: tuple[bytes, ...]
    ) -> Iterator[str]:
        """The first action that is another one."""
        pairs = zip((*recorded, None), (*replayed, None), strict=False)
        then, now = next(pair for pair in pairs if pair[0] != pair[1])
        outlines = [
            "nothing" if outline is None else self._action(outline) for outline in (then, now)
        ]
        if outlines[0] == outlines[1]:
            outlines[0] += " (other documents, or places in memory)"
        yield f"{'':12}    DIFFERS: recorded was {outlines[0]}; the replay has {outlines[1]}"

    def _input(self, entry: Entry) -> str:
        match entry:
            case Handled(_, FromPeer(sender=sender, message=message)):
                self._names[sender.key] = sender.name or fingerprint(sender.key)
                return f"from {self._peer(sender.key)}: {_described(message)}"
            case Handled(_, FromWorker(message)):
                return f"from the worker: {_described(message)}"
            case Handled(_, Undone(action, text)):
                return f"not carried out: {type(action).__name__} ({text})"
            case Handled(_, event):
                return self._plain(event)
            case Survived():
                return f"survived {entry.error}: {entry.text}"
            case Reached(key):
                return f"a data connection of {self._peer(key)} stands"
            case Malformed(key=key, channel=channel, text=text):
                return f"from {self._peer(key)}, {channel}: no message ({text})"
            case Faulted(what=what, error=error, text=text):
                return f"a fault in {what}: {error}: {text}"
        return type(entry).__name__

    def _plain(self, event: Any) -> str:
        values = [
            f"{field.name}={self._value(field.name, getattr(event, field.name))}"
            for field in fields(event)
        ]
        return " ".join([type(event).__name__, *values])

    def _action(self, outline: bytes) -> str:
        name, key, message, facts = open_outline(outline)
        if message is not None:
            return (
                f"to {self._peer(key) if name == 'ToPeer' else 'the worker'}: {_described(message)}"
            )
        match name if facts else "":
            case "Store":
                return f"Store {facts[1]} bytes at {facts[0]}"
            case "SetMembers":
                return f"SetMembers {', '.join(member[0] for member in facts[0]) or 'none'}"
            case "ReadMeter":
                return f"ReadMeter for {self._peer(facts[0])}"
        return " ".join([name, *map(str, facts)])

    def _value(self, name: str, value: object) -> str:
        return self._peer(str(value)) if name == "key" else str(value)

    def _peer(self, key: str) -> str:
        return self._names.get(key) or fingerprint(key)


def _printable(line: str) -> str:
    """Short, and without what a terminal would obey: the texts in a recording are those of
    strangers.
    """
    shown = line if len(line) <= MAX_LINE else line[:MAX_LINE] + "..."
    return "".join(character if character.isprintable() else "?" for character in shown)


def _described(message: Message) -> str:
    """Its name, and the fields that are not at their default."""
    words = [type(message).__name__]
    for field in fields(message):
        value = getattr(message, field.name)
        if value != field.default:
            text = str(value)
            shown = text if len(text) <= MAX_WORD_BYTES else text[:MAX_WORD_BYTES] + "..."
            words.append(f"{field.name}={shown}")
    return " ".join(words)
