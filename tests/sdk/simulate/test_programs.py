"""Simulated programs: whole traces by hand, energy and memory, and no deadlock whatever the
speeds.
"""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from potluck.planning import judge, predict
from potluck.planning.evaluate import compile_plan
from potluck.records import (
    Device,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    Stage,
    Training,
)
from potluck.simulate import simulate, steady_s
from potluck.simulate.cost import CostTable
from potluck.simulate.footprint import memory_bytes


def home(names="ab", capacity=100.0, latency_s=0.0, with_home=False, **device):
    ends = [*names, "home"] if with_home else list(names)
    paths = {
        (x, y): Path(media=(("air", 1),), latency_s=latency_s) for x in ends for y in ends if x != y
    }
    defaults = {
        "memory_bytes": 10**9,
        "idle_w": 1.0,
        "busy_w": 5.0,
        "radio_w": 2.0,
        "copy_bytes_per_s": 1e18,
    }
    devices = tuple(Device(name=name, **{**defaults, **device}) for name in names)
    return devices, Network(media=(Medium(name="air", capacity_bytes_per_s=capacity),), paths=paths)


def problem(workload, layers=2, **options):
    devices, network = home(**options)
    cost = LayerCost(rows=(1, 2), forward_s=(1.0, 1.0), backward_s=(2.0, 2.0))
    return Problem(
        model="toy",
        devices=devices,
        network=network,
        workload=workload,
        layers=tuple(
            Layer(
                name=f"l{i}",
                parameter_bytes=40,
                output_bytes=50,
                gradient_bytes=50,
                activation_bytes=7,
            )
            for i in range(layers)
        ),
        costs={device.name: (cost,) * layers for device in devices},
        input_bytes=100,
        target_bytes=10,
        result_bytes=20,
    )


def pipeline(n_micro_batches, micro_batch=2, training=True):
    shares = (micro_batch,)
    return Plan(
        planner="hand",
        model="toy",
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
        training=training,
        stages=(
            Stage(start=0, stop=1, devices=("a",), shares=shares, warm_up=min(2, n_micro_batches)),
            Stage(start=1, stop=2, devices=("b",), shares=shares, warm_up=1),
        ),
    )


def lanes(trace, lane):
    return [(e.device, e.label, e.start_s, e.stop_s) for e in trace.events if e.lane == lane]


def test_training_pipeline_by_hand():
    # a cut of 100 bytes at 100 bytes per second
    trace = predict(problem(Training(batch=4)), pipeline(2))
    computed = [row for row in lanes(trace, "compute") if row[3] > row[2] + 1e-6]
    assert computed == [
        ("a", "0F0", 0.0, 1.0),
        ("a", "0F1", 1.0, 2.0),
        ("b", "1F0", 2.0, 3.0),
        ("b", "1B0", 3.0, 5.0),
        ("b", "1F1", 5.0, 6.0),
        ("a", "0B0", 6.0, 8.0),
        ("b", "1B1", 6.0, 8.0),
        ("a", "0B1", 9.0, 11.0),
    ]
    assert lanes(trace, "send") == [
        ("a", "0F0>1F0", 1.0, 2.0),
        ("a", "0F1>1F1", 2.0, 3.0),
        ("b", "1B0>0B0", 5.0, 6.0),
        ("b", "1B1>0B1", 8.0, 9.0),
    ]
    assert trace.step_s == (pytest.approx(11.0),)
    assert trace.busy_s == {"a": pytest.approx(6.0), "b": pytest.approx(6.0)}
    # Idle 1 W for 11 s, 4 W more while computing (6 s), 2 W more while sending or receiving (4 s).
    assert trace.energy_j == {"a": pytest.approx(11 + 24 + 8), "b": pytest.approx(11 + 24 + 8)}


def test_memory_peaks_by_hand():
    trained = problem(Training(batch=4))
    trace = predict(trained, pipeline(2))
    # a, during 0F0: 4 x 40 of weights, gradients and two moments, 2 x 7 kept, (100 + 50) x 2 worked
    # on, the inputs of both micro-batches (they come at once, no path from home is known), and the
    # output of 100.
    assert trace.peak_bytes["a"] == 160 + 14 + 300 + 400 + 100
    assert trace.peak_bytes["a"] <= memory_bytes(
        CostTable(trained), 0, 1, 2, warm_up=2, n_micro_batches=2
    )


