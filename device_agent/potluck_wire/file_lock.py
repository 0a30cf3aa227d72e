"""One process at a time: what several read, change and write again is held by a lock beside it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_S = 0.01


@contextmanager
def alone(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock of this file, which is made where there is none; it goes with the process.

    Where no system call locks (Windows), nothing is held.

    Parameters
    ----------
    path
        The file. Nothing is written into it.
    timeout_s
        For how long another process that holds it is waited for.

    Raises
    ------
    TimeoutError
        It is still held.
    OSError
        The file cannot be made or opened.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    # a pipe of that name would be waited for
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600), "w") as file:
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise TimeoutError(f"another process has held it for {timeout_s:g} s") from None
                time.sleep(LOOK_S)
        yield
