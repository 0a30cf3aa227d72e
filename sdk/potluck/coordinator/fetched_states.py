"""States that are fetched part by part: a training that goes on puts newer ones in their place
meanwhile, and over a slow link none would ever come whole.
"""

from pathlib import Path
from typing import BinaryIO

from potluck_wire.file_reading import open_file

CHUNK_BYTES = 1 << 20
MAX_OPEN = 16  # of the latest who fetch, one file each

Part = tuple[dict[str, int | str], bytes]


class FetchedStates:
    """Files that somebody is fetching, each as it was when that began."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Path, BinaryIO]] = {}

    def part(self, key: str, path: Path, at: int) -> Part:
        """The bytes of a file from a place on.

        Parameters
        ----------
        key
            Of who asks.
        path
            The file.
        at
            From where on; at 0 a fetch begins.

        Raises
        ------
        OSError
            It cannot be read.
        """
        kept, file = self._open.pop(key, (None, None))
        if file is not None and (kept != path or at == 0):
            file.close()
            file = None
        if file is None:
            file = open_file(path)
        answer, data = part_of(file, path.name, at)
        if at + len(data) == answer["nbytes"]:
            file.close()
            return answer, data
        self._open[key] = path, file
        if len(self._open) > MAX_OPEN:
            self._open.pop(next(iter(self._open)))[1].close()
        return answer, data

    def close(self) -> None:
        """Nothing is fetched any more."""
        for _, file in self._open.values():
            file.close()
        self._open = {}


def part_of(file: BinaryIO, name: str, at: int) -> Part:
    """What is answered to who fetches a file.

    Parameters
    ----------
    file, name
        The file, and what it is called.
    at
        From where on.
    """
    nbytes = file.seek(0, 2)
    file.seek(min(at, nbytes))  # further than files may reach, systems refuse
    return {"nbytes": nbytes, "file": name}, file.read(CHUNK_BYTES)
