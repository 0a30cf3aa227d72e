"""In a home of many devices the busiest stages give away what others have time for."""

from dataclasses import replace
from itertools import islice, pairwise

import pytest

from potluck.bench.large_homes import LargeHome
from potluck.planning import check_plan, make_plans
from potluck.planning.search import work_budget
from potluck.planning.search.bottleneck_relief import relieving
from potluck.planning.search.local_search import floor_s
from potluck.records import LayerCost, Plan, Stage, Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct


def alone(problem, names, shares):
    """All layers on these devices, in one micro-batch."""
    stage = Stage(start=0, stop=len(problem.layers), devices=names, shares=shares)
    return Plan(planner="by hand", model=problem.model, stages=(stage,), micro_batch=sum(shares))


def even(n_devices=10):
    """Alike devices on which a row takes a second, and what a micro-batch costs beside its rows as
    much again.
    """
    problem = LargeHome(n_devices, "alike", "switch", "training", 0).problem()
    one = LayerCost(rows=(1, 64), forward_s=(1.0, 32.5), backward_s=(1.0, 32.5))
    still = LayerCost(rows=(1,), forward_s=(0.0,), backward_s=(0.0,))
    costs = {d.name: (one, *[still] * (len(problem.layers) - 1)) for d in problem.devices}
    return replace(problem, costs=costs, workload=Training(batch=12))


def test_rows_go_to_who_has_least_to_do():
    problem = even()
    first = next(relieving(CostTable(problem), alone(problem, ("d0", "d1", "d2"), (10, 1, 1))))
    assert sorted(first.stages[0].shares) == [4, 4, 4]


def test_devices_with_nothing_to_do_come_in():
    problem = even()
    plans = relieving(CostTable(problem), alone(problem, ("d0", "d1"), (6, 6)))
    shares = [plan.stages[0].shares for plan in islice(plans, 4)]
    assert (4, 4, 4) in shares
    assert (2, 2, 2, 2, 2, 2) in shares


@pytest.mark.parametrize("workload", ["training", "streaming"])
def test_every_plan_can_be_carried_out_and_no_layer_is_lost(workload):
    problem = LargeHome(12, "mixed", "sites", workload, 3).problem()
    n_layers = len(problem.layers)
    cuts, rows = (0, n_layers // 3, n_layers // 2, n_layers), problem.workload.batch
    start = Plan(
        planner="by hand",
        model=problem.model,
        stages=tuple(
            Stage(start=a, stop=b, devices=(f"d{2 * i}", f"d{2 * i + 1}"), shares=(1, rows - 1))
            for i, (a, b) in enumerate(pairwise(cuts))
        ),
        micro_batch=rows,
        training=workload == "training",
    )
    table = CostTable(problem)
    plans = list(relieving(table, start))
    assert len({plan.stages for plan in plans}) > 40
    for plan in plans:
        check_plan(plan, problem)
    assert min(floor_s(table, plan) for plan in plans[:20]) < floor_s(table, start)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [8000])
def test_no_rows_are_left_where_they_hold_up_all_others(seed, monkeypatch):
    """One ring of unlike devices: proportions to speed are not the best where a first row costs as
    much as several.
    """
    monkeypatch.setattr(work_budget, "GIVEN_S", work_budget.GIVEN_S / 4)
    problem = LargeHome(24, "mixed", "switch", "training", seed).problem()
    table, best = CostTable(problem), make_plans(problem).best
    direct = Direct(problem, table)
    for other in islice(relieving(table, best), 5):
        assert direct.run(other).latency_s >= best.latency_s * (1 - 2e-4)
