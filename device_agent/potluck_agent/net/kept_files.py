"""The files of the weights that this device keeps between runs, and the thread that reads and
writes them: the disk may be slow, and the loop answers meanwhile.

`weights/NOTEBOOK/CONTENT` in the state directory: a folder for each notebook, named by a sum of its
key, and a file for each tensor, named by its content. What a file holds is believed only where its
sum is its name, looked at as it is read: whatever else lies there is taken for nothing, and goes.
"""

import hashlib
import os
import queue
import shutil
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from potluck_agent.core.events import (
    DONE,
    FAILED,
    MOVES,
    FromDisk,
    KeptOrder,
    ReadKept,
    RemoveKept,
    Span,
)
from potluck_agent.core.weight_cache import MAX_ENTRIES, kept_rows
from potluck_wire import content
from potluck_wire.limits import MAX_VALUE_BYTES

FOLDER = "weights"
PART = ".part"  # behind the name of a file that is being written
PIECE_BYTES = 1 << 20
MOVES_BYTES = 8 << 20  # the loop hears that often that a slow disk gets on
CLOSE_S = 2.0
LEFT_FREE_BYTES = 1 << 30  # of the disk: the last of it is its owner's


def folder_of(owner: str) -> str:
    """The folder of a notebook, by its key."""
    return hashlib.sha256(owner.encode()).hexdigest()


def kept(
    state: Path, owners: Iterable[str], limit_bytes: int, max_entries: int = MAX_ENTRIES
) -> list[tuple[str, bytes, int]]:
    """What is kept for these notebooks: key, content and bytes of each, those first that were used
    longest ago. All else that lies there goes, and of these what is more than `limit_bytes` or
    `max_entries`: the owner may have kept more until now.

    Raises
    ------
    OSError
        The folder cannot be read, or is another's.
    """
    root = state / FOLDER
    if not root.exists() and not root.is_symlink():
        return []
    _check_folder(root)
    owner_of = {folder_of(owner): owner for owner in owners}
    found: list[tuple[float, str, bytes, int]] = []
    for folder in _entries(root):
        owner = owner_of.get(folder.name)
        if owner is None or not folder.is_dir(follow_symlinks=False):
            _remove(Path(folder.path))
            continue
        for file in _entries(Path(folder.path)):
            seen = file.stat(follow_symlinks=False)
            name = _content_in(file.name)
            is_ours = os.name == "nt" or seen.st_uid == os.geteuid()
            if not name or not is_ours or not stat.S_ISREG(seen.st_mode):
                _remove(Path(file.path))
            else:
                found.append((seen.st_mtime, owner, name, seen.st_size))
    stays: list[tuple[str, bytes, int]] = []
    left_bytes = limit_bytes
    for _, owner, name, size in sorted(found, reverse=True):
        if len(stays) < max_entries and 0 < size <= min(left_bytes, MAX_VALUE_BYTES):
            stays.append((owner, name, size))
            left_bytes -= size
        else:
            _remove(root / folder_of(owner) / name.hex())
    return stays[::-1]


def _check_folder(path: Path) -> None:
    seen = path.lstat()
    if not stat.S_ISDIR(seen.st_mode) or (os.name != "nt" and seen.st_uid != os.geteuid()):
        raise OSError(0, "it is no folder of this user's", str(path))


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(folder) as entries:
        yield from entries


def _content_in(name: str) -> bytes:
    """The content that a file's name says; empty where it says none."""
    is_content = len(name) == 2 * content.CONTENT_BYTES and set(name) <= set("0123456789abcdef")
    return bytes.fromhex(name) if is_content else b""


def _remove(path: Path) -> None:
    """A file, a link (not what it leads to), or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def kept_document(
    state: Path, owners: Iterable[str], limit_bytes: int, note: Callable[[str], None]
) -> str:
    """The same for the core's settings; `note(text)` for the owner where it cannot be read."""
    try:
        return kept_rows(kept(state, owners, limit_bytes))
    except OSError as error:
        note(f"the weights that are kept cannot be read: {error}")
        return ""


