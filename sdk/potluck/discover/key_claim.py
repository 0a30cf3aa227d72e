"""One home at a time has a notebook's keys. A device knows a notebook by its key alone: two homes
with one key would take each other's answers, and the first to close would end the runs of both.

In one program a new home takes the place of an earlier one that has nothing under way: a notebook's
cell may run twice.
"""

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from potluck.errors import FileError, HomeError

LOCK = "home.lock"
KEYS = ", or give this one keys of its own, Home(state=FOLDER), and pair it too"


class KeyClaim:
    """What one home alone has, until it is closed or this process ends.

    `give_way()` is asked when another home of this program wants it: whether it is free by now.
    """

    def __init__(self, path: Path, file: IO[bytes] | None) -> None:
        self._path, self._file = path, file
        self.give_way: Callable[[], bool] = lambda: False
        _held[path] = self

    def close(self) -> None:
        """Let others have it; safe to call twice."""
        if _held.get(self._path) is self:
            del _held[self._path]
        if self._file is not None:
            self._file.close()


_held: "weakref.WeakValueDictionary[Path, KeyClaim]" = (
    weakref.WeakValueDictionary()
)  # by this program


def claim(folder: Path, name: str = LOCK, *, otherwise: str = KEYS) -> KeyClaim:
    """The claim to what `folder / name` stands for.

    Where no system call locks (Windows), only this program looks.

    Raises
    ------
    HomeError
        Another home has it. Fact: `holder`, its process.
    """
    path = _path(folder, name)
    held = _held.get(path)
    if held is not None and not held.give_way():
        raise _taken(os.getpid(), otherwise)
    return KeyClaim(path, _locked(path, otherwise))


def holder_of(folder: Path, name: str = LOCK) -> int | None:
    """The process that has what `folder / name` stands for; 0: one of unknown number; None: nobody.

    Parameters
    ----------
    folder, name
        As for `claim`.
    """
    path = _path(folder, name)
    if _held.get(path) is not None:
        return os.getpid()
    try:
        import fcntl

        # a pipe of that name would be waited for
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(file)
    except (ImportError, OSError):
        return None
    return None


def _path(folder: Path, name: str) -> Path:
    """By one name, whichever links lead there; a link to itself stays as it is."""
    return Path(os.path.realpath(folder), name)


def _locked(path: Path, otherwise: str) -> IO[bytes] | None:
    """The open file that holds the lock, with our number in it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = path.open("ab+")
    except OSError as error:
        why = error.strerror or error  # of a pipe, Python says why
        raise FileError(f"cannot write {path}: {why}.", path=str(path)) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        with file:
            file.seek(0)
            holder = _holder(file)
        raise _taken(holder, otherwise) from error
    with suppress(OSError):  # a full disk: who has it is not known then, and that somebody has is
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file


def _holder(file: IO[bytes]) -> int:
    """The number of the process that is written there; 0 where none is."""
    holder = file.read(20).strip()
    return int(holder) if holder.isdigit() else 0


def _taken(holder: int, otherwise: str) -> HomeError:
    if holder == os.getpid():
        who, close = (
            "this program",
            "Close that one first, home.close(): it has a run, or is at work",
        )
    else:
        process = f" (process {holder})" if holder else ""
        who, close = f"another one on this computer{process}", "Close that one first"
    return HomeError(
        f"these devices are those of a home that {who} has open.",
        next_step=f"{close}{otherwise}.",
        holder=holder,
    )
