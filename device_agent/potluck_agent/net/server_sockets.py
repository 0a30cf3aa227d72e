"""The guarded sockets: bound, encrypted, and closed to every key that is not trusted.

And the proof that they are.

CURVE alone lets every key in. So each socket enforces a ZAP domain, the answer to ZAP is our own
(it never raises: an authenticator that dies lets nobody in any more), and `self_test` knocks from
outside before anybody is told that this device exists.
"""

import errno
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from potluck_agent.errors import AgentError
from potluck_agent.keys import Identity
from potluck_agent.net import socket_memory
from potluck_wire.limits import (
    CONTROL_OFFSET,
    DATA_OFFSET,
    HANDSHAKE_S,
    HIGH_WATER_MARK,
    LINGER_MS,
    MAX_FRAME_BYTES,
    MAX_HALF_OPEN,
    MAX_QUEUED,
    PAIRING_OFFSET,
    PULSE_OFFSET,
    ZAP_DOMAIN,
)
from potluck_wire.messages import Channel

OFFSETS = {Channel.CONTROL: CONTROL_OFFSET, Channel.DATA: DATA_OFFSET, Channel.PULSE: PULSE_OFFSET}
N_PORTS = 4
OLDEST_ZMQ = (4, 3, 5)  # 4.3.1 and older overflow before the handshake; 4.3.5 is what was tested
SENT_AT_ONCE = 1000  # messages of the other channels
TEST_S = 5.0
REBIND_S = 2.0
NOT_TRUSTED = b"this key is not trusted"

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_WATCHED = _FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED

Socket = Any  # zmq's stubs are generic over what recv returns; here it depends on the call


def check_library() -> None:
    """AgentError where this libzmq cannot keep strangers out."""
    if not zmq.has("curve"):
        raise AgentError(
            "this libzmq cannot encrypt (built without libsodium). Install pyzmq >= 27.3 from PyPI."
        )
    if zmq.zmq_version_info() < OLDEST_ZMQ:
        raise AgentError(
            f"libzmq {zmq.zmq_version()} has known holes. Install pyzmq >= 27.3 from PyPI."
        )


class _Taken(AgentError):
    """A port is in use: another one may be free."""


