"""A worker that was taken over. It works as it should until a moment comes, and then does one row
of `DOES`.

    python -m potluck.testing.hostile_worker FILE start --name jetson ...

starts a real agent whose workers are such ones; each reads from FILE, when it is started, the name
of its row.
"""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.testing.malformed_bytes import DOCUMENTS, header, nested_header
from potluck_wire.messages import (
    NUMBER_OF,
    Channel,
    Compute,
    Computed,
    ComputeFailed,
    Configure,
    Freed,
    LoadSegment,
    MeasuredTask,
    MeasureTask,
    Message,
    SegmentLoaded,
    WorkerReady,
)
from potluck_wire.stream import StreamReader, pack

FACTS = json.dumps({"backends": {"torch": "2"}, "dtypes": ["float32"], "operators": []}).encode()
HONEST = "honest"


@dataclass(frozen=True, slots=True)
class WorkerMisbehaviour:
    """Instead of answering a message of the type `at`, these bytes."""

    at: type[Message]
    says: Callable[[Message], bytes]


def _frames(*frames: bytes) -> bytes:
    """Frames on the pipe, whatever is in them."""
    return struct.pack(f">{1 + len(frames)}I", len(frames), *map(len, frames)) + b"".join(frames)


def _facts(document: bytes) -> WorkerMisbehaviour:
    return WorkerMisbehaviour(
        Configure, lambda _: _frames(header(NUMBER_OF[WorkerReady]), document)
    )


def _done(order: Message, document: bytes = b"[]", **fields: object) -> bytes:
    known = {"tag": getattr(order, "tag", 0), "start_s": 0.0, "stop_s": 0.0}
    return _frames(header(NUMBER_OF[Computed], **(known | fields)), document)


def _export(
    offset: object = 0, nbytes: object = 8, dtype: object = "float32", shape: object = (2,)
) -> WorkerMisbehaviour:
    """A row of exports with one thing wrong."""

    def says(order: Message) -> bytes:
        keys = getattr(order, "exports", ()) or ("nobody/asked",)
        return _done(
            order, json.dumps([[key, offset, nbytes, dtype, shape] for key in keys]).encode()
        )

    return WorkerMisbehaviour(Compute, says)


def _exports(document: bytes) -> WorkerMisbehaviour:
    return WorkerMisbehaviour(Compute, lambda order: _done(order, document))


def _times(start_s: object, stop_s: object) -> WorkerMisbehaviour:
    return WorkerMisbehaviour(Compute, lambda order: _done(order, start_s=start_s, stop_s=stop_s))


def _measured(**fields: object) -> WorkerMisbehaviour:
    number = NUMBER_OF[MeasuredTask]
    return WorkerMisbehaviour(
        MeasureTask,
        lambda order: _frames(header(number, task=getattr(order, "task", ""), **fields)),
    )


