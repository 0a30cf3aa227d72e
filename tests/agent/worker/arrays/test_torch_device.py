"""Segments on an accelerator of torch: meta tensors show that nothing is left on the CPU, and the
CPU under another name that values come and go as they should.
"""

import json

import pytest
import torch
from tests.agent.worker.test_memory import NETWORKS, ROWS, Silent, graph_of
from tests.agent.worker.test_threads import product
from tests.agent.worker.worker_driver import LINEAR, MIB, numbers

from potluck_agent.allocator import Allocator
from potluck_agent.worker import available_memory, measure
from potluck_agent.worker.arena import Arena
from potluck_agent.worker.arrays import torch_arrays, torch_device
from potluck_agent.worker.arrays.torch_device import CPU, DeviceArrays
from potluck_agent.worker.engine import WorkerEngine
from potluck_agent.worker.failures import cause_of
from potluck_agent.worker.onnx.segment import OnnxSegment
from potluck_agent.worker.shared_state import SharedWeightSegment
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.graph import Graph, Input, Node, Output, Ref, SegmentError, Symbol
from potluck_wire.messages import Compute, ComputeFailed, Configure, Limit, LoadSegment, Put

META = torch.device("meta")
OPTIMIZERS = [
    {"name": "sgd", "lr": 0.1},
    {"name": "momentum", "lr": 0.1, "momentum": 0.9},
    {"name": "adamw", "lr": 0.1},
]
FREE_BYTES = 4 * MIB


class Counters:
    """The module that torch has for a kind of device, over the CPU."""

    def __init__(self):
        self.allocated_bytes, self.is_lost = 0, False

    def memory_allocated(self, device):
        return self.allocated_bytes

    def memory_reserved(self, device):
        return self.allocated_bytes

    def mem_get_info(self, device):
        return FREE_BYTES - self.allocated_bytes, FREE_BYTES

    def synchronize(self):
        if self.is_lost:
            raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.fixture
def counters(monkeypatch):
    made = Counters()
    monkeypatch.setattr(torch, "get_device_module", lambda device: made)
    yield made
    available_memory.look_at(None)


def devices_of(tensors):
    return {tensor.device.type for tensor in tensors}


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer["name"])
@pytest.mark.parametrize("name", NETWORKS)
def test_all_that_a_segment_makes_is_on_its_device(name, optimizer):
    made = TrainingSegment(graph_of(NETWORKS[name]), device=META)
    for step in range(2):
        outputs = made.forward(
            made.example(ROWS), key="k", train=True, rows=(0, ROWS, 2 * ROWS), step=step
        )
        gradients = made.backward("k")
        vector = made.gradients()
        made.step(vector, optimizer)
        assert devices_of((*outputs, *gradients, vector)) == {"meta"}
    states = [name for name in made.names() if not name.startswith("step:")]
    assert devices_of(map(made.read, states)) == {"meta"}
    assert devices_of(made.forward(made.example(ROWS))) == {"meta"}


NUMBERS = Graph(
    inputs=(Input(name="x", dtype="float32", shape=("batch", 3)),),
    nodes=(
        Node(number=0, op="aten.arange.default", args=(3,)),
        Node(number=1, op="aten.add.Tensor", args=(Ref(0), Ref(1))),
    ),
    outputs=(Output(name="y", ref=Ref(2), dtype="float32", shape=("batch", 3)),),
    symbols=(Symbol(name="batch", input=0, dim=0),),
)


def test_a_tensor_made_of_numbers_alone_is_on_the_device_too():
    weight_source = TrainingSegment(NUMBERS, device=META)
    for made in (weight_source, SharedWeightSegment(NUMBERS, weight_source, META)):
        (output,) = made.forward([torch.zeros(2, 3, device="meta")])
        assert (output.device.type, output.shape) == ("meta", (2, 3))


