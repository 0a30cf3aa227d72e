"""The same messages over a byte stream: the pairing connection and the pipe to the worker.

Length-framed: the number of frames, then the length of each, then the frames; all lengths are
unsigned 32-bit big-endian. Every length is checked before its bytes are waited for.
"""

import struct
from collections.abc import Sequence

from potluck_wire.errors import WireCode, WireError
from potluck_wire.frames import Buffer, decode, encode, header_cap
from potluck_wire.limits import MAX_BUFFER_BYTES, MAX_MESSAGE_BYTES, MAX_PAIRING_BYTES
from potluck_wire.messages import MESSAGES, Channel, Message

_LENGTH = struct.Struct(">I")
_MOST_FRAMES = {
    channel: 1 + max(entry.buffers[1] for entry in MESSAGES.values() if entry.channel is channel)
    for channel in Channel
}


def pack(message: Message, buffers: Sequence[bytes | bytearray | memoryview] = ()) -> bytes:
    """A message as one run of bytes."""
    frames = encode(message, buffers)
    lengths = struct.pack(f">{1 + len(frames)}I", len(frames), *map(len, frames))
    return b"".join([lengths, *frames])


class StreamReader:
    """Bytes in, however they were cut; whole messages out.

    After an error nothing more can be told apart: the reader stays broken and the connection is to
    be closed.
    """

    def __init__(self, channel: Channel, max_bytes: int | None = None) -> None:
        self._channel = channel
        default = MAX_PAIRING_BYTES if channel is Channel.PAIRING else MAX_MESSAGE_BYTES
        self._max_bytes = default if max_bytes is None else max_bytes
        self._held = bytearray()
        self._needed = _LENGTH.size  # no use in looking before that many bytes are here
        self._broken: WireError | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of a message that is not whole yet: not 0 at the end of a stream means that it was
        cut off.
        """
        return len(self._held)

    def feed(self, data: Buffer | bytearray) -> list[tuple[Message, tuple[Buffer, ...]]]:
        """The messages that `data` completes, in order.

        Raises
        ------
        WireError
            At the first thing that does not hold; messages before it in the same `data` are lost
            with the connection.
        """
        if self._broken is not None:
            raise self._broken
        self._held += data
        messages = []
        try:
            while len(self._held) >= self._needed:
                frames = self._next()
                if frames is not None:
                    messages.append(decode(frames, self._channel))
        except WireError as error:
            self._broken = error
            self._held.clear()
            raise
        return messages

    def _next(self) -> list[bytes] | None:
        """The frames of the first message, taken out of what is held.

        Or None, and `_needed` says how much is.
        """
        held = self._held
        (count,) = _LENGTH.unpack_from(held)
        if not 1 <= count <= _MOST_FRAMES[self._channel]:
            raise WireError(
                WireCode.BUFFERS,
                f"{count} frames, 1 to {_MOST_FRAMES[self._channel]} are possible here",
            )
        start = _LENGTH.size * (1 + count)
        if len(held) < start:
            self._needed = start
            return None
        lengths = struct.unpack_from(f">{count}I", held, _LENGTH.size)
        self._check(lengths, start)
        stop = start + sum(lengths)
        if len(held) < stop:
            self._needed = stop
            return None
        frames = []
        with memoryview(held) as view:
            for length in lengths:
                frames.append(bytes(view[start : start + length]))
                start += length
        del held[:stop]
        self._needed = _LENGTH.size
        return frames

    def _check(self, lengths: tuple[int, ...], start: int) -> None:
        if lengths[0] > header_cap(self._channel):
            raise WireError(
                WireCode.SIZE,
                f"a header of {lengths[0]} bytes, at most {header_cap(self._channel)}",
            )
        if max(lengths) > MAX_BUFFER_BYTES:
            raise WireError(
                WireCode.SIZE, f"a buffer of {max(lengths)} bytes, at most {MAX_BUFFER_BYTES}"
            )
        if start + sum(lengths) > self._max_bytes:
            raise WireError(
                WireCode.SIZE,
                f"a message of {start + sum(lengths)} bytes, at most {self._max_bytes}",
            )
