"""Each baseline: every plan it gives can be carried out and fits.

And what is special about it, by hand.
"""

import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import WORKLOADS, random_home

from potluck.planning import check_plan
from potluck.planning.baselines.dora import plan_dora
from potluck.planning.baselines.edgeshard import plan_edgeshard
from potluck.planning.baselines.gpipe import plan_gpipe
from potluck.planning.baselines.hetpipe import plan_hetpipe
from potluck.planning.baselines.metis import groupings
from potluck.planning.baselines.pipedream import plan_pipedream
from potluck.planning.building_blocks.build import balanced, each_balanced, mean_problem
from potluck.planning.evaluate import judge
from potluck.planning.feasibility import breaches
from potluck.planning.registry import PLANNERS
from potluck.records import Inference, QoE, Training
from potluck.simulate.cost import CostTable


@pytest.mark.few(10)
@pytest.mark.parametrize("workload", WORKLOADS, ids=["training", "request", "streaming"])
@pytest.mark.parametrize("name", PLANNERS)
def test_every_plan_can_be_carried_out_and_fits(name, workload):
    problem = random_home(8, workload, devices=4, layers=6)
    table = CostTable(problem)
    plans = list(PLANNERS[name](problem, table))
    assert plans
    for plan in plans[:40]:
        check_plan(plan, problem)
        assert not breaches(problem, judge(problem, plan, table))
        assert plan.latency_s > 0


@pytest.mark.parametrize("name", PLANNERS)
def test_where_nothing_fits_there_is_no_plan(name):
    problem = random_home(8)
    tiny = replace(
        problem, devices=tuple(replace(device, memory_bytes=10) for device in problem.devices)
    )
    assert list(PLANNERS[name](tiny, None)) == []


def test_balanced_cuts_by_hand():
    assert balanced([0, 1, 2, 3, 4], 2, lambda p, a, b: float(b - a)) == [0, 2, 4]
    assert balanced([0, 1, 2, 3], 3, lambda p, a, b: float(b - a)) == [0, 1, 2, 3]
    assert balanced([0, 2], 2, lambda p, a, b: 1.0) is None


def test_each_number_of_stages_is_balanced_as_if_alone():
    rng = random.Random(5)
    seconds = [rng.choice([0.5, 1.0, 2.0]) for _ in range(12)]

    def stage_s(p, start, stop):
        return sum(seconds[start:stop]) / (p + 1)

    places = [0, 1, 3, 4, 7, 8, 9, 12]
    alone = [balanced(places, n_stages, stage_s) for n_stages in range(1, 10)]
    assert list(each_balanced(places, 9, stage_s)) == alone
    assert alone[7:] == [None, None]


def test_mean_devices_are_equal_and_as_fast_as_the_average():
    problem = random_home(1)
    mean = mean_problem(problem)
    times = [problem.costs[device.name][0].forward_s[0] for device in problem.devices]
    found = [costs[0].forward_s[0] for costs in mean.costs.values()]
    assert found == pytest.approx([sum(times) / len(times)] * len(times))


def test_gpipe_keeps_all_micro_batches_and_uses_single_devices():
    for plan in plan_gpipe(random_home(1)):
        assert all(
            len(stage.devices) == 1 and stage.warm_up == plan.n_micro_batches
            for stage in plan.stages
        )


def test_edgeshard_takes_the_fastest_device_for_one_request_over_slow_links():
    problem = random_home(1, Inference(batch=1), capacity=10.0)
    best = min(plan_edgeshard(problem), key=lambda plan: plan.latency_s)
    times = {d.name: sum(c.forward_s[0] for c in problem.costs[d.name]) for d in problem.devices}
    assert best.devices == (min(times, key=times.get),)


def test_hetpipe_makes_every_worker_alike():
    plans = list(plan_hetpipe(random_home(8, devices=4)))
    assert all(len({len(stage.devices) for stage in plan.stages}) == 1 for plan in plans)


def test_pipedream_replicates_where_weights_are_light_and_links_fast():
    problem = random_home(0, Training(batch=8, micro_batch=8), capacity=1e12)
    assert any(len(plan.stages) == 1 and len(plan.devices) > 1 for plan in plan_pipedream(problem))


def test_metis_groups_are_powers_of_two():
    assert list(groupings(3)) == [(1, 2), (2, 1), (1, 1, 1)]
    assert all(size & (size - 1) == 0 for sizes in groupings(7) for size in sizes)


def test_dora_spares_energy_where_latency_is_given():
    problem = random_home(2)
    free = min(plan_dora(problem), key=lambda plan: plan.latency_s)
    hurried = replace(problem, qoe=QoE(latency_s=free.latency_s * 10))
    judged = [judge(hurried, plan) for plan in plan_dora(hurried)]
    assert min(plan.energy_j for plan in judged) <= judge(problem, free).energy_j