class Worker:
    """An engine in this process, and what it says."""

    def __init__(self, **configure):
        self.pipe = Silent()
        self.inbound = Arena(MIB)
        self.outbound = Arena(MIB)
        self.buffers = []
        self.pipe.send = self.send
        self.engine = WorkerEngine(
            Configure(backends=("torch",), memory_bytes=MIB, **configure),
            self.inbound,
            self.outbound,
            self.pipe,
        )
        self.places = Allocator(MIB)

    def send(self, message, buffers=(), *, urgent=False):
        self.pipe.sent.append(message)
        self.buffers.append(buffers)

    def put(self, key, tensor):
        raw = tensor.numpy().tobytes()
        offset = self.places.allocate(len(raw))
        self.inbound.view(offset, len(raw))[:] = raw
        put = Put(
            value=key, offset=offset, nbytes=len(raw), dtype="float32", shape=tuple(tensor.shape)
        )
        self.engine.handle(put, ())
        return offset

    def compute(self, op, attrs=(), **fields):
        fields = {name: tuple(value) for name, value in fields.items()}
        order = Compute(op=op, slot="r/0/s", **fields)
        self.engine.handle(order, [json.dumps(dict(attrs)).encode()])
        rows = json.loads(self.buffers[-1][0]) if self.buffers[-1] else []
        return [self.taken(*row) for row in rows]

    def taken(self, key, offset, nbytes, dtype, shape):
        raw = bytearray(self.outbound.view(offset, nbytes))
        return torch.frombuffer(raw, dtype=getattr(torch, dtype)).reshape(shape)

    def step(self):
        """A forward and backward run and a step of the optimizer: all that leaves."""
        self.engine.handle(LoadSegment(slot="r/0/s", seed=3), [LINEAR])
        self.put("r/0/p/0/w", numbers(2, 3) / 10)
        self.put("r/0/p/0/b", numbers(2))
        self.compute("assign", {"names": ["w", "b"]}, inputs=("r/0/p/0/w", "r/0/p/0/b"))
        self.put("r/0/p/0/x", numbers(4, 3))
        self.put("r/0/p/0/g", numbers(4, 2))
        y, dx = ("r/0/p/0/y",), ("r/0/p/0/dx",)
        exported = self.compute(
            "run", {"train": True, "key": "k"}, inputs=("r/0/p/0/x",), outputs=y, exports=y
        )
        exported += self.compute(
            "backward", {"key": "k"}, inputs=("r/0/p/0/g",), outputs=dx, exports=dx
        )
        self.compute("step", {"optimizer": {"name": "adamw", "lr": 0.1}})
        keys = ("r/0/p/0/nw", "r/0/p/0/m")
        return exported + self.compute(
            "state", {"names": ["w", "exp_avg:b"]}, outputs=keys, exports=keys
        )


def test_values_are_copied_to_the_device_and_back_and_their_places_are_free_at_once(counters):
    worker, reference = Worker(device="cpu:0"), Worker()
    for answer, expected in zip(worker.step(), reference.step(), strict=True):
        assert torch.equal(answer, expected)
    place = worker.put("r/0/p/0/again", numbers(5))
    freed = [message.offset for message in worker.pipe.sent if hasattr(message, "offset")]
    assert freed[-1] == place


def test_memory_is_counted_on_the_device(counters):
    worker = Worker(device="cpu:0")
    worker.step()
    exported_bytes = worker.pipe.sent[-1].memory_bytes
    counters.allocated_bytes = 12_345
    worker.compute("")
    assert worker.pipe.sent[-1].memory_bytes == 12_345 + exported_bytes
    # the limit that the agent has told, then what is free there
    assert available_memory.available_bytes() == MIB - 12_345
    assert DeviceArrays(CPU, 2 * FREE_BYTES).available_bytes() == FREE_BYTES - 12_345
    counters.allocated_bytes = 2 * MIB
    with pytest.raises(SegmentError) as caught:
        available_memory.require(2 * MIB, "its result")
    assert caught.value.cause == "out-of-memory"


