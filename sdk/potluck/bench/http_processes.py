"""The other processes of bench `gateway`: a plain Starlette service of the same model, and the
clients that ask either of them. `python -m potluck.bench.http_processes plain|load OPTIONS...`.
"""

import asyncio
import json
import os
import random
import socket
import sys
import time
from typing import Any

OK = 200
STDOUT = 1


def network(width: int, n_layers: int) -> Any:
    """The model that all sides have."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [m for _ in range(n_layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


def plain(width: int, n_layers: int) -> None:
    """A service as one writes it: the module is called per request, in Starlette's threads."""
    import numpy as np
    import torch
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    net = network(width, n_layers)

    def answer(body: bytes) -> bytes:
        x = torch.from_numpy(np.frombuffer(body, dtype=np.float32).copy().reshape(-1, width))
        with torch.inference_mode():
            return bytes(net(x).numpy().tobytes())

    async def infer(request: Request) -> Response:
        return Response(await run_in_threadpool(answer, await request.body()))

    sock = socket.socket(proto=socket.IPPROTO_TCP)  # for asyncio then sends at once
    sock.bind(("127.0.0.1", 0))
    os.write(STDOUT, f"{sock.getsockname()[1]}\n".encode())
    app = Starlette(routes=[Route("/infer", infer, methods=["POST"])])
    config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off")
    uvicorn.Server(config).run([sock])


def request(side: str, port: int, width: int) -> bytes:
    """One request of one row, as it goes over the wire: the same tensor as bytes on both sides."""
    raw = b"\0" * (4 * width)
    if side == "plain":
        head = (
            f"POST /infer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        return head.encode() + raw
    row = {
        "name": "input",
        "datatype": "FP32",
        "shape": [1, width],
        "parameters": {"binary_data_size": len(raw)},
    }
    document = {"inputs": [row], "parameters": {"binary_data_output": True}}
    header = json.dumps(document).encode()
    head = (
        f"POST /v2/models/net/infer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + len(raw)}\r\n\r\n"
    )
    return head.encode() + header + raw


class ClientConnection:
    """A client's connection, kept open."""

    async def open(self, port: int) -> "ClientConnection":
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def ask(self, message: bytes) -> int:
        """Send a request and read the answer; its status."""
        self._writer.write(message)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith("content-length:"))
        await self._reader.readexactly(length)
        return int(lines[0].split()[1])


async def load(side: str, port: int, width: int, n_clients: int, per_s: float, s: float) -> None:
    """Closed loop (`per_s` 0): every client asks again at once. Open loop: requests come at random
    times, whether earlier ones were answered or not; seconds count from when it should have come.
    """
    message = request(side, port, width)
    taken = list[float]()
    rng = random.Random(1)
    connections = [await ClientConnection().open(port) for _ in range(n_clients)]
    free: asyncio.Queue[ClientConnection] = asyncio.Queue()
    for each in connections:
        if (status := await each.ask(message)) != OK:
            raise ConnectionError(f"the entrance of {side} answers {status}, expected {OK}.")
        free.put_nowait(each)
    begun_s = time.perf_counter()
    n_bad = 0

    async def one(due_s: float, connection: ClientConnection) -> None:
        nonlocal n_bad
        status = await connection.ask(message)
        taken.append(time.perf_counter() - due_s)
        n_bad += status != OK
        free.put_nowait(connection)

    async def again(connection: ClientConnection) -> None:
        while time.perf_counter() < begun_s + s:
            await one(time.perf_counter(), connection)

    if not per_s:
        await asyncio.gather(*(again(each) for each in connections))
    else:
        due_s, tasks = begun_s, []
        while due_s < begun_s + s:
            due_s += rng.expovariate(per_s)
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.append(asyncio.create_task(one(due_s, await free.get())))
        await asyncio.gather(*tasks)
    seconds = time.perf_counter() - begun_s
    taken.sort()
    found = {
        "per_s": (len(taken) - n_bad) / seconds,
        "p50_s": taken[len(taken) // 2],
        "p99_s": taken[int(len(taken) * 0.99)],
        "n_bad": n_bad,
    }
    os.write(STDOUT, f"{json.dumps(found)}\n".encode())


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "plain":
        plain(int(rest[0]), int(rest[1]))
    else:
        asyncio.run(
            load(rest[0], int(rest[1]), int(rest[2]), int(rest[3]), float(rest[4]), float(rest[5]))
        )
