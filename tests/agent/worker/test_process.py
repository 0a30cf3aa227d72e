"""A real worker process: values, tasks, segments, memory."""

import json
import re
from pathlib import Path

import pytest
import torch
from tests.agent.worker.worker_driver import LINEAR, MIB, begin, load, numbers

from potluck_agent.worker.arrays import torch_arrays
from potluck_agent.worker.loading import Loader
from potluck_agent.worker.measure import time_updates
from potluck_wire import segment
from potluck_wire.graph import Graph, Parameter
from potluck_wire.messages import (
    Computed,
    ComputeFailed,
    Forget,
    Freed,
    LoadSegment,
    MeasuredTask,
    MeasureTask,
    Put,
    Release,
    SegmentLoaded,
)


@pytest.fixture(scope="module")
def shared():
    talk = begin()
    yield talk
    talk.link.kill()


@pytest.fixture(scope="module")
def bare():
    """A worker that has onnxruntime alone."""
    pytest.importorskip("onnxruntime")
    talk = begin(backends=("onnxruntime",))
    yield talk
    talk.link.kill()


def emptied(talk):
    """The same process for all tests, empty again."""
    talk.link.send(Forget(prefix=""))
    yield talk
    talk.link.send(Forget(prefix=""))
    talk.compute("")
    for offset in talk.freed:
        talk.inbound.free(offset)
    talk.freed.clear()
    assert talk.inbound.used_bytes == 0


@pytest.fixture
def worker(shared):
    yield from emptied(shared)


@pytest.fixture(params=["shared", "bare"])
def either(request):
    """With torch, and without."""
    yield from emptied(request.getfixturevalue(request.param))


@pytest.mark.long
def test_says_what_it_can_do_how_fast_and_which_limits_hold(worker):
    assert worker.statement["backends"]["torch"] == torch.__version__
    assert "aten.linear.default" in worker.statement["operators"]
    assert {"float32", "int64", "bfloat16"} <= set(worker.statement["dtypes"])
    assert set(worker.statement["bounds"]) == {
        *("network", "reading", "files", "processes", "memory", "signals")
    }
    assert worker.statement["overhead_s"] > 0
    assert worker.statement["copy_bytes_per_s"] > 0


def test_without_torch_it_says_so_loads_none_and_refuses_what_needs_it(bare):
    assert list(bare.statement["backends"]) == ["onnxruntime"]
    assert bare.statement["operators"] == []
    if Path("/proc").is_dir():
        assert "libtorch" not in Path(f"/proc/{bare.link.pid}/maps").read_text()
    bare.link.send(LoadSegment(slot="r/0/s", kind="aten"), [LINEAR])
    assert "needs torch; here is onnxruntime" in bare.expect(ComputeFailed)[0].text
    bare.link.send(MeasureTask(task="t", kind="aten", rows=(2,)), [LINEAR])
    assert "needs torch" in bare.expect(ComputeFailed)[0].text
    offset = bare.inbound.allocate(4)
    bare.link.send(Put(value="r/0/p/0/x", offset=offset, nbytes=4, dtype="bfloat16", shape=(2,)))
    assert "does not compute with" in bare.expect(ComputeFailed)[0].text
    assert bare.expect(Freed)[0].offset == offset
    bare.inbound.free(offset)


@pytest.mark.long
def test_bfloat16_is_added(worker):
    worker.put("r/0/p/0/x", numbers(3).bfloat16())
    (total,) = worker.compute(
        "add",
        inputs=("r/0/p/0/x",) * 2,
        outputs=("r/0/p/0/y",),
        exports=("r/0/p/0/y",),
        frees=("r/0/p/0/x",),
    )
    assert torch.equal(total, (2 * numbers(3)).bfloat16())


