"""One tensor in chunks: how the sender cuts it and waits for credit, what the receiver accepts, and
what it owes.

Chunks come in order, each exactly once, all of `chunk_bytes` but the last. ZeroMQ keeps the order
and never repeats, so anything else is a broken peer, not a bad network.
"""

from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import (
    CREDIT_BYTES,
    CREDIT_CHUNKS,
    MAX_CHUNK_BYTES,
    MAX_ITEMS,
    MAX_VALUE_BYTES,
    MIB,
    MIN_CHUNK_BYTES,
)
from potluck_wire.messages import Credit, Value
from potluck_wire.tensors import nbytes as tensor_nbytes

# above 1 MiB no larger than such a part of the value: while one is encrypted another is on its way
PARTS = 8


def split(nbytes: int, chunk_bytes: int) -> tuple[tuple[int, int], ...]:
    """The byte ranges [start, stop) of the chunks; an empty tensor has one empty chunk.

    >>> split(10, 4)
    ((0, 4), (4, 8), (8, 10))

    Parameters
    ----------
    nbytes
        Of the tensor.
    chunk_bytes
        Of every chunk but the last.

    Raises
    ------
    WireError
        One of them is no such size.
    """
    if chunk_bytes < 1 or nbytes < 0:
        raise WireError(WireCode.CHUNK, f"cannot cut {nbytes} bytes into chunks of {chunk_bytes}")
    return tuple(
        (start, min(start + chunk_bytes, nbytes)) for start in range(0, max(nbytes, 1), chunk_bytes)
    )


