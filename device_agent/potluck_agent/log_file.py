"""What an agent has done, for its owner to read later: one line for each thing, in a file that is
replaced before it grows large.

Others cause some of the lines. So each kind of them may fill only so many in a time, the rest are
counted; what would end or hide a line is escaped. Nothing secret and no values of tensors are
written. Reports of faults, which are long, are in a file beside it (`fault_log`).
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from potluck_agent.errors import AgentError

FILE = "agent.log"
MAX_FILE_BYTES = 1024 * 1024
N_OLDER = 3  # files beside it, named .1 to .3: with it 4 MiB
MAX_LINE = 1000  # characters
WINDOW_S = 600.0
LINES = 60  # of one kind in so many seconds
# Of what anybody in the network may cause: 2 MB in a week, and the rest of the file stays.
STRANGERS_LINES = 10
STRANGER, PAIRING = "stranger", "pairing"
_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
_DATE = "%Y-%m-%dT%H:%M:%S%z"


class LogFile:
    """Lines of several kinds. `failed(text)` is told once that no more can be written."""

    def __init__(
        self,
        path: Path,
        level: str,
        failed: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        try:
            self._handler = _File(path, failed)
        except OSError as error:
            raise AgentError(
                f"cannot write the log {path}: {error.strerror}. Choose another file with "
                "--log-file."
            ) from error
        self._level = logging.getLevelName(level.upper())
        self._lines = LimitedLines(now_s)

    def debug(self, kind: str, text: str) -> None:
        """For whoever works on the agent."""
        self._write(logging.DEBUG, kind, text)

    def info(self, kind: str, text: str) -> None:
        """As it should be."""
        self._write(logging.INFO, kind, text)

    def warning(self, kind: str, text: str) -> None:
        """Its owner may want to do something about it."""
        self._write(logging.WARNING, kind, text)

    def error(self, kind: str, text: str) -> None:
        """It must not happen."""
        self._write(logging.ERROR, kind, text)

    def close(self) -> None:
        """Say what was left out, and write no more."""
        for text in self._lines.left_out():
            self._emit(logging.WARNING, text)
        self._handler.close()

    def _write(self, level: int, kind: str, text: str) -> None:
        if level < self._level:
            return
        most = STRANGERS_LINES if kind in (STRANGER, PAIRING) else LINES
        left_out, is_admitted = self._lines.ask(kind, most)
        if left_out:
            self._emit(logging.WARNING, left_out)
        if is_admitted:
            self._emit(level, text)

    def _emit(self, level: int, text: str) -> None:
        shown = printable(text)
        self._handler.handle(logging.LogRecord("potluck.agent", level, "", 0, shown, None, None))


class LimitedLines:
    """Lines of several kinds that others cause: each kind has so many in a time, the rest are
    counted.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._limits: dict[str, _Limit] = {}

    def ask(self, kind: str, most: int = LINES) -> tuple[str, bool]:
        """Whether one more of this kind may be written, and what has to be written before: of those
        that were left out, where a new time begins.
        """
        limit, now_s = self._limits.setdefault(kind, _Limit(most)), self._now_s()
        n_left_out = limit.begin(now_s) if limit.is_over(now_s) else 0
        return _told(kind, n_left_out), limit.admits()

    def admitted(self, kind: str, text: str) -> Iterator[str]:
        """What is to be shown where there is one more of this kind."""
        left_out, is_admitted = self.ask(kind)
        if left_out:
            yield left_out
        if is_admitted:
            yield text

    def left_out(self) -> list[str]:
        """What has to be written at the end."""
        told = [_told(kind, limit.n_left_out) for kind, limit in self._limits.items()]
        return [text for text in told if text]


def _told(kind: str, n_lines: int) -> str:
    return f"{n_lines} more lines about {kind} were left out" if n_lines else ""


class _Limit:
    """How many lines of one kind may still be written, since when."""

    def __init__(self, max_lines: int) -> None:
        self._max_lines = max_lines
        self._n_written = 0
        self._began_s = float("-inf")
        self.n_left_out = 0

    def is_over(self, now_s: float) -> bool:
        """Whether a new time begins."""
        return now_s - self._began_s >= WINDOW_S

    def begin(self, now_s: float) -> int:
        """Begin one; how many were left out in the one before."""
        n_left_out, self.n_left_out = self.n_left_out, 0
        self._n_written, self._began_s = 0, now_s
        return n_left_out

    def admits(self) -> bool:
        """Whether one more may be written; it counts."""
        if self._n_written < self._max_lines:
            self._n_written += 1
            return True
        self.n_left_out += 1
        return False


class _File(RotatingFileHandler):
    """Open to its owner only. Where the disk is full the agent goes on."""

    def __init__(self, path: Path, failed: Callable[[str], None]) -> None:
        self._failed: Callable[[str], None] | None = failed
        super().__init__(
            path,
            maxBytes=MAX_FILE_BYTES,
            backupCount=N_OLDER,
            encoding="utf-8",
            errors="backslashreplace",
        )
        self.setFormatter(logging.Formatter(_FORMAT, _DATE))

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # a pipe without a reader is an error then, and not waited for
        flags |= getattr(os, "O_NONBLOCK", 0)
        handle = os.open(self.baseFilename, flags, 0o600)
        return os.fdopen(handle, "a", encoding=self.encoding, errors=self.errors)

    def handleError(self, record: Any) -> None:  # noqa: N802 - a name of the standard library
        import sys

        if self._failed is not None:
            failed, self._failed = self._failed, None
            failed(f"the log {self.baseFilename} cannot be written: {sys.exc_info()[1]}")

    def close(self) -> None:
        with suppress(OSError):  # what waits for a disk that is full
            super().close()


def printable(text: str) -> str:
    r"""On one line, with what a terminal would obey written as Python writes it, and not without
    end.

    >>> printable("a\n\x1b[2J")
    'a\\n\\x1b[2J'
    """
    shown = text if len(text) <= MAX_LINE else text[:MAX_LINE] + "..."
    if shown.isprintable():
        return shown
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown
    )
