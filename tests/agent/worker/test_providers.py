"""ONNX segments on an accelerator of onnxruntime. Another provider that is always there stands for
it: it leaves all work to the CPU.
"""

import pytest
import torch
from tests.agent.worker.test_threads import product
from tests.agent.worker.worker_driver import numbers

from potluck_agent.worker import landlock
from potluck_agent.worker.arrays import torch_arrays
from potluck_agent.worker.onnx import segment
from potluck_agent.worker.onnx.segment import OnnxProcessor, OnnxSegment
from potluck_wire.graph import SegmentError
from potluck_wire.processors import PROVIDERS, TORCH_KINDS

onnxruntime = pytest.importorskip("onnxruntime")
STAND_IN = "AzureExecutionProvider"
X = numbers(64, 256) / 2**14


@pytest.fixture
def cuda(monkeypatch):
    if STAND_IN not in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has no {STAND_IN}")
    monkeypatch.setitem(PROVIDERS, "cuda", STAND_IN)
    return OnnxProcessor(provider="cuda")


def test_a_segment_computes_on_the_accelerator_first_and_has_the_cpu_beside_it(cuda):
    on_it = OnnxSegment(product(), torch_arrays, cuda)
    assert on_it.providers == (STAND_IN, "CPUExecutionProvider")
    on_the_cpu = OnnxSegment(product(), torch_arrays)
    assert on_the_cpu.providers == ("CPUExecutionProvider",)
    assert torch.equal(on_it.forward([X])[0], on_the_cpu.forward([X])[0])


def test_what_is_written_is_computed_with_on_the_accelerator_too(cuda):
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model_from_string(product())
    model.graph.initializer[0].ClearField("raw_data")
    one = OnnxSegment(model.SerializeToString(), torch_arrays, cuda)
    piece = OnnxSegment(model.SerializeToString(), torch_arrays, cuda, one)
    for scale in (1.0, 3.0):
        one.write("w", torch.eye(256) * scale)
        for each in (one, piece):
            assert torch.equal(each.forward([X])[0], X * scale)


@pytest.mark.parametrize(
    "text",
    [
        "Failed to allocate memory for requested buffer of size 1073741824",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=x",
        "std::bad_alloc",
    ],
)
def test_an_accelerator_without_memory_ends_the_task_as_a_worker_without_memory(monkeypatch, text):
    class Full:
        def __init__(self, *_, **named):
            pass

        def run(self, *_):
            raise RuntimeError(text)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Full)
    one = OnnxSegment(product(), torch_arrays)
    with pytest.raises(SegmentError) as caught:
        one.forward([X])
    assert caught.value.cause == "out-of-memory"


def test_preparing_keeps_the_accelerator_open(cuda):
    assert segment.prepare(cuda) is segment.prepare(cuda)


def test_the_files_of_an_accelerator_are_its_own(tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "sda").touch()
    patterns = {"cuda": (f"{tmp_path}/nvidia*",)}
    monkeypatch.setattr(landlock, "NODES", patterns)
    assert landlock.nodes_of(["cuda", "cuda:1"]) == [f"{tmp_path}/nvidia0", f"{tmp_path}/nvidiactl"]
    assert landlock.nodes_of([""]) == landlock.nodes_of(["xnnpack"]) == []
    assert set(landlock.NODES) <= {*PROVIDERS, *TORCH_KINDS}
