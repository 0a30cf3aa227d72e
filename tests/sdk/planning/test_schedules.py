"""The planner chooses among schedules, judged like any plan."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import PlanError, UserError
from potluck.planning import predict
from potluck.planning.search.schedules import names_of, scheduled
from potluck.planning.text import dumps, loads
from potluck.schedule.zero_bubble import ZERO_BUBBLE
from potluck.simulate.cost import CostTable


@pytest.fixture(scope="module")
def profile():
    """Equal devices on fast links, so that a pipeline is worth it and its bubbles cost."""
    known = potluck.estimate("edge-cluster", "bert-small", max_layers=8, rows=(1, 8))
    media = tuple(replace(m, capacity_bytes_per_s=1e11) for m in known.network.media)
    paths = {pair: replace(path, latency_s=0.0) for pair, path in known.network.paths.items()}
    network = replace(known.network, media=media, paths=paths)
    # no device has room for the model and its optimizer's state alone
    devices = tuple(replace(d, memory_bytes=int(1.5e9)) for d in known.devices)
    return replace(known, network=network, devices=devices)


@pytest.fixture(scope="module")
def usual(profile):
    """1F1B on a stage of two layers for each device."""
    devices = [((device.name,), (4,)) for device in profile.devices]
    plan = make_plan(SimpleNamespace(layers=lambda _: [None] * 8), *devices, micro_batch=4)
    named = replace(plan, model=profile.model, n_micro_batches=8)
    deep = tuple(replace(s, warm_up=7 - 2 * p) for p, s in enumerate(named.stages))
    return potluck.judge(replace(named, stages=deep), profile)


@pytest.fixture(scope="module")
def others(usual):
    problem = usual.problem
    unjudged = replace(usual, latency_s=None)  # else what cannot be sooner is left out
    table = CostTable(problem)
    return [p for name in ZERO_BUBBLE for p in scheduled(problem, table, [unjudged], (name,))]


def test_every_policy_is_tried_and_some_are_sooner(usual, others):
    assert {plan.schedule for plan in others} == set(ZERO_BUBBLE)
    sooner = {plan.schedule for plan in others if plan.latency_s < usual.latency_s}
    assert {"zb-h1", "zb-2p", "zb-compact"} <= sooner
    assert {len(plan.stages) for plan in others} == {4, 8}  # and stages that come back


def test_what_cannot_be_sooner_is_not_simulated(usual, others):
    problem, best = usual.problem, min(others, key=lambda plan: plan.latency_s)
    found = scheduled(problem, CostTable(problem), [best], tuple(ZERO_BUBBLE))
    left_out = {plan.schedule for plan in others} - {plan.schedule for plan in found}
    assert all(p.latency_s >= best.latency_s for p in others if p.schedule in left_out)
    limited = replace(problem, qoe=potluck.QoE(energy_j=1e9))  # there joules may decide
    everything = scheduled(limited, CostTable(limited), [best], tuple(ZERO_BUBBLE))
    assert {plan.schedule for plan in everything} == set(ZERO_BUBBLE)


@pytest.mark.long
def test_the_planner_chooses_none_that_is_slower(profile):
    training = potluck.Training(batch=32, micro_batch=4)
    chosen = potluck.plan(profile, training, budget_s=0.5, schedules="any")
    assert any(plan.schedule for plan in chosen)
    assert all(chosen.best.latency_s <= plan.latency_s for plan in chosen if not plan.schedule)
    # the bound is that of whole backwards
    assert (chosen.best.gap_frac is None) is bool(chosen.best.schedule)


def test_what_is_promised_is_what_its_programs_take(others):
    for plan in others:
        trace = predict(plan.problem, plan)
        assert plan.latency_s == pytest.approx(trace.step_s[0], rel=1e-9)
        assert plan.peak_bytes == trace.peak_bytes


def test_a_plan_keeps_its_schedule_as_text(others):
    plan = others[0]
    assert f'schedule = "{plan.schedule}"' in dumps(plan)
    assert loads(dumps(plan)).schedule == plan.schedule


def test_inference_has_no_other_schedules(profile):
    found = potluck.plan(profile, potluck.Inference(), budget_s=0.2, schedules="any")
    assert not any(plan.schedule for plan in found)


def test_refuses_schedules_that_nobody_knows_and_planners_that_choose_none(profile):
    assert names_of("any") == tuple(ZERO_BUBBLE)
    with pytest.raises(UserError, match="no schedule is called 'zb'"):
        potluck.plan(profile, potluck.Training(batch=8), schedules="zb")
    with pytest.raises(UserError, match="not what 'gpipe' chooses"):
        potluck.plan(profile, potluck.Training(batch=8), planner="gpipe", schedules="any")


def test_judging_a_plan_counts_its_schedule(others, profile):
    plan = others[0]
    again = potluck.judge(loads(dumps(plan)), profile)
    assert again.latency_s == pytest.approx(plan.latency_s)
    slower = potluck.judge(replace(plan, schedule="fill-drain"), profile)
    assert slower.latency_s > plan.latency_s


def test_no_training_is_planned_or_judged_without_its_backwards(profile, usual):
    """Which would take a third of the time, and teach nothing."""
    workload = potluck.Training(batch=32)
    found = potluck.plan(profile, workload, budget_s=0.5, schedules="forward-only")
    assert all(plan.schedule != "forward-only" for plan in found)
    with pytest.raises(PlanError, match="forward-only never goes backward"):
        potluck.judge(replace(usual, schedule="forward-only"), profile)
