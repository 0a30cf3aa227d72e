"""Places of the inbound arena, and who still holds which. Pure."""

from potluck_agent.allocator import Allocator, ArenaFull

AGENT, WORKER = "agent", "worker"  # who can hold a place
DISK = "disk"


class InboundSpace:
    """The inbound arena: a place is free again when everybody who holds it has released it: we, the
    worker, and the disk.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._allocator = Allocator(nbytes)
        self._holders: dict[int, set[str]] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes of places that somebody holds, with padding."""
        return self._allocator.used_bytes

    def place(self, nbytes: int, holder: str = AGENT) -> int | None:
        """An offset for so many bytes, held by this one; None where there is no room now."""
        try:
            offset = self._allocator.allocate(nbytes)
        except ArenaFull:
            return None
        self._holders[offset] = {holder}
        return offset

    def lend(self, offset: int, holder: str) -> None:
        """This one holds it, too."""
        self._holders[offset].add(holder)

    def release(self, offset: int, holder: str) -> bool:
        """One lets go; True where the place is free now. Whoever does not hold it frees nothing: it
        was given up, or a worker says what it likes."""
        holders = self._holders.get(offset, set())
        if holder not in holders:
            return False
        holders.remove(holder)
        if holders:
            return False
        del self._holders[offset]
        self._allocator.free(offset)
        return True
