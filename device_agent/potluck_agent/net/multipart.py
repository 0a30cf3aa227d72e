"""One message through a socket of ours, without waiting; what is large is not copied.

As `recv_multipart` and `send_multipart`, in fewer steps, since this is done for every chunk; and of
a message that is too long only the beginning is read at once.
"""

from collections.abc import Sequence
from typing import Any

import zmq

from potluck_wire.bounded_receive import MessageReader

SMALL_BYTES = 32 * 1024  # below it zmq copies faster than it hands over
# plain numbers: zmq's own flags are slow to join
_NO_WAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)


def receive(socket: Any, reader: MessageReader) -> list[Any]:
    """The frames of the next message; zmq.Again where there is none.

    None while `reader` passes over one that was too long.
    """
    return reader.read(lambda: socket.recv(_NO_WAIT, False))


def hand_over(socket: Any, frames: Sequence[bytes | memoryview]) -> None:
    """Send these frames; zmq.ZMQError where nobody takes them.

    The memory of large ones is read until they arrived.
    """
    for frame in frames[:-1]:
        socket.send(frame, _MORE, len(frame) < SMALL_BYTES)
    socket.send(frames[-1], _NO_WAIT, len(frames[-1]) < SMALL_BYTES)
