"""Two TCP connections joined: what comes from one goes to the other, in bounded memory."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from potluck_agent.relay.handshake import Gate

READ_BYTES = 64 * 1024
CLOSE_S = 5.0  # for what is on its way when one side has ended
BURST_S = 0.05  # so much of a budget may be spent at once
# A connection that says nothing for so long is asked by the system whether it is there: routers
# forget silent ones, the hastiest after 30 s.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class TcpStream(NamedTuple):
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def abort(self) -> None:
        """End it at once."""
        self.writer.transport.abort()


class Budget:
    """How many bytes may pass in a second, of all connections together, first come, first served.

    `bytes_per_s` 0: as many as come.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._spent_until_s = 0.0

    def take(self, nbytes: int, now_s: float) -> float:
        """How long so many have to wait before they may pass, in seconds."""
        if not self._bytes_per_s:
            return 0.0
        begin_s = max(self._spent_until_s, now_s - BURST_S)
        self._spent_until_s = begin_s + nbytes / self._bytes_per_s
        return max(self._spent_until_s - now_s, 0.0)


async def connect(host: str, port: int) -> TcpStream:
    """A connection to there; OSError where nobody listens."""
    return kept_alive(TcpStream(*await asyncio.open_connection(host, port, limit=READ_BYTES)))


def kept_alive(stream: TcpStream) -> TcpStream:
    """The same, with questions of the system while nothing is said."""
    tcp = stream.writer.get_extra_info("socket")
    with suppress(OSError):
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return stream


async def join(
    visitor: TcpStream,
    device: TcpStream,
    gate: Gate,
    *,
    budget: Budget,
    idle_s: float,
    admitted: Callable[[], bool] = lambda: True,
) -> None:
    """Until one side ends, or nothing has come for `idle_s`; then both are closed.

    `admitted()` is asked when the gate opens, whether there is room; then it goes on, or ends.

    Raises
    ------
    WireError
        The gate let something not pass.
    """
    loop = asyncio.get_running_loop()
    heard_s = loop.time()

    async def copy(source: TcpStream, target: TcpStream, seen: Callable[[bytes], None]) -> None:
        nonlocal heard_s
        while data := await source.reader.read(READ_BYTES):
            heard_s, was_admitted = loop.time(), gate.admitted
            seen(data)
            if gate.admitted and not was_admitted and not admitted():
                return
            if wait_s := budget.take(len(data), loop.time()):
                await asyncio.sleep(wait_s)
            target.writer.write(data)
            await target.writer.drain()

    ways = {
        asyncio.ensure_future(copy(visitor, device, gate.visitor_said)),
        asyncio.ensure_future(copy(device, visitor, gate.device_said)),
    }
    try:
        done: set[asyncio.Future[None]] = set()
        while not done:
            wait_s = heard_s + idle_s - loop.time()
            if wait_s <= 0:
                break
            done, _ = await asyncio.wait(ways, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await asyncio.gather(*map(_close, (visitor, device)))


async def _close(stream: TcpStream) -> None:
    """Let what was written get there, but not for long."""
    stream.writer.close()
    try:
        await asyncio.wait_for(stream.writer.wait_closed(), CLOSE_S)
    except (OSError, asyncio.TimeoutError):
        pass
    finally:
        stream.abort()