@pytest.mark.parametrize(
    ("op", "attrs", "inputs", "expected"),
    [
        ("slice", {"dim": 0, "start": 1, "stop": 3}, [numbers(4, 2)], numbers(4, 2)[1:3]),
        ("slice", {"dim": 1, "start": 0, "stop": 1}, [numbers(4, 2)], numbers(4, 2)[:, :1]),
        ("slice", {"dim": 0, "start": 2, "stop": 2}, [numbers(4, 2)], numbers(4, 2)[2:2]),
        (
            "slice",
            {"dim": 0, "start": 0, "stop": 2},
            [torch.tensor([7, 8, 9])],
            torch.tensor([7, 8]),
        ),
        (
            "pad",
            {"dim": 1, "before": 1, "after": 2},
            [numbers(1, 2, start=1)],
            torch.tensor([[0.0, 1, 2, 0, 0]]),
        ),
        (
            "concat",
            {"dim": 0},
            [numbers(1, 2), numbers(2, 2)],
            torch.cat([numbers(1, 2), numbers(2, 2)]),
        ),
        ("concat", {"dim": 1}, [numbers(2, 1)], numbers(2, 1)),
        ("add", {}, [numbers(2), numbers(2), numbers(2, start=5)], torch.tensor([5.0, 8.0])),
        ("add", {}, [numbers(3).half(), numbers(3).half()], (2 * numbers(3)).half()),
        (
            "slice",
            {"dim": 0, "start": 0, "stop": 1},
            [torch.tensor([True, False])],
            torch.tensor([True]),
        ),
    ],
)
def test_tensor_operations_give_the_exact_result(either, op, attrs, inputs, expected):
    keys = tuple(f"r/0/p/0/{index}" for index in range(len(inputs)))
    for key, tensor in zip(keys, inputs, strict=True):
        either.put(key, tensor)
    out = ("r/0/p/0/out",)
    (result,) = either.compute(op, attrs, inputs=keys, outputs=out, exports=out, frees=keys + out)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("op", "attrs", "cause", "words"),
    [
        (
            "slice",
            {"dim": 0, "start": 1, "stop": 9},
            "bad-input",
            r"\[1, 9\) is no part of 2 along dimension 0",
        ),
        ("slice", {"dim": 5, "start": 0, "stop": 1}, "bad-input", "IndexError"),
        (
            "slice",
            {"dim": 0, "start": 0.5, "stop": 1},
            "bad-input",
            "start is 0.5, expected an integer",
        ),
        ("pad", {"dim": 0, "before": -1}, "bad-input", "padding cannot be negative"),
        ("run", {"segment": "s"}, "bad-input", "segment is not loaded"),
        ("exec", {}, "bad-input", "no operation 'exec'"),
        ("pad", {"dim": 0, "before": 10**12}, "out-of-memory", "bytes are needed"),
    ],
)
def test_a_task_that_cannot_be_done_fails_with_its_cause_and_the_worker_goes_on(
    either, op, attrs, cause, words
):
    either.put("r/0/p/0/x", numbers(2))
    failure = either.fails(op, attrs, tag=7, inputs=("r/0/p/0/x",), outputs=("r/0/p/0/y",))
    assert (failure.tag, failure.cause) == (7, cause)
    assert re.search(words, failure.text), failure.text
    assert either.compute("", exports=("r/0/p/0/x",), frees=("r/0/p/0/x",))[0].tolist() == [
        0.0,
        1.0,
    ]


def test_a_missing_value_is_named(either):
    assert (
        "'r/0/p/0/nothing'" in either.fails("add", inputs=("r/0/p/0/nothing",), outputs=("a",)).text
    )


def test_a_value_whose_shape_does_not_fit_its_bytes_is_refused_and_its_place_freed(either):
    offset = either.inbound.allocate(64)
    either.link.send(Put(value="r/0/p/0/x", offset=offset, nbytes=64, dtype="float32", shape=(17,)))
    assert either.expect(ComputeFailed)[0].cause == "bad-input"
    either.freed.append(either.expect(Freed)[0].offset)
    assert either.freed == [offset]


def test_an_inbound_place_is_freed_when_its_last_view_is_gone_not_before(either):
    offset = either.put("r/0/p/0/x", numbers(4))
    attrs = {"dim": 0, "start": 1, "stop": 2}
    either.compute(
        "slice", attrs, inputs=("r/0/p/0/x",), outputs=("r/0/p/0/part",), frees=("r/0/p/0/x",)
    )
    either.compute("")
    assert either.freed == []
    assert either.compute("", exports=("r/0/p/0/part",), frees=("r/0/p/0/part",))[0].tolist() == [
        1.0
    ]
    either.compute("")
    assert either.freed == [offset]


def test_a_second_value_of_the_same_key_is_ignored_and_its_place_freed(either):
    either.put("r/0/p/0/x", numbers(2))
    second = either.put("r/0/p/0/x", numbers(2, start=9))
    assert either.compute("", exports=("r/0/p/0/x",))[0].tolist() == [0.0, 1.0]
    assert either.freed == [second]


