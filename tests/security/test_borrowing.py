"""Indices that were in range at forward and are not at backward, where torch does not look again.

A paired notebook has many ways to change memory in between: to write a buffer that another segment
looks at, or gave out, or lent. Backward must use what forward saw, or fail by name.
"""

import pytest
import torch
from tests.agent.worker.worker_driver import begin

from potluck_agent.worker.arrays import torch_arrays
from potluck_agent.worker.loading import Loader
from potluck_wire import segment
from potluck_wire.graph import Buffer, Graph, Input, Node, Output, Parameter, Ref, SegmentError
from potluck_wire.messages import ComputeFailed, LoadSegment, SegmentLoaded

ROWS, WIDTH = 8, 2
GOOD = torch.tensor([1, 3, 3, 0])
FAR = {"far": torch.full((4,), 10**9), "before": torch.full((4,), -(10**9))}
FAR |= {"the next row": torch.full((4,), ROWS), "another in range": torch.tensor([7, 6, 5, 4])}
W, INDEX = Ref(0), Ref(1)  # with no inputs: the parameter, then the buffer


def _call(op, *args):
    return (f"aten.{op}", args)


# what takes indices and has a backward, of a weight [8, 2] (`w`) and indices [4] (`i`)
TAKERS = {
    "embedding": lambda w, i: [_call("embedding.default", w, i)],
    "index": lambda w, i: [_call("index.Tensor", w, (i,))],
    "index_select": lambda w, i: [_call("index_select.default", w, 0, i)],
    "gather": lambda w, i: [_call("unsqueeze.default", i, 1), _call("gather.default", w, 0, None)],
    "cross_entropy_loss": lambda w, i: [
        _call("t.default", w),
        _call("slice.Tensor", None, 1, 0, 1),
        _call("expand.default", None, (ROWS, 4)),
        _call("t.default", None),
        _call("cross_entropy_loss.default", None, i),
    ],
}


def taker(op, *, given):
    """A graph with the loss of one that takes indices: given as an input, or as its buffer."""
    w, i = (Ref(1), Ref(0)) if given else (W, INDEX)
    nodes = []
    for number, (name, args) in enumerate([*TAKERS[op](w, i), _call("sum.default", None)]):
        last = Ref(1 + number)  # two values stand before the first node
        filled = tuple(last if argument is None else argument for argument in args)
        nodes.append(Node(number=number, op=name, args=filled))
    if op == "cross_entropy_loss":  # `t` gives [2, 8]
        nodes[1] = Node(number=1, op="aten.slice.Tensor", args=(Ref(2), 0, 0, 1))
        nodes[2] = Node(number=2, op="aten.expand.default", args=(Ref(3), (4, ROWS)))
        nodes[3] = Node(number=3, op="aten.clone.default", args=(Ref(4),))
    end = Ref(1 + len(nodes))
    return segment.dumps(
        Graph(
            inputs=(Input(name="i", dtype="int64", shape=(4,)),) if given else (),
            parameters=(Parameter(name="w", dtype="float32", shape=(ROWS, WIDTH)),),
            buffers=() if given else (Buffer(name="i", dtype="int64", shape=(4,), updated=True),),
            nodes=tuple(nodes),
            outputs=(Output(name="y", ref=end, dtype="float32", shape=(), gradient=True),),
        )
    )


def giver(*views):
    """A graph that gives its buffer out, or what these operators make of it."""
    nodes = tuple(
        Node(number=number, op=f"aten.{op}", args=(Ref(number), *args))
        for number, (op, *args) in enumerate(views)
    )
    return segment.dumps(
        Graph(
            buffers=(Buffer(name="i", dtype="int64", shape=(4,), updated=True),),
            nodes=nodes,
            outputs=(Output(name="y", ref=Ref(len(nodes)), dtype="int64", shape=(4,)),),
        )
    )


