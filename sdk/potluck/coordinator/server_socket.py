"""The socket of a coordinator: CURVE, for the keys that it knows. Nobody else is heard, and nobody
makes it hold more than a few messages of theirs.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from potluck.coordinator.socket_connections import WATCHED, SocketConnections
from potluck.errors import HomeError
from potluck.sessions.connections import Keys
from potluck_wire.limits import HANDSHAKE_S, LINGER_MS, ZAP_DOMAIN

MAX_FRAME_BYTES = (1 << 20) + (1 << 18)  # a chunk of a file and what is said of it
N_FRAMES = 4  # a route, nothing, the request, its bytes
N_AT_ONCE = 16  # messages in one round
MAX_QUEUED = 2  # answers that nobody takes, of one connection
CHECK_S = 0.2


class _Known:
    """Whose key may speak here."""

    def __init__(self, knows: Callable[[str], bool]) -> None:
        self._knows = knows

    def callback(self, domain: str, key: bytes) -> bool:
        """As ZAP asks: whether this is one."""
        return self._knows(key.decode(errors="replace"))


class ServerSocket:
    """Listens from the start on.

    Parameters
    ----------
    keys
        The coordinator's own.
    knows
        Whether who has this public key may ask; called in another thread.
    host, port
        Where to listen; port 0: a free one.

    Raises
    ------
    HomeError
        Nobody can listen there.
    """

    def __init__(self, keys: Keys, knows: Callable[[str], bool], host: str, port: int) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(ZAP_DOMAIN, _Known(knows))
        self._socket: Any = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.LINGER, LINGER_MS),
            (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
            (zmq.RCVHWM, N_AT_ONCE),
            (zmq.SNDHWM, MAX_QUEUED),
            (zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000)),
            (zmq.IPV6, ":" in host),
            # without anybody who answers ZAP, CURVE alone would let every key in
            (zmq.ZAP_ENFORCE_DOMAIN, 1),
        ):
            self._socket.setsockopt(option, value)
        self._socket.curve_server = True
        self._socket.zap_domain = ZAP_DOMAIN.encode()
        self._socket.curve_publickey = keys.public.encode()
        self._socket.curve_secretkey = keys.secret.encode()
        self._monitor: Any = self._socket.get_monitor_socket(WATCHED)
        self._connections, self._checked_s = SocketConnections(), 0.0
        place = f"[{host}]" if ":" in host else host
        try:
            self.port = self._bound(place, port)
        except zmq.ZMQError as error:
            self.close()
            raise HomeError(
                f"a coordinator cannot listen at {place}:{port}: {error.strerror}.",
                next_step="Give another --address or --port.",
            ) from error

    def _bound(self, place: str, port: int) -> int:
        if port:
            self._socket.bind(f"tcp://{place}:{port}")
            return port
        bound: int = self._socket.bind_to_random_port(f"tcp://{place}")
        return bound

    def requests(self, wait_s: float) -> Iterator[tuple[bytes, str, list[bytes]]]:
        """What has come: by which way, of whose key, and the frames of each.

        Parameters
        ----------
        wait_s
            For the first of them.
        """
        self._socket.poll(int(wait_s * 1000))
        self._look_after()
        for _ in range(N_AT_ONCE):
            frames = self._received()
            if frames is None:
                return
            if len(frames) > 1:
                route, *parts = (frame.bytes for frame in frames)
                yield route, str(frames[0].get("User-Id")), parts

    def _received(self) -> list[Any] | None:
        """The frames of the next message, none of one that was too long; None where there is no
        message.
        """
        try:
            frames = [self._socket.recv(zmq.NOBLOCK, copy=False)]
            while frames[-1].more and len(frames) <= N_FRAMES:
                frames.append(self._socket.recv(zmq.NOBLOCK, copy=False))
            is_whole, last = not frames[-1].more, frames[-1]
            while last.more:
                last = self._socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        self._connections.read(frames, is_message=is_whole)
        return frames if is_whole else []

    def _look_after(self) -> None:
        """Connections that came or went, and what waits in them."""
        while self._monitor.poll(0):
            event: Any = recv_monitor_message(self._monitor)
            self._connections.watch(event)
        now_s = time.monotonic()
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            self._connections.check(is_empty=not self._socket.poll(0))

    def send(self, route: bytes, frames: Sequence[bytes]) -> None:
        """Answer; who takes no answers gets none.

        Parameters
        ----------
        route
            As `requests` told it.
        frames
            Of the answer.
        """
        self._socket.send_multipart([route, b"", *frames], zmq.NOBLOCK)

    def close(self) -> None:
        """Listen no more."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self._auth.stop()
        self._context.term()