def test_a_full_outbound_memory_waits_for_release_and_keeps_the_order(either):
    half = ("r/0/p/0/half",)
    either.put("r/0/p/0/x", numbers(1))
    either.compute(
        "pad",
        {"dim": 0, "after": 149_999},
        inputs=("r/0/p/0/x",),
        outputs=half,
        frees=("r/0/p/0/x",),
    )
    for tag in (1, 2, 3):  # 600 kB each; one fits into 1 MiB
        either.send("", tag=tag, exports=half)
    first, (rows,) = either.expect(Computed)
    assert first.tag == 1
    for tag in (2, 3):
        either.link.send(Release(offset=json.loads(bytes(rows))[0][1]))
        answer, (rows,) = either.expect(Computed)
        assert answer.tag == tag
    either.link.send(Release(offset=json.loads(bytes(rows))[0][1]))


def test_an_export_that_can_never_fit_fails_as_out_of_memory(either):
    either.put("r/0/p/0/x", numbers(1))
    big = ("r/0/p/0/big",)
    either.compute(
        "pad",
        {"dim": 0, "after": 400_000},
        inputs=("r/0/p/0/x",),
        outputs=big,
        frees=("r/0/p/0/x",),
    )
    failure = either.fails("", exports=big)
    assert failure.cause == "out-of-memory"
    assert "1600004 bytes needed in one piece" in failure.text


def test_a_segment_trains_as_torch_does(worker):
    w, b = load(worker)
    optimizer = torch.optim.SGD([w, b], lr=0.5)
    x, gradient = numbers(4, 3).requires_grad_(), numbers(4, 2, start=-3)
    y = torch.tanh(x @ w.t() + b)
    y.backward(gradient)
    optimizer.step()

    # of a whole batch: the second micro-batch
    worker.put("r/0/p/0/x", torch.cat([numbers(4, 3, start=9), x.detach()]))
    run = {"key": "k", "train": True, "rows": [0, 4, 4], "micro_batch": 1, "takes": [[4, 8]]}
    names = {
        "inputs": ("r/0/p/0/x",),
        "outputs": ("r/0/p/0/y",),
        "exports": ("r/0/p/0/y",),
        "slot": "r/0/s",
    }
    (output,) = worker.compute("run", run, frees=("r/0/p/0/x", "r/0/p/0/y"), **names)
    assert torch.allclose(output, y.detach(), atol=1e-6)
    worker.compute("")
    assert len(worker.freed) == 2  # the weights' places; autograd still looks at the input
    worker.put("r/0/p/0/g", gradient)
    names = {
        "inputs": ("r/0/p/0/g",),
        "outputs": ("r/0/p/0/gx",),
        "exports": ("r/0/p/0/gx",),
        "slot": "r/0/s",
    }
    (input_gradient,) = worker.compute(
        "backward", {"key": "k"}, frees=("r/0/p/0/g", "r/0/p/0/gx"), **names
    )
    assert torch.allclose(input_gradient, x.grad, atol=1e-6)
    (flat,) = worker.compute(
        "gradients", slot="r/0/s", outputs=("r/0/p/0/f",), exports=("r/0/p/0/f",)
    )
    assert torch.allclose(flat, torch.cat([w.grad.flatten(), b.grad]), atol=1e-5)
    worker.compute("step", {"optimizer": {"name": "sgd", "lr": 0.5}}, slot="r/0/s")
    keys = ("r/0/p/0/w", "r/0/p/0/b")
    state = worker.compute("state", {"names": ["w", "b"]}, slot="r/0/s", outputs=keys, exports=keys)
    assert torch.allclose(state[0], w.detach(), atol=1e-5)
    assert torch.allclose(state[1], b.detach(), atol=1e-5)
    worker.compute("")
    assert len(worker.freed) == 4


def test_a_run_takes_no_rows_that_are_not_there(worker):
    load(worker)
    worker.put("r/0/p/0/x", numbers(4, 3))
    for takes, words in (
        ([[2, 9]], r"[2, 9) is no part of 4"),
        ([], "one entry for each of 1 inputs"),
    ):
        assert (
            words in worker.fails("run", {"takes": takes}, slot="r/0/s", inputs=("r/0/p/0/x",)).text
        )


