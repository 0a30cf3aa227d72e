"""The loop: messages, worker, pairing and time go into the core as events, and its actions are
carried out.

One thread, one wait. The heartbeat socket is looked at first and no source may take more than its
share of a round, so that a device that is busy still answers.
"""

import time
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from potluck_agent import fault_log, keys
from potluck_agent.core.events import (
    MEMBER,
    ON_OWN_LINKS,
    OWNER,
    Action,
    Event,
    FromPeer,
    KeepLeases,
    KeptOrder,
    KillWorker,
    LimitWorker,
    LinkReset,
    MayStay,
    MustLeave,
    PeerDevice,
    PeerRevoked,
    ReadMeter,
    RemoveKept,
    Report,
    Sender,
    SetMembers,
    Span,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
    Undone,
    WorkerDied,
)
from potluck_agent.core.machine import Core
from potluck_agent.core.pairing_window import PairingWindow
from potluck_agent.errors import AgentError
from potluck_agent.keys import Identity, TrustedPeer
from potluck_agent.net.emulated_load import loaded
from potluck_agent.net.event_log import EventLog
from potluck_agent.net.fair_receive import FairReceiver
from potluck_agent.net.kept_files import KeptFiles
from potluck_agent.net.lease_writes import LeaseWrites
from potluck_agent.net.meter_reader import KeptMeter, MeterSource
from potluck_agent.net.multipart import hand_over
from potluck_agent.net.owner_status import view
from potluck_agent.net.pairing_listener import PairingListener
from potluck_agent.net.peer_connections import PeerConnections
from potluck_agent.net.poller import Poller
from potluck_agent.net.server_sockets import ServerSockets, check_library, self_test
from potluck_agent.net.socket_memory import MAX_STRANGERS, InboundConnection, SocketMemory
from potluck_agent.net.worker_pool import WorkerPool
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.limits import LINGER_MS, MAX_CHUNK_BYTES, MAX_UNREAD_BYTES, WINDOW_BYTES
from potluck_wire.messages import MESSAGES, NUMBER_OF, Channel, FailureCause, Reading
from potluck_wire.pairing import Paired

TICK_S = 0.2
EVENTS_AT_ONCE = 256  # connections that came or went; strangers make a thousand a second

_ZEROS = memoryview(bytes(MAX_CHUNK_BYTES))


class _Route(NamedTuple):
    """The way to a peer: what ZeroMQ calls its connection, and that connection."""

    name: bytes
    inlet: InboundConnection | None


