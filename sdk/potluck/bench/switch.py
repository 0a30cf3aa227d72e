"""Switching plans while a run goes on: how long training pauses and how late requests are, against
stop-reload-start.

Half of a network moves from one agent to another over a link of 100 Mbit/s: 50 MB of weights and
moments in training, 50 MB of weights for requests. What stop-reload-start sends from home is not
slowed down, which is in its favour.

Then the same network is deployed twice from a notebook over a switch of 100 Mbit/s (an emulated
home of the library): the devices keep its weights the first time.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result, elapsed_s

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.records import Plan

SETTINGS: Mapping[str, float] = {
    "delta_mb": 50,
    "link_mbit_per_s": 100,
    "width": 1024,
    "rows": 16,
    "steps_before": 10,
}
GOALS = {
    "train_stall_beyond_a_step_s": ("<=", 0.2),
    "requests_late": ("<=", 0.0),
    "deploy_again_bytes_frac": ("<=", 0.01),
}
NEAR, FAR = "near", "far"
WIRED, AWAY = "asteroid-a-100", ("nano-2", "nano-3")
FOREVER = 1_000_000


def run(settings: Mapping[str, float]) -> Result:
    """Training, then requests, on two agents."""
    from potluck.home import Home
    from potluck.sessions.agent_specs import Spec

    rate = f"{settings['link_mbit_per_s']:g} Mbit/s"
    figures: dict[str, float] = {}
    with Home.lab([Spec(name=name, link_rate=rate) for name in (NEAR, FAR)]) as home:
        figures |= _training(home, settings)
        figures |= _requests(home, settings)
    figures |= _deploys(settings)
    return Result(name="switch", figures=figures, settings=settings, goals=GOALS)


def _training(home: "Home", settings: Mapping[str, float]) -> dict[str, float]:
    import torch

    net, x = _network(settings, copies=3)
    y = torch.zeros(len(x), dtype=torch.int64)
    before, after, model = _plans(net, x, y)
    running = home.deploy(before, model).wait()
    ends: list[float] = []
    fitting = running.fit(
        [(x, y)] * 8, epochs=FOREVER, on_step=lambda step, loss: ends.append(time.perf_counter())
    )
    _until(lambda: len(ends) >= settings["steps_before"])
    begin_s, first = time.perf_counter(), len(ends)
    running.switch(after).wait()
    switch_s, last = time.perf_counter() - begin_s, len(ends)
    _until(lambda: len(ends) >= last + settings["steps_before"])
    fitting.cancel()
    gaps = [b - a for a, b in pairwise(ends)]
    usual_s, during = median(gaps[1 : first - 1]), gaps[first - 1 : last + 1]
    _until(lambda: fitting.done)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        begin_s = time.perf_counter()
        running.save(path)
        running.close()
        again = home.deploy(before, model, resume=path).wait()
        again.fit([(x, y)]).wait()
        reload_s = time.perf_counter() - begin_s
        again.close()
    return {
        "train_step_s": usual_s,
        "train_switch_s": switch_s,
        "train_steps_meanwhile": float(last - first),
        "train_stall_s": max(during),
        "train_stall_beyond_a_step_s": max(during) - usual_s,
        "train_time_lost_s": sum(during) - usual_s * len(during),
        "train_reload_s": reload_s,
    }


def _requests(home: "Home", settings: Mapping[str, float]) -> dict[str, float]:
    net, x = _network(settings, copies=1)
    before, after, model = _plans(net, x, None)
    running = home.deploy(before, model).wait()
    usual_s = median(elapsed_s(lambda: running(x)) for _ in range(int(settings["steps_before"])))
    switching = running.switch(after)
    begin_s = time.perf_counter()
    seconds = []
    while not switching.done:
        seconds.append(elapsed_s(lambda: running(x)))
    switch_s = time.perf_counter() - begin_s
    switching.wait()
    new_s = median(elapsed_s(lambda: running(x)) for _ in range(int(settings["steps_before"])))
    begin_s = time.perf_counter()
    running.close()
    again = home.deploy(before, model).wait()
    again(x)
    reload_s = time.perf_counter() - begin_s
    again.close()
    slow_s = max(usual_s, new_s)
    return {
        "request_s": usual_s,
        "request_new_plan_s": new_s,
        "request_switch_s": switch_s,
        "requests_meanwhile": float(len(seconds)),
        "requests_late": float(sum(taken > 2 * slow_s for taken in seconds)),
        "request_stall_s": max(seconds) - slow_s,
        "request_reload_s": reload_s,
    }


def _deploys(settings: Mapping[str, float]) -> dict[str, float]:
    """The same network twice, onto devices that keep its weights and are not where the notebook
    is; and once onto devices that do not.
    """
    from potluck.home import Home

    net, x = _network(settings, copies=1)
    seconds, sent_bytes = [], []
    for kept, n_times in (("0", 1), ("1GiB", 2)):
        with Home.lab(WIRED, extra=("--keep", kept)) as home:
            _, plan, model = _plans(net, x, None, *AWAY)
            for _ in range(n_times):
                begin_s = time.perf_counter()
                running = home.deploy(plan, model).wait()
                seconds.append(time.perf_counter() - begin_s)
                weights = running.deployed
                sent_bytes.append(weights.nbytes - weights.kept_bytes)
                running.close()
    return {
        "deploy_unkept_s": seconds[0],
        "deploy_first_s": seconds[1],
        "deploy_again_s": seconds[2],
        "deploy_first_ratio": seconds[1] / seconds[0],
        "deploy_again_bytes_frac": sent_bytes[2] / sent_bytes[1],
    }


def _network(settings: Mapping[str, float], *, copies: int) -> tuple[Any, Any]:
    """Twice as many layers as the delta holds, each with `copies` tensors of its size.

    And a batch.
    """
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = int(settings["width"])
    n_moved = max(1, round(settings["delta_mb"] * 1e6 / (4 * copies * width * (width + 1))))
    layers = [
        m for _ in range(2 * n_moved) for m in (torch.nn.Linear(width, width), torch.nn.Tanh())
    ]
    return torch.nn.Sequential(*layers), torch.randn(int(settings["rows"]), width)


def _plans(net: Any, x: Any, y: Any, near: str = NEAR, far: str = FAR) -> "tuple[Plan, Plan, Any]":
    """All on one device; half of it on the other; and the model."""
    import torch

    from potluck.graph import Model
    from potluck.records import Plan, Stage

    trains = y is not None
    loss = torch.nn.functional.cross_entropy
    model = (
        Model.from_torch(net, x, loss=loss, example_targets=y)
        if trains
        else Model.from_torch(net, x)
    )
    n_layers, rows = len(model.layers(trains)), len(x)

    def plan(*bounds: tuple[int, int, str]) -> "Plan":
        stages = tuple(
            Stage(start=a, stop=b, devices=(name,), shares=(rows // 2,), warm_up=2)
            for a, b, name in bounds
        )
        return Plan(
            planner="bench",
            model="linear",
            stages=stages,
            micro_batch=rows // 2,
            n_micro_batches=2,
            training=trains,
        )

    half = n_layers // 2
    return plan((0, n_layers, near)), plan((0, half, near), (half, n_layers, far)), model


def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.005)
