"""Memory is looked at before it is taken: for one large value, and for many small ones together."""

from collections import deque

import onnx
import pytest
import torch

from potluck_agent.worker import available_memory
from potluck_agent.worker.arrays import torch_arrays
from potluck_agent.worker.onnx.segment import OnnxSegment
from potluck_agent.worker.onnx.validator import validate
from potluck_agent.worker.optimizers import ParameterOptimizer
from potluck_agent.worker.tasks import WorkerTask, perform
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.graph import Graph, Input, Node, Output, Parameter, Ref, SegmentError, Symbol


class Full:
    """A memory of which nothing is left."""

    def available_bytes(self):
        return 0


@pytest.fixture(autouse=True)
def full():
    available_memory.look_at(Full())
    yield
    available_memory.look_at(None)


def test_a_large_value_is_refused_at_once():
    with pytest.raises(SegmentError, match=r"its result: .* bytes are needed, 0 are left"):
        available_memory.require(available_memory.SMALL_BYTES + 1, "its result")


@pytest.mark.parametrize(
    "nbytes", [available_memory.SMALL_BYTES, available_memory.SMALL_BYTES // 7]
)
def test_small_values_are_refused_before_they_take_the_workers_reserve(nbytes):
    n_values = available_memory.MANY_SMALL_BYTES // nbytes + 1
    with pytest.raises(SegmentError, match="its result"):
        deque((available_memory.require(nbytes, "its result") for _ in range(n_values)), maxlen=0)


def onnx_model(shape, weight=()):
    """A model that adds a weight to an input: without data, where it has a shape."""
    made = onnx.helper
    kind = onnx.TensorProto.FLOAT
    data = [] if weight else [1.0]
    held = onnx.TensorProto(name="w", data_type=kind, dims=weight, float_data=data)
    ports = [made.make_tensor_value_info(name, kind, shape) for name in "xy"]
    graph = made.make_graph(
        [made.make_node("Add", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [held]
    )
    return made.make_model(graph, opset_imports=[made.make_opsetid("", 17)]).SerializeToString()


def large():
    return torch.nn.Parameter(torch.empty(2**20), requires_grad=False)


class Untouched:
    """A segment of one large state."""

    def read(self, name):
        return torch.empty(2**20)


def task(inputs=(), **attrs):
    return WorkerTask(
        inputs=inputs, attrs=attrs, segment=Untouched(), step=0, scope="", arrays=torch_arrays
    )


ASKS = {
    "a weight of an ONNX model": lambda: OnnxSegment(onnx_model([1], [2**40]), torch_arrays),
    "an input made up for one": lambda: OnnxSegment(onnx_model(["batch", 1]), torch_arrays).example(
        2**40
    ),
    "one value, thousands of times": lambda: perform(
        "concat", task([torch.zeros(4096)] * 4096, dim=0)
    ),
    "one state, thousands of times": lambda: perform("state", task(names=["w"] * 4096)),
    "what an optimizer has not kept yet": lambda: ParameterOptimizer({"w": large()}).read(
        "exp_avg:w"
    ),
    "a sum": lambda: perform("add", task([large(), large()])),
}


@pytest.mark.parametrize("ask", ASKS)
def test_what_others_size_is_counted_before_the_allocator_is_asked(ask, monkeypatch):
    for allocator in ("clone", "concat"):
        monkeypatch.setattr(torch_arrays, allocator, lambda *_: pytest.fail("it was asked"))
    monkeypatch.setattr(torch, "zeros_like", lambda *_, **__: pytest.fail("it was asked"))
    with pytest.raises(SegmentError, match=r"bytes are needed, 0 are left|beyond any memory"):
        ASKS[ask]()


def of_one_weight(dtype):
    """A segment in training whose one weight is large; its gradient is not there yet."""
    graph = Graph(
        inputs=(Input(name="x", dtype=dtype, shape=("batch", 1024), gradient=False),),
        parameters=(Parameter(name="w", dtype=dtype, shape=(1024, 1024)),),
        nodes=(Node(number=0, op="aten.linear.default", args=(Ref(0), Ref(1))),),
        outputs=(Output(name="y", ref=Ref(2), dtype=dtype, shape=("batch", 1024), gradient=True),),
        symbols=(Symbol(name="batch", input=0, dim=0),),
    )
    available_memory.look_at(None)
    made = TrainingSegment(graph)
    available_memory.look_at(Full())
    return made


def test_the_vector_of_gradients_is_counted_before_it_is_made(monkeypatch):
    made = of_one_weight("float32")
    monkeypatch.setattr(torch, "cat", lambda *_: pytest.fail("it was asked"))
    with pytest.raises(SegmentError, match=r"gradients: 4194304 bytes are needed, 0 are left"):
        made.gradients()


def test_gradients_of_another_type_are_counted_before_they_are_copied():
    made, vector = of_one_weight("bfloat16"), torch.zeros(2**20)
    with pytest.raises(SegmentError, match=r"2097152 bytes are needed, 0 are left"):
        made.norms(vector, 2.0)
    with pytest.raises(SegmentError, match=r"8388608"):  # the vector, and what goes in
        made.gradients()


def test_norms_of_gradients_that_are_not_there_take_no_memory(monkeypatch):
    made = of_one_weight("float32")
    monkeypatch.setattr(torch, "zeros_like", lambda *_: pytest.fail("it was asked"))
    assert made.norms(None, 2.0).tolist() == [0.0]


class Endless:
    """Rates of which no list is made."""

    shape = (2**20, 2**20)


def test_rates_of_another_size_are_refused_before_a_list_is_made_of_them():
    attrs = {"optimizer": {}, "given": ["rates"], "groups": [[["w"], {}]], "rated": ["lr"]}
    with pytest.raises(ValueError, match=r"rates of \[1048576, 1048576\] for 1 groups of 1"):
        perform("step", task([Endless()], **attrs))


def test_a_size_of_zero_hides_no_other():
    with pytest.raises(SegmentError, match="has the shape"):
        validate(onnx_model([1], [0, 2**50]))
