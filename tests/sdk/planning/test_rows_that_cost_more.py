"""Devices on which a row costs more in a large micro-batch than in a small one: beyond a cache or
before a page file. Then the best micro-batch may be any divisor of the batch.
"""

import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import later, optimum_s, random_home

from potluck.planning import make_plans
from potluck.planning.bounds.latency import lower_bound_s
from potluck.planning.search.micro_batch_sizes import promising, usual
from potluck.records import Inference, LayerCost, Training
from potluck.simulate.cost import CostTable

BATCHES = (72, 96, 120, 144, 180, 240, 360, 500, 720)


def beyond_a_cache(seed):
    """One device or two on quick links, and one layer to three: from some number of rows on, not
    the same on all devices, each costs as much as several.
    """
    rng = random.Random(f"cache {seed}")
    n_devices = rng.choice([1, 1, 2])
    n_layers = rng.choice([1, 2, 3])
    batch = rng.choice(BATCHES)
    home = random_home(3, devices=2, capacity=1e8)
    devices = home.devices[:n_devices]
    costs = {}
    for device in devices:
        few = rng.choice([2, 3, 4, 5, 6, 9, 12])
        times = rng.choice([1.5, 2, 3, 6])
        fixed = rng.choice([0, 1, 3])
        rows = tuple(sorted({1, few, few + 1, 2 * few, batch}))
        seconds = [1e-3 * (fixed + n * (times if n > few else 1)) for n in rows]
        weights = [rng.uniform(0.5, 2) for _ in range(n_layers)]
        costs[device.name] = tuple(
            LayerCost(
                rows=rows,
                forward_s=tuple(weight * s for s in seconds),
                backward_s=tuple(2 * weight * s for s in seconds),
            )
            for weight in weights
        )
    workload = rng.choice([Training(batch=batch), Inference(batch=batch)])
    layers = home.layers[:1] * n_layers
    return replace(home, devices=devices, layers=layers, costs=costs, workload=workload)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(16), *later(range(16, 60))])
def test_the_best_micro_batch_is_found_whatever_divisor_it_is(seed):
    problem = beyond_a_cache(seed)
    best, best_s = make_plans(problem).best, optimum_s(problem)
    assert best.latency_s <= best_s * 1.01
    assert best.latency_s * (1 - best.gap_frac) <= best_s * (1 + 1e-9)


def test_the_bound_is_of_all_sizes_and_not_of_those_tried():
    problem = beyond_a_cache(0)
    bound_s = lower_bound_s(problem, CostTable(problem), float("inf"))
    assert bound_s <= optimum_s(problem) * (1 + 1e-9)


@pytest.mark.parametrize("workload", [Training(batch=720), Inference(batch=720)])
def test_no_size_is_looked_for_where_rows_cost_no_more_in_a_large_micro_batch(workload):
    table = CostTable(random_home(1, workload))
    assert not promising(table, usual(table.problem))


def test_a_size_that_is_stated_is_the_only_one():
    problem = replace(beyond_a_cache(0), workload=Training(batch=720, micro_batch=720))
    assert not promising(CostTable(problem), usual(problem))
    assert make_plans(problem).best.micro_batch == 720