DOES: dict[str, WorkerMisbehaviour] = {
    **{f"facts: {name}": _facts(document) for name, document in DOCUMENTS.items()},
    "facts: too many operators": _facts(json.dumps({"operators": ["x"] * 5000}).encode()),
    "facts: more than a notebook reads": _facts(
        json.dumps(json.loads(FACTS) | {"operators": ["x" * 500] * 600}).encode()
    ),
    **{f"exports: {name}": _exports(document) for name, document in DOCUMENTS.items()},
    "exports: behind the memory": _export(offset=2**53),
    "exports: before the memory": _export(offset=-64),
    "exports: larger than any value": _export(nbytes=2**53, shape=(2**51,)),
    "exports: other bytes than its shape": _export(nbytes=4096),
    "exports: an unknown type": _export(dtype="object"),
    "exports: a shape of a thousand": _export(shape=(1,) * 1000),
    "exports: nobody asked for it": WorkerMisbehaviour(
        Compute, lambda o: _done(o, b'[["a/b/c/d/e",0,8,"float32",[2]]]')
    ),
    "times: infinite": _times(0.0, float("inf")),
    "times: no numbers": _times(float("nan"), float("nan")),
    "times: in a thousand years": _times(0.0, 1e11),
    "times: beyond any sum": _times(-1e308, 1e308),
    "measured: other batch sizes": _measured(rows=[7] * 100, forward_s=[0.1] * 100),
    "measured: nothing": _measured(),
    "measured: time runs backwards": _measured(rows=[1], forward_s=[-1.0], memory_bytes=[1]),
    "frees what it never had": WorkerMisbehaviour(
        Compute, lambda o: _done(o, freed=[0, 0, 64, 2**53]) + pack(Freed(offset=1))
    ),
    "fails as no task can": WorkerMisbehaviour(
        Compute, lambda o: pack(ComputeFailed(tag=getattr(o, "tag", 0), cause="peer-lost"))
    ),
    "answers what nobody asked": WorkerMisbehaviour(
        Compute, lambda o: pack(ComputeFailed(tag=2**53)) + pack(SegmentLoaded(slot="x"))
    ),
    "a header that is nested": WorkerMisbehaviour(
        Compute, lambda _: _frames(nested_header(NUMBER_OF[Computed], "tag"), b"[]")
    ),
    "a message of the agent's": WorkerMisbehaviour(Compute, lambda _: pack(Configure())),
    "a message of the network's": WorkerMisbehaviour(
        LoadSegment, lambda _: _frames(header(1, major=1))
    ),
    "a frame of four gigabytes": WorkerMisbehaviour(
        LoadSegment, lambda _: struct.pack(">II", 1, 2**32 - 1)
    ),
    "no frames": WorkerMisbehaviour(LoadSegment, lambda _: struct.pack(">I", 0)),
    "half a message": WorkerMisbehaviour(LoadSegment, lambda _: pack(SegmentLoaded(slot="x"))[:-1]),
    "ready twice": WorkerMisbehaviour(
        LoadSegment, lambda _: _frames(header(NUMBER_OF[WorkerReady]), FACTS) * 2
    ),
}


def honest(order: Message) -> bytes:
    """What a worker says that does nothing and does it right."""
    match order:
        case Configure():
            return pack(WorkerReady(), [FACTS])
        case LoadSegment():
            return pack(SegmentLoaded(slot=order.slot))
        case Compute():
            now_s = time.monotonic()
            rows = [[key, 64 * index, 8, "float32", [2]] for index, key in enumerate(order.exports)]
            return pack(
                Computed(tag=order.tag, start_s=now_s, stop_s=now_s), [json.dumps(rows).encode()]
            )
        case MeasureTask():
            times = (0.1,) * len(order.rows)
            back = times if order.train else ()
            measured = MeasuredTask(
                task=order.task,
                rows=order.rows,
                forward_s=times,
                backward_s=back,
                memory_bytes=(1,) * len(times),
            )
            return pack(measured)
    return b""


def serve(pipe: socket.socket, does: WorkerMisbehaviour | None) -> None:
    """Answer the agent until it is gone."""
    reader = StreamReader(Channel.WORKER)
    while data := pipe.recv(65536):
        for order, _ in reader.feed(data):
            wrong = does is not None and isinstance(order, does.at)
            pipe.sendall(does.says(order) if does is not None and wrong else honest(order))


def start_agent(file: Path, arguments: Sequence[str]) -> int:
    """A real agent whose workers run this file."""
    from potluck_agent.cli import arguments as reading
    from potluck_agent.cli.main import run
    from potluck_agent.worker import launch

    launch.PROGRAM = (str(Path(__file__).resolve()), str(file.resolve()))
    return run(reading.read(list(arguments)))


if __name__ == "__main__":
    if sys.argv[2:3] == ["start"]:
        sys.exit(start_agent(Path(sys.argv[1]), sys.argv[2:]))
    name = Path(sys.argv[1]).read_text(encoding="utf-8")
    try:
        serve(socket.socket(fileno=int(sys.argv[2])), DOES.get(name))
    except (ConnectionError, ValueError):
        os._exit(1)
