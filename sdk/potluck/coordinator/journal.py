"""What a coordinator writes down while it trains, line by line: who reads it later knows all that
happened, and where to go on.

Each line has a checksum. The last one may be cut, where the machine lost its power; an earlier one
may not.
"""

import errno
import hashlib
import json
import os
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from potluck.coordinator.coordinator_group import CoordinatorGroup, read_group
from potluck.coordinator.job import MAX_BATCHES, SAVED, START
from potluck.documents import read_json
from potluck.errors import FileError
from potluck_wire.file_reading import open_file

FORMAT = "potluck-journal-1"
WAITING = "waiting"
TRAINING = "training"
ENDED = "ended"
STOPPED = "stopped"
FAILED = "failed"
MAX_LINE_BYTES = 1 << 20  # with its end; those that copy it take no longer one
MAX_STEP = 2**52  # as for a saved run
STATES = (WAITING, TRAINING, ENDED, STOPPED, FAILED)


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a handed-over training is.

    `losses` are those of the steps after `first_step`. `saved`: the file with the latest state, and
    its step. `documents`: the SHA-256 of what was written down of it when it began, by file; none
    in an older journal. `why` it is in this state, where that needs saying. `group`: who shares it,
    and `acts`: which of them, since which term; of one that nobody shares: none, and term 0.
    """

    first_step: int = 0
    n_batches: int = 0
    losses: list[float] = field(default_factory=list)
    saved: tuple[str, int] = ("", 0)
    documents: Mapping[str, str] = field(default_factory=dict)
    state: str = WAITING
    why: str = ""
    notes: list[str] = field(default_factory=list)
    group: CoordinatorGroup | None = None
    acts: str = ""
    term: int = 0

    @property
    def step(self) -> int:
        """Steps done in all, with those before it was handed over."""
        return self.first_step + len(self.losses)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes by itself."""
        return self.state in (ENDED, STOPPED, FAILED)

    def take(self, entry: Mapping[str, Any]) -> None:
        """This has happened, too.

        Parameters
        ----------
        entry
            Of a journal.

        Raises
        ------
        ValueError
            It cannot have happened now.
        """
        match entry:
            case {"step": int(step), "loss": float() | int() as loss} if step == self.step + 1:
                self.losses.append(float(loss))
            case {"saved": str(file), "at": int(step)} if 0 <= step <= self.step and _is_state(
                file
            ):
                self.saved = (file, step)
            case {"back": int(step)} if self.first_step <= step <= self.step:
                del self.losses[step - self.first_step :]
            case {"note": str(text)}:
                self.notes.append(text)
            case {"state": str(state), "why": str(why)} if state in STATES:
                self.state, self.why = state, why
            case {"acts": str(key), "term": int(term)} if term > self.term:
                self.acts, self.term = key, term
            case {"group": dict(row)}:
                self.group = read_group(row)
            case {"begun": int(step), "n_batches": int(n_batches), "saved": str(file), **more} if (
                0 <= step <= MAX_STEP
                and 1 <= n_batches <= MAX_BATCHES
                and _is_state(file)
                and _are_digests(documents := more.get("documents", {}))
            ):
                self.documents = documents
                self.first_step = step
                self.n_batches = n_batches
                self.saved = (file, step)
            case _:
                raise ValueError(f"{dict(entry)} cannot be after step {self.step}")


def _is_state(file: str) -> bool:
    """Whether a job keeps a state in a file of this name: the journal may come from others, and no
    other file is read because of it.
    """
    return file in (START, *SAVED)


def _are_digests(documents: object) -> bool:
    return isinstance(documents, dict) and all(type(each) is str for each in documents.values())


