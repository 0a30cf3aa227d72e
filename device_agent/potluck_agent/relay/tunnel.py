"""The device's side of a relay: it keeps a connection to the relay, and makes one more for each
visitor.

In a thread of its own, beside the agent's loop: what crosses here is encrypted between the visitor
and the agent's sockets, to which it is handed as if the visitor had connected to them.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck_agent.net import socket_memory
from potluck_agent.net.own_addresses import ANYWHERE
from potluck_agent.net.server_sockets import N_PORTS, endpoint
from potluck_agent.net.socket_memory import SocketMemory
from potluck_agent.relay.handshake import NoGate
from potluck_agent.relay.invitations import Invitation
from potluck_agent.relay.joined_streams import Budget, TcpStream, connect, join
from potluck_wire.bounded_receive import MessageReader
from potluck_wire.dealer_sockets import set_up_dealer
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.limits import (
    LINGER_MS,
    RELAY_DIAL_OFFSET,
    RELAY_GONE_S,
    RELAY_HANDSHAKE_S,
    RELAY_IDLE_S,
    RELAY_KEEP_S,
    RELAY_MAX_ADMITTED_EACH,
    RELAY_MAX_FRAME_BYTES,
    RELAY_MAX_PENDING,
    RELAY_MAX_UNREAD_BYTES,
    TICKET_BYTES,
)
from potluck_wire.messages import Channel, Dial, Register, Registered
from potluck_wire.version import VERSION

AGAIN_S = 1.0  # after a failure
STOP_S = 3.0
LAST_PORT = 65536 - N_PORTS
AT_ONCE = 64  # messages in one round
CHECK_S = 0.5  # between looks at how much waits of what a relay has said
# visitors at a time, whatever a relay says: what a true one asks for at most
MAX_JOINED = RELAY_MAX_ADMITTED_EACH + RELAY_MAX_PENDING
_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}  # noqa: S104


class Tunnel:
    """Keeps the agent at `host` and `port` reachable through a relay until it is closed.

    `note(about, text)` is told where it is reached, and why it is not; "" when that is over.
    """

    def __init__(
        self, invitation: Invitation, host: str, port: int, note: Callable[[str, str], None]
    ) -> None:
        self._invitation, self._note = invitation, note
        self._agent_host = _LOCAL[host] if host in ANYWHERE else host
        self._agent_port = port
        self._joined: set[asyncio.Task[None]] = set()
        self._stop: Callable[[], None] = lambda: None
        self._began = threading.Event()
        self.address = ""
        self._thread = threading.Thread(target=self._run, name="potluck relay", daemon=True)
        self._thread.start()
        self._began.wait()

    @property
    def state(self) -> str:
        """Where others reach this device, or that they do not."""
        return self.address or f"{self._invitation.relay} does not answer yet"

    def close(self) -> None:
        """Be reached no longer; twice is fine."""
        self._stop()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        loop = asyncio.SelectorEventLoop()  # the one that waits for ZeroMQ's sockets, everywhere
        task = loop.create_task(self._keep())
        self._stop = lambda: self._cancel(loop, task)
        self._began.set()
        try:
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
            loop.run_until_complete(self._end_joined())
        finally:
            loop.close()

    @staticmethod
    def _cancel(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(task.cancel)

    async def _end_joined(self) -> None:
        for task in tuple(self._joined):
            task.cancel()
        await asyncio.gather(*self._joined, return_exceptions=True)

    async def _keep(self) -> None:
        """Connect, and again whenever the relay is silent: it, or this device, may have another
        address by then.
        """
        name, port = self._invitation.address
        loop = asyncio.get_running_loop()
        while True:
            try:
                found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
                await self._stay(str(found[0][4][0]), port)
                reason = f"it has said nothing for {RELAY_GONE_S:g} s"
            # UnicodeError: of a name that no host can have
            except (OSError, UnicodeError, zmq.ZMQError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            self.address = ""
            self._note("relay", f"not reached through the relay {self._invitation.relay}: {reason}")
            await self._end_joined()
            await asyncio.sleep(AGAIN_S)

    async def _stay(self, host: str, port: int) -> None:
        """Registered, until nothing is heard any more."""
        loop = asyncio.get_running_loop()
        context: Any = zmq.Context()
        dealer: Any = context.socket(zmq.DEALER)
        memory, reader = SocketMemory(), MessageReader(Channel.RELAY)
        news = asyncio.Event()
        secret = self._invitation.secret
        public = zmq.curve_public(secret.encode()).decode()
        try:
            set_up_dealer(dealer, host, self._invitation.key, public, secret)
            dealer.maxmsgsize = RELAY_MAX_FRAME_BYTES
            dealer.sndhwm = AT_ONCE
            monitor = dealer.get_monitor_socket(socket_memory.WATCHED)
            dealer.connect(endpoint(host, port))
            loop.add_reader(dealer.get(zmq.FD), news.set)
            heard_s, next_s = loop.time(), loop.time()
            while loop.time() - heard_s < RELAY_GONE_S:
                if loop.time() >= next_s:
                    next_s = loop.time() + RELAY_KEEP_S
                    with suppress(zmq.Again):
                        dealer.send_multipart(
                            encode(Register(major=VERSION[0], minor=VERSION[1])), zmq.DONTWAIT
                        )
                news.clear()
                with suppress(zmq.Again):
                    while True:
                        memory.watch(dealer, recv_monitor_message(monitor, zmq.DONTWAIT))
                memory.check(RELAY_MAX_UNREAD_BYTES, lambda socket: not socket.poll(0))
                n_heard = self._hear(dealer, reader, memory, (host, port))
                heard_s = loop.time() if n_heard else heard_s
                if n_heard < AT_ONCE:  # else there may be more
                    with suppress(asyncio.TimeoutError):
                        wait_s = min(next_s - loop.time(), CHECK_S)
                        await asyncio.wait_for(news.wait(), max(wait_s, 0.0))
                else:
                    await asyncio.sleep(0)
        finally:
            loop.remove_reader(dealer.get(zmq.FD))
            dealer.disable_monitor()
            context.destroy(LINGER_MS)

    def _hear(
        self, dealer: Any, reader: MessageReader, memory: SocketMemory, relay: tuple[str, int]
    ) -> int:
        """What the relay says; returns how many messages were read."""
        for number in range(AT_ONCE):
            try:
                frames = reader.read(lambda: dealer.recv(zmq.DONTWAIT, copy=False))
            except zmq.Again:
                return number
            if not frames:
                continue
            memory.read(dealer, frames)
            try:
                message, _ = decode([frame.bytes for frame in frames], Channel.RELAY)
            except WireError:
                continue
            if isinstance(message, Registered):
                self._registered(message)
            elif isinstance(message, Dial) and len(self._joined) < MAX_JOINED:
                self._dial(message, *relay)
        return AT_ONCE

    def _registered(self, message: Registered) -> None:
        host = self._invitation.relay.rpartition(":")[0]
        is_possible = message.port <= LAST_PORT
        self.address = f"{host}:{message.port}" if message.port and is_possible else ""
        why = message.text if is_possible else f"it names port {message.port}, which is none"
        self._note(
            "relay",
            f"reached through a relay at {self.address}"
            if self.address
            else f"the relay {self._invitation.relay} does not take visitors: {why}",
        )

    def _dial(self, message: Dial, host: str, port: int) -> None:
        """To one of the agent's four ports, and to nothing else."""
        if message.offset >= N_PORTS or len(message.ticket) != TICKET_BYTES:
            return
        task = asyncio.ensure_future(self._join(message, host, port))
        self._joined.add(task)
        task.add_done_callback(self._joined.discard)

    async def _join(self, message: Dial, host: str, port: int) -> None:
        streams: list[TcpStream] = []
        with suppress(OSError, asyncio.TimeoutError):
            try:
                for place in (
                    (host, port + RELAY_DIAL_OFFSET),
                    (self._agent_host, self._agent_port + message.offset),
                ):
                    streams.append(await asyncio.wait_for(connect(*place), RELAY_HANDSHAKE_S))
                relay, agent = streams
                relay.writer.write(message.ticket)
                await join(relay, agent, NoGate(), budget=Budget(0), idle_s=RELAY_IDLE_S)
            finally:
                for stream in streams:
                    stream.abort()
