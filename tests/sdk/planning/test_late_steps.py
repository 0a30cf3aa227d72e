"""What updates that come one step late are predicted to take, and to need."""

import pytest
from tests.sdk.planning.homes import random_home

from potluck.errors import PlanError
from potluck.planning import make_plans, predict
from potluck.planning.registry import ask
from potluck.records import Plan, Stage, Training
from potluck.simulate.cost import CostTable

IN_A_ROW = 4


def plans_of(problem):
    found = [plan for name in ("data parallel", "gpipe", "asteroid") for plan in ask(problem, name)]
    return [*found[:6], make_plans(problem).best]


@pytest.mark.few(4)
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_a_row_of_them_takes_no_longer_than_synchronous_steps(seed, micro_batch):
    problem = random_home(seed, Training(batch=8, micro_batch=micro_batch))
    for plan in plans_of(problem):
        (apart_s,) = predict(problem, plan).step_s
        (row_s,) = predict(problem, plan, one_step_late=IN_A_ROW).step_s
        assert row_s <= IN_A_ROW * apart_s * 1.01


def by_hand(problem, *stages):
    """(start, stop, devices, shares) of micro-batches of two rows."""
    made = tuple(
        Stage(start=start, stop=stop, devices=devices, shares=shares, warm_up=len(stages) - p)
        for p, (start, stop, devices, shares) in enumerate(stages)
    )
    return Plan(planner="test", model=problem.model, stages=made, micro_batch=2, n_micro_batches=4)


def test_sums_over_replicas_go_on_beside_the_next_step():
    """Where they take as long as the rest of a step, a step takes about half as long."""
    problem = random_home(0, capacity=1e4)
    first, second = (device.name for device in problem.devices[:2])
    plan = by_hand(problem, (0, len(problem.layers), (first, second), (1, 1)))
    trace = predict(problem, plan)
    computing_s = max(trace.busy_s.values())
    ring_s = trace.step_s[0] - computing_s
    (row_s,) = predict(problem, plan, one_step_late=16).step_s
    assert min(computing_s, ring_s) > 0.2 * trace.step_s[0]
    assert row_s / 16 <= 1.1 * max(computing_s, ring_s) + trace.step_s[0] / 16


def test_weights_are_there_twice():
    problem = random_home(1)
    plan = by_hand(problem, (0, len(problem.layers), (problem.devices[0].name,), (2,)))
    peaks = [
        max(predict(problem, plan, one_step_late=late).peak_bytes.values()) for late in (None, 4)
    ]
    weights = CostTable(problem).parameter_bytes(0, len(problem.layers))
    assert peaks[1] >= peaks[0] + weights > peaks[0]


def test_what_cannot_come_late_is_refused_before_anything_runs():
    problem = random_home(2, Training(batch=8, micro_batch=2, clipped=True))
    with pytest.raises(PlanError, match="clip_norm"):
        predict(problem, make_plans(problem).best, one_step_late=4)
