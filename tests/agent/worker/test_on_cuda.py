"""A real worker on a real accelerator computes what one on the CPU does, within the same bounds."""

import pytest
import torch
from tests.agent.worker.worker_driver import LINEAR, MIB, begin, load, numbers

from potluck_agent.processors.trial import attempt
from potluck_agent.worker import sandbox
from potluck_agent.worker.arrays import torch_device
from potluck_wire.messages import TryProcessor
from potluck_wire.processors import TORCH_KINDS

DEVICES = [device for kind in TORCH_KINDS for device in torch_device.offered(kind)]
MEMORY_BYTES = 256 * MIB
ADAMW = {"name": "adamw", "lr": 0.1}

pytestmark = pytest.mark.skipif(not DEVICES, reason="torch sees no accelerator here")


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def trained(device=""):
    """What leaves a worker that trains two steps: outputs, gradients, weights, moments."""
    worker = begin(memory_bytes=MEMORY_BYTES, device=device)
    try:
        load(worker, document=LINEAR)
        exported = []
        for step in range(2):
            name = f"r/0/p/{step}/"
            keys = {key: (name + key,) for key in ("x", "y", "g", "dx", "v", "w", "m")}
            worker.put(*keys["x"], numbers(4, 3) / 8)
            worker.put(*keys["g"], numbers(4, 2) / 8)
            run = {"train": True, "key": "k"}
            on = {"slot": "r/0/s"}
            exported += worker.compute(
                "run", run, inputs=keys["x"], outputs=keys["y"], exports=keys["y"], **on
            )
            exported += worker.compute(
                "backward", run, inputs=keys["g"], outputs=keys["dx"], exports=keys["dx"], **on
            )
            exported += worker.compute("gradients", outputs=keys["v"], exports=keys["v"], **on)
            worker.compute("step", {"optimizer": ADAMW}, inputs=keys["v"], **on)
            both = keys["w"] + keys["m"]
            names = {"names": ["w", "exp_avg:w"]}
            exported += worker.compute("state", names, outputs=both, exports=both, **on)
        return exported, worker.statement
    finally:
        worker.link.kill()


def test_a_worker_trains_there_as_on_the_cpu_and_within_its_bounds(device):
    (on_device, statement), (on_cpu, of_the_cpu) = trained(device), trained()
    for answer, expected in zip(on_device, on_cpu, strict=True):
        assert torch.allclose(answer, expected, rtol=1e-5, atol=1e-6)
    bounds, expected = statement["bounds"], of_the_cpu["bounds"]
    for name in ("network", "signals", "memory"):
        assert bounds[name] == expected[name]
    assert bounds["files"] in (expected["files"], sandbox.CHANGES_DEVICES)
    assert statement["memory_counted"] == torch_device.DeviceArrays.COUNTED


def test_a_trial_says_what_the_device_is(device):
    assert device in attempt(TryProcessor(device=device.partition(":")[0])).devices
    answer = attempt(TryProcessor(device=device, memory_bytes=MEMORY_BYTES, budget_s=0.2))
    assert answer.reason == ""
    assert answer.name
    assert answer.memory_bytes > MEMORY_BYTES
    assert {"float32", "float16", "int64"} <= set(answer.dtypes)
    assert answer.flops_per_s[0] > 1e9


def test_more_than_its_memory_ends_the_task_and_not_the_worker(device):
    worker = begin(memory_bytes=MEMORY_BYTES, device=device)
    try:
        key = ("r/0/p/0/x",)
        worker.put(*key, torch.zeros(8))
        pad = {"dim": 0, "before": MEMORY_BYTES, "after": 0}
        failed = worker.fails("pad", pad, inputs=key, outputs=("r/0/p/0/y",))
        assert failed.cause == "out-of-memory"
        part = ("r/0/p/0/z",)
        ends = {"start": 0, "stop": 2}
        (answer,) = worker.compute("slice", ends, inputs=key, outputs=part, exports=part)
        assert torch.equal(answer, torch.zeros(2))
    finally:
        worker.link.kill()
