"""DeepCEE's beam search: its cost by hand, its beam against all there are, ours never worse."""

from itertools import combinations, permutations

import pytest

import potluck
from potluck.planning.baselines.deepcee import (
    BeamSearch,
    GroupedPipeline,
    StageTerms,
    chosen_grouping,
    equation_1_s,
    plan_deepcee,
    stage_terms,
)
from potluck.planning.building_blocks import candidates
from potluck.planning.registry import PLANNERS, ask
from potluck.simulate.cost import CostTable


@pytest.fixture(scope="module")
def problem():
    profile = potluck.estimate("edge-cluster", "bert-small", max_layers=7, rows=(1, 8))
    return profile.problem(potluck.Training(batch=16), potluck.QoE())


def test_equation_1_by_hand():
    stages = [StageTerms(1.0, 3.0, 0.5), StageTerms(2.0, 5.0), StageTerms(1.0, 2.0, 4.0)]
    # 4 x 3 + 0.5; (1 + 1) + 4 x 5; (1 + 1 + 2 + 6) + 4 x 2 + 4 x (6 - 5) + 4
    assert equation_1_s(stages, [1.0, 6.0], 4) == max(12.5, 22.0, 26.0)
    assert equation_1_s(stages[:1], [], 4) == 12.5


def test_a_group_shares_rows_by_speed_and_sums_its_gradients(problem):
    table = CostTable(problem)
    alone = stage_terms(table, ("a40-1",), 0, 7, 8)
    assert alone.collective_s == 0.0
    assert alone.computing_s == pytest.approx(
        table.forward_s("a40-1", 0, 7, 8) + table.backward_s("a40-1", 0, 7, 8)
    )
    both = stage_terms(table, ("a40-1", "v100-1"), 0, 7, 8)
    assert sum(both.shares) == 8
    assert both.collective_s > 0
    assert both.computing_s < alone.computing_s


def test_the_beam_finds_the_best_of_all_candidates(problem):
    table, places = CostTable(problem), candidates.cuts(problem)
    regions = tuple((device.name,) for device in problem.devices[:3])
    search = BeamSearch(table, places, 4, {})
    every = [
        GroupedPipeline(order, (places[0], *cuts, places[-1]))
        for order in permutations(regions)
        for cuts in combinations(places[1:-1], 2)
    ]
    assert search.cost_s(search.run(regions)[0]) == min(map(search.cost_s, every))


def test_its_plans_are_pipelines_with_its_schedule(problem):
    plans = list(plan_deepcee(problem))
    assert any(len(plan.stages) > 1 for plan in plans)
    assert all((plan.schedule == "zb-compact") is (len(plan.stages) > 1) for plan in plans)
    assert all(plan.planner == "deepcee" and plan.latency_s > 0 for plan in plans)
    assert list(plan_deepcee(problem)) == plans  # the same again


@pytest.mark.long
def test_ours_is_never_worse_when_it_chooses_among_schedules(problem):
    theirs = ask(problem, "deepcee").best
    profile = potluck.estimate("edge-cluster", "bert-small", max_layers=7, rows=(1, 8))
    ours = potluck.plan(profile, potluck.Training(batch=16), budget_s=0.5, schedules="any").best
    assert ours.latency_s <= theirs.latency_s * (1 + 1e-9)


def test_inference_has_its_pipelines_without_a_schedule():
    profile = potluck.estimate("edge-cluster", "bert-small", max_layers=5, rows=(1, 4))
    problem = profile.problem(potluck.Inference(batch=4), potluck.QoE())
    plans = list(plan_deepcee(problem))
    assert plans
    assert not any(plan.schedule for plan in plans)
    assert "deepcee" in PLANNERS


def test_the_grouping_is_chosen_by_its_plan(problem):
    best, seconds = chosen_grouping(problem)
    assert seconds[best.threshold, best.factor] == min(seconds.values())