class ServerSockets:
    """Three encrypted ROUTERs and the plain pairing listener on four ports in a row, and the ZAP
    handler.

    `admits(key)` says at each handshake whether that CURVE key (z85) may come in, `refused(key,
    address)` is told of those that may not.
    """

    def __init__(
        self, context: Any, identity: Identity, admits: Callable[[str], bool], host: str, port: int
    ) -> None:
        self._context = context
        self._identity = identity
        self.host = host
        self.admits = admits
        self.refused: Callable[[str, str], None] = lambda key, address: None
        self.zap: Socket = context.socket(zmq.REP)
        self.zap.linger = 0
        self.zap.bind("inproc://zeromq.zap.01")
        self.routers: dict[Channel, Socket] = {}
        self.monitors: dict[Channel, Socket] = {}
        self.listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = self._bind_free() if port == 0 else self._bind(port)

    def _bind(self, port: int) -> int:
        """Take four ports from `port` on; AgentError where one is in use."""
        if not 1 <= port <= 65536 - N_PORTS:
            raise AgentError(
                f"port {port} leaves no room for {N_PORTS} ports. Choose one below "
                f"{65536 - N_PORTS}."
            )
        taken = port
        try:
            for channel, offset in OFFSETS.items():
                taken = port + offset
                self.routers[channel] = self._router(channel, taken)
            taken = port + PAIRING_OFFSET
            self._listen(taken)
        except (zmq.ZMQError, OSError) as error:
            self._close_routers()
            reason = str(getattr(error, "strerror", None) or error).partition(" (addr=")[0]
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise AgentError(
                    f"cannot listen on {self.host}, port {taken}: {reason}. "
                    "Give --bind an address of this device, or leave it out to listen everywhere."
                ) from error
            raise _Taken(
                f"cannot listen on {self.host}, port {taken}: {reason}. "
                "Is another agent running? Choose another base port with --port (0: any free one)."
            ) from error
        return port

    def _bind_free(self) -> int:
        for _ in range(100):
            with suppress(_Taken):
                # below what connections get
                return self._bind(20_000 + N_PORTS * secrets.randbelow(3_000))
        raise AgentError(f"no {N_PORTS} free ports in a row on {self.host}. Give one with --port.")

    def _listen(self, port: int) -> None:
        self.listener.close()
        self.listener = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        # on Windows SO_REUSEADDR lets others steal the port
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.setblocking(False)
        self.listener.bind((self.host, port))
        self.listener.listen(MAX_HALF_OPEN)

    def _router(self, channel: Channel, port: int) -> Socket:
        router = self._context.socket(zmq.ROUTER)
        try:
            router.linger = LINGER_MS
            router.ipv6 = ":" in self.host
            router.curve_server = True
            router.curve_publickey = self._identity.public.encode()
            router.curve_secretkey = self._identity.secret.encode()
            router.zap_domain = ZAP_DOMAIN.encode()
            router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            router.router_mandatory = True  # a message to nobody is an error, not a silence
            router.maxmsgsize = MAX_FRAME_BYTES
            router.handshake_ivl = int(HANDSHAKE_S * 1000)
            # Counts whole messages; `socket_memory` counts bytes. The system's own buffer of a
            # connection is left to it (6 MiB at most, as Linux comes): a smaller one slows far
            # links down.
            router.rcvhwm = HIGH_WATER_MARK
            router.sndhwm = MAX_QUEUED if channel is Channel.DATA else SENT_AT_ONCE
            self.monitors[channel] = self._monitor(channel, router)
            router.bind(endpoint(self.host, port))
        except zmq.ZMQError:
            self._close_router(channel, router)
            raise
        return router

    def _monitor(self, channel: Channel, router: Socket) -> Socket:
        """What tells of its connections; as `get_monitor_socket`, without a high-water mark.

        ZeroMQ's thread would wait at it, and all connections with it.
        """
        address = f"inproc://connections-{channel.value}-{secrets.token_hex(8)}"
        router.monitor(address, socket_memory.WATCHED)
        monitor = self._context.socket(zmq.PAIR)
        monitor.rcvhwm = monitor.linger = 0
        monitor.connect(address)
        return monitor

    def _close_router(self, channel: Channel, router: Socket) -> None:
        if (monitor := self.monitors.pop(channel, None)) is not None:
            router.disable_monitor()
            monitor.close(0)
        router.close()

    def reopen(self) -> None:
        """Cut every connection and listen again: the only way to cut one. Those who are trusted
        come back.

        Raises
        ------
        AgentError
            Somebody else took a port meanwhile; all connections are cut all the same.
        """
        failed: AgentError | None = None
        for channel in OFFSETS:
            if channel in self.routers:
                self._close_router(channel, self.routers.pop(channel))
            try:
                self._listen_on(channel, time.monotonic() + REBIND_S)
            except AgentError as error:
                failed = error
        if failed is not None:
            raise failed

    def listen_again(self) -> None:
        """Listen on the ports that somebody else took.

        Raises
        ------
        AgentError
            One is taken yet; those before it are listened on.
        """
        for channel in OFFSETS:
            self._listen_on(channel, time.monotonic())

    def _listen_on(self, channel: Channel, deadline_s: float) -> None:
        """Closing is asynchronous: a port is free in a moment."""
        port = self.port + OFFSETS[channel]
        while channel not in self.routers:
            try:
                self.routers[channel] = self._router(channel, port)
            except zmq.ZMQError as error:
                if time.monotonic() > deadline_s:
                    raise AgentError(
                        f"cannot listen on port {port} again: {error}. It is tried on; end what "
                        "has the port."
                    ) from error
                time.sleep(0.005)

    def answer_zap(self) -> None:
        """Answer one question of libzmq: may this key come in? Whatever goes wrong, the answer is
        no.
        """
        try:
            frames = self.zap.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
        reply = zap_reply(frames, self.admits)
        self.zap.send_multipart(reply)
        if reply[2] == b"400" and reply[3] == NOT_TRUSTED:
            self.refused(z85.encode(frames[-1]).decode(), frames[3].decode(errors="replace"))

    def close(self) -> None:
        """Give all ports back."""
        self._close_routers()
        self.zap.close(0)

    def _close_routers(self) -> None:
        for channel, router in self.routers.items():
            self._close_router(channel, router)
        self.routers.clear()
        self.listener.close()


