"""A file takes the place of another one, for good."""

import errno
import os
from pathlib import Path


def take_place(part: Path, path: Path) -> None:
    """Give a file that is on the disk this name: that it has it is on the disk, too, when this
    returns. Otherwise what was there before would be back after the power was cut.

    Parameters
    ----------
    part
        The file, in the same folder.
    path
        Its name from now on; what had it is gone.

    Raises
    ------
    OSError
        It cannot have it, or nobody knows whether that is on the disk.
    """
    part.replace(path)
    keep_names(path.parent)


def keep_names(folder: Path) -> None:
    """Have the names of what is in a folder on the disk.

    Parameters
    ----------
    folder
        Where a file came, went or was renamed.

    Raises
    ------
    OSError
        Nobody knows whether they are.
    """
    try:
        names = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders; others only where this user may list them
        return
    try:
        os.fsync(names)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks know no such thing
            raise
    finally:
        os.close(names)
