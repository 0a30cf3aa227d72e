"""Talk with a real worker process: send, and wait for what must come back."""

import json
import select
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tests.timeouts import TIMEOUT_S

from potluck_agent.allocator import Allocator
from potluck_agent.worker.launch import WorkerLink, start
from potluck_wire import segment
from potluck_wire.graph import Graph, Input, Node, Output, Parameter, Ref, Symbol
from potluck_wire.messages import (
    Compute,
    Computed,
    ComputeFailed,
    Freed,
    LoadSegment,
    Message,
    Put,
    Release,
    SegmentLoaded,
    WorkerReady,
)

MIB = 1 << 20

LINEAR = segment.dumps(
    Graph(
        inputs=(Input(name="x", dtype="float32", shape=("batch", 3), gradient=True),),
        parameters=(
            Parameter(name="w", dtype="float32", shape=(2, 3)),
            Parameter(name="b", dtype="float32", shape=(2,)),
        ),
        nodes=(
            Node(number=0, op="aten.linear.default", args=(Ref(0), Ref(1), Ref(2))),
            Node(number=1, op="aten.tanh.default", args=(Ref(3),)),
        ),
        outputs=(Output(name="y", ref=Ref(4), dtype="float32", shape=("batch", 2), gradient=True),),
        symbols=(Symbol(name="batch", input=0, dim=0),),
    )
)


@dataclass
class Talk:
    """A worker, what it said about itself, and the places freed so far."""

    link: WorkerLink
    statement: dict = field(default_factory=dict)
    freed: list[int] = field(default_factory=list)
    inbound: Allocator | None = None
    waiting: list = field(default_factory=list)

    def next(self) -> tuple[Message, tuple]:
        """The next message; EOFError when the worker is gone."""
        while not self.waiting:
            if self.link.closed:
                raise EOFError(self.link.exit_reason())
            writers = [self.link.socket] if self.link.wants_write else []
            ready = select.select([self.link.socket], writers, [], TIMEOUT_S)
            assert any(ready), "the worker does not answer"
            self.link.flush()
            self.waiting += self.link.receive()
        return self.waiting.pop(0)

    def expect(self, kind: type[Message]) -> tuple:
        """The next message that is no Freed, of this kind: (message, buffers)."""
        while True:
            message, buffers = self.next()
            if isinstance(message, Freed) and kind is not Freed:
                self.freed.append(message.offset)
                continue
            assert isinstance(message, kind), message
            if isinstance(message, Computed):
                self.freed += message.freed
            return message, buffers

    def put(self, key: str, tensor: torch.Tensor) -> int:
        """Hand a value over; its offset."""
        raw = (
            bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
            if tensor.numel()
            else b""
        )
        offset = self.inbound.allocate(len(raw))
        self.link.inbound.view(offset, len(raw))[:] = raw
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        self.link.send(Put(value=key, offset=offset, nbytes=len(raw), dtype=dtype, shape=shape))
        return offset

    def send(self, op: str, attrs: dict | None = None, **fields) -> None:
        """Send a task."""
        self.link.send(Compute(op=op, **fields), [json.dumps(attrs or {}).encode()])

    def compute(self, op: str, attrs: dict | None = None, **fields) -> list[torch.Tensor]:
        """Carry a task out; its exports."""
        self.send(op, attrs, **fields)
        _, (rows,) = self.expect(Computed)
        return [self.take(row) for row in json.loads(bytes(rows))]

    def take(self, row: list) -> torch.Tensor:
        """A copy of an export, whose place is released."""
        _, offset, nbytes, dtype, shape = row
        raw = bytearray(self.link.outbound.view(offset, nbytes))
        self.link.send(Release(offset=offset))
        dtype = getattr(torch, dtype)
        return (
            torch.frombuffer(raw, dtype=dtype).reshape(shape)
            if nbytes
            else torch.empty(shape, dtype=dtype)
        )

    def fails(self, op: str, attrs: dict | None = None, **fields) -> ComputeFailed:
        """The failure of a task."""
        self.send(op, attrs, **fields)
        return self.expect(ComputeFailed)[0]


def begin(
    memory_bytes: int = 64 * MIB,
    slowdown: float = 1.0,
    inbound: int = MIB,
    outbound: int = MIB,
    backends: tuple[str, ...] = (),
    threads: int = 1,
    device: str = "",
    fork_server: Path | None = None,
) -> Talk:
    """A worker that is ready."""
    link = start(
        memory_bytes=memory_bytes,
        threads=threads,
        slowdown=slowdown,
        inbound_bytes=inbound,
        outbound_bytes=outbound,
        backends=backends,
        device=device,
        fork_server=fork_server,
    )
    talk = Talk(link, inbound=Allocator(inbound))
    try:
        _, (statement,) = talk.expect(WorkerReady)
    except BaseException:
        link.kill()
        raise
    talk.statement = json.loads(bytes(statement))
    return talk


def numbers(*shape, start=0.0):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + start


def load(worker, slot="r/0/s", document=LINEAR, weights=True):
    worker.link.send(LoadSegment(slot=slot, seed=3), [document])
    assert worker.expect(SegmentLoaded)[0].slot == slot
    w, b = numbers(2, 3) / 10, numbers(2)
    if weights:
        keys = ("r/0/push/0/w", "r/0/push/0/b")
        for key, tensor in zip(keys, (w, b), strict=True):
            worker.put(key, tensor)
        worker.compute("assign", {"names": ["w", "b"]}, slot=slot, inputs=keys, frees=keys)
    return w.requires_grad_(), b.requires_grad_()
