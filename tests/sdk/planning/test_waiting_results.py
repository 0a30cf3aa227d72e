"""Requests whose values need not wait: closed forms take all of them to wait, the simulator knows
better, and so must the plans.
"""

import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import every_plan, later

from potluck.bench.optimality import best_s
from potluck.planning import judge, make_plans
from potluck.records import (
    HOME,
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
from potluck.simulate import footprint
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

MB = 1_000_000


def problem(
    memory, speed, *, batch, weights=MB, between=40_000, result=0, streaming=False, media=1e9
):
    """Two layers of equal work on devices of such memory and speed, each behind a cable of its
    own; home is one of the places that send."""
    names = tuple(f"d{i}" for i in range(len(memory)))
    paths = {(a, b): Path(media=((a, 1),)) for a in names for b in names if a != b}
    if result:
        paths |= {
            pair: Path(media=((name, 1),))
            for name in names
            for pair in ((HOME, name), (name, HOME))
        }
    return Problem(
        model="m",
        devices=tuple(Device(name=n, memory_bytes=m) for n, m in zip(names, memory, strict=True)),
        network=Network(
            media=tuple(Medium(name=name, capacity_bytes_per_s=media) for name in names),
            paths=paths,
        ),
        layers=(
            Layer(name="l0", output_bytes=between, parameter_bytes=weights),
            Layer(name="l1", output_bytes=result, parameter_bytes=weights),
        ),
        costs={
            name: (LayerCost(rows=(1,), forward_s=(0.01 / s,)),) * 2
            for name, s in zip(names, speed, strict=True)
        },
        workload=Inference(batch=batch, streaming=streaming),
        result_bytes=result,
        input_bytes=400,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("batch", [16, 23, *later([32, 36, 37, 64])])
def test_two_devices_that_each_hold_half_of_a_model_answer_any_batch(batch, streaming):
    home = problem(
        (7_070_000,) * 2, (1, 1), batch=batch, weights=3 * MB, between=MB, streaming=streaming
    )
    halves = Plan(
        planner="by hand",
        model="m",
        training=False,
        micro_batch=1,
        n_micro_batches=batch,
        stages=tuple(Stage(start=i, stop=i + 1, devices=(f"d{i}",), shares=(1,)) for i in range(2)),
    )
    best = make_plans(home).best
    assert max(best.peak_bytes.values()) <= 7_070_000
    assert best.latency_s <= judge(home, halves).latency_s * (1 + 1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_slow_device_more_makes_no_plan_worse_where_results_are_large(streaming):
    wide = {"batch": 45, "result": 4 * MB, "media": 1e9, "streaming": streaming}
    alone = make_plans(problem((20 * MB,), (1,), **wide)).best
    both = make_plans(problem((20 * MB, 400 * MB), (1, 0.02), **wide)).best
    assert both.latency_s <= alone.latency_s * 1.001


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(3), *later(range(3, 40))])
def test_unequal_memories_and_one_request_are_within_1_percent_of_brute_force(seed):
    rng = random.Random(seed)
    home = problem(
        tuple(int(10 ** rng.uniform(6.3, 8.5)) for _ in range(2)),
        tuple(10 ** rng.uniform(-1.5, 0) for _ in range(2)),
        batch=rng.choice((7, 11, 13, 16, 23)),
        between=int(10 ** rng.uniform(3, 6)),
        result=int(10 ** rng.uniform(3, 6.7)),
        media=10 ** rng.uniform(7, 9),
    )
    ample = replace(
        home, devices=tuple(replace(d, memory_bytes=d.memory_bytes + 5 * MB) for d in home.devices)
    )
    assert (
        make_plans(ample).best.latency_s <= best_s(ample, Direct(ample), every_plan(ample)) * 1.01
    )


def test_a_batch_of_a_large_prime_is_planned_in_single_rows():
    home = problem((3 * MB,), (1,), batch=1031, between=4000)
    assert make_plans(home).best.micro_batch == 1


@pytest.mark.long
def test_targets_take_no_room_where_nothing_is_trained():
    plain = problem((1_100_000, 30_000), (1, 0.5), batch=40, weights=4000, between=50)
    targeted = replace(plain, target_bytes=40_000)
    assert make_plans(targeted).best.stages == make_plans(plain).best.stages
    names = tuple(device.name for device in plain.devices)
    assert footprint.rows_that_fit(
        CostTable(targeted), 0, 2, 30_000, warm_up=1, replicas=len(names)
    ) == footprint.rows_that_fit(CostTable(plain), 0, 2, 30_000, warm_up=1, replicas=len(names))


@pytest.mark.few(1)
@pytest.mark.parametrize("room", [330_000, 370_000, 450_000])
def test_inputs_that_come_slower_than_they_are_used_may_be_more_than_a_device_holds(room):
    home = problem((room,), (1,), batch=40, weights=400, between=50, result=4, media=1e5)
    home = replace(
        home,
        input_bytes=40_000,
        target_bytes=4,
        workload=Training(batch=40),
        costs={"d0": (LayerCost(rows=(3, 7), forward_s=(0.2, 0.4), backward_s=(0.2, 0.4)),) * 2},
    )
    assert make_plans(home).best.latency_s <= best_s(home, Direct(home), every_plan(home)) * 1.01