def test_what_tensors_may_take_there_is_as_the_agent_said_last(counters):
    worker = Worker(device="cpu:0")
    counters.allocated_bytes = 12_345
    worker.engine.handle(Limit(memory_bytes=MIB // 2), ())
    assert available_memory.available_bytes() == MIB // 2 - 12_345
    worker.engine.handle(Limit(memory_bytes=MIB), ())
    assert available_memory.available_bytes() == MIB - 12_345


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.8 GiB",
        "XPU out of memory. Tried to allocate 2.00 GiB",
        "MPS backend out of memory (MPS allocated: 9.05 GB, other allocations: 1 MB)",
    ],
)
def test_a_device_without_memory_ends_the_task_and_not_the_worker(text, counters, monkeypatch):
    worker = Worker(device="cpu:0")
    worker.step()

    def full(*_, **__):
        raise torch.OutOfMemoryError(text)

    monkeypatch.setattr(torch.autograd, "backward", full)
    worker.compute(
        "run", {"train": True, "key": "f"}, inputs=("r/0/p/0/x",), outputs=("r/0/p/0/z",)
    )
    worker.compute("backward", {"key": "f"}, inputs=("r/0/p/0/g",), outputs=("r/0/p/0/dz",))
    failed = worker.pipe.sent[-1]
    assert isinstance(failed, ComputeFailed)
    assert failed.cause == "out-of-memory" == cause_of(torch.OutOfMemoryError(text))[0]


def test_a_device_that_is_lost_ends_the_worker(counters):
    worker = Worker(device="cpu:0")
    counters.is_lost = True
    with pytest.raises(RuntimeError, match="device-side assert"):
        worker.compute("slice", {"start": 0, "stop": 1}, inputs=("r/0/p/0/none",))


def test_a_type_that_the_device_lacks_is_refused_with_those_that_it_has(counters, monkeypatch):
    monkeypatch.setattr(torch_device, "dtypes_of", lambda device: ("float16", "int64"))
    worker = Worker(device="cpu:0")
    worker.engine.handle(LoadSegment(slot="r/0/s", seed=3), [LINEAR])
    failed = worker.pipe.sent[-1]
    assert failed.text.endswith(
        "is float32; this device's accelerator computes with float16, int64"
    )
    worker.put("r/0/p/0/x", numbers(4))
    assert "float32, which this device does not compute with" in worker.pipe.sent[-2].text


def test_the_cpu_computes_with_every_type():
    assert set(torch_device.dtypes_of(CPU)) == set(torch_device.torch_arrays.DTYPES)


@pytest.mark.long
def test_every_time_that_is_measured_is_that_of_finished_work(counters, monkeypatch):
    """A device goes on computing when its operators have returned."""
    arrays, unfinished = DeviceArrays(CPU, MIB), []
    counters.synchronize = unfinished.clear
    honest = measure.taken_s

    def watched(work, slowdown):
        unfinished.append("this work")
        took_s = honest(work, slowdown)
        assert unfinished == []
        return took_s

    monkeypatch.setattr(measure, "taken_s", watched)
    made = TrainingSegment(graph_of(NETWORKS["cnn"]))
    measure.time_segment(made, (ROWS,), train=True, repeats=1, slowdown=1.0, arrays=arrays)
    assert len(measure.time_updates(made, ROWS, repeats=1, slowdown=1.0, arrays=arrays)) == 3
    assert measure.overhead_s(1.0, arrays) > 0
    assert measure.copy_bytes_per_s(1.0, arrays) > 0


def test_segments_of_onnx_take_and_give_tensors_of_the_device(counters):
    pytest.importorskip("onnxruntime")
    x, arrays = numbers(64, 256) / 2**14, DeviceArrays(CPU, MIB)
    (answer,) = OnnxSegment(product(), arrays).forward([x])
    assert torch.equal(answer, OnnxSegment(product(), torch_arrays).forward([x])[0])