def largest_chunk_bytes(nbytes: int) -> int:
    """The size of the chunks of a value of `nbytes` on a link that is fast enough."""
    return min(MAX_CHUNK_BYTES, max(MIB, nbytes // PARTS))


def least_chunk_bytes(nbytes: int) -> int:
    """The smallest chunks that a value of `nbytes` may have: all of it, or worth a message each."""
    return max(1, min(nbytes, MIN_CHUNK_BYTES))


class Reassembler:
    """The receiver's side of one transfer. It holds no bytes: it says where each chunk belongs.

    Raises
    ------
    WireError
        At once where dtype, shape, `nbytes` and `chunk_bytes` of the value do not fit each other.
    """

    __slots__ = ("_next", "credited_bytes", "received_bytes", "value")

    def __init__(self, value: Value) -> None:
        expected = tensor_nbytes(value.dtype, value.shape)
        if value.nbytes != expected:
            raise WireError(
                WireCode.TENSOR,
                f"{value.dtype} of shape {list(value.shape)} has {expected} bytes, the value says "
                f"{value.nbytes}",
            )
        if value.nbytes > MAX_VALUE_BYTES:
            raise WireError(
                WireCode.SIZE, f"a value of {value.nbytes} bytes, at most {MAX_VALUE_BYTES}"
            )
        least_bytes = least_chunk_bytes(value.nbytes)
        if not least_bytes <= value.chunk_bytes <= MAX_CHUNK_BYTES:
            raise WireError(
                WireCode.CHUNK,
                f"chunks of {value.chunk_bytes} bytes, {least_bytes} to {MAX_CHUNK_BYTES} are "
                f"possible for {value.nbytes}",
            )
        self.value = value
        self.received_bytes = 0
        self.credited_bytes = 0
        self._next = 0

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return self._next > 0 and self.received_bytes == self.value.nbytes

    def accept(self, index: int, nbytes: int) -> tuple[int, int]:
        """Where the `nbytes` of chunk `index` belong, as [start, stop) of the tensor's bytes.

        Raises
        ------
        WireError
            On any chunk but the next one, on another size than it must have, and after the last.
        """
        if self.complete:
            raise WireError(WireCode.CHUNK, f"chunk {index} after the last")
        if index != self._next:
            raise WireError(WireCode.CHUNK, f"chunk {index} where {self._next} was due")
        start = self.received_bytes
        stop = min(start + self.value.chunk_bytes, self.value.nbytes)
        if nbytes != stop - start:
            raise WireError(
                WireCode.CHUNK, f"chunk {index} has {nbytes} bytes, must have {stop - start}"
            )
        self.received_bytes = stop
        self._next += 1
        return start, stop


class CreditLedger:
    """What one sender is owed: credit for what was taken in of its values.

    Over all of them together: a value that a more urgent one overtook must not keep its part of the
    window.
    """

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed: dict[int, Reassembler] = {}

    def take(self, assembly: Reassembler, *, may_wait: bool = False) -> list[Credit]:
        """More of this value was taken in.

        The credit that is due now: once it is worth a message, and at the end.

        `may_wait`: at the end of this value, too, only once it is worth a message; `settle` or
        `whole` comes soon.
        """
        self._owed[assembly.value.transfer] = assembly
        if assembly.complete and not may_wait:
            return [self._credit(assembly)]
        owed_bytes = sum(
            [owed.received_bytes - owed.credited_bytes for owed in self._owed.values()]
        )
        if owed_bytes < min(CREDIT_BYTES, CREDIT_CHUNKS * assembly.value.chunk_bytes):
            return []
        return self.settle()

    def settle(self) -> list[Credit]:
        """Credit for all that was taken in."""
        return [self._credit(owed) for owed in tuple(self._owed.values())]

    def completed(self) -> tuple[int, ...]:
        """Transfers that are here in full and owed credit for, as many as one `Value.received`
        tells; each once.
        """
        complete = [transfer for transfer, owed in self._owed.items() if owed.complete][:MAX_ITEMS]
        for transfer in complete:
            self._credit(self._owed[transfer])
        return tuple(complete)

    def forget(self, assembly: Reassembler) -> None:
        """This value was given up: nothing is owed for it."""
        self._owed.pop(assembly.value.transfer, None)

    def _credit(self, assembly: Reassembler) -> Credit:
        del self._owed[assembly.value.transfer]
        assembly.credited_bytes = assembly.received_bytes
        return Credit(
            transfer=assembly.value.transfer,
            received_bytes=assembly.received_bytes,
            done=assembly.complete,
        )


class SendWindow:
    """The sender's side of one transfer: which chunk goes next, and how much of it is not credited
    yet.

    Parameters
    ----------
    nbytes
        Of the tensor.
    chunk_bytes
        Of every chunk but the last.

    Raises
    ------
    WireError
        One of them is no such size.
    """

    __slots__ = ("_next", "chunk_bytes", "credited_bytes", "done", "nbytes", "sent_bytes")

    def __init__(self, nbytes: int, chunk_bytes: int) -> None:
        least_bytes = least_chunk_bytes(nbytes)
        if not 0 <= nbytes <= MAX_VALUE_BYTES or not least_bytes <= chunk_bytes <= MAX_CHUNK_BYTES:
            raise WireError(
                WireCode.CHUNK, f"cannot send {nbytes} bytes in chunks of {chunk_bytes}"
            )
        self.nbytes, self.chunk_bytes = nbytes, chunk_bytes
        self.sent_bytes = 0
        self.credited_bytes = 0
        self._next = 0
        self.done = False  # the receiver has everything

    @property
    def outstanding_bytes(self) -> int:
        """Sent and not credited: what counts against the peer's window."""
        return self.sent_bytes - self.credited_bytes

    @property
    def all_sent(self) -> bool:
        """Whether no chunk is left to send."""
        return self._next > 0 and self.sent_bytes == self.nbytes

    def advance(self, window_bytes: int) -> tuple[int, int, int] | None:
        """The next chunk as (index, start, stop), if it fits into the free part of the window.

        Else None.
        """
        start, stop = self.sent_bytes, min(self.sent_bytes + self.chunk_bytes, self.nbytes)
        if self.all_sent or stop - start > window_bytes:
            return None
        index = self._next
        self._next += 1
        self.sent_bytes = stop
        return index, start, stop

    def credit(self, received_bytes: int, done: bool) -> int:
        """The receiver has so many bytes by now; returns how many of them are news.

        Raises
        ------
        WireError
            Where it claims fewer than before, more than was sent, or to be done without everything.
            `done` at once is fine: the receiver had this value already.
        """
        if not self.credited_bytes <= received_bytes <= self.sent_bytes and not done:
            raise WireError(
                WireCode.CHUNK,
                f"credit for {received_bytes} bytes, {self.credited_bytes}..{self.sent_bytes} "
                "possible",
            )
        if done and received_bytes != self.nbytes:
            raise WireError(WireCode.CHUNK, f"done after {received_bytes} of {self.nbytes} bytes")
        self.done = self.done or done
        news = min(received_bytes, self.sent_bytes) - self.credited_bytes
        self.credited_bytes += news
        return news
