"""What a ZeroMQ socket takes in, in bounds: the frames of one message, and the bytes of one
connection.

ZeroMQ bounds a frame (`maxmsgsize`) and counts whole messages (`rcvhwm`). The frames of a message
are as many as its sender likes, and it shows none of them before the last is there. Pure.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from potluck_wire.limits import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, MIB
from potluck_wire.messages import MESSAGES, Channel

SKIPPED_AT_ONCE = 512  # frames; each takes some 4 microseconds
# The system's account of a connection (Linux, `struct tcp_info`): where its received bytes stand.
TCP_INFO_BYTES, _RECEIVED_AT = 256, 128
# What CURVE adds to a frame (33 bytes), and ZMTP to that: flags, and a length of one byte up to 255
# bytes, else of eight.
_SHORT_BYTES, _LONG_BYTES = 33 + 2, 33 + 9
_LONGEST_SHORT = 255 - 33
_ACKNOWLEDGED_AT = 120  # where its bytes stand of which the other side has said that it has them
# Heartbeats and handshakes are no messages: so much may be forgiven when a socket has been emptied.
FORGIVEN_BYTES = MIB


def most_frames(channel: Channel) -> int:
    """Frames that a message on this channel may have: its header, and the most buffers of any."""
    return 1 + max(entry.buffers[1] for entry in MESSAGES.values() if entry.channel is channel)


class MessageReader:
    """The messages of one socket, one after the other.

    Of one that is too long only the beginning is kept, and that is too long for `frames.decode`,
    too. The rest is passed over, a part at each call: whoever reads looks at the others in between,
    and ends the connection of one of whom so much is still to come.

    Parameters
    ----------
    channel
        Whose messages they are.
    n_routes
        Frames before each message that are not its own: one behind a ROUTER.
    """

    __slots__ = ("_most_frames", "skipping")

    def __init__(self, channel: Channel, n_routes: int = 0) -> None:
        self._most_frames = most_frames(channel) + n_routes
        self.skipping = False  # the rest of a message that is too long is still to come

    def read(self, receive: Callable[[], Any]) -> list[Any]:
        """The frames of the next message, none while one that was too long is passed over.

        `receive()` gives the next frame, with `more`. What it raises where there is no message is
        raised.
        """
        if self.skipping:
            self._skip(receive)
            return []
        frames = [receive()]
        n_bytes = 0
        while frames[-1].more:
            if len(frames) > self._most_frames or n_bytes > MAX_MESSAGE_BYTES + MAX_FRAME_BYTES:
                self._skip(receive)
                break
            frames.append(receive())
            n_bytes += len(frames[-1])
        return frames

    def _skip(self, receive: Callable[[], Any]) -> None:
        self.skipping = all(receive().more for _ in range(SKIPPED_AT_ONCE))


class Unread:
    """What came over one connection and was not read yet: messages that wait, and the beginning of
    one that is not whole.
    """

    __slots__ = ("_has_read", "_read_bytes")

    def __init__(self) -> None:
        self._read_bytes, self._has_read = 0, False

    def read(self, frames: Sequence[Any]) -> None:
        """This message was read."""
        self._has_read = True
        self._read_bytes += wire_bytes(frames)

    def left_bytes(self, received_bytes: int) -> int:
        """Bytes that are held of it, when so many have come over it."""
        return max(0, received_bytes - self._read_bytes)

    def settle(self, received_bytes: int) -> None:
        """Nothing waits in its socket: what is left was no message, or the first bytes of one.

        At most `FORGIVEN_BYTES`, and once for each message.
        """
        if self._has_read and self.left_bytes(received_bytes) <= FORGIVEN_BYTES:
            self._read_bytes, self._has_read = received_bytes, False


class Untaken:
    """What was sent over one connection and the other side has not taken yet."""

    __slots__ = ("_sent_bytes",)

    def __init__(self) -> None:
        self._sent_bytes = 0

    def sent(self, frames: Sequence[Any]) -> None:
        """This message was given to ZeroMQ."""
        self._sent_bytes += wire_bytes(frames)

    def left_bytes(self, acknowledged_bytes: int) -> int:
        """Bytes that are held of it, when the other side has so many; 0 where nobody counts.

        Handshakes and heartbeats are no messages, and settled whenever nothing else is left.
        """
        if not acknowledged_bytes:
            self._sent_bytes = 0
        self._sent_bytes = max(self._sent_bytes, acknowledged_bytes)
        return self._sent_bytes - acknowledged_bytes


def wire_bytes(frames: Sequence[Any]) -> int:
    """Bytes that these frames took on an encrypted connection."""
    total = 0
    for frame in frames:
        nbytes = len(frame)
        total += nbytes + (_SHORT_BYTES if nbytes <= _LONGEST_SHORT else _LONG_BYTES)
    return total


def received_bytes(tcp_info: bytes) -> int | None:
    """All that came over a connection, of the system's account of it; None where that is older."""
    if len(tcp_info) < _RECEIVED_AT + 8:
        return None
    received: int = struct.unpack_from("=Q", tcp_info, _RECEIVED_AT)[0]
    return received


def acknowledged_bytes(tcp_info: bytes) -> int:
    """All that the other side has got, of the system's account of it; 0 where that is older."""
    if len(tcp_info) < _ACKNOWLEDGED_AT + 8:
        return 0
    acknowledged: int = struct.unpack_from("=Q", tcp_info, _ACKNOWLEDGED_AT)[0]
    return acknowledged