class EventLoop:
    """The agent's sockets and its loop. `start_worker()` gives a new worker link.

    `meter` is read when asked for.

    `journal` is told what the owner may want to read. `may_rest`: as for `WorkerSupervisor`,
    `most_strangers`: as for `SocketMemory`.
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
        trusted: tuple[TrustedPeer, ...],
        start_worker: Callable[[], Any],
        meter: MeterSource,
        journal: EventLog,
        may_rest: bool = False,
        most_strangers: int = MAX_STRANGERS,
    ) -> None:
        check_library()
        self._core = core
        self._identity, self._state_dir = identity, state_dir
        self._trusted = trusted
        self._meter = KeptMeter(meter, time.monotonic())
        self._journal = journal
        self.pairing = PairingWindow(name=name, key=identity.public)
        self.stopping = self._closed = False
        self.load = 1.0
        self._peers_stamp: object = None
        self._is_heard = False  # whether all sockets are listened to
        self._owners: dict[str, TrustedPeer] = {}
        self._members: tuple[PeerDevice, ...] = ()
        self._promises = LeaseWrites(state_dir, self._send, self._feed)
        self._routes: dict[tuple[Channel, str], _Route] = {}
        self._sources = Poller()
        self._workers = WorkerPool(
            self._sources, start_worker, journal.worker_starts, may_rest=may_rest
        )
        self._kept = KeptFiles(state_dir, journal.note)
        self._sources.register(self._kept.descriptor)
        self._context: Any = zmq.Context()
        self._inflow = SocketMemory(most_strangers)
        self._intake = FairReceiver(self._sources, self._inflow, self._take)
        self._links = PeerConnections(
            self._context, self._sources, self._inflow, identity, self._feed, self._blame
        )
        self._load_peers()
        self._context.set(zmq.BLOCKY, False)
        try:
            self._sockets = ServerSockets(self._context, identity, self._admits, host, port)
            self_test(self._context, self._sockets, identity)
        except BaseException:
            self._context.destroy(0)
            self._kept.close()
            raise
        self.port = self._sockets.port
        self._pairing_listener = PairingListener(
            self._sockets.listener,
            self._sources,
            self.pairing,
            self._trust,
            state_dir,
            journal,
            core.fault,
        )
        self._sockets.refused = journal.refused
        self._sources.register(self._sockets.zap)
        self._listen()

    # --- the loop ---------------------------------------------------------------------------------

    def run(self, each_tick: Callable[[], None]) -> None:
        """Serve until `stopping` is set; `each_tick` is called some times a second."""
        next_tick_s = time.monotonic()
        try:
            while not (self.stopping or self._core.has_left):
                now_s = time.monotonic()
                if now_s >= next_tick_s:
                    next_tick_s = now_s + TICK_S
                    self._tick(now_s)
                    self._guarded(each_tick)
                if self._wake_s(next_tick_s) <= now_s:
                    self._feed(Tick())
                self._guarded(self._workers.supply)
                until_s = self._wake_s(next_tick_s)
                self._round(self._sources.wait(max(0.0, until_s - time.monotonic())))
        finally:
            self.close()

    def _wake_s(self, next_tick_s: float) -> float:
        try:
            wake_s = self._core.wake_s()
        except Exception as error:
            self._perform(self._core.survive(Tick(), error, time.monotonic()))
            wake_s = self._core.wake_s()
        return next_tick_s if wake_s is None else min(next_tick_s, wake_s)

    def _round(self, ready: Container[Any]) -> None:
        """Everything that has something to say gets its share, the urgent first."""
        for channel, monitor in self._sockets.monitors.items():
            if monitor in ready:
                self._guarded(self._hear, channel, monitor, EVENTS_AT_ONCE)
        for channel in (Channel.PULSE, Channel.CONTROL):
            if self._sockets.routers.get(channel) in ready:
                self._intake.read(channel, self._sockets.routers)
        self._guarded(self._promises.write)
        if self._sockets.zap in ready:
            self._guarded(self._sockets.answer_zap)
        if self._workers.has_news(ready):
            self._read_workers(ready)
            self._guarded(self._workers.supply)
        if self._kept.descriptor in ready:
            self._feed(*self._kept.news())
        if self._sockets.routers.get(Channel.DATA) in ready:
            self._intake.read(Channel.DATA, self._sockets.routers)
            self._guarded(self._workers.supply)
        self._guarded(self._links.serve, ready)
        self._guarded(self._pairing_listener.serve, ready)

    def _guarded(self, step: Callable[..., None], *given: Any) -> None:
        """The last line of defence of what is no event of the core's."""
        try:
            step(*given)
        except Exception as error:
            self._core.fault(getattr(step, "__qualname__", step), error)

    def _hear(self, channel: Channel, monitor: Any, most: int | None = None) -> None:
        self._inflow.hear(self._sockets.routers[channel], monitor, self._sources, most)

    def _tick(self, now_s: float) -> None:
        self._guarded(self._look_at_peers)
        if not self._is_heard:
            self._guarded(self._listen_by, self._sockets.listen_again)
        self._guarded(self._pairing_listener.tick, now_s)
        self._guarded(self._links.tick, now_s)
        self._guarded(self._cut_full)
        self._guarded(self._workers.listen)
        self._guarded(self._end_hung, now_s)
        self._guarded(self._start_workers)
        self._guarded(self._meter.tick, now_s, *self._core.spent_s)
        self._feed(Tick())

    def _look_at_peers(self) -> None:
        try:
            self._load_peers()
            self._journal.note_state(keys.PEERS, "")
        # somebody broke the file, or it cannot be read now: those who were trusted stay, and it is
        # read again at the next tick
        except (AgentError, OSError) as error:
            self._journal.note_state(keys.PEERS, f"the peers cannot be read: {error}")

    def _cut_full(self) -> None:
        n_windows = len(self._links) * max(1, len(self._core.sessions))
        most_bytes = MAX_UNREAD_BYTES + n_windows * WINDOW_BYTES
        if n_cut := self._inflow.check(most_bytes, self._sources.is_empty):
            self._journal.cut(n_cut, most_bytes)

    def _end_hung(self, now_s: float) -> None:
        self._feed(*self._workers.hung(now_s, self._core.is_working))

    def leave(self, reason: str, within_s: float, *, for_good: bool = False) -> None:
        """The device has to leave: notebooks are told, and have so long to move elsewhere.

        `for_good`: then the loop ends.
        """
        self._journal.leaves(reason)
        self._feed(MustLeave(reason=reason, within_s=within_s, for_good=for_good))
        if for_good and not self._core.has_left:
            self._journal.waits(within_s)

    def stay(self) -> None:
        """It need not leave any more."""
        self._journal.stays()
        self._feed(MayStay())

    def state(self) -> dict[str, Any]:
        """What goes on, for the owner who asks."""
        return view(self._core, self._owners)

    def close(self) -> None:
        """Give everything back: worker, sockets, ports. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._workers.kill_all()
        self._kept.close()
        self._links.close()
        self._pairing_listener.hang_up()
        self._sources.close()
        self._sockets.close()
        self._context.destroy(LINGER_MS)

    # --- peers ------------------------------------------------------------------------------------

    def _admits(self, key: str) -> bool:
        return key in self._owners or key in self._links

    def _load_peers(self) -> None:
        """The owners, read again when the file has changed.

        Whoever is not in it any more is cut off at once.
        """
        path = self._state_dir / keys.PEERS
        try:
            stat = path.stat()
            stamp: object = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        except FileNotFoundError:
            stamp = None
        if stamp == self._peers_stamp and self._owners:
            return
        owners = {peer.key: peer for peer in (*keys.load_peers(self._state_dir), *self._trusted)}
        self._peers_stamp = stamp
        lost, self._owners = [key for key in self._owners if key not in owners], owners
        was_connected = [key for key in lost if any(known == key for _, known in self._routes)]
        self._link_members()
        for key in lost:
            self._feed(PeerRevoked(key))
        if was_connected:
            self._reopen()

    def _reopen(self) -> None:
        """Cut every connection; the trusted ones come back by themselves."""
        for channel, router in self._sockets.routers.items() if self._is_heard else ():
            self._sources.unregister(router)
            self._sources.unregister(self._sockets.monitors[channel])
            self._inflow.forget(router)
        self._is_heard = False
        self._routes.clear()
        self._listen_by(self._sockets.reopen)

    def _listen_by(self, step: Callable[[], None]) -> None:
        """Somebody may have taken a port of ours meanwhile: it is tried at each tick then."""
        try:
            step()
        except AgentError as error:
            self._journal.note_state("ports", str(error))
        else:
            self._journal.note_state("ports", "")
            self._listen()

    def _listen(self) -> None:
        for source in (*self._sockets.routers.values(), *self._sockets.monitors.values()):
            self._sources.register(source)
        self._intake.begin()
        self._is_heard = True

    def _trust(self, paired: Paired) -> bool:
        try:
            self._load_peers()  # one that was forgotten just now begins anew
            keys.add_peer(self._state_dir, TrustedPeer(name=paired.name, key=paired.key))
            self._load_peers()
        except AgentError as error:
            self._journal.note(str(error))
            return False
        self._journal.paired(paired.name, paired.key)
        return True

    def _link_members(self) -> None:
        """To those of whom a notebook tells, never to a notebook; who is neither is cut off."""
        self._links.set(tuple(each for each in self._members if each.key not in self._owners))
        for way in [way for way in self._routes if not self._admits(way[1])]:
            self._inflow.cut(self._routes.pop(way).inlet)

    def _sender(self, key: str) -> Sender | None:
        """Who has this key now: checked for each message, because a connection outlives the trust
        in it.
        """
        owner = self._owners.get(key)
        if owner is not None:
            return Sender(key=key, role=OWNER, name=owner.name)
        link = self._links.get(key)
        return Sender(key=key, role=MEMBER, name=link.member.name) if link is not None else None

    # --- messages in ------------------------------------------------------------------------------

    def _take(self, channel: Channel, route: bytes, frames: list[Any]) -> None:
        try:
            key = str(frames[0].get("User-Id"))
        except (zmq.ZMQError, UnicodeDecodeError):
            return
        router, known = self._sockets.routers[channel], self._routes.get((channel, key))
        is_new = known is None or known.name != route
        if is_new:  # that it came may be told behind much else: strangers make thousands a second
            self._hear(channel, self._sockets.monitors[channel])
        inlet = self._inflow.over(router, frames)
        if (sender := self._sender(key)) is None:  # it came in before it was nobody any more
            self._inflow.cut(inlet)
            return
        if is_new:
            self._routes[channel, key] = _Route(route, inlet)
            self._inflow.cut(known and known.inlet)  # one at a time: what waits is sent again
            if known is not None and channel is Channel.DATA:
                self._feed(LinkReset(key=key, outgoing=key not in self._links))
        # the greeting of a new connection: now there is a way back
        if len(frames) == 1 and not len(frames[0]):
            self._core.reach(key)
            return
        try:
            message, buffers = decode(
                [frames[0].bytes, *(frame.buffer for frame in frames[1:])], channel
            )
        except WireError as error:
            self._perform(self._core.malformed(key, channel, error))
            return
        except Exception as error:
            self._blame(key, error)
            return
        self._feed(FromPeer(sender=sender, message=message, buffers=buffers))

    def _feed(self, *events: Event) -> None:
        for event in events:
            self._perform(self._handle(event))

    def _handle(self, event: Event) -> list[Action]:
        now_s = time.monotonic()
        try:
            actions = self._core.handle(event, now_s)
        # the last line of defence: whoever it came from is given up, the agent goes on
        except Exception as error:
            actions = self._core.survive(event, error, now_s)
        self._journal.saw(event, self._core.sessions, self._owners)
        return actions

    def _blame(self, key: str, error: Exception) -> None:
        """What this peer sent could not even be read, for a reason that nobody foresaw."""
        self._perform(self._core.survive(LinkReset(key=key), error, time.monotonic()))

    # --- actions ----------------------------------------------------------------------------------

    def _perform(self, actions: list[Action]) -> None:
        while actions:
            undone = []
            for action in actions:
                try:
                    self._do(action)
                # the others are carried out all the same: the core counts on them
                except Exception as error:
                    undone.append(Undone(action, fault_log.what_failed(action, error)))
            actions = [action for event in undone for action in self._handle(event)]

    def _do(self, action: Action) -> None:
        action = loaded(action, self.load) if self.load != 1.0 else action
        match action:
            case ToPeer():
                self._send(action)
            case Store():
                with suppress(LookupError):
                    self._workers.store(action)
            case ToWorker():
                self._workers.hold(action)
            case StartWorker():
                self._workers.ask(action.worker, time.monotonic())
                self._start_workers()
            case LimitWorker():
                self._workers.limit(action)
            case KillWorker():
                self._workers.kill(action.worker)
                self._journal.worker_ends(action)
            case SetMembers():
                self._members = action.members
                self._link_members()
            case ReadMeter():
                self._read_meter(action)
            case KeepLeases():
                self._promises.add(action)
            case KeptOrder() | RemoveKept():
                self._kept.do(action, self._workers.view)
            case Report():
                self._journal.fault(action.text, fault_log.FILE)
                fault_log.keep(self._state_dir, action.text)

    def _send(self, action: ToPeer) -> None:
        channel = MESSAGES[NUMBER_OF[type(action.message)]].channel
        link = self._links.get(action.key) if isinstance(action.message, ON_OWN_LINKS) else None
        route = self._routes.get((channel, action.key)) if link is None else None
        if route is None and (link is None or link.socket is None):
            return
        try:
            frames = encode(action.message, [self._bytes(part) for part in action.buffers])
        except LookupError as error:
            self._journal.note(f"cannot send {type(action.message).__name__}: {error}")
            return
        socket = self._sockets.routers[channel] if link is None else link.socket
        self._sources.use(socket)
        try:
            hand_over(socket, frames if route is None else [route.name, *frames])
            self._inflow.sent(route and route.inlet, channel, frames)
        except zmq.Again:  # it does not read
            if route is not None:
                self._inflow.cut(route.inlet)
            elif link is not None:
                link.broken = True
        except zmq.ZMQError:  # it is gone, and its silence is noticed elsewhere
            pass

    def _bytes(self, part: bytes | memoryview | Span) -> bytes | memoryview:
        if isinstance(part, Span):
            return _ZEROS[: part.nbytes] if part.arena == "zeros" else self._workers.view(part)
        return part

    def _start_workers(self) -> None:
        self._feed(*self._workers.start_due(time.monotonic()))

    def _read_workers(self, ready: Container[Any]) -> None:
        for number in self._workers.numbers:
            try:
                for event in self._workers.news(number, ready, time.monotonic()):
                    self._feed(event)
            except Exception as error:
                died = WorkerDied(FailureCause.CRASHED, "what it says cannot be read", number)
                self._perform(self._core.survive(died, error, time.monotonic()))

    def _read_meter(self, action: ReadMeter) -> None:
        now_s = time.monotonic()
        sample = self._meter.read(now_s, action.busy_s, action.radio_s)
        reading = Reading(
            at_s=now_s,
            watts=sample.watts,
            joules=sample.joules,
            source=sample.source,
            meter=sample.meter,
            resolution_w=sample.resolution_w,
            busy_frac=action.busy_frac,
            battery_frac=_charge(sample.battery_frac) if action.tells_battery else -1.0,
        )
        self._send(ToPeer(key=action.key, message=reading))


def _charge(charge_frac: float | None) -> float:
    return -1.0 if charge_frac is None else charge_frac