def endpoint(host: str, port: int) -> str:
    """As libzmq writes it."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def zap_reply(frames: Sequence[bytes], admits: Callable[[str], bool]) -> list[bytes]:
    """The answer to one ZAP request (RFC 27).

    User-Id is the key, so that every message carries it.
    """
    request = frames[1] if len(frames) > 1 else b""
    try:
        version, _, domain, _, _, mechanism, public = frames
        if (
            version != b"1.0"
            or domain != ZAP_DOMAIN.encode()
            or mechanism != b"CURVE"
            or len(public) != 32
        ):
            return [b"1.0", request, b"400", b"not CURVE, or another domain", b"", b""]
        key = z85.encode(public).decode()
        if admits(key):
            return [b"1.0", request, b"200", b"", key.encode(), b""]
        return [b"1.0", request, b"400", NOT_TRUSTED, b"", b""]
    # fails closed: an exception here would leave every later client waiting for ever
    except Exception:
        return [b"1.0", request, b"500", b"the authenticator failed", b"", b""]


def self_test(context: Any, sockets: ServerSockets, identity: Identity) -> None:
    """Knock at every socket: with an unknown key and without encryption nobody may come in.

    With a known key one must.

    Raises
    ------
    AgentError
        If this device would let a stranger in, or nobody at all. Then it must not start.
    """
    friend, stranger = (tuple(part.decode() for part in zmq.curve_keypair()) for _ in range(2))
    before, sockets.admits = sockets.admits, lambda key: key == friend[0]
    probes = [
        SelfTestClient(context, sockets, identity, channel, who, keys)
        for channel in OFFSETS
        for who, keys in (("friend", friend), ("stranger", stranger), ("plain", None))
    ]
    heard: set[tuple[Channel, str]] = set()
    deadline_s = time.monotonic() + TEST_S
    try:
        while time.monotonic() < deadline_s and not (
            heard == {(channel, "friend") for channel in OFFSETS}
            and all(probe.turned_away for probe in probes)
        ):
            _listen_once(sockets, probes, heard)
    finally:
        sockets.admits = before
        for probe in probes:
            probe.close()
    intruders = sorted(f"{who} on {channel.value}" for channel, who in heard if who != "friend")
    if intruders or any(probe.let_in for probe in probes if probe.who != "friend"):
        raise AgentError(
            f"self-test failed: a stranger came in ({', '.join(intruders) or 'handshake'}). Not "
            "starting."
        )
    if len(heard) < len(OFFSETS) or not all(probe.turned_away for probe in probes):
        raise AgentError(
            "self-test failed: connections over this machine's own network do not work. Not "
            "starting."
        )


def _listen_once(
    sockets: ServerSockets, probes: Sequence["SelfTestClient"], heard: set[tuple[Channel, str]]
) -> None:
    poller = zmq.Poller()
    for source in (sockets.zap, *sockets.routers.values(), *(probe.monitor for probe in probes)):
        poller.register(source, zmq.POLLIN)
    for source, _ in poller.poll(100):
        if source is sockets.zap:
            sockets.answer_zap()
        for channel, router in sockets.routers.items():
            if source is router:
                heard.add((channel, router.recv_multipart()[-1].decode()))
        for probe in probes:
            if source is probe.monitor:
                probe.watch()


class SelfTestClient:
    """One client of the self-test, which says who it is as soon as it may."""

    def __init__(
        self,
        context: Any,
        sockets: ServerSockets,
        server: Identity,
        channel: Channel,
        who: str,
        keys: tuple[str, ...] | None,
    ) -> None:
        self.who = who
        self.let_in = False
        self.turned_away = who == "friend"
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        if keys is not None:
            self._socket.curve_serverkey = server.public.encode()
            self._socket.curve_publickey, self._socket.curve_secretkey = (
                part.encode() for part in keys
            )
        self.monitor = self._socket.get_monitor_socket(_WATCHED)
        any_host = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104
        host = any_host.get(sockets.host, sockets.host)
        self._socket.ipv6 = ":" in host
        self._socket.connect(endpoint(host, sockets.port + OFFSETS[channel]))
        self._socket.send(who.encode(), zmq.DONTWAIT)

    def watch(self) -> None:
        """What became of the handshake."""
        event: dict[str, Any] = recv_monitor_message(self.monitor)
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.let_in = True
        else:
            self.turned_away = True

    def close(self) -> None:
        """Leave."""
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close(0)
