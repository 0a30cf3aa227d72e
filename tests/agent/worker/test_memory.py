"""What a worker held for a model, it holds no longer once the model is gone.

And what it kept nevertheless shows.
"""

import gc
from functools import cache

import pytest
import torch
from tests.agent.worker.worker_driver import MIB, begin
from tests.sdk.graph.models import CASES, Case
from torch import nn

import potluck
from potluck_agent.worker import memory
from potluck_agent.worker.arena import Arena
from potluck_agent.worker.arrays import torch_arrays
from potluck_agent.worker.engine import WorkerEngine
from potluck_agent.worker.measure import time_segment, time_updates
from potluck_agent.worker.training import TrainingSegment
from potluck_wire import segment
from potluck_wire.graph import Graph, Input, Node, Output, Parameter, Ref, Symbol
from potluck_wire.messages import (
    Compute,
    Computed,
    ComputeFailed,
    Configure,
    Forget,
    LoadSegment,
    MeasuredTask,
    MeasureTask,
    SegmentLoaded,
)

ROWS = 8
ADAMW = {
    "name": "adamw",
    "lr": 0.01,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
}
REPEATS = 3
SLACK_BYTES = 256 * 2**10  # what libraries keep at first use, and objects of Python


class Saving(nn.Module):
    """Operators whose backward takes their own output: autograd keeps it together with the graph
    that made it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.flatten(1))
        y = torch.softmax(torch.sigmoid(y), 1) + torch.tanh(y).exp() + nn.functional.elu(y)
        y = nn.functional.max_pool2d(y.view(-1, 1, 16, 16).sqrt(), 2).log_softmax(-1)
        return self.last(nn.functional.adaptive_avg_pool2d(y, 4).flatten(1))


NETWORKS = CASES | {
    "saving": Case(Saving, nn.CrossEntropyLoss(), CASES["cnn"].inputs, CASES["cnn"].targets)
}


@cache
def graph_of(case):
    """All layers of a network, with its loss, as one piece: tracing it takes longest."""
    torch.manual_seed(0)
    x, y = case.inputs(ROWS), case.targets(ROWS)
    model = potluck.Model.from_torch(case.make(), x, loss=case.loss, example_targets=y)
    return model.segment(0, len(model.layers(True)), train=True)[1]


def profiled(graph):
    """What `MeasureTask` does with a segment."""
    made = TrainingSegment(graph)
    time_segment(made, (ROWS // 2, ROWS), train=True, repeats=1, slowdown=1.0, arrays=torch_arrays)
    time_updates(made, ROWS, repeats=1, slowdown=1.0, arrays=torch_arrays)


def trained(graph):
    """What a run does with one, and then goes before the last backward."""
    made = TrainingSegment(graph)
    for step in range(2):
        made.forward(made.example(ROWS), key="k", train=True, rows=(0, ROWS, ROWS), step=step)
        made.backward("k")
        made.step(made.gradients(), ADAMW)
    made.forward(made.example(ROWS), key="left", train=True)


def trained_in_parts(graph):
    """A step of which each backward came in two parts."""
    made = TrainingSegment(graph)
    for micro_batch in range(2):
        inputs = made.example(ROWS)
        made.forward(inputs, key="k", train=True, micro_batch=micro_batch, split=True)
        made.backward_input("k")
        made.backward_weight("k")


@pytest.mark.few(1)
@pytest.mark.parametrize("work", [profiled, trained, trained_in_parts])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_segment_that_is_gone_leaves_no_tensor_even_before_garbage_is_looked_for(name, work):
    graph = graph_of(NETWORKS[name])
    work(graph)
    gc.collect()
    gc.disable()
    try:
        before_bytes = torch_arrays.live_bytes()
        for _ in range(REPEATS):
            work(graph)
        assert torch_arrays.live_bytes() == before_bytes
    finally:
        gc.enable()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_kept_bytes_are_those_that_autograd_keeps(name):
    made = TrainingSegment(graph_of(NETWORKS[name]))
    inputs = made.example(ROWS)
    gc.collect()
    before_bytes = memory.allocated_bytes()
    outputs = made.forward(inputs, key="k", train=True, rows=(0, ROWS, ROWS))
    held_bytes = memory.allocated_bytes() - before_bytes
    del outputs
    counted_bytes = made.kept_bytes(inputs)
    assert counted_bytes > 0
    if memory.COUNTED == "every allocation":  # inputs are counted as kept, but were there before
        assert (
            held_bytes - SLACK_BYTES
            <= counted_bytes
            <= held_bytes + sum(x.nbytes for x in inputs) + SLACK_BYTES
        )


@pytest.fixture(scope="module")
def worker():
    talk = begin(memory_bytes=512 * MIB)
    yield talk
    talk.link.kill()


def wide():
    """Weights of a MiB, so that one leak stands out of what libraries keep."""
    return nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.Softmax(1), nn.Linear(512, 10)
    )


WIDE = Case(wide, nn.CrossEntropyLoss(), lambda n: torch.randn(n, 64), CASES["cnn"].targets)


def held_bytes(talk):
    """What the worker reports that it holds after doing nothing."""
    talk.send("")
    return talk.expect(Computed)[0].memory_bytes


def measure(document, rows=ROWS):
    return MeasureTask(task="t", kind="aten", rows=(rows,), repeats=1, train=True), [document]


@pytest.mark.long
@pytest.mark.parametrize("case", [WIDE, CASES["cnn"]], ids=["wide", "cnn"])
def test_a_worker_that_profiled_and_loaded_a_model_holds_nothing_of_it(worker, case):
    document = segment.dumps(graph_of(case))
    rest_bytes = []
    for _ in range(1 + REPEATS):
        worker.link.send(*measure(document))
        worker.expect(MeasuredTask)
        worker.link.send(LoadSegment(slot="r/0/s", seed=0), [document])
        worker.expect(SegmentLoaded)
        worker.link.send(Forget(prefix="r/0/"))
        rest_bytes.append(held_bytes(worker))
    assert max(rest_bytes) <= SLACK_BYTES, rest_bytes


@pytest.mark.long
def test_a_worker_that_ran_out_of_memory_holds_nothing_of_the_attempt(worker):
    document = segment.dumps(graph_of(WIDE))
    worker.link.send(*measure(document))
    worker.expect(MeasuredTask)
    worker.link.send(*measure(document, rows=2**21))
    assert worker.expect(ComputeFailed)[0].cause == "out-of-memory"
    assert held_bytes(worker) <= SLACK_BYTES


TALL = segment.dumps(
    Graph(
        inputs=(Input(name="x", dtype="float32", shape=("batch", 1024)),),
        parameters=(Parameter(name="w", dtype="float32", shape=(12288, 1024)),),
        nodes=(Node(number=0, op="aten.linear.default", args=(Ref(0), Ref(1))),),
        outputs=(
            Output(name="y", ref=Ref(2), dtype="float32", shape=("batch", 12288), gradient=True),
        ),
        symbols=(Symbol(name="batch", input=0, dim=0),),
    )
)


@pytest.mark.long
def test_a_step_of_adamw_needs_no_more_than_weights_gradients_and_moments():
    # one tensor; with two temporary ones of its size the worker would be out of memory
    weight_bytes = 48 * MIB
    talk = begin(memory_bytes=4 * weight_bytes + 8 * MIB)
    try:
        talk.link.send(LoadSegment(slot="r/0/s", seed=0), [TALL])
        talk.expect(SegmentLoaded)
        for _ in range(2):
            talk.put("r/0/p/0/x", torch.ones(1, 1024))
            talk.put("r/0/p/0/g", torch.ones(1, 12288))
            run = {"key": "k", "train": True, "rows": [0, 1, 1]}
            talk.compute("run", run, slot="r/0/s", inputs=("r/0/p/0/x",), outputs=("r/0/p/0/y",))
            talk.compute("backward", {"key": "k"}, slot="r/0/s", inputs=("r/0/p/0/g",))
            talk.send(
                "step",
                {"optimizer": ADAMW},
                slot="r/0/s",
                frees=("r/0/p/0/x", "r/0/p/0/y", "r/0/p/0/g"),
            )
            held = talk.expect(Computed)[0].memory_bytes
        assert 3 * weight_bytes <= held <= 4 * weight_bytes + MIB
    finally:
        talk.link.kill()


class Silent:
    """A pipe that nobody listens to; keeps what was said."""

    def __init__(self) -> None:
        self.sent, self.outbound_released = [], ()

    def send(self, message, buffers=(), *, urgent=False):
        self.sent.append(message)

    def flush(self):
        pass

    flush_in_time = flush


@pytest.mark.long
def test_a_leak_shows_as_memory_held_until_it_is_mended(monkeypatch):
    """A tensor is not taken for what libraries keep, though there is no segment and no value."""
    pipe = Silent()
    engine = WorkerEngine(Configure(backends=("torch",), threads=1), Arena(MIB), Arena(MIB), pipe)
    document = segment.dumps(graph_of(WIDE))

    def rest_bytes():
        engine.handle(Compute(), [b"{}"])
        return pipe.sent[-1].memory_bytes

    engine.handle(*measure(document))
    before_bytes = rest_bytes()
    leaked, count = [], TrainingSegment.kept_bytes
    monkeypatch.setattr(
        TrainingSegment,
        "kept_bytes",
        lambda *these: leaked.append(torch.ones(MIB)) or count(*these),
    )
    engine.handle(*measure(document))
    assert rest_bytes() - before_bytes == pytest.approx(leaked[0].nbytes, abs=SLACK_BYTES)
    leaked.clear()
    engine.handle(*measure(document))
    leaked.clear()
    engine.handle(Forget(prefix="any/"), ())
    assert abs(rest_bytes() - before_bytes) <= SLACK_BYTES
