"""The one thread of a home that talks to the agents: ZeroMQ sockets in, controller events;
controller actions, sockets out.

Three CURVE connections per agent (control, data, pulse).
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from socket import getaddrinfo
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck.errors import HomeError, PotluckError
from potluck.sessions import answering_addresses, failures
from potluck.sessions.connections import AT_ONCE, OFFSETS, AgentConnection, Keys
from potluck.sessions.events import Address, Connect, ConnectionLost, Tick
from potluck.sessions.link import SessionLink
from potluck_wire.errors import WireCode, WireError
from potluck_wire.frames import encode
from potluck_wire.limits import MAX_QUEUED, MAX_UNREAD_BYTES
from potluck_wire.messages import Channel, Goodbye
from potluck_wire.name_resolution import UNKNOWN, Resolver, resolve

TICK_S = 0.1
_NOT_CURVE = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
# Handshakes that must fail on one socket before that means another key. One that took longer than
# HANDSHAKE_S looks the same, as does one with an agent that just ends; of the former only two fit
# into JOIN_S. libzmq tries again itself.
_FAILED_OFTEN = 3


class CurveLink(SessionLink):
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
        super().__init__(name)
        self._keys = keys
        self._resolver = resolver or Resolver(partial(resolve, getaddrinfo), threading.Thread)
        self._context: zmq.Context[Any] = zmq.Context()
        self._connections: dict[str, AgentConnection] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._waking = threading.Lock()  # nobody writes to a number that is somebody else's by then
        os.set_blocking(self._wake_write, False)
        self._poller = zmq.Poller()
        self._poller.register(self._wake_read, zmq.POLLIN)
        # socket -> device, channel, is it a monitor
        self._sources: dict[Any, tuple[str, Channel, bool]] = {}
        self._start()

    def answering(self, places: Mapping[str, Sequence[Address]]) -> Mapping[str, Sequence[Address]]:
        """Those where somebody answers; for whoever asks it takes two seconds at most."""
        return answering_addresses.answering(places, self._keys)

    # --- the thread -------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._is_own_thread:  # which looks before it sleeps
            return
        with self._waking, suppress(OSError):  # a full pipe wakes it as well
            if self._wake_write >= 0:
                os.write(self._wake_write, b"w")

    def _loop(self) -> None:
        next_tick_s = time.monotonic()
        try:
            while not self._closing:
                wait_s = max(next_tick_s - time.monotonic(), 0.0)
                for source, _ in self._poller.poll(int(wait_s * 1000) + 1):
                    self._read(source)
                self._go_on()
                if time.monotonic() >= next_tick_s:
                    next_tick_s = time.monotonic() + TICK_S
                    self._connect_waiting()
                    self._end_floods()
                    self._feed(Tick())
                    self._flush()
                    self._go_on()
        finally:
            self._shut_down()

    def _read(self, source: Any) -> None:
        if source == self._wake_read:
            os.read(self._wake_read, 4096)
            return
        if source not in self._sources:  # what was read before it closed it
            return
        device, channel, is_monitor = self._sources[source]
        if is_monitor:
            self._read_monitor(device, channel, source)
            return
        for frames in self._connections[device].messages(channel):
            is_message = self._take(device, channel, frames)
            if not is_message or source not in self._sources:
                return

    def _read_monitor(self, device: str, channel: Channel, monitor: Any) -> None:
        for _ in range(AT_ONCE):
            try:
                seen = recv_monitor_message(monitor, zmq.DONTWAIT)
            except zmq.Again:
                return
            self._watch_socket(device, channel, seen)
            if monitor not in self._sources:
                return

    def _end_floods(self) -> None:
        """Part from devices that send more than is read of them, and no whole message perhaps; and
        from those that do not read.
        """
        for device, connection in tuple(self._connections.items()):
            unread_bytes, n_unsent = connection.unread_bytes(), connection.n_unsent
            if unread_bytes > MAX_UNREAD_BYTES:
                text = f"{unread_bytes} bytes are unread, at most {MAX_UNREAD_BYTES}"
            elif n_unsent > MAX_QUEUED:
                text = f"it does not read: {n_unsent} messages wait for it, at most {MAX_QUEUED}"
            else:
                continue
            error = WireError(WireCode.SIZE, text)
            self._feed(ConnectionLost(device=device, error=failures.broke(device, error)))

    def _watch_socket(self, device: str, channel: Channel, seen: dict[str, Any]) -> None:
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
            error = failures.cut_off(device, address)
        # refused: nobody listens at that port
        elif happened == zmq.EVENT_CLOSED and not connection.trusted:
            error = failures.unreachable(device, address)
        if error is not None:
            self._feed(ConnectionLost(device=device, error=error))

    # --- sockets ----------------------------------------------------------------------------------

    def _connected(self) -> tuple[str, ...]:
        return tuple(self._connections)

    def _connect(self, action: Connect) -> None:
        """Connect, if the address is known by now.

        Until then what is for the device waits in its backlog.
        """
        connection = self._connections.setdefault(action.device, AgentConnection(action))
        host = self._resolver.address(action.address.host)
        if host == UNKNOWN:
            error = failures.unreachable(action.device, str(action.address))
            self._following.append(ConnectionLost(device=action.device, error=error))
        elif host is not None:
            self._open(connection, host)

    def _connect_waiting(self) -> None:
        for connection in tuple(self._connections.values()):
            if not connection.sockets:
                self._carry_out(connection.wanted)

    def _open(self, connection: AgentConnection, host: str) -> None:
        for channel in OFFSETS:
            connection.open(self._context, channel, host, self._keys)
            self._register(connection.sockets[channel], connection.wanted.device, channel, False)
            self._register(connection.monitors[channel], connection.wanted.device, channel, True)

    def _register(self, socket: Any, device: str, channel: Channel, is_monitor: bool) -> None:
        self._sources[socket] = (device, channel, is_monitor)
        self._poller.register(socket, zmq.POLLIN)

    def _disconnect(self, device: str) -> None:
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
            socket.close()

    def _send(self, device: str, channel: Channel, frames: list[Any]) -> None:
        if (connection := self._connections.get(device)) is not None:
            connection.send(channel, frames)

    def _flush(self) -> None:
        for connection in self._connections.values():
            for channel in connection.sockets:
                connection.flush(channel)

    def _shut_down(self) -> None:
        self._end_futures()
        for device, connection in tuple(self._connections.items()):
            with suppress(zmq.ZMQError, KeyError):  # one that is not connected yet has no sockets
                connection.sockets[Channel.CONTROL].send_multipart(
                    encode(Goodbye(reason="closed")), zmq.DONTWAIT
                )
            self._disconnect(device)
        self._context.term()
        self._poller.unregister(self._wake_read)
        with self._waking:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1
