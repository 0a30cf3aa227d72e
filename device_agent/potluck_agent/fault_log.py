"""What must never happen and did: told in a text that a developer can work with, and kept for the
owner.

An honest home has no such file; the tests see to it that none of theirs has one.
"""

import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from potluck_wire.limits import clip

FILE = "faults.txt"
MAX_FILE_BYTES = 1024 * 1024  # then no more is kept: whoever can cause faults could fill the disk
HEAD = "--- "  # begins a report, with when it was kept
DATE = "%Y-%m-%dT%H:%M:%S%z"
N_EVENTS = 20  # before it, in the report


Remembered = tuple[float, str, object]  # when, the type of the event, and what it tells


def remembered(at_s: float, event: object) -> Remembered:
    """What a report will tell of an event: not the documents and bytes that came with it, which
    would stay in memory until others have come.
    """
    told = getattr(event, "text", "") if hasattr(event, "action") else event
    return at_s, type(event).__name__, getattr(event, "message", told)


def report(event: object, error: BaseException, latest: Iterable[Remembered]) -> str:
    """The event that raised, where, and what had happened before, the oldest first."""
    stack = "".join(traceback.format_exception(error))
    before = "".join(f"  {at_s:.3f} {kind} {told!r:.200}\n" for at_s, kind, told in latest)
    what = _described(event)[:500]
    return (
        f"a fault in the agent while handling {type(event).__name__} {what}\n{stack}before "
        f"it:\n{before}"
    )


def what_failed(action: object, error: BaseException) -> str:
    """An action that could not be carried out, in one line."""
    what = type(getattr(action, "message", action)).__name__
    return clip(f"{what} could not be done: {type(error).__name__}: {error}")


def latest(directory: Path, max_entries: int) -> list[str]:
    """When the reports that were kept last were kept, and their first lines."""
    path = directory / FILE
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            return []
        with path.open("rb") as file:
            text = file.read(2 * MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return []
    lines = text.splitlines()
    first = [
        f"{line.removeprefix(HEAD)} {below}"[:300]
        for line, below in pairwise(lines)
        if line.startswith(HEAD)
    ]
    return first[-max_entries:]


def _described(event: object) -> str:
    return repr(getattr(event, "message", event))


def keep(directory: Path, text: str) -> None:
    """Append it to the file of faults; where that is impossible the agent goes on all the same."""
    path = directory / FILE
    with suppress(OSError):
        if not path.exists() or (path.is_file() and path.stat().st_size < MAX_FILE_BYTES):
            with path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{HEAD}{time.strftime(DATE)}\n{text}\n")
