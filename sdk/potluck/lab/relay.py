"""Links in user space, where there are no namespaces: one process that all connections of a lab go through, at the pace
of their media. It passes on bytes that it cannot read: they are encrypted end to end.

Run as a process: reads one JSON line (network, agents), prints one (the port of each agent here), then reads lines with
new rates of media. It ends when its input does, which is when whoever started it is gone.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

import psutil

from potluck.lab.airtime import Airtime
from potluck.records import HOME, Medium, Network, Path

PORTS = 4  # of an agent: control, pairing, data, pulse
AHEAD_S = 0.05  # how much a flow may have under way behind its first medium
LEAD_S = 0.02  # how much earlier the next piece takes its turn: this process is not woken to the millisecond
HOST = "127.0.0.1"
TRIES = 50


class Relay:
    """`agents`: the first port of each, by name. They are children of the process that started this one."""

    def __init__(self, airtime: Airtime, agents: dict[str, int]) -> None:
        self._airtime, self._agents = airtime, agents

    async def listen(self) -> dict[str, int]:
        """A run of ports for each agent; returns the first ones."""
        return {name: await self._listen(name, port) for name, port in self._agents.items()}

    async def _listen(self, target: str, port: int) -> int:
        for _ in range(TRIES):
            first = await self._serve(target, port, 0)
            here = int(first.sockets[0].getsockname()[1])
            servers = [first]
            try:
                for offset in range(1, PORTS):
                    servers.append(await self._serve(target, port + offset, here + offset))
                return here
            except (OSError, OverflowError):
                for server in servers:
                    server.close()
        raise OSError("no run of free ports was found")

    async def _serve(self, target: str, port: int, here: int) -> asyncio.Server:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._join(target, port, reader, writer)

        return await asyncio.start_server(accept, HOST, here)

    async def _join(self, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = self._source(writer.get_extra_info("peername")[1])
        try:
            there, onwards = await asyncio.open_connection(HOST, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pass(source, target, reader, onwards), self._pass(target, source, there, writer))

    def _source(self, port: int) -> str:
        """Whose connection comes from this port: the agent's that listens in the same process, else the notebook's."""
        for process in psutil.Process(os.getppid()).children():
            with suppress(psutil.Error):
                ports = {found.laddr.port for found in process.net_connections("tcp4")}
                if port in ports:
                    return next((name for name, base in self._agents.items() if base in ports), HOME)
        return HOME

    async def _pass(self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction of a connection, until either side ends it."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivery = asyncio.create_task(_deliver(under_way, writer))
        try:
            while piece := await reader.read(self._airtime.piece_bytes(source, target)):
                now_s = time.monotonic()
                slot = self._airtime.take(source, target, len(piece), now_s)
                under_way.put_nowait((slot.there_s, piece))
                await asyncio.sleep(max(slot.gone_s, slot.there_s - AHEAD_S) - LEAD_S - now_s)
        except OSError:
            pass
        finally:
            under_way.put_nowait((0.0, b""))
            await delivery


async def _deliver(under_way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
    """Hand over each piece when it is there; nothing is the end."""
    with suppress(OSError):
        while True:
            there_s, piece = await under_way.get()
            if not piece:
                break
            await asyncio.sleep(there_s - time.monotonic())
            writer.write(piece)
            await writer.drain()
    writer.close()


def network_document(network: Network) -> dict[str, Any]:
    """A network as JSON."""
    return {
        "media": {medium.name: medium.capacity_bytes_per_s for medium in network.media},
        "paths": [[*pair, path.media, path.latency_s] for pair, path in network.paths.items()],
    }


def _network(document: dict[str, Any]) -> Network:
    media = tuple(Medium(name=name, capacity_bytes_per_s=rate) for name, rate in document["media"].items())
    paths = {
        (source, target): Path(media=tuple((name, times) for name, times in crossed), latency_s=latency_s)
        for source, target, crossed, latency_s in document["paths"]
    }
    return Network(media=media, paths=paths)


async def _run() -> None:
    lines = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    given = json.loads(lines)
    airtime = Airtime(_network(given["network"]))
    relay = Relay(airtime, given["agents"])
    sys.stdout.write(json.dumps(await relay.listen()) + "\n")
    sys.stdout.flush()
    while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        airtime.shape(json.loads(line))
    os._exit(0)  # connections are cut, not closed: their other ends are gone


if __name__ == "__main__":
    asyncio.run(_run())
