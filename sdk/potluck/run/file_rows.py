"""Rows of an array in a file, read when they are asked for: never by a mapping of the file, which
gives zeros, or ends the process, where somebody cuts it short meanwhile.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from potluck.errors import FileError


class FileRows:
    """A file whose bytes from `begins` on are rows of `row_bytes` each, one behind the other.

    The file is held open: one that is put in its place meanwhile is another file.

    Parameters
    ----------
    path
        The file.
    begins
        Bytes before the first row.
    row_bytes
        Of each.

    Raises
    ------
    OSError
        It cannot be opened.
    """

    def __init__(self, path: Path, begins: int, row_bytes: int) -> None:
        self._path, self._file = path, path.open("rb", buffering=0)
        self._begins, self._row_bytes = begins, row_bytes
        self._lock = threading.Lock()
        self._stamp = _stamp(self._file)

    def read(self, rows: Sequence[int]) -> bytearray:
        """The bytes of these rows, one behind the other.

        Parameters
        ----------
        rows
            Numbers, from 0 on.

        Raises
        ------
        FileError
            The file was changed since it was opened, or cannot be read.
        """
        size = self._row_bytes
        found = bytearray(size * len(rows))
        with self._lock, memoryview(found) as view:
            for place, first, n in _runs(rows):
                self._fill(view[place * size : (place + n) * size], self._begins + first * size)
            if _stamp(self._file) != self._stamp:
                raise self._changed()
        return found

    def _fill(self, part: memoryview, at: int) -> None:
        try:
            self._file.seek(at)
            while part.nbytes:
                n_read = self._file.readinto(part)
                if not n_read:
                    raise self._changed()
                part = part[n_read:]
        except OSError as error:
            raise FileError(
                f"cannot read {self._path}: {error.strerror}.", path=str(self._path)
            ) from error

    def _changed(self) -> FileError:
        return FileError(
            f"{self._path} was changed while it was read.",
            next_step="Leave it as it is while it is trained on; put another one beside it.",
            path=str(self._path),
        )


def _stamp(file: BinaryIO) -> tuple[int, int]:
    """Another one after each change."""
    stat = os.fstat(file.fileno())
    return stat.st_size, stat.st_mtime_ns


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Rows that follow each other, read at once: place in what is read, first, how many."""
    begin = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield begin, int(rows[begin]), place - begin
            begin = place
