"""Whether a value fits into the memory that is left, computed before the allocator is asked for
it.
"""

import math
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from potluck_agent.worker.sandbox import private_bytes
from potluck_wire.graph import MAX_INT, SegmentError
from potluck_wire.limits import MAX_VALUE_BYTES

# Not worth asking the system, which takes 50 us: the reserve of the worker (`sandbox.OWN_BYTES`)
# has room for them, until they come to so much together.
SMALL_BYTES, MANY_SMALL_BYTES = 1 << 20, 16 << 20


class Memory(Protocol):
    """Where tensors are."""

    def available_bytes(self) -> int:
        """Bytes that they may still take."""

    def limit(self, memory_bytes: int) -> None:
        """So many they may take in all from now on."""


_elsewhere: list[Memory] = []
_small_bytes = [0]  # of small values since the system was asked


def look_at(memory: Memory | None) -> None:
    """From now on tensors are in this memory, an accelerator's; None: in this process's own."""
    _elsewhere[:] = [] if memory is None else [memory]


def limit(memory_bytes: int) -> None:
    """So many bytes tensors may take on the accelerator from now on; elsewhere the agent limits
    this process.
    """
    for memory in _elsewhere:
        memory.limit(memory_bytes)


def available_bytes() -> int:
    """Bytes that this process may still take: under its limit where it has one, else the memory of
    the machine.
    """
    if _elsewhere:
        return _elsewhere[0].available_bytes()
    if sys.platform != "win32":
        import resource

        limit, used = resource.getrlimit(resource.RLIMIT_DATA)[0], private_bytes()
        if limit != resource.RLIM_INFINITY and used is not None:
            return max(0, limit - used)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return MAX_VALUE_BYTES


def require(needed_bytes: int, what: str) -> None:
    """Raise SegmentError, naming `what`, where so many bytes are not left."""
    if needed_bytes <= SMALL_BYTES:
        _small_bytes[0] += needed_bytes
        if _small_bytes[0] < MANY_SMALL_BYTES:
            return
    _small_bytes[0] = 0
    if needed_bytes > (left_bytes := available_bytes()):
        _refuse(
            what, f"{needed_bytes} bytes are needed, {left_bytes} are left of this worker's memory"
        )


def bytes_of(shape: Sequence[int], item_bytes: int, what: str) -> int:
    """Bytes of a value. Raises SegmentError where its sizes are negative or beyond any memory,
    beside a zero too.
    """
    if any(size < 0 for size in shape) or math.prod(max(size, 1) for size in shape) > MAX_INT:
        _refuse(what, f"the shape {list(shape)} is beyond any memory")
    return math.prod(shape) * item_bytes


def _refuse(what: str, why: str) -> NoReturn:
    raise SegmentError("out-of-memory", f"{what}: {why}"[:300])
