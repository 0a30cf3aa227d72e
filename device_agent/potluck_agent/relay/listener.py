"""A port of a relay: of who connects, so many of one address in a second have anything done for
them. All others are hung up on at once, so that those who are in are served meanwhile.
"""

import asyncio
import errno
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from potluck_agent.relay.joined_streams import READ_BYTES, TcpStream
from potluck_agent.relay.visits import ArrivalRate, origin

BACKLOG = 1024  # that the system keeps until they are taken
AT_ONCE = 64  # connections of one port before everything else has its turn
PAUSE_S = 0.5  # where the system has no more descriptors or memory for them
_GONE_AT_ONCE = struct.pack("ii", 1, 0)  # nothing waits in the system for a stranger's last word
_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class CountingListener:
    """Listens from now on; `serve(stream, origin)` is awaited for each who comes in.

    Raises
    ------
    OSError
        The port is taken, or the address is not this machine's.
    """

    def __init__(
        self,
        host: str,
        port: int,
        arrivals: ArrivalRate,
        serve: Callable[[TcpStream, str], Awaitable[None]],
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._listening.setblocking(False)
        self._arrivals, self._serve = arrivals, serve
        self._loop = asyncio.get_running_loop()
        self._begun: set[asyncio.Task[None]] = set()
        self._listen()

    def close(self) -> None:
        """Nobody comes in any more; those who have stay."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()

    def _listen(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._take)

    def _take(self) -> None:
        for _ in range(AT_ONCE):
            try:
                tcp, (address, *_) = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NONE_LEFT:
                    self._loop.remove_reader(self._listening)
                    self._loop.call_later(PAUSE_S, self._listen)
                    return
                continue  # it is gone again
            came_from = origin(address)
            if self._arrivals.admit(came_from, time.monotonic()):
                task = asyncio.ensure_future(self._begin(tcp, came_from))
                self._begun.add(task)
                task.add_done_callback(self._begun.discard)
            else:
                with suppress(OSError):
                    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _GONE_AT_ONCE)
                tcp.close()

    async def _begin(self, tcp: socket.socket, came_from: str) -> None:
        tcp.setblocking(False)
        reader = asyncio.StreamReader(READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, tcp)
        except OSError:
            tcp.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        await self._serve(TcpStream(reader, writer), came_from)
