"""The file of a recording: a first line, then entries, each behind its length and checksum.

It stops when it is full.

Everything that an agent's core was given is in it, but no tensor, no model, no secret key and no
pairing code.
"""

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from potluck_agent.errors import AgentError

FIRST_LINE = b"potluck recording 1\n"
MAX_FILE_BYTES = 64 * 1024**2  # some 100,000 messages, or three days without any
MAX_ENTRY_BYTES = 16 * 1024**2  # a plan is much smaller
_HEAD = struct.Struct("<II")  # length, checksum


class RecordFile:
    """A recording that is being written.

    It never ends the agent: where it cannot go on it says so, once.

    Parameters
    ----------
    path
        A file that is not there yet.
    note
        Told when nothing more can be recorded.
    max_bytes
        The file grows no larger than this.

    Raises
    ------
    AgentError
        Where the file cannot be made, or is there already.
    """

    def __init__(
        self, path: Path, note: Callable[[str], None], max_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self._path = path
        self._note = note
        self._left_bytes = max_bytes - len(FIRST_LINE)
        try:
            self._file = open(path, "xb", buffering=0, opener=_for_its_owner)  # noqa: SIM115 - as long as the agent
            self._file.write(FIRST_LINE)
        except FileExistsError:
            raise AgentError(
                f"{path} is there already. Record to another file, or remove it."
            ) from None
        except OSError as error:
            raise AgentError(
                f"{path} cannot be written: {error.strerror}. Record to another file."
            ) from None

    def write(self, data: bytes, last: bytes) -> None:
        """Append this entry; where it and `last` do not fit any more, append `last` and stop."""
        if self._file.closed:
            return
        needed_bytes = 2 * _HEAD.size + len(data) + len(last)
        is_full = needed_bytes > self._left_bytes or len(data) > MAX_ENTRY_BYTES
        entry = last if is_full else data
        self._left_bytes -= _HEAD.size + len(entry)
        framed = _HEAD.pack(len(entry), zlib.crc32(entry)) + entry
        try:
            is_cut = self._file.write(framed) != len(framed)
        except OSError as error:
            self.stop(error.strerror or str(error))
            return
        if is_full or is_cut:
            self.stop("it is as large as it may be" if is_full else "the disk takes no more")

    def stop(self, why: str) -> None:
        """Record nothing more."""
        self._note(f"the recording {self._path} ends here: {why}")
        self._file.close()


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read(path: Path) -> Iterator[bytes]:
    """The entries of a recording, in order.

    Raises
    ------
    AgentError
        Where the file cannot be read, is no recording, or is broken; then after all entries before
        the broken one.
    """
    try:
        with _open(path) as file:
            yield from _entries(path, file)
    except OSError as error:
        raise AgentError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # what cannot be the name of a file
        raise AgentError(f"{str(path)!r} cannot be read: {error}.") from None


def _open(path: Path) -> BinaryIO:
    """An ordinary file of a size that a recording has: a pipe waits, a device never ends."""
    # without waiting for somebody at a pipe's other end
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = open(handle, "rb")  # noqa: SIM115 - the caller's
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_FILE_BYTES:
        return file
    file.close()
    if stat.S_ISREG(found.st_mode):
        raise AgentError(
            f"{path} is no recording: it has {found.st_size} bytes, at most {MAX_FILE_BYTES} are "
            "recorded."
        )
    raise AgentError(f"{path} is no recording: it is no ordinary file.")


def _entries(path: Path, file: BinaryIO) -> Iterator[bytes]:
    if file.read(len(FIRST_LINE)) != FIRST_LINE:
        raise AgentError(
            f"{path} is no recording of this version: it does not begin with "
            f"{FIRST_LINE.decode().strip()!r}. "
            "Make one with: potluck agent start --record FILE."
        )
    while head := file.read(_HEAD.size):
        at = file.tell() - len(head)
        length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
        if length > MAX_ENTRY_BYTES:
            raise AgentError(f"{path} is corrupt at byte {at}: an entry of {length} bytes.")
        data = file.read(length)
        if len(head) < _HEAD.size or len(data) < length:
            raise AgentError(
                f"{path} is cut off: its last entry begins at byte {at} and is not whole."
            )
        if zlib.crc32(data) != checksum:
            raise AgentError(
                f"{path} is corrupt at byte {at}: the checksum of the entry does not fit."
            )
        yield data