def onnx_giver():
    """An ONNX model that gives its state out."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, int64 = onnx.helper, onnx.TensorProto.INT64
    state = onnx.TensorProto(name="i", data_type=int64, dims=[4])
    graph = make.make_graph(
        [make.make_node("Identity", ["i"], ["y"])],
        "g",
        [],
        [make.make_tensor_value_info("y", int64, [4])],
        [state],
    )
    opset = [make.make_opsetid("", 13)]
    return make.make_model(graph, ir_version=8, opset_imports=opset).SerializeToString()


GIVERS = {
    "its buffer": ("aten", giver()),
    "an alias of it": ("aten", giver(("alias.default",))),
    "a view of it": ("aten", giver(("view.default", (2, 2)), ("view.default", (4,)))),
    "a detached one": ("aten", giver(("detach.default",))),
    "an ONNX state": ("onnx", None),
}


@pytest.fixture(scope="module")
def worker():
    talk = begin(inbound=1 << 20)
    yield talk
    talk.link.kill()


def load(worker, slot, document, kind="aten", weights=""):
    worker.link.send(LoadSegment(slot=slot, kind=kind, weights=weights), [document])
    worker.expect(SegmentLoaded)


def assign(worker, slot, name, tensor):
    worker.put("r/0/p/0/new", tensor)
    worker.compute(
        "assign", {"names": [name]}, slot=slot, inputs=("r/0/p/0/new",), frees=("r/0/p/0/new",)
    )


def gradient(worker, op, indices):
    """Of the weight, as torch has it."""
    load(worker, "r/0/right", taker(op, given=True))
    worker.put("r/0/p/0/right", indices)
    return learn(worker, "r/0/right", ("r/0/p/0/right",), between=lambda: None)


def learn(worker, slot, inputs, between):
    """Forward, something in between, backward: all gradients, or how it failed."""
    assign(worker, slot, "w", torch.arange(16.0).reshape(ROWS, WIDTH) / 10)
    names = {"scope": "r/0/p/0/", "slot": slot}
    worker.compute("run", {"train": True}, inputs=inputs, outputs=("r/0/p/0/y",), **names)
    between()
    worker.send("backward", {}, **names)
    answer, _ = worker.next()
    while not hasattr(answer, "tag"):
        answer, _ = worker.next()
    if isinstance(answer, ComputeFailed):
        return answer
    g = ("r/0/p/0/g",)
    return worker.compute("gradients", {}, outputs=g, exports=g, frees=g, **names)[0]


def check(worker, got, right):
    if isinstance(got, ComputeFailed):
        assert "modified by an inplace operation" in got.text
    else:
        assert torch.equal(got, right)
    worker.compute("")  # it lives


@pytest.mark.parametrize("op", TAKERS)
@pytest.mark.parametrize("changed", FAR)
def test_a_buffer_of_indices_that_changes_before_backward(worker, op, changed):
    load(worker, "r/0/own", taker(op, given=False))
    assign(worker, "r/0/own", "i", GOOD)
    between = lambda: assign(worker, "r/0/own", "i", FAR[changed])  # noqa: E731
    check(worker, learn(worker, "r/0/own", (), between), gradient(worker, op, GOOD))


@pytest.mark.parametrize("lent", [False, True], ids=["given out", "given out by a borrower"])
@pytest.mark.parametrize("what", GIVERS)
@pytest.mark.parametrize("op", TAKERS)
def test_indices_that_another_segment_gave_out_and_changes_before_backward(worker, op, what, lent):
    kind, document = GIVERS[what]
    document = document or onnx_giver()
    load(worker, "r/0/giver", document, kind)
    assign(worker, "r/0/giver", "i", GOOD)
    slot = "r/0/giver"
    if lent:
        load(worker, "r/0/borrower", document, kind, weights=slot)
        slot = "r/0/borrower"
    given = ("r/0/p/0/given",)
    worker.compute("run", {}, slot=slot, outputs=given)
    load(worker, "r/0/taker", taker(op, given=True))
    between = lambda: assign(worker, "r/0/giver", "i", FAR["far"])  # noqa: E731
    check(worker, learn(worker, "r/0/taker", given, between), gradient(worker, op, GOOD))
    worker.compute("", frees=given)


KINDS = {"aten": giver(), "onnx": None}


@pytest.mark.parametrize("weight_source", KINDS)
@pytest.mark.parametrize("borrower", KINDS)
def test_a_segment_borrows_of_its_own_kind_alone(worker, weight_source, borrower):
    """The memory of ONNX states changes without a sign that torch sees."""
    load(worker, "r/0/weight_source", KINDS[weight_source] or onnx_giver(), weight_source)
    document = KINDS[borrower] or onnx_giver()
    worker.link.send(
        LoadSegment(slot="r/0/borrower", kind=borrower, weights="r/0/weight_source"), [document]
    )
    if weight_source == borrower:
        worker.expect(SegmentLoaded)
    else:
        assert "another kind" in worker.expect(ComputeFailed)[0].text


def test_the_loader_itself_looks_at_the_kind_of_the_weight_source():
    weight_source = type("WeightSource", (), {"kind": "onnx"})()
    with pytest.raises(SegmentError, match="another kind"):
        Loader({"torch": "2"}, torch_arrays).borrow("aten", giver(), weight_source)


@pytest.mark.parametrize("weight_source", KINDS)
def test_a_borrower_sees_what_its_source_was_given_last(worker, weight_source):
    load(worker, "r/0/weight_source", KINDS[weight_source] or onnx_giver(), weight_source)
    load(
        worker,
        "r/0/borrower",
        KINDS[weight_source] or onnx_giver(),
        weight_source,
        weights="r/0/weight_source",
    )
    y = ("r/0/p/0/y",)
    for indices in (GOOD, *FAR.values()):
        assign(worker, "r/0/weight_source", "i", indices)
        (got,) = worker.compute("run", {}, slot="r/0/borrower", outputs=y, exports=y, frees=y)
        assert torch.equal(got, indices)