class Journal:
    """The file; what is in it already is read first.

    Parameters
    ----------
    path
        The file; made where there is none.
    public_bytes
        Of what is in it, so many bytes may be told to others; the rest once `publish` is called.
        Default: all, and all that comes.

    Raises
    ------
    FileError
        It is of another version, or a line but the last does not hold.
    """

    def __init__(self, path: Path, public_bytes: int | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
        entries, nbytes = read_entries(path) if path.exists() else ([], 0)
        self.progress = _folded(path, [entry for entry, _ in entries])
        self.published = Progress()
        self._unpublished = deque(entries)
        self._public_bytes = public_bytes
        self._publish()
        self._nbytes, self._failure = nbytes, ""  # that hold
        try:
            self._file = path.open("ab", buffering=0)
            self._file.truncate(nbytes)
            if not nbytes:
                self._write({"format": FORMAT})
        except OSError as error:
            raise self._failed(error) from error

    def add(self, *, durable: bool = False, **entry: Any) -> None:
        """Write down what has happened.

        Parameters
        ----------
        durable
            It is on the disk, not only on its way there, when this returns.
        **entry
            As `Progress.take` takes it.

        Raises
        ------
        FileError
            It cannot be written, such as on a full disk. From then on nothing is: what came later
            would not follow on what is there.
        """
        with self._lock:
            if self._failure:
                raise FileError(self._failure, path=str(self._path))
            self.progress.take(entry)
            try:
                self._write(entry)
                self._unpublished.append((entry, self._nbytes))
                self._publish()
                if durable:
                    os.fsync(self._file.fileno())
            except OSError as error:
                raise self._failed(error) from error

    def publish(self, nbytes: int | None) -> None:
        """So many bytes of it may be told by now; None: all, and all that comes.

        Parameters
        ----------
        nbytes
            No fewer than before.
        """
        with self._lock:
            self._public_bytes = nbytes
            self._publish()

    def _publish(self) -> None:
        while self._unpublished:
            entry, end = self._unpublished[0]
            # whoever handed it over knows how it began; all else may be unknown to the copies
            if self._public_bytes is not None and end > self._public_bytes and "begun" not in entry:
                return
            self.published.take(entry)
            self._unpublished.popleft()

    def sync(self) -> int:
        """Have all of it on the disk; how many bytes that is.

        Raises
        ------
        FileError
            It cannot be written.
        """
        nbytes = self._nbytes
        try:
            os.fsync(self._file.fileno())
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "it is closed")
            raise FileError(f"cannot write {self._path}: {why}.", path=str(self._path)) from error
        return nbytes

    @staticmethod
    def line(entry: Mapping[str, Any]) -> bytes:
        """An entry as it is written: its checksum, then JSON."""
        text = json.dumps(entry).encode()
        return b"%08x %b\n" % (zlib.crc32(text), text)

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = self.line(entry)
        if self._file.write(line) != len(line):  # the rest of the disk was less than a line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._nbytes += len(line)

    def _failed(self, error: OSError) -> FileError:
        """Take back what does not hold, and write no more."""
        with suppress(OSError, AttributeError):
            self._file.truncate(self._nbytes)
        self._failure = f"cannot write {self._path}: {error.strerror}."
        return FileError(self._failure, path=str(self._path))

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()


def progress_of(path: Path) -> Progress:
    """The progress that a journal tells, without writing to it.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    FileError
        As for `Journal`; or there is none.
    """
    return _folded(path, [entry for entry, _ in read_entries(path)[0]])


def _folded(path: Path, entries: Iterable[Mapping[str, Any]]) -> Progress:
    progress = Progress()
    for number, entry in enumerate(entries, 2):
        try:
            progress.take(entry)
        except ValueError as error:
            raise FileError(f"{path}, line {number}: {error}.", path=str(path)) from error
    return progress


def read_entries(path: Path) -> tuple[list[tuple[dict[str, Any], int]], int]:
    """Its entries, each with where it ends, and how many bytes of it hold.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    FileError
        It is of another version, or a line but the last does not hold.
    """
    entries: list[tuple[dict[str, Any], int]] = []
    nbytes = 0
    try:
        with open_file(path) as file:
            # behind the last end is nothing, or a cut line
            while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                entry = read_entry(line[:-1])
                if entry is None and not file.readline(MAX_LINE_BYTES).endswith(b"\n"):
                    break
                if entry is None:
                    raise _changed(path, len(entries) + 1)
                nbytes += len(line)
                entries.append((entry, nbytes))
            if len(line) == MAX_LINE_BYTES:
                raise _changed(path, len(entries) + 1)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}.", path=str(path)) from error
    if entries and entries[0][0] != {"format": FORMAT}:
        raise FileError(
            f"{path} is a journal of another version ({entries[0][0].get('format')!r}).",
            next_step="Go on with the version of potluck that wrote it.",
            path=str(path),
        )
    return entries[1:], nbytes


def _changed(path: Path, number: int) -> FileError:
    return FileError(
        f"{path}, line {number}, is not as it was written.",
        next_step="The state that was saved last is beside it, and can be deployed with resume=.",
        path=str(path),
    )


class Prefix:
    """The SHA-256 of the first bytes of a file that grows, each byte read once.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._nbytes, self._digest = 0, hashlib.sha256()

    def digest(self, nbytes: int) -> str:
        """Of its first so many bytes; empty where it has fewer.

        Parameters
        ----------
        nbytes
            No fewer than before, else all of them are read again.
        """
        if nbytes < self._nbytes:
            self._nbytes, self._digest = 0, hashlib.sha256()
        with self._path.open("rb") as file:
            file.seek(self._nbytes)
            data = file.read(nbytes - self._nbytes)
        self._digest.update(data)
        self._nbytes += len(data)
        return self._digest.hexdigest() if self._nbytes == nbytes else ""


def read_entry(line: bytes) -> dict[str, Any] | None:
    """What a line says, but for its end; None where it is none.

    Parameters
    ----------
    line
        As `Journal.line` gives it.
    """
    checksum, _, text = line.partition(b" ")
    try:
        holds = int(checksum, 16) == zlib.crc32(text)
        entry = read_json(text, "a line of a journal") if holds else None
    except (ValueError, FileError):
        return None
    return entry if isinstance(entry, dict) else None
