"""A worker with several threads: they are there before its bounds permit no more, whoever runs the
agent.
"""

import os
import sys

import pytest
import torch
from tests.agent.worker.test_sandbox import SOURCE
from tests.agent.worker.worker_driver import begin, numbers

from potluck_agent.worker import launch
from potluck_wire.messages import LoadSegment, SegmentLoaded

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

NOBODY = 65534
# as whom it counts; whose files it reads is another matter, and what root may besides it gives away
AS_NOBODY = """
import os, runpy, sys
sys.path.append({source!r})
os.setresuid({nobody}, 0, 0)
runpy.run_path({program!r}, run_name="__main__")
"""


def product():
    """An ONNX model: a large product, which is shared among threads."""
    make, sizes = onnx.helper, {"x": ["batch", 256], "y": ["batch", 256]}
    x, y = (make.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in sizes.items())
    weight = onnx.numpy_helper.from_array(numbers(256, 256).numpy() / 2**16, "w")
    graph = make.make_graph(
        [make.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [weight]
    )
    opset = [make.make_opsetid("", 13)]
    return make.make_model(graph, ir_version=8, opset_imports=opset).SerializeToString()


@pytest.fixture
def an_ordinary_user(tmp_path, monkeypatch):
    """Workers are started by one who is not root: what a limit on processes binds."""
    if sys.platform != "linux" or os.getuid():
        return
    program = tmp_path / "worker.py"
    facts = {"source": SOURCE, "nobody": NOBODY, "program": launch.PROGRAM[0]}
    program.write_text(AS_NOBODY.format(**facts))
    monkeypatch.setattr(launch, "PROGRAM", (str(program),))


@pytest.mark.long
@pytest.mark.parametrize("backends", [("torch", "onnxruntime"), ("onnxruntime",)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_onnx_segments_run_on_any_number_of_threads(an_ordinary_user, backends, threads):
    worker = begin(threads=threads, backends=backends)
    try:
        worker.link.send(LoadSegment(slot="r/0/s", kind="onnx"), [product()])
        worker.expect(SegmentLoaded)
        worker.put("r/0/p/0/x", numbers(64, 256) / 2**14)
        (y,) = worker.compute(
            "run", slot="r/0/s", inputs=["r/0/p/0/x"], outputs=["r/0/p/0/y"], exports=["r/0/p/0/y"]
        )
        expected = (numbers(64, 256) / 2**14) @ (numbers(256, 256) / 2**16)
        assert torch.allclose(y, expected, rtol=1e-4)
    finally:
        worker.link.kill()


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_torch_adds_on_any_number_of_threads(an_ordinary_user, threads):
    worker = begin(threads=threads, inbound=8 << 20, outbound=8 << 20)
    try:
        worker.put("r/0/p/0/x", numbers(1 << 20))
        (y,) = worker.compute(
            "add", inputs=("r/0/p/0/x", "r/0/p/0/x"), outputs=("r/0/p/0/y",), exports=("r/0/p/0/y",)
        )
        assert torch.equal(y, 2 * numbers(1 << 20))
    finally:
        worker.link.kill()


def test_a_worker_with_several_threads_starts_no_children_either(an_ordinary_user):
    worker = begin(threads=2)
    try:
        bounds = worker.statement["bounds"]
        if bounds["signals"].startswith("not refused"):
            assert bounds["processes"].startswith("not limited")
        else:
            assert bounds["processes"] == "none started"
    finally:
        worker.link.kill()
