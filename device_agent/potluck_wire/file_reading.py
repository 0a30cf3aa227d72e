"""Small files of ours, read so that whatever lies in their place costs no more than an error."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def is_there(path: Path) -> bool:
    """Whether something has this name. Also a link to what is not there now, as on a disk that is
    not mounted: nothing new may be begun in its place.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    OSError
        Its folder cannot be looked at.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def open_file(path: Path) -> BinaryIO:
    """An ordinary file, or a link to one, to be read: a pipe would be waited for, and a device has
    no end.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    OSError
        It cannot be opened, or is not such a file; `strerror` says why.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    number = os.open(path, flags)
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return open(number, "rb")


def read_file(path: Path, most_bytes: int, *, is_own: bool = False) -> bytes:
    """What is in a file.

    Parameters
    ----------
    path
        As for `open_file`.
    most_bytes
        It may have.
    is_own
        Who wrote it is believed: it must belong to this user, or to the system's administrator.
        Others may have put it there before its folder was closed to them.

    Raises
    ------
    OSError
        It cannot be read, or is not such a file; `strerror` says why.
    """
    with open_file(path) as file:
        found = os.fstat(file.fileno())
        if is_own and os.name != "nt" and found.st_uid not in (0, os.geteuid()):
            text = f"it belongs to another user (#{found.st_uid}), who can change it"
            raise OSError(errno.EPERM, text, str(path))
        is_larger = found.st_size > most_bytes  # what takes memory is not read to be refused
        data = b"" if is_larger else file.read(most_bytes + 1)
    if is_larger or len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return data