def test_inputs_come_from_home_over_the_same_air():
    trace = predict(problem(Inference(batch=2), with_home=True), pipeline(1, training=False))
    assert [(e.device, e.lane, e.peer, e.start_s, e.stop_s) for e in trace.events] == [
        ("a", "receive", "home", 0.0, 2.0),
        ("a", "compute", "", 2.0, 3.0),
        ("a", "send", "b", 3.0, 4.0),
        ("b", "receive", "a", 3.0, 4.0),
        ("b", "compute", "", 4.0, 5.0),
        ("b", "send", "home", 5.0, pytest.approx(5.4)),
    ]


def test_streaming_is_limited_by_the_slowest_step():
    trained = problem(Inference(batch=2, streaming=True), capacity=50.0)
    trace = predict(trained, pipeline(1, training=False))
    assert steady_s(trace, 4) == pytest.approx(2.0)  # 100 bytes over the cut at 50 bytes per second
    assert judge(trained, pipeline(1, training=False)).latency_s == pytest.approx(2.0)


def test_training_steps_follow_each_other_on_every_device():
    trained = problem(Training(batch=4))
    trace = simulate(compile_plan(trained, pipeline(2)), trained, steps=3, in_flight=2, serial=True)
    for device in "ab":
        spans = [
            (min(e.start_s for e in events), max(e.stop_s for e in events))
            for step in range(3)
            if (
                events := [
                    e
                    for e in trace.events
                    if e.device == device and e.step == step and e.lane == "compute"
                ]
            )
        ]
        assert spans == sorted(spans)
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))
    # the first stage ends last, so nothing overlaps here
    assert trace.stop_s == pytest.approx(3 * 11.0)


def test_unknown_power_is_unknown_energy():
    trained = problem(Training(batch=4), busy_w=None)
    assert predict(trained, pipeline(2)).energy_j == {}
    assert judge(trained, pipeline(2)).energy_j is None


def replicated(rng):
    names = "abcde"
    cuts = sorted(rng.sample(range(1, 4), rng.randint(0, 2)))
    bounds = [0, *cuts, 4]
    groups, ungrouped = [], list(names)
    for p in range(len(bounds) - 1):
        take = rng.randint(1, len(ungrouped) - (len(bounds) - 2 - p))
        groups.append(tuple(ungrouped[:take]))
        ungrouped = ungrouped[take:]
    n_micro_batches = rng.choice([1, 2, 4])
    micro_batch = 8 // n_micro_batches * 2
    stages = []
    for p, group in enumerate(groups):
        shares = [1] * len(group)
        if sum(shares) > micro_batch:
            group, shares = group[:micro_batch], shares[:micro_batch]
        for _ in range(micro_batch - sum(shares)):
            shares[rng.randrange(len(shares))] += 1
        warm_up = min(2 * (len(groups) - p) - 1, n_micro_batches)
        stages.append(
            Stage(
                start=bounds[p],
                stop=bounds[p + 1],
                devices=group,
                shares=tuple(shares),
                warm_up=warm_up,
            )
        )
    return Plan(
        planner="random",
        model="toy",
        stages=tuple(stages),
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
    )


@pytest.mark.parametrize("seed", range(40))
def test_any_plan_ends_at_any_speeds_and_memory_stays_within_the_equation(seed):
    rng = random.Random(seed)
    plan = replicated(rng)
    trained = problem(
        Training(batch=plan.batch), layers=4, names="abcde", with_home=True, latency_s=0.01
    )
    costs = {
        name: tuple(
            LayerCost(
                rows=(1, 16),
                forward_s=(x := rng.uniform(0.01, 2), 3 * x),
                backward_s=(2 * x, 6 * x),
            )
            for _ in range(4)
        )
        for name in "abcde"
    }
    trained = replace(trained, costs=costs)
    trace = predict(trained, plan)
    busiest = max(trace.busy_s.values())
    assert trace.step_s[0] >= busiest - 1e-9
    n_sent = sum(1 for e in trace.events if e.lane == "send" and e.peer != "home")
    n_received = sum(1 for e in trace.events if e.lane == "receive" and e.peer != "home")
    assert n_sent == n_received
    for stage in plan.stages:
        for device in stage.devices:
            work = sum(
                e.stop_s - e.start_s
                for e in trace.events
                if e.device == device and e.op in ("run", "backward")
            )
            table, rows = (
                CostTable(trained),
                dict(zip(stage.devices, stage.shares, strict=True))[device],
            )
            one = table.forward_s(device, stage.start, stage.stop, rows) * 3
            assert work == pytest.approx(plan.n_micro_batches * one)
            limit = memory_bytes(
                table,
                stage.start,
                stage.stop,
                rows,
                warm_up=stage.warm_up,
                replicas=len(stage.devices),
                n_micro_batches=plan.n_micro_batches,
            )
            assert trace.peak_bytes[device] <= limit
