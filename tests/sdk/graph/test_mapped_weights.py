"""Weights that are mapped from a file are traced without a copy of them in memory."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from potluck.graph import Model  # noqa: E402 - after torch
from potluck.graph.torch.batch_axis import MOST_KEPT, LateTensor, at_once, made_up  # noqa: E402

WIDTH, DEPTH = 2048, 8
PROGRAM = f"""
import sys, torch
from safetensors.torch import load_file
from potluck.graph import Model

def own_bytes(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

torch.set_num_threads(1)
with torch.device("meta"):
    net = torch.nn.Sequential(*(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({DEPTH})))
small = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
Model.from_torch(small, torch.randn(2, 4))  # what tracing itself takes is there
net.load_state_dict(load_file(sys.argv[1]), assign=True)
before = own_bytes("RssAnon")
Model.from_torch(net.eval(), torch.randn(2, {WIDTH}))
print(own_bytes("VmHWM") - own_bytes("RssFile") - before)
"""


def test_a_large_weight_is_made_up_when_it_is_read():
    large = torch.nn.Parameter(torch.empty(1100, 1000))
    late = made_up(large, 3)
    assert isinstance(late, LateTensor)
    assert torch.equal(late.make(), at_once(late))
    assert late.make().shape == large.shape
    assert late.make().std().item() == pytest.approx(1000**-0.5, rel=0.05)
    assert isinstance(made_up(torch.nn.Parameter(torch.empty(MOST_KEPT)), 3), torch.Tensor)


def test_a_model_of_large_weights_is_cut_as_one_of_small_ones():
    def net(width):
        hidden = torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 8)
        return torch.nn.Sequential(*hidden, torch.nn.Flatten(), torch.nn.Linear(8, 2))

    x = torch.randn(3, 8)
    large, small = (Model.from_torch(net(width), x) for width in (MOST_KEPT // 4, 16))
    assert [layer.name for layer in large.layers()] == [layer.name for layer in small.layers()]


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_no_copy_of_the_weights_is_made(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    net = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    weights = net.state_dict()
    safetensors.save_file(weights, tmp_path / "net.safetensors")
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "net.safetensors")],
        capture_output=True,
        text=True,
        check=True,
    )
    total = sum(tensor.nbytes for tensor in weights.values())
    assert int(printed.stdout.splitlines()[-1]) < total / 2