def test_state_is_a_copy_that_a_later_assign_does_not_change(worker):
    load(worker)
    worker.compute("state", {"names": ["b"]}, slot="r/0/s", outputs=("r/0/p/0/old",))
    worker.put("r/0/p/0/new", numbers(2, start=50))
    worker.compute(
        "assign", {"names": ["b"]}, slot="r/0/s", inputs=("r/0/p/0/new",), frees=("r/0/p/0/new",)
    )
    assert worker.compute("", exports=("r/0/p/0/old",))[0].tolist() == [0.0, 1.0]


def test_two_executions_may_use_the_same_key_for_backward(worker):
    load(worker)
    for step in (0, 1):
        worker.put(f"r/0/p/{step}/x", numbers(1 + step, 3))
        inputs, outputs = (f"r/0/p/{step}/x",), (f"r/0/p/{step}/y",)
        worker.compute(
            "run",
            {"key": "k", "train": True},
            slot="r/0/s",
            step=step,
            inputs=inputs,
            outputs=outputs,
        )
    for step in (0, 1):
        worker.put(f"r/0/p/{step}/g", numbers(1 + step, 2))
        inputs, outputs = (f"r/0/p/{step}/g",), (f"r/0/p/{step}/gx",)
        exports = worker.compute(
            "backward", {"key": "k"}, slot="r/0/s", inputs=inputs, outputs=outputs, exports=outputs
        )
        assert exports[0].shape == (1 + step, 3)


def test_forgetting_an_execution_frees_what_it_kept_for_backward(worker):
    load(worker)
    offset = worker.put("r/0/p/0/x", numbers(4, 3))
    names = {"inputs": ("r/0/p/0/x",), "outputs": ("r/0/p/0/y",)}
    worker.compute("run", {"key": "k", "train": True}, slot="r/0/s", frees=names["inputs"], **names)
    worker.compute("")
    assert offset not in worker.freed
    worker.link.send(Forget(prefix="r/0/p/0/"))
    worker.compute("")
    assert offset in worker.freed
    failure = worker.fails("backward", {"key": "k"}, slot="r/0/s", outputs=("r/0/p/0/gx",))
    assert failure.cause == "bad-input"


def test_forgetting_an_epoch_drops_its_segments(worker):
    load(worker)
    worker.link.send(Forget(prefix="r/0/"))
    assert "segment r/0/s is not loaded" in worker.fails("run", slot="r/0/s").text


@pytest.mark.parametrize(
    ("kind", "document", "cause"),
    [
        ("aten", b"{", "document"),
        ("aten", LINEAR.replace(b"tanh", b"from_file"), "operator"),
        ("exe", b"", "bad-input"),
    ],
)
def test_a_document_that_does_not_hold_is_refused(worker, kind, document, cause):
    worker.link.send(LoadSegment(slot="r/0/s", kind=kind), [document])
    failure = worker.expect(ComputeFailed)[0]
    assert (failure.slot, failure.cause) == ("r/0/s", cause)


def test_measures_a_layer_at_each_batch_size(worker):
    worker.link.send(MeasureTask(task="t", rows=(1, 4), train=True, repeats=2), [LINEAR])
    measured, _ = worker.expect(MeasuredTask)
    assert (measured.task, measured.rows) == ("t", (1, 4))
    assert all(seconds > 0 for seconds in measured.forward_s + measured.backward_s)
    assert len(measured.forward_s) == len(measured.backward_s) == 2
    # Kept for backward beside the parameters: the input (3 floats per row) and tanh's result (2
    # floats per row).
    assert measured.memory_bytes == (20, 80)
    worker.link.send(MeasureTask(task="t", rows=(2,)), [LINEAR])
    measured, _ = worker.expect(MeasuredTask)
    assert measured.backward_s == ()


def test_memory_is_counted_with_what_autograd_keeps(worker):
    if worker.statement["memory_counted"] != "every allocation":
        pytest.skip("this C library does not count")
    load(worker)
    worker.send("")
    base = worker.expect(Computed)[0].memory_bytes
    worker.put("r/0/p/0/x", numbers(1))
    worker.send(
        "pad", {"dim": 0, "after": 4 * MIB - 1}, inputs=("r/0/p/0/x",), outputs=("r/0/p/0/y",)
    )
    held = worker.expect(Computed)[0].memory_bytes - base
    assert 16 * MIB <= held < 17 * MIB


