"""The bound on joules against the energy of every plan there is, and limits that are refused by
bounds alone.
"""

import random
from dataclasses import replace
from math import inf

import pytest
from tests.sdk.planning.homes import WORKLOADS, later, random_branches, random_home

from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.bounds.energy import least_energy_j
from potluck.planning.bounds.infeasible import refuse_impossible
from potluck.planning.bounds.latency import quick_bound_s
from potluck.planning.evaluate import judge
from potluck.planning.exhaustive import plan_exhaustive
from potluck.planning.search.local_search import neighbours
from potluck.records import Inference, QoE, Training
from potluck.simulate.cost import CostTable


def powered(problem, seed):
    """Devices of very different power, in some homes with little memory."""
    rng = random.Random(f"power {seed}")
    memory = rng.choice([10**9, 60_000])
    devices = tuple(
        replace(d, idle_w=rng.uniform(0, 8), busy_w=rng.uniform(0.5, 20), memory_bytes=memory)
        for d in problem.devices
    )
    return replace(problem, devices=devices, costs=with_some_updates(problem.costs, rng))


def with_some_updates(costs, rng):
    """Optimizer steps that were measured of some layers, as after runs that trained only those."""
    return {
        name: tuple(
            replace(cost, update_s=rng.choice([None, 1e-4, 1e-2])) if rng.random() < 0.5 else cost
            for cost in every
        )
        for name, every in costs.items()
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("workload", [*WORKLOADS, Training(batch=6), Inference(batch=1)], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_no_plan_takes_fewer_joules_than_the_bound(seed, workload):
    problem = powered(random_home(seed, workload, layers=4), seed)
    table = CostTable(problem)
    plans = list(plan_exhaustive(problem, table))
    plans += [
        other for plan in plans[:: max(1, len(plans) // 6)] for other in neighbours(table, plan)
    ]
    judged = [judge(problem, plan, table) for plan in plans]
    assert least_energy_j(problem, table) <= min(
        (plan.energy_j for plan in judged), default=inf
    ) * (1 + 1e-9)
    if judged:
        assert least_energy_j(problem, table) > 0
        limit_s = sorted(plan.latency_s for plan in judged)[len(judged) // 10]
        on_time = min(plan.energy_j for plan in judged if plan.latency_s <= limit_s)
        limited = replace(problem, qoe=QoE(latency_s=limit_s))
        assert (
            least_energy_j(problem, table)
            <= least_energy_j(limited, CostTable(limited))
            <= on_time * (1 + 1e-9)
        )


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(2), *later(range(2, 6))])
def test_nor_where_there_are_branches(seed):
    problem = powered(random_branches(seed, WORKLOADS[seed % 3], devices=2), seed)
    table = CostTable(problem)
    plans = list(plan_exhaustive(problem, table))
    plans = plans[:: max(3, len(plans) // 500)]
    energies = [judge(problem, plan, table).energy_j for plan in plans]
    assert least_energy_j(problem, table) <= min(energies, default=inf) * (1 + 1e-9)


def test_one_device_alone_takes_its_power_for_all_its_time():
    """Without overheads its best plan is the bound."""
    problem = random_home(1, Inference(batch=8))
    alone = replace(problem, devices=problem.devices[:1])
    seconds = sum(costs.forward_s[-1] for costs in alone.costs[alone.devices[0].name])
    assert least_energy_j(alone, CostTable(alone)) == pytest.approx(
        seconds * alone.devices[0].busy_w
    )


def test_where_power_is_unknown_nothing_is_claimed():
    problem = random_home(1)
    unknown = replace(
        problem, devices=tuple(replace(device, idle_w=None) for device in problem.devices)
    )
    assert least_energy_j(unknown, CostTable(unknown)) == 0.0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_the_thriftiest_plan_says_how_far_it_is_from_the_bound(seed):
    problem = random_home(seed)
    fastest = make_plans(problem).best
    assert fastest.energy_gap_frac is None  # nobody asked for joules
    limited = replace(problem, qoe=QoE(latency_s=fastest.latency_s * 2))
    best = make_plans(limited).best
    assert 0 <= best.energy_gap_frac < 1
    assert best.energy_j * (1 - best.energy_gap_frac) == pytest.approx(
        least_energy_j(limited, CostTable(limited))
    )


LITTLE = 2.0**-13  # times as many joules; sums are exact still


def of_little_power(problem):
    """The problem where everything takes few joules, and a second counts as few."""
    devices = tuple(
        replace(d, idle_w=LITTLE * d.idle_w, busy_w=LITTLE * d.busy_w, radio_w=LITTLE * d.radio_w)
        for d in problem.devices
    )
    qoe = replace(problem.qoe, lambda_j_per_s=LITTLE * problem.qoe.lambda_j_per_s)
    return replace(problem, devices=devices, qoe=qoe)


@pytest.mark.long
@pytest.mark.parametrize("drawn", [random_home, random_branches])
@pytest.mark.parametrize("workload", WORKLOADS[:2], ids=str)
@pytest.mark.parametrize("seed", [0, *later(range(1, 4))])
def test_of_devices_that_take_little_power_the_thriftiest_plan_is_as_thrifty(seed, workload, drawn):
    problem = drawn(seed, workload)
    ample = tuple(replace(d, memory_bytes=10**9) for d in powered(problem, seed).devices)
    problem = replace(problem, devices=ample)
    problem = replace(problem, qoe=QoE(latency_s=1.5 * make_plans(problem).best.latency_s))
    few_j = make_plans(of_little_power(problem)).best.energy_j
    assert few_j == pytest.approx(LITTLE * make_plans(problem).best.energy_j, rel=1e-9)


@pytest.mark.parametrize("limit", ["latency_s", "energy_j"])
def test_a_limit_below_the_bound_is_refused_by_the_bound(limit):
    problem = random_home(3)
    table = CostTable(problem)
    bound = quick_bound_s(problem) if limit == "latency_s" else least_energy_j(problem, table)
    refuse_impossible(replace(problem, qoe=QoE(**{limit: bound})), table)
    with pytest.raises(
        Infeasible,
        match=r"Every plan for chain needs more than .* per step; the (latency|energy) limit",
    ) as caught:
        make_plans(replace(problem, qoe=QoE(**{limit: bound * 0.99})))
    assert caught.value.facts["needed"] == pytest.approx(bound)


def test_a_layer_that_fits_nowhere_is_named_without_a_search():
    problem = random_home(3)
    layers = (
        *problem.layers[:1],
        replace(problem.layers[1], parameter_bytes=10**12),
        *problem.layers[2:],
    )
    big = replace(problem, layers=layers)
    with pytest.raises(Infeasible, match="layer 'l1' of chain fits on no device"):
        refuse_impossible(big, CostTable(big))
