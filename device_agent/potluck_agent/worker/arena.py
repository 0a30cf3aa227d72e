"""Anonymous shared memory between the agent and its worker, and who may use which part of it.

`Arena` is the memory: no name in any file system (on Windows a name that dies with its last user), so `kill -9` of
both sides leaves nothing behind. `Allocator` is pure bookkeeping: the side that writes into an arena owns its
allocator (the agent for inbound values, the worker for outbound ones).
"""

import bisect
import contextlib
import mmap
import os
import secrets
import sys
import tempfile

ALIGN = 64  # bytes: a cache line, and enough for every dtype and vector instruction


class ArenaFull(MemoryError):
    """No gap of `needed_bytes` is left; `free_bytes` are free in all, the largest gap has `largest_bytes`."""

    def __init__(self, needed_bytes: int, free_bytes: int, largest_bytes: int) -> None:
        super().__init__(
            f"shared memory is full: {needed_bytes} bytes needed in one piece, {free_bytes} free, "
            f"largest piece {largest_bytes}"
        )
        self.needed_bytes, self.free_bytes, self.largest_bytes = needed_bytes, free_bytes, largest_bytes


class Allocator:
    """First-fit places in `nbytes` of memory; every place begins on a multiple of `ALIGN`.

    An empty value still takes one aligned place, so that every live offset is distinct.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"an arena cannot have {nbytes} bytes")
        self.nbytes = nbytes // ALIGN * ALIGN
        self._gaps = [(0, self.nbytes)] if self.nbytes else []  # (offset, length), sorted, never touching
        self._used: dict[int, int] = {}  # offset -> length

    @property
    def used_bytes(self) -> int:
        """Bytes handed out now, with padding."""
        return sum(self._used.values())

    def allocate(self, nbytes: int) -> int:
        """Offset of a free place for `nbytes`. `ArenaFull` where no gap is large enough."""
        if nbytes < 0:
            raise ValueError(f"a value cannot have {nbytes} bytes")
        length = max(1, -(-nbytes // ALIGN)) * ALIGN
        for index, (offset, gap) in enumerate(self._gaps):
            if gap >= length:
                self._gaps[index : index + 1] = [(offset + length, gap - length)] if gap > length else []
                self._used[offset] = length
                return offset
        gaps = [gap for _, gap in self._gaps]
        raise ArenaFull(nbytes, sum(gaps), max(gaps, default=0))

    def free(self, offset: int) -> None:
        """Give the place at `offset` back; neighbouring gaps become one. `KeyError` where nothing was allocated."""
        length = self._used.pop(offset)
        index = bisect.bisect(self._gaps, (offset, 0))
        start, stop, first, last = offset, offset + length, index, index
        if index and sum(self._gaps[index - 1]) == start:
            first, start = index - 1, self._gaps[index - 1][0]
        if index < len(self._gaps) and self._gaps[index][0] == stop:
            last, stop = index + 1, sum(self._gaps[index])
        self._gaps[first:last] = [(start, stop - start)]


class Arena:
    """`nbytes` of shared memory. The creator passes `handle` on; the other side opens it with `Arena(nbytes, handle)`.

    `handle` is a file descriptor (POSIX: inherited by the child) or the name of a mapping (Windows).
    """

    def __init__(self, nbytes: int, handle: str | None = None) -> None:
        self.nbytes = nbytes
        length = max(nbytes, mmap.PAGESIZE)
        self._fd = -1
        if sys.platform == "win32":
            self.handle = handle or f"potluck-{secrets.token_hex(16)}"
            self._map = mmap.mmap(-1, length, tagname=self.handle)
        else:
            self._fd = int(handle) if handle is not None else _anonymous_file(length)
            self.handle = str(self._fd)
            self._map = mmap.mmap(self._fd, length)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that the child process must inherit."""
        return () if self._fd < 0 else (self._fd,)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The bytes [offset, offset + nbytes), writable, not copied. A new object each time."""
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise ValueError(f"[{offset}, {offset + nbytes}) lies outside a shared memory of {self.nbytes} bytes")
        return memoryview(self._map)[offset : offset + nbytes]

    def close(self) -> None:
        """Give the descriptor back, and the memory once its last view is gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(BufferError):  # views are still alive; the memory goes with them
            self._map.close()


def _anonymous_file(length: int) -> int:
    """A descriptor of `length` zero bytes that no directory lists; where it can be sealed, nobody changes its length.

    Whoever cut it shorter would end the other side, at its next look beyond the new end.
    """
    if sys.platform == "linux":
        import fcntl

        fd = os.memfd_create("potluck", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, length)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    fd, path = tempfile.mkstemp(prefix="potluck-")
    os.unlink(path)
    os.ftruncate(fd, length)
    return fd
