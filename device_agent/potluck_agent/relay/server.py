"""A relay: listens for devices that have no address of their own, and joins their visitors to them.

A visitor connects to one of the device's four ports here, as if the device had this address. The
relay asks the device for a connection, and passes on the bytes of both: the handshake and all that
follows are between the two, and are encrypted. Where a port leads is the device's agent alone, and
only while the device is registered.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck_agent.errors import AgentError
from potluck_agent.keys import Identity
from potluck_agent.log_file import LimitedLines
from potluck_agent.net import socket_memory
from potluck_agent.net.server_sockets import check_library, endpoint, zap_reply
from potluck_agent.net.socket_memory import SocketMemory
from potluck_agent.relay import invitations
from potluck_agent.relay.handshake import SIGNATURE_BYTES, Gate, Handshake, PairingExchange
from potluck_agent.relay.invitations import RelayDevice
from potluck_agent.relay.joined_streams import Budget, TcpStream, join, kept_alive
from potluck_agent.relay.listener import CountingListener
from potluck_agent.relay.visits import ArrivalRate, Visit, Visits, most_crowding
from potluck_wire.errors import WireError
from potluck_wire.file_reading import is_there
from potluck_wire.frames import decode, encode
from potluck_wire.limits import (
    HANDSHAKE_S,
    LINGER_MS,
    PAIRING_OFFSET,
    RELAY_ARRIVALS_AT_ONCE,
    RELAY_ARRIVALS_PER_S,
    RELAY_DEVICES,
    RELAY_DIAL_OFFSET,
    RELAY_GONE_S,
    RELAY_HANDSHAKE_S,
    RELAY_IDLE_S,
    RELAY_MAX_FRAME_BYTES,
    RELAY_MAX_UNREAD_BYTES,
    RELAY_PAIRING_S,
    TICKET_BYTES,
    ZAP_DOMAIN,
)
from potluck_wire.messages import Channel, Dial, Message, Register, Registered
from potluck_wire.version import VERSION

N_PORTS = 4  # of a device: control, pairing, data, pulse
TICK_S = 0.2
AT_ONCE = 64  # messages of one socket before everything else has its turn
MAX_DIALS = 64  # connections of devices that have not said their ticket yet
_ROUTE_AND_HEADER = 2  # frames


class _Registered:
    """A device that takes visitors now: its way back, its ports, and who is connected."""

    def __init__(self, device: RelayDevice, route: bytes) -> None:
        self.device, self.route = device, route
        self.heard_s = time.monotonic()
        self.listeners: list[CountingListener] = []
        self.streams: set[TcpStream] = set()


class RelayServer:
    """`state` holds the devices that are invited, and is read again when it changes.

    `bytes_per_s`: what passes at most, of all devices together; 0: as much as comes. `note(text)`
    is for the owner.

    Raises
    ------
    AgentError
        It cannot listen.
    """

    def __init__(
        self,
        *,
        state: Path,
        identity: Identity,
        host: str,
        port: int,
        bytes_per_s: float,
        note: Callable[[str], None],
    ) -> None:
        check_library()
        self.host, self.port = host, port
        self._state, self._note = state, note
        self._budget = Budget(bytes_per_s)
        self._visits = Visits()
        self._visiting = ArrivalRate(RELAY_ARRIVALS_PER_S, RELAY_ARRIVALS_AT_ONCE)
        # a device dials for visitors of many addresses
        n_dials = RELAY_DEVICES * RELAY_ARRIVALS_PER_S
        self._dialling = ArrivalRate(n_dials, int(n_dials))
        self._devices: dict[str, RelayDevice] = {}
        self._registered: dict[str, _Registered] = {}
        self._streams: dict[Visit, TcpStream] = {}
        self._tickets: dict[bytes, asyncio.Future[TcpStream]] = {}
        self._dials: dict[TcpStream, str] = {}  # with where they come from
        self._tasks: set[asyncio.Task[None]] = set()
        self._stamp: object = None
        self._said = ""
        self._lines = LimitedLines()
        self._memory = SocketMemory()
        self._context: Any = zmq.Context()
        self._context.set(zmq.BLOCKY, False)
        self._load_devices()
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.bind("inproc://zeromq.zap.01")
            self._router = self._listen(identity)
        except zmq.ZMQError as error:
            self._context.destroy(0)
            raise _cannot_listen(host, port, error) from error

    def _listen(self, identity: Identity) -> Any:
        router = self._context.socket(zmq.ROUTER)
        router.linger = LINGER_MS
        router.ipv6 = ":" in self.host
        router.curve_server = True
        router.curve_publickey = identity.public.encode()
        router.curve_secretkey = identity.secret.encode()
        router.zap_domain = ZAP_DOMAIN.encode()
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        router.router_mandatory = True
        router.maxmsgsize = RELAY_MAX_FRAME_BYTES
        router.handshake_ivl = int(HANDSHAKE_S * 1000)
        router.rcvhwm = router.sndhwm = AT_ONCE
        self._monitor = router.get_monitor_socket(socket_memory.WATCHED)
        self._monitor.rcvhwm = 0
        router.bind(endpoint(self.host, self.port))
        return router

    # --- the loop ---------------------------------------------------------------------------------

    async def serve(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Until `stop` is set; `ready()` is called once devices may come.

        Raises
        ------
        AgentError
            The port that devices dial is taken.
        """
        loop = asyncio.get_running_loop()
        sources: tuple[Any, ...] = (self._router, self._zap, self._monitor)
        try:
            dials = self._listener(self._dialled, self.port + RELAY_DIAL_OFFSET, self._dialling)
            try:
                for source in sources:
                    loop.add_reader(source.get(zmq.FD), self._look)
                ready()
                while not stop.is_set():
                    self._tick()
                    self._look()
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(stop.wait(), TICK_S)
            finally:
                for source in sources:
                    loop.remove_reader(source.get(zmq.FD))
                dials.close()
                await self._end_all()
        finally:
            self._router.disable_monitor()
            self._context.destroy(LINGER_MS)

    async def _end_all(self) -> None:
        for key in tuple(self._registered):
            self._drop(key, "")
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listener(
        self, accept: Callable[[TcpStream, str], Any], port: int, arrivals: ArrivalRate
    ) -> CountingListener:
        async def accepted(stream: TcpStream, came_from: str) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await accept(kept_alive(stream), came_from)
            except (OSError, WireError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                pass  # whoever it was is gone, or has no business here
            except asyncio.CancelledError:
                pass  # the relay ends; Python 3.11 would print each such task
            finally:
                self._tasks.discard(task)
                stream.abort()

        try:
            return CountingListener(self.host, port, arrivals, accepted)
        except (OSError, OverflowError) as error:
            raise _cannot_listen(self.host, port, error) from error

    def _look(self) -> None:
        """Read what is there: all of it, or again soon, since ZeroMQ shows it only once."""
        more = [self._drain(step) for step in (self._see_connection, self._answer_zap, self._hear)]
        if any(more):
            asyncio.get_running_loop().call_soon(self._look)

    @staticmethod
    def _drain(step: Callable[[], None]) -> bool:
        """Whether there may be more than was read."""
        try:
            for _ in range(AT_ONCE):
                step()
        except zmq.Again:
            return False
        return True

    def _see_connection(self) -> None:
        event: Any = recv_monitor_message(self._monitor, zmq.DONTWAIT)
        self._memory.watch(self._router, event)

    def _answer_zap(self) -> None:
        frames = self._zap.recv_multipart(zmq.DONTWAIT)
        self._zap.send_multipart(zap_reply(frames, self._devices.__contains__))

    def _tick(self) -> None:
        self._load_devices()
        now_s = time.monotonic()
        for key, registered in tuple(self._registered.items()):
            if key not in self._devices:
                self._drop(key, "is removed")
            elif now_s - registered.heard_s > RELAY_GONE_S:
                self._drop(key, f"has said nothing for {RELAY_GONE_S:g} s")
        self._memory.check(RELAY_MAX_UNREAD_BYTES, lambda socket: not socket.poll(0))

    def _load_devices(self) -> None:
        path = self._state / invitations.DEVICES
        try:
            stat = path.stat() if is_there(path) else None
            stamp = stat and (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if stamp == self._stamp:
                return
            self._devices = {one.key: one for one in invitations.devices(self._state)}
            self._stamp, self._said = stamp, ""
        except (AgentError, OSError) as error:  # those that were invited stay
            if self._said != str(error):
                self._said = str(error)
                self._note(f"the devices cannot be read: {error}")

    # --- devices ----------------------------------------------------------------------------------

    def _hear(self) -> None:
        frames = self._router.recv_multipart(zmq.DONTWAIT, copy=False)
        self._memory.read(self._router, frames)
        try:
            key = str(frames[-1].get("User-Id"))
            if len(frames) != _ROUTE_AND_HEADER or key not in self._devices:
                return
            message, _ = decode([frames[1].bytes], Channel.RELAY)
        except (zmq.ZMQError, UnicodeDecodeError, WireError):
            return
        if isinstance(message, Register):
            self._register(key, frames[0].bytes, message)

    def _register(self, key: str, route: bytes, message: Register) -> None:
        """It is there; from a new address, too: connections by the old one have ended then."""
        if message.major != VERSION[0]:
            text = f"this relay speaks version {VERSION[0]}, the device {message.major}"
            self._say(route, Registered(major=VERSION[0], minor=VERSION[1], text=text))
            return
        known = self._registered.get(key)
        if known is not None and known.route == route:
            known.heard_s = time.monotonic()
            if known.listeners:
                self._welcome(known)
            return
        if known is not None:
            self._drop(key, "has come anew; where that goes on, two devices have its invitation")
        registered = self._registered[key] = _Registered(self._devices[key], route)
        self._spawn(self._open(key, registered))

    def _welcome(self, registered: _Registered) -> None:
        port = registered.device.port(self.port)
        reply = Registered(major=VERSION[0], minor=VERSION[1], port=port)
        self._say(registered.route, reply)

    async def _open(self, key: str, registered: _Registered) -> None:
        """Listen on its four ports."""
        name, first = registered.device.name, registered.device.port(self.port)
        listeners: list[CountingListener] = []
        try:
            for offset in range(N_PORTS):
                accept = partial(self._visit, registered, offset)
                listeners.append(self._listener(accept, first + offset, self._visiting))
        except AgentError as error:
            for listener in listeners:
                listener.close()
            self._tell(name, f"cannot be reached: {error}")
            failed = Registered(major=VERSION[0], minor=VERSION[1], text=str(error))
            self._say(registered.route, failed)
            if self._registered.get(key) is registered:
                del self._registered[key]
            return
        registered.listeners = listeners
        if self._registered.get(key) is not registered:  # it went meanwhile
            self._close(registered)
            return
        self._tell(name, f"is reached at ports {first} to {first + N_PORTS - 1}")
        self._welcome(registered)

    def _drop(self, key: str, why: str) -> None:
        registered = self._registered.pop(key)
        self._close(registered)
        if why:
            self._tell(registered.device.name, why)

    def _tell(self, name: str, what: str) -> None:
        """A device causes such lines by coming and going."""
        for line in self._lines.admitted(name, f"{name} {what}"):
            self._note(line)

    @staticmethod
    def _close(registered: _Registered) -> None:
        for listener in registered.listeners:
            listener.close()
        for stream in tuple(registered.streams):
            stream.abort()

    def _say(self, route: bytes, message: Message) -> bool:
        """Whether somebody is there to hear it."""
        try:
            self._router.send_multipart([route, *encode(message)], zmq.DONTWAIT)
        except zmq.ZMQError:
            return False
        finally:
            asyncio.get_running_loop().call_soon(self._look)  # to send swallows the sign of more
        return True

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- visitors ---------------------------------------------------------------------------------

    async def _visit(
        self, registered: _Registered, offset: int, visitor: TcpStream, came_from: str
    ) -> None:
        """A visitor of one of the device's ports, from its first byte to its last."""
        visit = Visit(registered.device.key, came_from)
        self._streams[visit] = visitor
        registered.streams.add(visitor)
        if (gone := self._visits.arrive(visit)) is not None:
            self._visits.leave(gone)
            self._streams[gone].abort()
        is_pairing = offset == PAIRING_OFFSET
        gate: Gate = PairingExchange() if is_pairing else Handshake()
        within_s = RELAY_PAIRING_S if is_pairing else RELAY_HANDSHAKE_S

        def late() -> None:
            if not gate.admitted:
                visitor.abort()

        timer = asyncio.get_running_loop().call_later(within_s, late)
        try:
            # those who say nothing do not get as far as the device
            first = await asyncio.wait_for(
                visitor.reader.readexactly(1 if is_pairing else SIGNATURE_BYTES), HANDSHAKE_S
            )
            gate.visitor_said(first)
            device = await self._device_stream(registered, offset)
            registered.streams.add(device)
            try:
                device.writer.write(first)
                await join(
                    visitor,
                    device,
                    gate,
                    budget=self._budget,
                    idle_s=RELAY_IDLE_S,
                    admitted=partial(self._visits.admit, visit),
                )
            finally:
                registered.streams.discard(device)
                device.abort()
        finally:
            timer.cancel()
            self._visits.leave(visit)
            del self._streams[visit]
            registered.streams.discard(visitor)

    async def _device_stream(self, registered: _Registered, offset: int) -> TcpStream:
        """A connection that the device makes, for this visitor alone.

        Raises
        ------
        ConnectionError
            It is not there.
        asyncio.TimeoutError
            It did not come.
        """
        ticket = secrets.token_bytes(TICKET_BYTES)
        coming = self._tickets[ticket] = asyncio.get_running_loop().create_future()
        try:
            if not self._say(registered.route, Dial(ticket=ticket, offset=offset)):
                raise ConnectionError(f"{registered.device.name} does not hear")
            return await asyncio.wait_for(asyncio.shield(coming), RELAY_HANDSHAKE_S)
        except BaseException:
            if coming.done():  # it came as we left
                coming.result().abort()
            coming.cancel()
            raise
        finally:
            del self._tickets[ticket]

    async def _dialled(self, stream: TcpStream, came_from: str) -> None:
        """A device that was asked to connect: its ticket says for whom."""
        self._dials[stream] = came_from
        if len(self._dials) > MAX_DIALS:
            gone, _ = most_crowding(self._dials)
            del self._dials[gone]
            gone.abort()
        try:
            ticket = await asyncio.wait_for(stream.reader.readexactly(TICKET_BYTES), HANDSHAKE_S)
        finally:
            self._dials.pop(stream, None)
        coming = self._tickets.get(ticket)
        if coming is None or coming.done():
            return
        coming.set_result(stream)
        await stream.writer.wait_closed()  # whoever waited for it ends it


def _cannot_listen(host: str, port: int, error: Exception) -> AgentError:
    reason = str(getattr(error, "strerror", None) or error).partition(" (addr=")[0]
    return AgentError(
        f"cannot listen on {host}, port {port}: {reason}. Is another relay running? Choose "
        "--bind, or another base port with --port."
    )
