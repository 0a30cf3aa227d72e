"""Anonymous shared memory between the agent and its worker: no name in any file system.

`kill -9` of both sides leaves nothing behind (on Windows it has a name, which dies with its last
user). Who may use which part of it is bookkeeping: see `allocator.py`.
"""

import contextlib
import mmap
import os
import secrets
import sys
import tempfile


class Arena:
    """`nbytes` of shared memory. The creator passes `handle` on.

    The other side opens it with `Arena(nbytes, handle)`.

    `handle` is a file descriptor (POSIX: inherited by the child) or the name of a mapping
    (Windows).
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
            raise ValueError(
                f"[{offset}, {offset + nbytes}) lies outside a shared memory of {self.nbytes} bytes"
            )
        return memoryview(self._map)[offset : offset + nbytes]

    def close(self) -> None:
        """Give the descriptor back, and the memory once its last view is gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(BufferError):  # views are still alive; the memory goes with them
            self._map.close()


def _anonymous_file(length: int) -> int:
    """A descriptor of `length` zero bytes that no directory lists.

    Where it can be sealed, nobody changes its length.

    Whoever cut it shorter would end the other side, at its next look beyond the new end.
    """
    if sys.platform == "linux":
        import fcntl

        fd = os.memfd_create("potluck", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, length)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        return fd
    fd, path = tempfile.mkstemp(prefix="potluck-")
    os.unlink(path)
    os.ftruncate(fd, length)
    return fd