class KeptFiles:
    """`note(text)` for the owner. `free_bytes`: how many the disk must have left."""

    def __init__(
        self, state: Path, note: Callable[[str], None], free_bytes: int = LEFT_FREE_BYTES
    ) -> None:
        self._root = state / FOLDER
        self._note, self._free_bytes = note, free_bytes
        self._orders: queue.SimpleQueue[tuple[KeptOrder | RemoveKept, memoryview | None] | None]
        self._orders = queue.SimpleQueue()
        self._news: deque[FromDisk] = deque()
        self._heard, self._waking = socket.socketpair()
        self._heard.setblocking(False)
        self._waking.setblocking(False)
        self._thread: threading.Thread | None = None
        self._fault = ""  # the first; the owner is told by the loop, and once
        self._is_noted = False

    @property
    def descriptor(self) -> int:
        """Has something to read when there are news."""
        return self._heard.fileno()

    def news(self) -> Iterator[FromDisk]:
        """All that has happened since."""
        with suppress(BlockingIOError):
            self._heard.recv(4096)
        if self._fault and not self._is_noted:
            self._is_noted = True
            self._note(self._fault)
        while self._news:
            yield self._news.popleft()

    def do(self, order: KeptOrder | RemoveKept, view: Callable[[Span], memoryview]) -> None:
        """Carry it out in turn; `view` gives the memory of a place."""
        try:
            place = view(order.place) if isinstance(order, KeptOrder) else None
        except LookupError:  # its memory is gone with the worker
            if isinstance(order, KeptOrder):
                self._tell(order, FAILED)
            return
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="potluck disk", daemon=True)
            thread.start()
            self._thread = thread  # where the system gives none, the next order asks again
        self._orders.put((order, place))

    def close(self) -> None:
        """What was asked for is done, if that does not take long; and no more."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(CLOSE_S)
        self._heard.close()
        self._waking.close()

    def _work(self) -> None:
        while (asked := self._orders.get()) is not None:
            self._carry_out(*asked)
            del asked  # with it would stay the memory of a worker that is gone

    def _carry_out(self, order: KeptOrder | RemoveKept, place: memoryview | None) -> None:
        if isinstance(order, RemoveKept):
            folder = self._root / folder_of(order.owner)
            _remove(folder / order.content.hex() if order.content else folder)
            return
        assert place is not None
        is_done = False
        try:
            is_done = (self._read if isinstance(order, ReadKept) else self._write)(order, place)
        except (OSError, ValueError) as error:
            self._fault = self._fault or f"weights cannot be kept: {error}"
        self._tell(order, DONE if is_done else FAILED)

    def _tell(self, order: KeptOrder, state: str) -> None:
        self._news.append(FromDisk(order.ticket, order.place.worker, state))
        with suppress(OSError):  # full: it wakes all the same
            self._waking.send(b"n")

    def _path(self, order: KeptOrder) -> Path:
        return self._root / folder_of(order.owner) / order.content.hex()

    def _read(self, order: KeptOrder, place: memoryview) -> bool:
        """Whether a file of this content is at its place now; one of another goes."""
        path, summed = self._path(order), content.begin(order.dtype, order.shape)
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        flags |= getattr(os, "O_NONBLOCK", 0)  # a pipe that was put there is not waited for
        is_sound = False
        try:
            with open(os.open(path, flags), "rb", buffering=0) as file:
                seen = os.fstat(file.fileno())
                if stat.S_ISREG(seen.st_mode) and seen.st_size == len(place):
                    for piece in self._pieces(order, place):
                        if not _fill(file, piece):
                            break
                        summed.update(piece)
                    is_sound = summed.digest() == order.content
        except OSError:  # it went meanwhile, or is a link
            is_sound = False
        if is_sound:
            with suppress(OSError):
                os.utime(path)  # it was used
        else:
            _remove(path)
        return is_sound

    def _write(self, order: KeptOrder, place: memoryview) -> bool:
        """Whether a file has it now; what is of another content than was said is not kept."""
        path = self._path(order)
        part = path.with_name(path.name + PART)
        self._root.mkdir(mode=0o700, exist_ok=True)
        _check_folder(self._root)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _check_folder(path.parent)
        if shutil.disk_usage(self._root).free < len(place) + self._free_bytes:
            return False
        summed = content.begin(order.dtype, order.shape)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        _remove(part)
        try:
            with open(os.open(part, flags, 0o600), "wb", buffering=0) as file:
                for piece in self._pieces(order, place):
                    data = bytes(piece)  # the worker may change what lies there
                    summed.update(data)
                    if file.write(data) != len(data):
                        raise OSError(0, "the disk is full", str(part))
            if summed.digest() == order.content:
                part.replace(path)
                return True
        finally:
            _remove(part)
        return False

    def _pieces(self, order: KeptOrder, place: memoryview) -> Iterator[memoryview]:
        for start in range(0, len(place), PIECE_BYTES):
            if start and start % MOVES_BYTES == 0:
                self._tell(order, MOVES)
            with place[start : start + PIECE_BYTES] as piece:
                yield piece


def _fill(file: FileIO, piece: memoryview) -> bool:
    """Whether so many bytes more could be read."""
    got = 0
    while got < len(piece):
        with piece[got:] as rest:
            n_read = file.readinto(rest)
        if not n_read:
            return False
        got += n_read
    return True
