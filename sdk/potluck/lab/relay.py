"""Links in user space, where there are no namespaces: one process that all connections of a lab go
through, at the pace of their media. It passes on bytes that it cannot read: they are encrypted end
to end.

Run as a process: reads one JSON line (network, agents), prints one (the port of each agent here),
then reads lines that each say one thing that happens: a method of `Relay` with what it is given. It
ends when its input does, which is when whoever started it is gone.
"""

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import psutil

from potluck.lab.airtime import Airtime
from potluck.records import HOME, Medium, Network, Path
from potluck_wire.limits import HANDSHAKE_S

PORTS = 4  # of an agent: control, pairing, data, pulse
AHEAD_S = 0.02  # how much waits here for its turn: this process is not woken to the millisecond
HOST = "127.0.0.1"
TRIES = 50
KNOCK_S = 0.1  # between two attempts to reach an agent, which may just be coming back
KNOCKS = int(HANDSHAKE_S / KNOCK_S)  # then whoever calls has given up


class Relay:
    """`agents`: the first port of each, by name.

    They are children of the process that started this one.
    """

    def __init__(self, network: Network, agents: dict[str, int]) -> None:
        self._airtime, self._agents = Airtime(network, Random(0)), agents
        self._processes = _processes(agents)
        self._directions: dict[int, _Direction] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._background: set[int] = set()

    async def listen(self) -> dict[str, int]:
        """A run of ports for each agent; returns the first ones."""
        return {name: await self._listen(name, port) for name, port in self._agents.items()}

    # --- what happens to the media ----------------------------------------------------------------

    def shape(self, medium: str, bytes_per_s: float) -> None:
        """Let a medium carry so much from now on."""
        self._airtime.shape(medium, bytes_per_s, self._loop.time())
        self._look()

    def lose(self, medium: str, loss_frac: float) -> None:
        """Let a medium lose this part of what crosses it from now on."""
        self._airtime.lose(medium, loss_frac, self._loop.time())
        self._look()

    def flow(self, source: str, target: str, lasts_s: float) -> None:
        """Let somebody else send, as much as gets through."""
        number = self._airtime.fill(source, target, self._loop.time())
        self._background.add(number)
        self._loop.call_later(lasts_s, self._end, number)
        self._look()

    def calm(self) -> None:
        """End what somebody else sends."""
        for number in tuple(self._background):
            self._end(number)

    def _end(self, number: int) -> None:
        if number in self._background:
            self._background.discard(number)
            self._airtime.close(number, self._loop.time())
            self._look()

    # --- connections ------------------------------------------------------------------------------

    async def _listen(self, target: str, port: int) -> int:
        for _ in range(TRIES):
            first = await self._serve(target, port, 0)
            first_port = int(first.sockets[0].getsockname()[1])
            servers = [first]
            try:
                for offset in range(1, PORTS):
                    servers.append(await self._serve(target, port + offset, first_port + offset))
                return first_port
            except (OSError, OverflowError):
                for server in servers:
                    server.close()
        raise OSError("no run of free ports was found")

    async def _serve(self, target: str, port: int, own_port: int) -> asyncio.Server:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._join(target, port, reader, writer)

        return await asyncio.start_server(accept, HOST, own_port)

    async def _join(
        self, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # beside the loop: on a busy machine 20 of them at once take seconds, and heartbeats must go
        # on
        source = await asyncio.to_thread(self.source_of, writer.get_extra_info("peername")[1])
        for _ in range(KNOCKS):
            try:
                answers, onwards = await asyncio.open_connection(HOST, port)
            except OSError:  # a device that is gone does not answer
                await asyncio.sleep(KNOCK_S)
                continue
            await asyncio.gather(
                self._pass(source, target, reader, onwards),
                self._pass(target, source, answers, writer),
            )
            return
        writer.close()

    def source_of(self, port: int) -> str:
        """Whose connection comes from this port: the process's that has it.

        A notebook's that joined is in none.
        """
        for _ in range(2):  # the kernel's table may miss a row, while others come and go
            known = self._processes
            if len(known) <= len(self._agents) or not all(each.is_running() for _, each in known):
                # a device went, and may have come back as another process
                self._processes = _processes(self._agents)
            for name, process in self._processes:
                if port in _ports(process):
                    return name
        return HOME

    async def _pass(
        self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One direction of a connection, until either side ends it."""
        number, size = self._airtime.open(source, target), self._airtime.piece_bytes(source, target)
        direction = self._directions[number] = _Direction(
            writer,
            self._airtime.pieces_in(source, target, AHEAD_S),
            self._airtime.latency_s(source, target),
        )
        delivery = asyncio.create_task(direction.deliver())
        try:
            while piece := await reader.read(size):
                await direction.take(piece)
                self._airtime.put(number, len(piece), self._loop.time())
                self._look()
            await direction.empty()
        except OSError:
            pass
        finally:
            self._airtime.close(number, self._loop.time())
            del self._directions[number]
            direction.end()
            self._look()
            await delivery

    def _look(self) -> None:
        """Hand over what has gone over, and look again when the next piece has."""
        for number, over_s in self._airtime.over(self._loop.time()):
            self._directions[number].hand_over(over_s)
        if self._timer is not None:
            self._timer.cancel()
        next_s = self._airtime.next_s
        self._timer = self._loop.call_at(next_s, self._look) if next_s < float("inf") else None


def _processes(agents: dict[str, int]) -> list[tuple[str, psutil.Process]]:
    """Who started us, the notebook mostly, and the agents: its children that listen where they
    should.

    Kept: with some hundred processes on a busy machine looking for them takes so long that
    handshakes time out.
    """
    parent, names = psutil.Process(os.getppid()), {port: name for name, port in agents.items()}
    found = [
        (names[port], child)
        for child in parent.children()
        for port in _ports(child)
        if port in names
    ]
    return [(HOME, parent), *found]


def _ports(process: psutil.Process) -> set[int]:
    """Where a process's connections begin; nothing once it is gone."""
    with suppress(psutil.Error):
        return {found.laddr.port for found in process.net_connections("tcp4")}
    return set()


class _Direction:
    """What is under way to one end of a connection: waiting for its turn, then for its latency."""

    def __init__(self, writer: asyncio.StreamWriter, room: int, latency_s: float) -> None:
        self._writer = writer
        self._latency_s = latency_s
        self._n_room = room
        self._waiting: deque[bytes] = deque()
        self._room = asyncio.Semaphore(room)
        self._under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take(self, piece: bytes) -> None:
        """One piece more, once there is room for it."""
        await self._room.acquire()
        self._waiting.append(piece)

    def hand_over(self, over_s: float) -> None:
        """The first piece has gone over."""
        self._under_way.put_nowait((over_s + self._latency_s, self._waiting.popleft()))
        self._room.release()

    async def empty(self) -> None:
        """Until nothing waits for its turn."""
        for _ in range(self._n_room):
            await self._room.acquire()

    def end(self) -> None:
        """Nothing comes any more."""
        self._under_way.put_nowait((0.0, b""))

    async def deliver(self) -> None:
        """Write each piece when it is there; nothing is the end."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while True:
                there_s, piece = await self._under_way.get()
                if not piece:
                    break
                await asyncio.sleep(there_s - loop.time())
                self._writer.write(piece)
                await self._writer.drain()
        self._writer.close()


def network_document(network: Network) -> dict[str, Any]:
    """A network as JSON."""
    return {
        "media": {medium.name: medium.capacity_bytes_per_s for medium in network.media},
        "paths": [[*pair, path.media, path.latency_s] for pair, path in network.paths.items()],
    }


def _network(document: dict[str, Any]) -> Network:
    media = tuple(
        Medium(name=name, capacity_bytes_per_s=rate) for name, rate in document["media"].items()
    )
    paths = {
        (source, target): Path(
            media=tuple((name, times) for name, times in crossed), latency_s=latency_s
        )
        for source, target, crossed, latency_s in document["paths"]
    }
    return Network(media=media, paths=paths)


async def _run() -> None:
    loop = asyncio.get_running_loop()
    given = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    relay = Relay(_network(given["network"]), given["agents"])
    sys.stdout.write(json.dumps(await relay.listen()) + "\n")
    sys.stdout.flush()
    commands: dict[str, Callable[..., None]] = {
        "shape": relay.shape,
        "lose": relay.lose,
        "flow": relay.flow,
        "calm": relay.calm,
    }
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *with_these = json.loads(line)
        commands[name](*with_these)
    os._exit(0)  # connections are cut, not closed: their other ends are gone


if __name__ == "__main__":
    asyncio.run(_run())
