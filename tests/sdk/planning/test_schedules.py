"""The planner chooses among schedules, judged like any plan."""

from dataclasses import replace

import pytest

import potluck
from potluck.errors import UserError
from potluck.planning import predict
from potluck.planning.search.schedules import names_of
from potluck.planning.text import dumps, loads
from potluck.schedule.zero_bubble import ZERO_BUBBLE


@pytest.fixture(scope="module")
def profile():
    """Equal devices on fast links, so that a pipeline is worth it and its bubbles cost."""
    known = potluck.estimate("edge-cluster", "bert-small", max_layers=8, rows=(1, 8))
    media = tuple(replace(m, capacity_bytes_per_s=1e11) for m in known.network.media)
    paths = {pair: replace(path, latency_s=0.0) for pair, path in known.network.paths.items()}
    network = replace(known.network, media=media, paths=paths)
    # no device has room for the model and its optimizer's state alone
    devices = tuple(replace(d, memory_bytes=int(6.5e8)) for d in known.devices)
    return replace(known, network=network, devices=devices)


@pytest.fixture(scope="module")
def both(profile):
    training = potluck.Training(batch=32, micro_batch=4)
    usual = potluck.plan(profile, training, budget_s=0.5)
    chosen = potluck.plan(profile, training, budget_s=0.5, schedules="any")
    return usual, chosen


def test_a_schedule_is_chosen_where_it_is_sooner_and_never_a_slower_one(both):
    usual, chosen = both
    assert len(usual.best.stages) > 1
    assert chosen.best.schedule in ZERO_BUBBLE
    assert chosen.best.latency_s < usual.best.latency_s
    assert any(not plan.schedule for plan in chosen)
    assert chosen.best.gap_frac is None  # the bound is that of whole backwards
    assert usual.best.gap_frac is not None


def test_what_is_promised_is_what_its_programs_take(both):
    _, chosen = both
    for plan in chosen[:8]:
        trace = predict(plan.problem, plan)
        assert plan.latency_s == pytest.approx(trace.step_s[0], rel=1e-9)
        assert plan.peak_bytes == trace.peak_bytes


def test_a_plan_keeps_its_schedule_as_text(both):
    plan = both[1].best
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


def test_judging_a_plan_counts_its_schedule(both, profile):
    plan = both[1].best
    again = potluck.judge(loads(dumps(plan)), profile)
    assert again.latency_s == pytest.approx(plan.latency_s)
    slower = potluck.judge(replace(plan, schedule="fill-drain"), profile)
    assert slower.latency_s > plan.latency_s
