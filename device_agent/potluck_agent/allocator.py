"""Places in a shared memory. The side that writes into an arena owns its allocator: the agent for
inbound values, the worker for outbound ones. Pure.
"""

import bisect

ALIGN = 64  # bytes: a cache line, and enough for every dtype and vector instruction


class ArenaFull(MemoryError):
    """No gap of `needed_bytes` is left; `free_bytes` are free in all, the largest gap has
    `largest_bytes`.
    """

    def __init__(self, needed_bytes: int, free_bytes: int, largest_bytes: int) -> None:
        super().__init__(
            f"shared memory is full: {needed_bytes} bytes needed in one piece, {free_bytes} free, "
            f"largest piece {largest_bytes}"
        )
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        self.largest_bytes = largest_bytes


class Allocator:
    """First-fit places in `nbytes` of memory; every place begins on a multiple of `ALIGN`.

    An empty value still takes one aligned place, so that every live offset is distinct.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"an arena cannot have {nbytes} bytes")
        self.nbytes = nbytes // ALIGN * ALIGN
        # (offset, length), sorted, never touching
        self._gaps = [(0, self.nbytes)] if self.nbytes else []
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
                self._gaps[index : index + 1] = (
                    [(offset + length, gap - length)] if gap > length else []
                )
                self._used[offset] = length
                return offset
        gaps = [gap for _, gap in self._gaps]
        raise ArenaFull(nbytes, sum(gaps), max(gaps, default=0))

    def free(self, offset: int) -> None:
        """Give the place at `offset` back; neighbouring gaps become one.

        `KeyError` where nothing was allocated.
        """
        length = self._used.pop(offset)
        index = bisect.bisect(self._gaps, (offset, 0))
        start = offset
        stop = offset + length
        first = index
        last = index
        if index and sum(self._gaps[index - 1]) == start:
            first, start = index - 1, self._gaps[index - 1][0]
        if index < len(self._gaps) and self._gaps[index][0] == stop:
            last, stop = index + 1, sum(self._gaps[index])
        self._gaps[first:last] = [(start, stop - start)]
