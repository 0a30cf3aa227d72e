"""A journal that another coordinator writes, as far as it has come here: whole lines, in order."""

import os
from pathlib import Path

from potluck.coordinator.journal import FORMAT, Prefix, Progress, read_entries, read_entry
from potluck.errors import FileError
from potluck_wire.durable_rename import take_place


class JournalCopy:
    """What is there already is read first; a last line that is cut is taken off.

    Parameters
    ----------
    path
        The file; made where there is none.

    Raises
    ------
    FileError
        It is of another version, or does not hold.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress = Progress()
        entries, self.nbytes = read_entries(path) if path.exists() else ([], 0)
        for entry, _ in entries:
            self._take(entry)
        if path.exists():
            os.truncate(path, self.nbytes)
        self._prefix = Prefix(path)

    def digest(self) -> str:
        """SHA-256 of all of it; empty while there is nothing."""
        return self._prefix.digest(self.nbytes) if self.nbytes else ""

    def extend(self, data: bytes, term: int) -> None:
        """What comes next; it is on the disk when this returns.

        Parameters
        ----------
        data
            Whole lines.
        term
            Of whoever acts: no line is of a newer one. Nobody could act after a term that is made
            up.

        Raises
        ------
        FileError
            They do not hold, or cannot be written; then the file is as it was.
        """
        lines = data.split(b"\n")
        if lines.pop():
            raise FileError(f"{self.path}: a line that came is cut.", path=str(self.path))
        if not self.nbytes and lines:
            first = read_entry(lines.pop(0))
            if first != {"format": FORMAT}:
                raise FileError(
                    f"{self.path}: what came is a journal of another version ({first!r:.80}).",
                    next_step="Have all coordinators of a training be of one version of potluck.",
                    path=str(self.path),
                )
        for line in lines:
            entry = read_entry(line)
            if entry is None:
                raise FileError(f"{self.path}: a line that came is none.", path=str(self.path))
            self._take(entry)
        if self.progress.term > term:
            raise FileError(
                f"{self.path}: a line that came is of term {self.progress.term}, newer than the "
                f"{term} of who sent it.",
                path=str(self.path),
            )
        with self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.nbytes += len(data)

    def _take(self, entry: dict[str, object]) -> None:
        try:
            self.progress.take(entry)
        except ValueError as error:
            raise FileError(f"{self.path}: {error}.", path=str(self.path)) from error

    def put_in_place_of(self, other: "JournalCopy") -> None:
        """From now on this is the journal, whole.

        Parameters
        ----------
        other
            The one before.
        """
        take_place(self.path, other.path)
        self.path = other.path
        self._prefix = Prefix(self.path)