def test_a_segment_that_asks_for_more_than_the_limit_is_out_of_memory_and_the_worker_goes_on(
    worker,
):
    wide = Graph(parameters=(Parameter(name="w", dtype="float32", shape=(128 * MIB,)),))
    worker.link.send(LoadSegment(slot="r/0/big"), [segment.dumps(wide)])
    assert worker.expect(ComputeFailed)[0].cause == "out-of-memory"
    worker.compute("")


def test_an_onnx_model_runs_and_does_not_train(worker):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make = onnx.helper
    ports = [
        make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 2])
        for name in ("x", "y")
    ]
    graph = make.make_graph([make.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    model = make.make_model(
        graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    worker.link.send(LoadSegment(slot="r/0/s", kind="onnx"), [model])
    worker.expect(SegmentLoaded)
    worker.put("r/0/p/0/x", numbers(2, 2, start=-2))
    names = {"slot": "r/0/s", "inputs": ("r/0/p/0/x",), "outputs": ("r/0/p/0/y",)}
    (output,) = worker.compute("run", exports=("r/0/p/0/y",), **names)
    assert output.tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert "does not train" in worker.fails("run", {"train": True}, **names).text


def test_a_piece_has_the_weights_of_another_segment_and_not_a_copy(worker):
    w, b = load(worker, "r/0/whole")
    worker.link.send(LoadSegment(slot="r/1/piece", weights="r/0/whole"), [LINEAR])
    worker.expect(SegmentLoaded)
    worker.put("r/1/p/0/x", numbers(4, 3))
    names = {"slot": "r/1/piece", "inputs": ("r/1/p/0/x",), "outputs": ("r/1/p/0/y",)}
    (output,) = worker.compute("run", exports=("r/1/p/0/y",), **names)
    assert torch.allclose(output, torch.tanh(numbers(4, 3) @ w.t() + b), atol=1e-6)
    worker.put("r/0/push/1/b", numbers(2) + 5)
    worker.compute("assign", {"names": ["b"]}, slot="r/0/whole", inputs=("r/0/push/1/b",))
    (output,) = worker.compute("run", exports=("r/1/p/0/y",), **names)
    assert torch.allclose(output, torch.tanh(numbers(4, 3) @ w.t() + numbers(2) + 5), atol=1e-6)


def test_a_piece_with_the_weights_of_another_neither_trains_nor_is_written(worker):
    load(worker, "r/0/whole")
    worker.link.send(LoadSegment(slot="r/0/piece", weights="r/0/whole"), [LINEAR])
    worker.expect(SegmentLoaded)
    worker.put("r/0/p/0/x", numbers(4, 3))
    worker.put("r/0/p/0/b", numbers(2))
    run = {"slot": "r/0/piece", "inputs": ("r/0/p/0/x",), "outputs": ("r/0/p/0/y",)}
    assert "does not train" in worker.fails("run", {"train": True}, **run).text
    assert (
        "does not train" in worker.fails("gradients", slot="r/0/piece", outputs=("r/0/p/0/g",)).text
    )
    written = worker.fails("assign", {"names": ["b"]}, slot="r/0/piece", inputs=("r/0/p/0/b",))
    assert "b is another segment's" in written.text


def test_a_piece_of_weights_that_are_not_there_is_refused(worker):
    worker.link.send(LoadSegment(slot="r/0/piece", weights="r/0/whole"), [LINEAR])
    assert "r/0/whole is not loaded" in worker.expect(ComputeFailed)[0].text
    load(worker, "r/0/whole", weights=False)
    wide = Graph(parameters=(Parameter(name="w", dtype="float32", shape=(7,)),))
    worker.link.send(LoadSegment(slot="r/0/piece", weights="r/0/whole"), [segment.dumps(wide)])
    assert "not float32 [7]" in worker.expect(ComputeFailed)[0].text


def test_every_measured_step_of_the_optimizer_has_gradients_to_work_with():
    made = Loader({"torch": "2"}, torch_arrays).load("aten", LINEAR, seed=0)
    # an emulated device runs nothing more often than that because it is short
    time_updates(made, 2, repeats=3, slowdown=2.0, arrays=torch_arrays)
    # AdamW passes over what has no gradient, and does not count it
    assert made.read("step:w").item() == 4.0
