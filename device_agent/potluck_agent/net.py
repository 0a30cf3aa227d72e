"""The loop: messages, worker, pairing and time go into the core as events, and its actions are carried out.

One thread, one poll. The heartbeat socket is looked at first and no source may take more than its share of a round, so
that a device that is busy still answers.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck_agent import keys, state
from potluck_agent.core import Core, read_address
from potluck_agent.door import Door, Socket, check_library, endpoint, self_test
from potluck_agent.errors import AgentError
from potluck_agent.events import (
    MEMBER,
    OWNER,
    Action,
    Event,
    FromPeer,
    FromWorker,
    KillWorker,
    LinkReset,
    Member,
    PeerRevoked,
    ReadMeter,
    Sender,
    SetMembers,
    Span,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
    WorkerDied,
)
from potluck_agent.keys import Identity, Peer
from potluck_agent.pairing import Desk, Reply
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.limits import CHUNK_BYTES, DATA_OFFSET, HANDSHAKE_S, MAX_FRAME_BYTES
from potluck_wire.messages import MESSAGES, NUMBER_OF, Channel, Chunk, FailureCause, Message, Reading, Value

TICK_S = 0.2
AT_ONCE = {Channel.PULSE: 64, Channel.CONTROL: 16, Channel.DATA: 32}  # messages of one socket in one round
SMALL_BYTES = 32 * 1024  # below it zmq copies faster than it hands over
RECONNECT_MS, RECONNECT_MAX_MS = 100, 2000
PAIRING_READ_BYTES = 1024

_ZEROS = memoryview(bytes(CHUNK_BYTES))
_LINK_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Meter(Protocol):
    """Where readings of power come from."""

    def read(self, now_s: float, busy_s: float, radio_s: float) -> tuple[float, float, str, str, float]:
        """Watts, joules so far, source, the meter's name, resolution in watts."""


@dataclass(slots=True)
class _Link:
    """Our own connection to the data socket of a member."""

    member: Member
    socket: Socket
    monitor: Socket
    stood: bool = False


