"""What a plan takes at the least, told without simulating it, is never more than it takes."""

import random
from dataclasses import replace
from itertools import islice

import pytest
from tests.sdk.planning.homes import later, random_home

from potluck.planning.exhaustive import plan_exhaustive
from potluck.planning.search.plan_floor import least_in_any_order_s, least_s
from potluck.records import Inference, Layer, Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

LOADS = [Training(batch=12), Inference(batch=12), Inference(batch=3, streaming=True)]


def _plans(home, seed):
    rng = random.Random(seed)
    found = list(islice(plan_exhaustive(home), 3000))
    return rng.sample(found, min(30, len(found)))


@pytest.mark.few(3)
@pytest.mark.parametrize("workload", LOADS)
@pytest.mark.parametrize("seed", [*range(4), *later(range(4, 40))])
def test_no_plan_is_faster_than_its_floor(seed, workload):
    home = random_home(seed, workload, layers=4)
    table, simulator = CostTable(home), Direct(home)
    for plan in _plans(home, seed):
        assert least_s(table, plan) <= simulator.run(plan).latency_s * (1 + 1e-12)


@pytest.mark.few(2)
@pytest.mark.parametrize("schedule", ["zb-h1", "zb-2p", "zb-compact"])
@pytest.mark.parametrize("seed", [*range(2), *later(range(2, 12))])
def test_no_order_is_faster_than_the_floor_of_all_orders(seed, schedule):
    """Backwards in two parts, whose second nobody waits for."""
    home = random_home(seed, Training(batch=12), layers=4)
    table, simulator = CostTable(home), Direct(home)
    for plan in _plans(home, seed):
        if len(plan.stages) > 1 and len(set(plan.devices)) == sum(
            len(s.devices) for s in plan.stages
        ):
            latency_s = simulator.run(replace(plan, schedule=schedule)).latency_s
            assert least_in_any_order_s(table, plan) <= latency_s * (1 + 1e-12)


@pytest.mark.parametrize("seed", [*range(2), *later(range(2, 20))])
def test_a_stage_that_learns_nothing_has_no_backward_to_wait_for(seed):
    home = random_home(seed, Training(batch=12), layers=4)
    still = replace(home.layers[0], frozen_bytes=home.layers[0].parameter_bytes, gradient_bytes=0)
    home = replace(home, layers=(still, *home.layers[1:]))
    table, simulator = CostTable(home), Direct(home)
    for plan in _plans(home, seed):
        again = replace(plan, stages=tuple(replace(stage, recompute=True) for stage in plan.stages))
        for either in (plan, again):
            assert least_s(table, either) <= simulator.run(either).latency_s * (1 + 1e-12)


def test_of_a_slow_link_every_byte_counts():
    home = random_home(0, Inference(batch=8), capacity=1e3)
    wide = tuple(
        Layer(name=layer.name, output_bytes=1000, parameter_bytes=0) for layer in home.layers
    )
    home = replace(home, layers=wide)
    table = CostTable(home)
    split = next(plan for plan in plan_exhaustive(home) if len(plan.stages) == 2)
    assert least_s(table, split) >= 8 * 0.999  # 8 rows of 1000 bytes at 1000 bytes a second
