"""A plan has no cut that does nothing: neighbouring stages on the same devices are one, unless that
is slower.
"""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.sdk.planning.homes import WORKLOADS, later, random_branches, random_home

from potluck.planning import make_plans
from potluck.planning.evaluate import judge
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import terminates
from potluck.planning.search.stage_merging import joined
from potluck.records import Inference, Plan, Stage, Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

ROUNDING = 1 + 1e-9


@pytest.mark.few(1)
@pytest.mark.parametrize("workload", [Inference(batch=1, streaming=True), *WORKLOADS])
@pytest.mark.parametrize("seed", [*range(4), *later(range(4, 30))])
def test_cuts_between_stages_of_the_same_devices_are_there_for_a_reason(seed, workload):
    problem = random_home(seed, workload, devices=4, layers=8)
    for plan in make_plans(problem):
        for p, (left, right) in enumerate(pairwise(plan.stages)):
            if left.devices == right.devices and left.shares == right.shares:
                one = replace(left, stop=right.stop)
                merged = replace(plan, stages=(*plan.stages[:p], one, *plan.stages[p + 2 :]))
                assert judge(problem, merged).latency_s * ROUNDING > plan.latency_s


def test_a_stream_has_no_more_requests_under_way_for_a_cut_on_one_device():
    problem = random_home(0, Inference(batch=1, streaming=True))
    alone = next(plan for plan in make_plans(problem) if len(plan.devices) == 1)
    (stage,) = alone.stages
    cut = (replace(stage, stop=1), replace(stage, start=1))
    twice = judge(problem, replace(alone, stages=cut))
    assert twice.latency_s == pytest.approx(alone.latency_s)
    assert twice.energy_j == pytest.approx(alone.energy_j)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(12))
def test_no_stage_is_made_so_deep_that_others_wait_for_ever(seed):
    rng = random.Random(seed)
    home = random_branches(seed, Training(batch=8, micro_batch=2), devices=2)
    pool = CandidatePool(home, table := CostTable(home), Direct(home, table))
    names = [device.name for device in home.devices]
    for _ in range(40):
        stages = tuple(
            Stage(start=i, stop=i + 1, devices=(name,), shares=(2,), warm_up=depth)
            for i in range(len(home.layers))
            for name, depth in [(rng.choice(names), rng.randint(1, 3))]
        )
        plan = Plan(planner="p", model=home.model, stages=stages, micro_batch=2, n_micro_batches=4)
        if terminates(table, plan, stages):
            score = pool.score(plan)
            assert pool.score(joined(pool, StagePlacements(table), plan)) <= score * (1 + 1e-9)
