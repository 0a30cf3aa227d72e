"""Small files of ours, read so that whatever lies in their place costs no more than an error."""

import errno
import os
import stat
from pathlib import Path


def read_file(path: Path, most_bytes: int, *, is_own: bool = False) -> bytes:
    """What is in a file.

    Parameters
    ----------
    path
        An ordinary file, or a link to one. A pipe would be waited for, and a device has no end.
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
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        if is_own and os.name != "nt" and found.st_uid not in (0, os.geteuid()):
            text = f"it belongs to another user (#{found.st_uid}), who can change it"
            raise OSError(errno.EPERM, text, str(path))
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return data
