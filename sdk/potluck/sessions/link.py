"""The one thread of a home that talks to the agents: ZeroMQ sockets in, controller events;
controller actions, sockets out.

Three CURVE connections per agent (control, data, pulse). Everything else of the SDK hands events to
`ask` or `tell`.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck.errors import DeviceGone, HomeError, PotluckError, ProtocolError
from potluck.sessions import failures
from potluck.sessions.connections import OFFSETS, Connection, Keys
from potluck.sessions.controller import Controller
from potluck.sessions.events import (
    Action,
    CancelExecution,
    Connect,
    Disconnect,
    Event,
    Join,
    Lost,
    Notification,
    Received,
    Reject,
    RequestAll,
    Resolve,
    Send,
    StartExecution,
    Tick,
    UplinkProbe,
)
from potluck.sessions.resolving import UNKNOWN, Resolver
from potluck_wire.errors import WireCode, WireError
from potluck_wire.frames import decode, encode
from potluck_wire.limits import MAX_FRAME_BYTES, MAX_UNREAD_BYTES
from potluck_wire.messages import Channel, Goodbye

TICK_S = 0.1
AT_ONCE = 64  # messages of one socket before the others have their turn
# of one socket, likewise; what has begun to be read is read to its end
BYTES_AT_ONCE = MAX_FRAME_BYTES
CLOSE_S = 2.0
_NOT_CURVE = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
# Handshakes that must fail on one socket before that means another key. One that took longer than
# HANDSHAKE_S looks the same, as does one with an agent that just ends; of the former only two fit
# into JOIN_S. libzmq tries again itself.
_FAILED_OFTEN = 3
# what must not happen and did; silent in an honest home
_FAULTS = logging.getLogger("potluck.faults")


class Link:
    """The background thread; make one per home and `close` it.

    Parameters
    ----------
    keys
        What this notebook is known by.
    """

    def __init__(
        self, keys: Keys, *, name: str = "notebook", resolver: Resolver | None = None
    ) -> None:
        if not zmq.has("curve"):
            raise HomeError(
                f"this libzmq ({zmq.zmq_version()}) cannot encrypt.",
                next_step="Install pyzmq >= 27.3 from PyPI.",
            )
        self._keys, self._resolver = keys, resolver or Resolver()
        self._heard: Callable[[str, Any], None] = lambda device, news: None
        self._name, self._controller = name, Controller(name)
        self._context: zmq.Context[Any] = zmq.Context()
        self._connections: dict[str, Connection] = {}
        self._futures: dict[int, Future[Any]] = {}
        self._submitted: deque[Event] = deque()
        self._following: deque[Event] = deque()  # what actions of the event at hand have led to
        self._lock = threading.Lock()
        self._n_tickets = 0
        self._pid = os.getpid()
        self._closing = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._wake_read, zmq.POLLIN)
        # socket -> device, channel, is it a monitor
        self._sources: dict[Any, tuple[str, Channel, bool]] = {}
        self._thread = threading.Thread(target=self._loop, name="potluck link", daemon=True)
        self._thread.start()
        _open_links.add(self)

    # --- for any thread ---------------------------------------------------------------------------

    def ask(self, event: Join | RequestAll | UplinkProbe | StartExecution) -> "Future[Any]":
        """Submit an event that has a result."""
        self._check()
        future: Future[Any] = Future()
        with self._lock:
            self._n_tickets += 1
            ticket = self._n_tickets
            self._futures[ticket] = future
            self._submitted.append(replace(event, ticket=ticket))
        future.add_done_callback(lambda done: self._abandoned(ticket, done))
        self._wake()
        return future

    def tell(self, event: Event) -> None:
        """Submit an event without a result."""
        self._check()
        self._submitted.append(event)
        self._wake()

    def listen(self, heard: Callable[[str, Any], None]) -> None:
        """Call `heard(device, news)` in the link's thread at each power reading and lost session:
        must be quick.
        """
        self._heard = heard

    def connected(self, device: str) -> bool:
        """Whether a session with it is open."""
        return self._controller.session(device) is not None

    def close(self) -> None:
        """Say goodbye to everybody and end the thread; safe to call twice, and in a forked child
        (where it does nothing)."""
        if self._pid != os.getpid() or self._closing:
            return
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        _open_links.discard(self)

    # --- the thread -------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise HomeError(
                "a home does not survive fork().", next_step="Make a new Home in the child process."
            )
        if self._closing or not self._thread.is_alive():
            raise HomeError("this home is closed.", next_step="Make a new one.")

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # a full pipe wakes it as well
            os.write(self._wake_write, b"w")

    def _abandoned(self, ticket: int, future: "Future[Any]") -> None:
        if future.cancelled() and not self._closing:
            self._submitted.append(CancelExecution(ticket=ticket))
            self._wake()

    def _loop(self) -> None:
        next_tick_s = time.monotonic()
        try:
            while not self._closing:
                wait_s = max(next_tick_s - time.monotonic(), 0.0)
                for source, _ in self._poller.poll(int(wait_s * 1000) + 1):
                    self._read(source)
                while self._submitted:
                    self._feed(self._submitted.popleft())
                if time.monotonic() >= next_tick_s:
                    next_tick_s = time.monotonic() + TICK_S
                    self._connect_waiting()
                    self._end_floods()
                    self._feed(Tick())
                    self._flush()
        finally:
            self._shut_down()

    def _feed(self, event: Event) -> None:
        """Have an event handled, and then what its actions led to: one after the other, never one
        within another.
        """
        self._following.append(event)
        while self._following:
            event, now_s = self._following.popleft(), time.monotonic()
            try:
                actions = self._controller.handle(event, now_s)
            # the last line of defence: one device or one ticket ends, the link goes on
            except Exception as error:
                actions = self._survive(event, error, now_s)
            for action in actions:
                self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        try:
            self._act(action)
        # the others are carried out all the same: somebody waits for them
        except Exception as error:
            _FAULTS.exception("a fault in the link: %s could not be done", type(action).__name__)
            if device := getattr(action, "device", ""):
                text = f"it could not be told or reached ({type(error).__name__}: {error})."
                self._following.append(
                    Lost(device=device, error=ProtocolError(text, device=device))
                )

    def _survive(self, event: Event, error: Exception, now_s: float) -> list[Action]:
        _FAULTS.exception("a fault in the link while handling %.500r", event)
        try:
            return self._controller.survive(event, error, now_s)
        except Exception:  # nothing that is left can be relied on
            _FAULTS.exception("all sessions end")
            self._controller = Controller(self._name)
            ended = ProtocolError(
                "the sessions of this home had to end; this is a fault of potluck's."
            )
            lost = [Notification(device=device, message=ended) for device in self._connections]
            return [
                *(Reject(ticket=ticket, error=ended) for ticket in tuple(self._futures)),
                *lost,
                *(Disconnect(device=heard.device) for heard in lost),
            ]

    def _read(self, source: Any) -> None:
        if source == self._wake_read:
            os.read(self._wake_read, 4096)
            return
        device, channel, is_monitor = self._sources.get(source, ("", Channel.CONTROL, False))
        n_messages = n_bytes = 0
        # what we read may close it
        while n_messages < AT_ONCE and n_bytes < BYTES_AT_ONCE and source in self._sources:
            n_messages += 1
            try:
                if is_monitor:
                    self._watch(device, channel, recv_monitor_message(source, zmq.DONTWAIT))
                    continue
                frames = self._connections[device].read(channel)
            except zmq.Again:
                return
            n_bytes += sum(map(len, frames))
            try:
                message, buffers = decode(frames, channel)
            except WireError as error:
                self._feed(Lost(device=device, error=failures.broke(device, error)))
                return
            except Exception as error:
                _FAULTS.exception("a fault in the link while reading from %s", device)
                text = f"what it says cannot be read ({type(error).__name__})."
                self._feed(Lost(device=device, error=ProtocolError(text, device=device)))
                return
            self._feed(Received(device=device, message=message, buffers=buffers))

    def _end_floods(self) -> None:
        """Part from devices that send more than is read of them, and no whole message perhaps."""
        for device, connection in tuple(self._connections.items()):
            if (unread_bytes := connection.unread_bytes()) > MAX_UNREAD_BYTES:
                text = f"{unread_bytes} bytes are unread, at most {MAX_UNREAD_BYTES}"
                error = WireError(WireCode.SIZE, text)
                self._feed(Lost(device=device, error=failures.broke(device, error)))

    def _watch(self, device: str, channel: Channel, seen: dict[str, Any]) -> None:
        connection, happened = self._connections[device], seen["event"]
        address = str(connection.wanted.address)
        error: PotluckError | None = None
        if happened == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            connection.trusted = True
        elif happened == zmq.EVENT_CONNECTED:
            connection.inflows[channel].opened(seen["value"])
        elif happened == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            error = failures.not_paired(device)
        elif happened & _NOT_CURVE and not connection.trusted:
            connection.failed[channel] += 1
            if connection.failed[channel] == _FAILED_OFTEN:
                error = failures.identity_changed(device, address)
        elif happened == zmq.EVENT_DISCONNECTED and connection.trusted:
            error = DeviceGone(
                f"the connection to {address} broke.",
                device=device,
                next_step="Was its agent stopped? Deploy again.",
            )
        # refused: nobody listens at that port
        elif happened == zmq.EVENT_CLOSED and not connection.trusted:
            error = failures.unreachable(device, address)
        if error is not None:
            self._feed(Lost(device=device, error=error))

    def _act(self, action: Action) -> None:
        match action:
            case Send():
                self._send(action)
            case Resolve():
                self._settle(action.ticket, action.result, None)
            case Reject():
                self._settle(action.ticket, None, action.error)
            case Connect():
                self._connect(action)
            case Disconnect():
                self._disconnect(action.device)
            case Notification():
                with suppress(Exception):  # whoever listens must not stop the link
                    self._heard(action.device, action.message)

    def _settle(self, ticket: int, result: Any, error: PotluckError | None) -> None:
        future = self._futures.pop(ticket, None)
        if future is None:
            return
        with suppress(InvalidStateError):  # cancelled meanwhile
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    # --- sockets ----------------------------------------------------------------------------------

    def _connect(self, action: Connect) -> None:
        """Connect, if the address is known by now.

        Until then what is for the device waits in its backlog.
        """
        connection = self._connections.setdefault(action.device, Connection(action))
        host = self._resolver.address(action.address.host)
        if host == UNKNOWN:
            error = failures.unreachable(action.device, str(action.address))
            self._following.append(Lost(device=action.device, error=error))
        elif host is not None:
            self._open(connection, host)

    def _connect_waiting(self) -> None:
        for connection in tuple(self._connections.values()):
            if not connection.sockets:
                self._carry_out(connection.wanted)

    def _open(self, connection: Connection, host: str) -> None:
        for channel in OFFSETS:
            connection.open(self._context, channel, host, self._keys)
            self._register(connection.sockets[channel], connection.wanted.device, channel, False)
            self._register(connection.monitors[channel], connection.wanted.device, channel, True)

    def _register(self, socket: Any, device: str, channel: Channel, is_monitor: bool) -> None:
        self._sources[socket] = (device, channel, is_monitor)
        self._poller.register(socket, zmq.POLLIN)

    def _disconnect(self, device: str, linger_ms: int = 0) -> None:
        connection = self._connections.pop(device, None)
        if connection is None:
            return
        for channel, socket in connection.sockets.items():
            monitor = connection.monitors[channel]
            for source in (socket, monitor):
                self._poller.unregister(source)
                self._sources.pop(source, None)
            socket.disable_monitor()
            monitor.close(0)
            socket.close(linger_ms if channel is Channel.CONTROL else 0)

    def _send(self, action: Send) -> None:
        connection = self._connections.get(action.device)
        if connection is None:
            return
        try:
            frames = encode(action.message, action.buffers)
        except WireError as error:
            what = type(action.message).__name__
            error_here = ProtocolError(
                f"a {what} for it cannot be sent ({error}).", device=action.device
            )
            self._following.append(Lost(device=action.device, error=error_here))
            return
        connection.send(action.channel, frames)

    def _flush(self) -> None:
        for connection in self._connections.values():
            for channel in connection.sockets:
                connection.flush(channel)

    def _shut_down(self) -> None:
        closed = HomeError("this home was closed.", next_step="Make a new one.")
        for ticket in tuple(self._futures):
            self._settle(ticket, None, closed)
        for device, connection in tuple(self._connections.items()):
            with suppress(zmq.ZMQError, KeyError):  # one that is not connected yet has no sockets
                connection.sockets[Channel.CONTROL].send_multipart(
                    encode(Goodbye(reason="closed")), zmq.DONTWAIT
                )
            self._disconnect(device, linger_ms=200)
        self._context.term()
        self._poller.unregister(self._wake_read)
        with suppress(OSError):
            os.close(self._wake_read)
            os.close(self._wake_write)


_open_links: "weakref.WeakSet[Link]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for link in tuple(_open_links):
        link.close()
