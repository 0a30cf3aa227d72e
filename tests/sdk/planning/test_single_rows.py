"""Where a batch norm has one value per row and channel, no plan lets a device learn from a single
row.
"""

from dataclasses import replace

import pytest
from tests.sdk.planning.homes import optimum_s, random_home

from potluck.errors import UserError
from potluck.planning import make_plans
from potluck.planning.building_blocks.candidates import fewest_rows
from potluck.planning.evaluate import judge
from potluck.planning.feasibility import breaches
from potluck.planning.registry import PLANNERS, ask
from potluck.records import Inference, Plan, Stage, Training


def normed(problem, layer, values=1):
    """The problem with a batch norm in that layer."""
    layers = (
        replace(at, norm_values=values) if i == layer else at for i, at in enumerate(problem.layers)
    )
    return replace(problem, layers=tuple(layers))


def shares(plan, problem):
    """The shares of the stages that hold a batch norm of single values."""
    held = (
        s
        for s in plan.stages
        if any(layer.norm_values == 1 for layer in problem.layers[s.start : s.stop])
    )
    return [share for stage in held for share in stage.shares]


@pytest.mark.long
@pytest.mark.parametrize("micro_batch", [2, 4, None])
@pytest.mark.parametrize("seed", range(8))
def test_our_plans_give_every_device_company(seed, micro_batch):
    problem = normed(random_home(seed, Training(batch=8, micro_batch=micro_batch)), seed % 3)
    plans = make_plans(problem)
    assert plans
    assert all(min(shares(plan, problem)) >= 2 for plan in plans)
    if micro_batch:
        assert plans.best.latency_s <= optimum_s(problem) * 1.01


@pytest.mark.long
@pytest.mark.parametrize("name", PLANNERS)
def test_plans_of_every_planner_do(name):
    for seed in range(3):
        problem = normed(random_home(seed, Training(batch=8, micro_batch=4)), 1)
        assert all(min(shares(plan, problem)) >= 2 for plan in ask(problem, name))


def test_a_plan_by_hand_is_told_what_it_breaks():
    problem = normed(random_home(0, Training(batch=8, micro_batch=2)), 0)
    names = tuple(device.name for device in problem.devices[:2])
    stages = (Stage(start=0, stop=len(problem.layers), devices=names, shares=(1, 1)),)
    plan = judge(
        problem,
        Plan(planner="hand", model="chain", stages=stages, micro_batch=2, n_micro_batches=4),
    )
    assert {(b.limit, b.device) for b in breaches(problem, plan)} == {
        ("rows", name) for name in names
    }
    for values in (0, 4):
        assert not breaches(normed(problem, 0, values), plan)


@pytest.mark.few(1)
@pytest.mark.parametrize("workload", [Training(batch=8, micro_batch=1), Training(batch=1)])
def test_single_rows_cannot_be_asked_for(workload):
    problem = random_home(0, workload)
    assert make_plans(problem)
    with pytest.raises(UserError, match="'l1' needs more than 1 value per channel when training"):
        make_plans(normed(problem, 1))


def test_requests_may_be_single_rows():
    assert fewest_rows(normed(random_home(0, Inference(batch=1)), 1)) == 1
