"""Plans ranked by what an order of their transfers makes of them."""

from dataclasses import replace

import pytest

from potluck.errors import UserError
from potluck.plan import make_plans
from potluck.plan.judge import compile_plan
from potluck.plan.turns import put_in_order
from potluck.records import Inference, Training
from potluck.run.planning import solve
from potluck.schedule.network import in_turns
from potluck.simulate.foretell import foretell

from .homes import random_home


def congested(seed, workload=None):
    return random_home(seed, workload or Training(batch=16, micro_batch=2), devices=4, layers=6, capacity=3e4)


def ways(plan):
    return plan.stages, plan.micro_batch


def step_s(problem, plan):
    """What the plan's programs take as they come, and as they are deployed."""
    compiled = compile_plan(problem, plan)
    return tuple(max(foretell(programs, problem).step_s) for programs in (compiled, in_turns(compiled, problem)))


def test_the_best_plan_is_the_one_that_is_fastest_with_its_transfers_in_order():
    problem = congested(35)
    before, after = make_plans(problem), make_plans(problem, turns=True)
    assert after.best.latency_s < before.best.latency_s
    assert ways(after.best) != ways(before.best)
    assert {ways(plan) for plan in after} == {ways(plan) for plan in before}
    as_they_come_s, in_turns_s = step_s(problem, after.best)
    judged_s = next(plan.latency_s for plan in before if ways(plan) == ways(after.best))
    assert after.best.latency_s / judged_s == pytest.approx(in_turns_s / as_they_come_s)
    assert after.best.gap_frac < before.best.gap_frac
    assert after.best.energy_j == pytest.approx(sum(after.best.device_energy_j.values()))


def test_a_plan_that_would_break_a_limit_in_order_stays_as_it_is():
    problem = congested(5)
    plans = make_plans(problem)
    assert put_in_order(problem, plans)[0].latency_s < plans.best.latency_s
    broke = replace(problem, qoe=replace(problem.qoe, energy_j=1e-6))
    assert put_in_order(broke, plans)[0] == plans.best


def test_requests_that_stream_are_left_as_they_are():
    problem = congested(5, Inference(batch=4, streaming=True))
    plans = make_plans(problem)
    assert put_in_order(problem, plans) == list(plans)


def test_other_planners_know_no_turns():
    with pytest.raises(UserError, match=r"not what 'dora' plans"):
        solve(congested(5), "dora", turns=True)
