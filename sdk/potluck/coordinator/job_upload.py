"""A job while its files come: in order, each from its beginning on, as many bytes as were said."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from potluck import units
from potluck.coordinator.job import MODEL, MOST_BYTES, ORDER, START, WHOLE, is_file_of_job, missing
from potluck.errors import FileError, UserError

MAX_FILES = 10_000


class JobUpload:
    """What comes into a folder, which is made.

    Parameters
    ----------
    folder
        Where the files go.
    files
        By name: bytes, and SHA-256.
    key
        Of the notebook that hands them over.

    Raises
    ------
    UserError
        These are not the files of a job, or there is no room for them.
    """

    def __init__(self, folder: Path, files: Any, key: str = "") -> None:
        self.key = key
        self.folder, self._files = folder, _checked(files)
        _check_room(folder.parent, {name: nbytes for name, (nbytes, _) in self._files.items()})
        if folder.is_dir():  # a pipe would be waited for
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        self._came = {name: (0, hashlib.sha256()) for name in self._files}

    def put(self, name: str, at: int, data: bytes) -> None:
        """The next bytes of a file.

        Parameters
        ----------
        name
            Of the file.
        at
            So many have come.
        data
            The bytes.

        Raises
        ------
        UserError
            No such bytes are expected now.
        FileError
            They cannot be written; it cannot come whole any more.
        """
        if name not in self._files:
            raise UserError(f"no file {name[:80]!r} is expected.")
        came, digest = self._came[name]
        if at != came or came + len(data) > self._files[name][0]:
            raise UserError(f"{name}: {came} of {self._files[name][0]} bytes have come, in order.")
        path = self.folder / name
        try:
            append(path, data)
        except OSError as error:  # the disk may have filled up since the beginning
            raise FileError(
                f"cannot write {path}: {error.strerror}.",
                next_step="Make room there, or hand it to another.",
                path=str(path),
            ) from error
        digest.update(data)
        self._came[name] = (came + len(data), digest)

    def check(self) -> None:
        """Whether all is there, as it was sent.

        Raises
        ------
        FileError
            It is not.
        """
        for name, (nbytes, sha256) in self._files.items():
            came, digest = self._came[name]
            is_there = (self.folder / name).is_file()
            if not is_there or came != nbytes or digest.hexdigest() != sha256:
                raise FileError(f"{name} is not as it was sent.", next_step="Hand it over again.")


def append(path: Path, data: bytes) -> None:
    """Write these bytes behind what is in a file, which is made where it is missing.

    Parameters
    ----------
    path
        The file.
    data
        The bytes.

    Raises
    ------
    OSError
        Not all of them are written.
    """
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as out:
        out.write(data)


def _checked(files: Any) -> dict[str, tuple[int, str]]:
    if not isinstance(files, dict) or len(files) > MAX_FILES or missing(files):
        raise UserError("these are not the files of a job.")
    for name, known in files.items():
        match known:
            case [int(nbytes), str()] if is_file_of_job(name) and 0 <= nbytes < 1 << 60:
                if nbytes > MOST_BYTES.get(name, nbytes):
                    raise UserError(
                        f"{name} has {units.size(nbytes)}; at most "
                        f"{units.size(MOST_BYTES[name])} are taken."
                    )
            case _:
                raise UserError(f"a job has no file {name[:80]!r}.")
    return {name: (nbytes, sha256) for name, (nbytes, sha256) in files.items()}


def _check_room(folder: Path, sizes: Mapping[str, int]) -> None:
    needed, free = sum(sizes.values()), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"the job has {needed} bytes, and {free} are free where the coordinator keeps it.",
            next_step="Make room there, or hand it to another.",
        )
    # what is looked through takes as much again as the order of the batches has
    order = sizes.get(ORDER, 0) + sizes.get(WHOLE, 0)
    needed_bytes = sizes[MODEL] + sizes[START] + 2 * order
    free = psutil.virtual_memory().available
    if needed_bytes > free:
        raise UserError(
            f"the model, its state and the order of its batches take {units.size(needed_bytes)}, "
            f"and {units.size(free)} of memory are free where the coordinator is.",
            next_step="Hand it to one with more memory.",
        )