class Net:
    """The agent's sockets and its loop. `start_worker()` gives a new worker link; `meter` is read when asked for.

    `paired(name)` is called when a notebook has been paired, `note(text)` with what the owner may want to read.
    """

    def __init__(
        self,
        *,
        core: Core,
        identity: Identity,
        state_dir: Path,
        name: str,
        host: str,
        port: int,
        trusted: tuple[Peer, ...],
        start_worker: Callable[[], Any],
        meter: Meter,
        note: Callable[[str], None],
    ) -> None:
        check_library()
        self._core, self._identity, self._state_dir = core, identity, state_dir
        self._trusted, self._start_worker, self._meter, self._note = trusted, start_worker, meter, note
        self.desk = Desk(name=name, key=identity.public)
        self.stopping = False
        self._peers_stamp: object = None
        self._owners: dict[str, Peer] = {}
        self._links: dict[str, _Link] = {}
        self._routes: dict[tuple[Channel, str], bytes] = {}
        self._worker: Any = None
        self._worker_events = 0
        self._visitor: Any = None
        self._poller = zmq.Poller()
        self._load_peers()
        self._context: Any = zmq.Context()
        self._context.set(zmq.BLOCKY, False)
        try:
            self._door = Door(self._context, identity, self._admits, host, port)
            self_test(self._context, self._door, identity)
        except BaseException:
            self._context.destroy(0)
            raise
        self.port = self._door.port
        self._register_door()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, each_tick: Callable[[], None]) -> None:
        """Serve until `stopping` is set; `each_tick` is called some times a second."""
        next_tick_s = time.monotonic()
        try:
            while not self.stopping:
                now_s = time.monotonic()
                if now_s >= next_tick_s:
                    next_tick_s = now_s + TICK_S
                    self._tick(now_s)
                    each_tick()
                wake_s = self._core.wake_s()
                if wake_s is not None and wake_s <= now_s:
                    self._feed(Tick())
                    wake_s = self._core.wake_s()
                until_s = next_tick_s if wake_s is None else min(next_tick_s, wake_s)
                self._watch_worker()
                wait_ms = max(0, -int(-(until_s - time.monotonic()) * 1000))
                self._round(dict(self._poller.poll(wait_ms)))
        finally:
            self.close()

    def _round(self, ready: dict[Any, int]) -> None:
        """Everything that has something to say gets its share, the urgent first."""
        door = self._door
        for channel in (Channel.PULSE, Channel.CONTROL):
            if door.routers[channel] in ready:
                self._read_router(channel)
        if door.zap in ready:
            door.answer_zap()
        if self._worker is not None and self._worker.socket.fileno() in ready:
            self._read_worker()
        if door.routers[Channel.DATA] in ready:
            self._read_router(Channel.DATA)
        for link in tuple(self._links.values()):
            if link.monitor in ready:
                self._watch_link(link)
            if link.socket in ready:
                self._read_link(link)
        if door.listener.fileno() in ready:
            self._welcome_visitor()
        if self._visitor is not None and self._visitor.fileno() in ready:
            self._read_visitor()

    def _tick(self, now_s: float) -> None:
        self._load_peers()
        window = state.asked_window(self._state_dir)
        if window is not None:
            secret, window_s = window
            self.desk.open(secret, now_s, window_s=window_s) if secret else self.desk.close()
        if self._visitor is not None and self.desk.overdue(now_s):
            self._hang_up()
        self._feed(Tick())

    def close(self) -> None:
        """Give everything back: worker, sockets, ports."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        for link in tuple(self._links.values()):
            self._close_link(link)
        self._hang_up()
        self._door.close()
        self._context.destroy(0)

    # --- peers --------------------------------------------------------------------------------------------------------

    def _admits(self, key: str) -> bool:
        return key in self._owners or key in self._links

    def _load_peers(self) -> None:
        """The owners, read again when the file has changed; whoever is not in it any more is cut off at once."""
        path = self._state_dir / keys.PEERS
        try:
            stat = path.stat()
            stamp: object = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        except FileNotFoundError:
            stamp = None
        if stamp == self._peers_stamp and self._owners:
            return
        owners = {peer.key: peer for peer in (*keys.load_peers(self._state_dir), *self._trusted)}
        lost = [key for key in self._owners if key not in owners]
        self._owners, self._peers_stamp = owners, stamp
        was_connected = [key for key in lost if any(known == key for _, known in self._routes)]
        for key in lost:
            self._feed(PeerRevoked(key))
        if was_connected:
            self._reopen()

    def _reopen(self) -> None:
        """Cut every connection; the trusted ones come back by themselves."""
        for router in self._door.routers.values():
            self._poller.unregister(router)
        self._routes.clear()
        self._door.reopen()
        for router in self._door.routers.values():
            self._poller.register(router, zmq.POLLIN)

    def _register_door(self) -> None:
        for source in (self._door.zap, *self._door.routers.values()):
            self._poller.register(source, zmq.POLLIN)
        self._poller.register(self._door.listener.fileno(), zmq.POLLIN)

    def _sender(self, key: str) -> Sender | None:
        """Who has this key now: checked for each message, because a connection outlives the trust in it."""
        owner = self._owners.get(key)
        if owner is not None:
            return Sender(key, OWNER, owner.name)
        link = self._links.get(key)
        return Sender(key, MEMBER, link.member.name) if link is not None else None

    # --- messages in --------------------------------------------------------------------------------------------------

    def _read_router(self, channel: Channel) -> None:
        router = self._door.routers[channel]
        for _ in range(AT_ONCE[channel]):
            try:
                route, *frames = router.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            if frames:
                self._take(channel, bytes(route), frames)
            if self._door.routers.get(channel) is not router:  # it was reopened meanwhile
                return

    def _take(self, channel: Channel, route: bytes, frames: list[Any]) -> None:
        try:
            key = str(frames[0].get("User-Id"))
        except (zmq.ZMQError, UnicodeDecodeError):
            return
        sender = self._sender(key)
        if sender is None:
            return
        known = self._routes.get((channel, key))
        if known != route:
            self._routes[channel, key] = route
            if known is not None and channel is Channel.DATA:
                self._feed(LinkReset(key, outgoing=key not in self._links))
        if len(frames) == 1 and not len(frames[0]):  # the greeting of a new connection: now there is a way back
            self._core.reach(key)
            return
        try:
            message, buffers = decode([frames[0].bytes, *(frame.buffer for frame in frames[1:])], channel)
        except WireError as error:
            self._perform(self._core.malformed(key, channel, error))
            return
        self._feed(FromPeer(sender, message, buffers))

    def _feed(self, event: Event) -> None:
        self._perform(self._core.handle(event, time.monotonic()))

    # --- actions ------------------------------------------------------------------------------------------------------

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ToPeer():
                    self._send(action)
                case Store():
                    if self._worker is not None:
                        self._worker.inbound.view(action.offset, len(action.data))[:] = action.data
                case ToWorker():
                    if self._worker is not None:
                        self._worker.send(action.message, action.buffers)
                case StartWorker():
                    self._hire()
                case KillWorker():
                    self._fire()
                case SetMembers():
                    self._set_members(action.members)
                case ReadMeter():
                    self._read_meter(action)

    def _send(self, action: ToPeer) -> None:
        channel = MESSAGES[NUMBER_OF[type(action.message)]].channel
        link = self._links.get(action.key) if isinstance(action.message, Value | Chunk) else None
        route = self._routes.get((channel, action.key)) if link is None else None
        if link is None and route is None:
            return
        try:
            frames = encode(action.message, [self._bytes(part) for part in action.buffers])
        except (WireError, LookupError) as error:
            self._note(f"cannot send {type(action.message).__name__}: {error}")
            return
        copy = sum(len(frame) for frame in frames) < SMALL_BYTES
        with suppress(zmq.Again, zmq.ZMQError):  # it is gone, or does not read: its silence is noticed elsewhere
            if link is not None:
                link.socket.send_multipart(frames, zmq.DONTWAIT, copy=copy)
            else:
                self._door.routers[channel].send_multipart([route, *frames], zmq.DONTWAIT, copy=copy)

    def _bytes(self, part: bytes | memoryview | Span) -> bytes | memoryview:
        if not isinstance(part, Span):
            return part
        if part.arena == "zeros":
            return _ZEROS[: part.nbytes]
        if self._worker is None:
            raise LookupError("its memory is gone with the worker")
        arena = self._worker.inbound if part.arena == "inbound" else self._worker.outbound
        view: memoryview = arena.view(part.offset, part.nbytes)
        return view

    def _read_meter(self, action: ReadMeter) -> None:
        now_s = time.monotonic()
        watts, joules, source, meter, resolution_w = self._meter.read(now_s, action.busy_s, action.radio_s)
        reading = Reading(
            at_s=now_s,
            watts=watts,
            joules=joules,
            source=source,
            meter=meter,
            resolution_w=resolution_w,
            busy_frac=action.busy_frac,
        )
        self._send(ToPeer(action.key, reading))

    # --- members ------------------------------------------------------------------------------------------------------

    def _set_members(self, members: tuple[Member, ...]) -> None:
        wanted = {member.key: member for member in members}
        for key, link in tuple(self._links.items()):
            if wanted.get(key) != link.member:
                self._close_link(link)
                del self._links[key]
        for key, member in wanted.items():
            if key not in self._links:
                self._links[key] = self._open_link(member)

    def _open_link(self, member: Member) -> _Link:
        host, port = read_address(member.address)
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.ipv6 = ":" in host
        dealer.maxmsgsize = MAX_FRAME_BYTES
        dealer.handshake_ivl = int(HANDSHAKE_S * 1000)
        dealer.sndhwm = 0  # bounded by the credit window, in bytes
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
        dealer.curve_serverkey = member.key.encode()
        dealer.curve_publickey = self._identity.public.encode()
        dealer.curve_secretkey = self._identity.secret.encode()
        monitor = dealer.get_monitor_socket(_LINK_EVENTS)
        dealer.connect(endpoint(host, port + DATA_OFFSET))
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        return _Link(member, dealer, monitor)

    def _close_link(self, link: _Link) -> None:
        self._poller.unregister(link.socket)
        self._poller.unregister(link.monitor)
        link.socket.disable_monitor()
        link.monitor.close(0)
        link.socket.close(0)

    def _watch_link(self, link: _Link) -> None:
        """A connection that stood and broke has lost what was on it: a new socket, and everything anew."""
        happened = recv_monitor_message(link.monitor)["event"]
        if happened == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            link.stood = True
        elif link.stood and link.member.key in self._links:
            self._close_link(link)
            self._links[link.member.key] = self._open_link(link.member)
            self._feed(LinkReset(link.member.key, incoming=False))

    def _read_link(self, link: _Link) -> None:
        """Credit and rejections for what we sent."""
        for _ in range(AT_ONCE[Channel.DATA]):
            if self._links.get(link.member.key) is not link:
                return
            try:
                frames = link.socket.recv_multipart(zmq.DONTWAIT)
                message, buffers = decode(frames, Channel.DATA)
            except zmq.Again:
                return
            except WireError:
                continue
            self._feed(FromPeer(Sender(link.member.key, MEMBER, link.member.name), message, buffers))

    # --- the worker ---------------------------------------------------------------------------------------------------

    def _hire(self) -> None:
        try:
            self._worker = self._start_worker()
        except OSError as error:
            self._feed(WorkerDied(FailureCause.CRASHED, f"no worker can be started: {error}"))
            return
        self._worker_events = zmq.POLLIN
        self._poller.register(self._worker.socket.fileno(), zmq.POLLIN)

    def _fire(self) -> None:
        if self._worker is not None:
            self._poller.unregister(self._worker.socket.fileno())
            self._worker.kill()
            self._worker = None

    def _watch_worker(self) -> None:
        """Poll for room in the pipe only while something waits for it."""
        if self._worker is None:
            return
        events = zmq.POLLIN | (zmq.POLLOUT if self._worker.wants_write else 0)
        if events != self._worker_events:
            self._worker_events = events
            self._poller.modify(self._worker.socket.fileno(), events)

    def _read_worker(self) -> None:
        worker = self._worker
        worker.flush()
        messages: list[tuple[Message, Any]] = []
        reason: tuple[str, str] | None = None
        try:
            messages = worker.receive()
        except WireError as error:
            reason = (FailureCause.CRASHED, f"the worker broke the protocol: {error}")
        for message, buffers in messages:
            if self._worker is worker:
                self._feed(FromWorker(message, buffers))
        if self._worker is worker and (worker.closed or reason is not None):
            reason = reason or worker.exit_reason()
            self._fire()
            self._feed(WorkerDied(*reason))

    # --- pairing ------------------------------------------------------------------------------------------------------

    def _welcome_visitor(self) -> None:
        try:
            visitor, _ = self._door.listener.accept()
        except OSError:
            return
        visitor.setblocking(False)
        reply = self.desk.arrive(time.monotonic())
        if reply.close:
            _answer(visitor, reply)
            visitor.close()
            return
        self._visitor = visitor
        self._poller.register(visitor.fileno(), zmq.POLLIN)

    def _read_visitor(self) -> None:
        try:
            data = self._visitor.recv(PAIRING_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return
        reply = self.desk.receive(data, time.monotonic())
        if reply.paired is not None:
            peer = Peer(name=reply.paired.name, key=reply.paired.key, date=time.strftime("%Y-%m-%d"))
            try:
                keys.add_peer(self._state_dir, peer)
            except AgentError as error:  # not kept: then it must not believe that it is paired
                self._note(str(error))
                self._hang_up()
                return
            self._load_peers()
            self._note(f"paired with {peer.name} ({keys.fingerprint(peer.key)})")
        _answer(self._visitor, reply)
        if reply.close:
            self._hang_up()

    def _hang_up(self) -> None:
        self.desk.leave()
        if self._visitor is not None:
            self._poller.unregister(self._visitor.fileno())
            self._visitor.close()
            self._visitor = None


def _answer(visitor: Any, reply: Reply) -> None:
    with suppress(OSError):  # some hundred bytes: they fit into any socket's buffer
        visitor.sendall(reply.data)
