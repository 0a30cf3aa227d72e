"""What ZeroMQ alone can do: frames from this process to another one, plain or under CURVE, with one
answer at the end.

The yardstick of bench `stream`: no headers, no chunks to check, no credits, no assembly; the
receiver drops what it gets. Run as a module it is that receiver.
"""

import os
import subprocess
import sys
import threading
import time
from types import TracebackType

import zmq

from potluck.errors import PotluckError
from potluck_wire.limits import LINGER_MS

ANSWER_MS = 60_000  # 64 MiB under CURVE take 0.1 s; a minute means that the receiver died


class RawStream:
    """A receiver in a process of its own and a socket to it; use as a context manager.

    Parameters
    ----------
    curve
        Encrypt, or not.
    frame_bytes
        Size of every frame but the last of a transfer, at most.
    """

    def __init__(self, *, curve: bool, frame_bytes: int) -> None:
        self._curve, self._frame = curve, bytes(frame_bytes)

    def __enter__(self) -> "RawStream":
        command = [
            sys.executable,
            "-m",
            "potluck.bench.raw_zeromq",
            "curve" if self._curve else "plain",
        ]
        self._receiver = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._receiver.stdout is not None
        port, _, server_key = self._receiver.stdout.readline().strip().partition(" ")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = LINGER_MS
        self._socket.sndhwm = 0  # a transfer is limited by its own size
        if self._curve:
            self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
            self._socket.curve_serverkey = server_key.encode()
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(LINGER_MS)
        self._receiver.communicate()  # closing its input ends it

    def transfer(self, nbytes: int, frame_bytes: int = 0) -> float:
        """Send `nbytes` in frames and wait until the receiver has them all.

        Returns the seconds that took.

        `frame_bytes`: smaller frames than usual.
        """
        frame = self._frame[:frame_bytes] if frame_bytes else self._frame
        n_full, rest = divmod(nbytes, len(frame))
        frames = [frame] * n_full + ([frame[:rest]] if rest else [])
        start_s = time.perf_counter()
        self._socket.send(len(frames).to_bytes(8, "big"))
        for frame in frames:
            self._socket.send(frame, copy=False)
        if not self._socket.poll(ANSWER_MS):
            raise PotluckError(
                "the receiver of the yardstick does not answer.", next_step="Run the bench again."
            )
        self._socket.recv()
        return time.perf_counter() - start_s


def receive(*, curve: bool) -> None:
    """Print port and key, then answer every transfer, until the input is closed."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.rcvhwm = 0
    key = b""
    if curve:
        key, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_server = True
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    sys.stdout.write(f"{port} {key.decode()}\n")
    sys.stdout.flush()
    while True:
        sender, count = socket.recv_multipart()
        for _ in range(int.from_bytes(count, "big")):
            socket.recv_multipart(copy=False)
        socket.send_multipart([sender, b"done"])


if __name__ == "__main__":
    receive(curve=sys.argv[1:] == ["curve"])
