"""What would make it feasible is true: planned with it there is a plan, and with a little less
there is none.
"""

import time
from dataclasses import replace
from functools import partial

import pytest
from tests.sdk.planning.homes import later, random_home

import potluck
from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.relax import CLOSE, explained, granted, remedies, round_up
from potluck.records import Inference, QoE, Training


def feasible(problem):
    try:
        return bool(make_plans(problem))
    except Infeasible:
        return False


def limited(problem, **limits):
    return replace(problem, qoe=replace(problem.qoe, **limits))


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*later([0]), 1, 2, 3])
@pytest.mark.parametrize(
    "workload", [Training(batch=8, micro_batch=2), Inference(batch=4)], ids=["train", "infer"]
)
def test_the_latency_that_is_named_can_be_asked_for_and_little_less_cannot(seed, workload):
    problem = limited(random_home(seed, workload), latency_s=1e-6)
    (remedy,) = remedies(problem, make_plans, make_plans)
    assert remedy.limit == "latency"
    assert remedy.plan.latency_s <= remedy.value
    assert feasible(limited(problem, latency_s=remedy.value))
    assert not feasible(limited(problem, latency_s=remedy.value * 0.98))


@pytest.mark.long
def test_the_energy_that_is_named_can_be_asked_for():
    problem = limited(random_home(2, Training(batch=8)), energy_j=1e-3)
    (remedy,) = remedies(problem, make_plans, make_plans)
    assert feasible(limited(problem, energy_j=remedy.value))


@pytest.mark.long
def test_where_two_limits_are_impossible_no_single_one_is_blamed():
    problem = limited(random_home(2, Training(batch=8)), energy_j=1e-3, latency_s=1e-6)
    assert list(remedies(problem, make_plans, make_plans)) == []
    with pytest.raises(Infeasible, match=r"^no\. No single limit is to blame"):
        raise explained(Infeasible("no.", next_step="x"), problem, make_plans, make_plans)


@pytest.mark.long
def test_the_joules_of_one_device_are_loosened_alone():
    problem = random_home(4, Training(batch=8))
    limits = {device.name: 1e-6 for device in problem.devices}
    found = list(remedies(limited(problem, device_energy_j=limits), make_plans, make_plans))
    assert {remedy.device for remedy in found} == set(limits)
    for remedy in found:
        assert remedy.plan.devices == (remedy.device,)
        assert feasible(limited(problem, device_energy_j={**limits, remedy.device: remedy.value}))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_the_memory_that_is_named_is_enough_and_a_little_less_is_not(seed):
    problem = random_home(seed, Training(batch=8))
    layers = tuple(replace(layer, parameter_bytes=40_000_000) for layer in problem.layers)
    problem = replace(problem, layers=layers)
    # one layer needs 160 MB
    tight = granted(problem, {device.name: 100_000_000 for device in problem.devices})
    assert not feasible(tight)
    found = [
        remedy for remedy in remedies(tight, make_plans, make_plans) if remedy.limit == "memory"
    ]
    assert found
    for remedy in found:
        assert feasible(granted(tight, {remedy.device: int(remedy.value)}))
        assert not feasible(granted(tight, {remedy.device: int(remedy.value / CLOSE / 1.05)}))


@pytest.mark.long
def test_a_smaller_batch_is_named_where_it_is_enough():
    problem = random_home(0, Training(batch=16, micro_batch=16), devices=2, layers=3)
    layers = tuple(replace(layer, activation_bytes=40_000_000) for layer in problem.layers)
    tight = granted(
        replace(problem, layers=layers), {device.name: 200_000_000 for device in problem.devices}
    )
    first = partial(make_plans, clock=time.process_time, budget_s=0.0)  # as users ask
    batch = next(remedy for remedy in remedies(tight, first, first) if remedy.limit == "batch")
    assert feasible(replace(tight, workload=Training(batch=int(batch.value))))


@pytest.mark.long
def test_the_user_is_told_limit_need_and_remedy_in_one_sentence():
    profile = potluck.estimate("family", "mobilenet-v2-cifar", max_layers=5, rows=(1, 8))
    with pytest.raises(
        Infeasible, match=r"the latency limit is 0\.001 s\. Would do \(.*a latency of"
    ) as error:
        potluck.plan(profile, potluck.Training(batch=8), QoE(latency_s=1e-3))
    (remedy,) = error.value.facts["remedies"]
    assert error.value.facts["limit"] == "latency"
    assert (
        potluck.plan(profile, potluck.Training(batch=8), QoE(latency_s=remedy.value)).best.latency_s
        <= remedy.value
    )
    with pytest.raises(Infeasible, match=r" per request; the latency limit"):
        potluck.plan(profile, potluck.Inference(), QoE(latency_s=1e-9))
    with pytest.raises(Infeasible, match="Would do"):
        potluck.plan(profile, potluck.Training(batch=8), QoE(latency_s=1e-3), planner="gpipe")


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.12301, 0.124), (2.0, 2.0), (1234.5, 1240), (9.999, 10.0), (1e-5, 1e-5), (0.0, 0.0)],
)
def test_rounds_up_to_three_digits(value, rounded):
    assert round_up(value) == pytest.approx(rounded, rel=1e-12)
    assert round_up(value) >= value
