"""One home at a time has a notebook's keys: a device knows a notebook by its key alone, so that two homes with one key
would take each other's answers, and the first to close would end the runs of both."""

import os
from pathlib import Path
from typing import IO

from potluck.errors import FileError, HomeError

LOCK = "home.lock"
KEYS = ", or give this one keys of its own, Home(state=FOLDER), and pair it too"


def claim(folder: Path, name: str = LOCK, *, otherwise: str = KEYS) -> IO[str] | None:
    """An open file that has the claim until it is closed, or this process ends; None where no system call does that.

    Raises
    ------
    HomeError
        Another home has it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (folder / name).open("a+")
    except OSError as error:
        raise FileError(f"cannot write {folder / name}: {error.strerror}.", path=str(folder / name)) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        with file:
            file.seek(0)
            holder = file.read().strip()
        who = "this program" if holder == str(os.getpid()) else f"another one on this computer (process {holder})"
        raise HomeError(
            f"these devices are those of a home that {who} has open.",
            next_step=f"Close that one first{otherwise}.",
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
