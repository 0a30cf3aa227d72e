"""One whole message through a socket of ours, without waiting; what is large is not copied.

The same as `recv_multipart` and `send_multipart`, in fewer steps: this is done for every chunk.
"""

from collections.abc import Sequence
from typing import Any

import zmq

SMALL_BYTES = 32 * 1024  # below it zmq copies faster than it hands over
# plain numbers: zmq's own flags are slow to join
_NO_WAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)


def receive(socket: Any) -> list[Any]:
    """The frames of the next message; zmq.Again where there is none."""
    frames = [socket.recv(_NO_WAIT, False)]
    while frames[-1].more:
        frames.append(socket.recv(_NO_WAIT, False))
    return frames


def hand_over(socket: Any, frames: Sequence[bytes | memoryview]) -> None:
    """Send these frames; zmq.ZMQError where nobody takes them.

    The memory of large ones is read until they arrived.
    """
    for frame in frames[:-1]:
        socket.send(frame, _MORE, len(frame) < SMALL_BYTES)
    socket.send(frames[-1], _NO_WAIT, len(frames[-1]) < SMALL_BYTES)
