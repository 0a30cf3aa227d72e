"""Plans ranked by what an order of their transfers makes of them."""

from dataclasses import replace
from statistics import median

import pytest
from tests.sdk.planning.homes import random_home

from potluck.contention.transfer_order import with_ordered_transfers
from potluck.errors import UserError
from potluck.planning import make_plans
from potluck.planning.api import solve
from potluck.planning.evaluate import compile_plan
from potluck.planning.rerank import N_PLANS, rerank
from potluck.records import (
    HOME,
    Device,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Problem,
    QoE,
    Training,
)
from potluck.simulate.predict import predict_steps


def congested(seed, workload=None):
    return random_home(
        seed, workload or Training(batch=8, micro_batch=2), devices=4, layers=5, capacity=2e4
    )


def ways(plan):
    return plan.stages, plan.micro_batch


def step_s(problem, plan):
    """The steady time of a step of the plan's programs as they are deployed."""
    programs = with_ordered_transfers(compile_plan(problem, plan), problem)
    return median(predict_steps(programs, problem).step_s)


@pytest.mark.long
def test_the_first_plans_are_ranked_as_their_programs_are_deployed():
    problem = congested(30)
    before, after = make_plans(problem), make_plans(problem, order_transfers=True)
    assert ways(after.best) != ways(before.best)
    assert {ways(plan) for plan in after} == {ways(plan) for plan in before}
    looked_at = [
        plan
        for plan in before[:N_PLANS]
        if ways(plan) in {ways(other) for other in after[:N_PLANS]}
    ]
    predicted_s = {ways(plan): step_s(problem, plan) for plan in looked_at}
    assert [plan.latency_s for plan in after[:N_PLANS]] == pytest.approx(
        sorted(predicted_s.values())
    )
    assert after.best.latency_s < predicted_s[ways(before.best)]
    assert after.best.energy_j == pytest.approx(sum(after.best.device_energy_j.values()))
    assert after.best.gap_frac is None  # what is certified is one step alone


@pytest.mark.long
def test_a_plan_that_would_break_a_limit_step_after_step_goes():
    problem = congested(30)
    plans = list(make_plans(problem))
    slow = max(rerank(problem, plans)[:N_PLANS], key=lambda pair: pair[1].latency_s)
    limit = QoE(latency_s=0.999 * slow[1].latency_s)
    kept = [ways(plan) for plan, _ in rerank(replace(problem, qoe=limit), plans)]
    assert ways(slow[0]) not in kept
    assert len(kept) >= len(plans) - N_PLANS


@pytest.mark.long
def test_limits_that_no_plan_holds_step_after_step_leave_plans_as_they_were_judged():
    problem = replace(congested(30), qoe=QoE(energy_j=1e-6))
    plans = list(make_plans(congested(30)))[:N_PLANS]
    assert rerank(problem, plans) == [(plan, plan) for plan in plans]


def test_requests_that_stream_are_left_as_they_are():
    problem = congested(30, Inference(batch=4, streaming=True))
    plans = list(make_plans(problem))
    assert [plan for _, plan in rerank(problem, plans)] == plans


def test_other_planners_know_no_turns():
    with pytest.raises(UserError, match=r"'dora' plans no order of transfers"):
        solve(congested(30), "dora", order_transfers=True)


def pair():
    """Two devices alike; the notebook is on the first, and sends rows half as fast as they are
    computed.
    """
    wire, row_s = Path(media=(("wire", 1),)), 0.1
    paths = {("a", "b"): wire, ("b", "a"): wire, (HOME, "b"): wire, ("b", HOME): wire}
    layers = [
        Layer(name=name, parameter_bytes=100, output_bytes=4000, gradient_bytes=4000)
        for name in ("first", "second")
    ]
    cost = LayerCost(
        rows=(1, 8), forward_s=(row_s / 4, 2 * row_s), backward_s=(row_s / 4, 2 * row_s)
    )
    return Problem(
        model="two layers",
        workload=Training(batch=8, micro_batch=8),
        qoe=QoE(),
        devices=tuple(Device(name=name, memory_bytes=10**9) for name in "ab"),
        network=Network(
            media=(Medium(name="wire", capacity_bytes_per_s=1e5),),
            paths=paths | {(HOME, "a"): Path(media=()), ("a", HOME): Path(media=())},
        ),
        layers=tuple(layers),
        costs=dict.fromkeys("ab", (cost, cost)),
        input_bytes=5000,
    )


def test_rows_that_come_while_the_step_before_is_computed_are_not_waited_for():
    problem = pair()
    alone, steady = make_plans(problem), make_plans(problem, order_transfers=True)
    assert alone.best.stages[0].shares == (5, 3)
    assert steady.best.stages[0].shares == (4, 4)
    assert steady.best.latency_s < step_s(problem, alone.best)
    found = [(plan.stages, plan.micro_batch, plan.schedule) for plan in steady]
    assert len(found) == len(set(found))
