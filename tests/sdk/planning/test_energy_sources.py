"""Every figure of energy of a plan says where its watts come from, to its last sum."""

import json
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import random_home

from potluck.commands.plan import document
from potluck.display import chart, html, text
from potluck.display.cockpit import plan_sections
from potluck.display.scene import Dot
from potluck.documents import tomllib
from potluck.errors import Infeasible, PlanError, UserError
from potluck.planning import make_plans
from potluck.planning.evaluate import judge, predict
from potluck.planning.explain import explain
from potluck.planning.text import dumps, loads
from potluck.provenance import MARKS, UNKNOWN, worst
from potluck.records import QoE


def marked(problem, *marks):
    """The problem whose devices have watts of these marks, in turn."""
    devices = []
    for i, device in enumerate(problem.devices):
        mark = marks[i % len(marks)]
        known = {"power_source": mark, "radio_w": 1.0} if mark != UNKNOWN else {"busy_w": None}
        devices.append(replace(device, power_note="a note", **known))
    return replace(problem, devices=tuple(devices))


MIXES = [(a, b) for a in MARKS for b in MARKS]


@pytest.mark.long
@pytest.mark.parametrize("marks", MIXES, ids="+".join)
def test_the_energy_of_a_plan_has_the_worst_mark_of_its_devices(marks):
    seen = set()
    for seed in range(3):
        problem = marked(random_home(seed), *marks)
        for plan in make_plans(problem).items[:6]:
            used = [problem.device(name) for name in plan.devices]
            mark = worst(device.power_mark for device in used)
            seen.add(mark)
            assert plan.energy_source == mark
            assert (plan.energy_j is None) == (mark == UNKNOWN)
            assert predict(problem, plan).energy_source == {
                device.name: device.power_mark for device in used if device.power_mark != UNKNOWN
            }
            assert loads(dumps(plan)).energy_source == mark
            assert json.loads(json.dumps(document(plan)))["energy_source"] == mark
    assert seen <= set(marks)


@pytest.mark.parametrize("mark", MARKS)
def test_a_radio_of_unknown_power_is_assumed_to_take_none_and_that_is_said(mark):
    problem = marked(random_home(0), mark)
    devices = [replace(device, radio_w=None) for device in problem.devices]
    plans = make_plans(replace(problem, devices=tuple(devices)))
    assert plans.best.energy_source == worst((mark, "assumed"))
    assert ("its radio is taken to add 0 W" in " ".join(plans.watts)) == (mark != UNKNOWN)


@pytest.mark.long
def test_whoever_reads_a_plan_its_table_or_its_explanation_sees_the_mark():
    problem = marked(random_home(0), "assumed")
    plans = make_plans(problem)
    explanation = explain(plans.best, improvements=False)
    for shown in (
        text.plan(plans.best, problem),
        text.plans(plans.items, plans.best),
        html.plan(plans.best, problem),
        repr(explanation),
    ):
        assert "J assumed" in shown
    names = ", ".join(device.name for device in problem.devices)
    assert plans.watts == (f"watts of {names}: assumed: a note",)
    assert plans.watts[0] in repr(explanation)


@pytest.mark.parametrize("mark", ["assumed", "simulated"])
def test_joules_of_a_limit_that_no_plan_holds_have_the_mark(mark):
    problem = marked(random_home(0), mark)
    for frac in (1e-6, 0.9):  # far below any bound; a little below the best
        least = min(plan.energy_j for plan in make_plans(problem).items)
        limited = replace(problem, qoe=QoE(energy_j=frac * least))
        with pytest.raises(Infeasible, match=rf"needs (more than )?\S+ J {mark} per"):
            make_plans(limited)


@pytest.mark.parametrize("mark", ["assumed", "simulated"])
def test_pictures_and_pages_of_plans_have_the_mark(mark):
    plans = make_plans(marked(random_home(0), mark))
    dots = [item.title for item in chart.pareto(plans.items).items if isinstance(item, Dot)]
    assert dots
    assert all(f"J {mark}" in title for title in dots if title)
    shown = plan_sections.plans(plans.items, None)
    assert {each["mark"] for each in shown.values()} == {mark}


@pytest.mark.long
def test_measured_watts_tell_how_sure_they_are():
    problem = marked(random_home(0), "measured")
    devices = tuple(replace(device, power_error_w=0.123) for device in problem.devices)
    plans = make_plans(replace(problem, devices=devices))
    assert "measured, known to ±0.12 W" in plans.watts[0]


@pytest.mark.long
def test_a_mark_that_is_none_is_refused():
    problem = random_home(0)
    with pytest.raises(UserError, match="power_source must be one of measured"):
        replace(problem.devices[0], power_source="sure")
    plan = make_plans(problem).best
    with pytest.raises((PlanError, UserError), match="energy_source must be one of measured"):
        loads(dumps(judge(problem, plan)).replace('"assumed"', '"sure"'))
    assert tomllib.loads(dumps(plan))["energy_source"] == "assumed"


@pytest.mark.parametrize("limit", ["energy_j", "device_energy_j"])
@pytest.mark.parametrize("missing", ["idle_w", "busy_w"])
def test_a_limit_on_joules_that_nobody_knows_is_refused_and_says_what_to_do(limit, missing):
    problem = random_home(1)
    blind = problem.devices[1]
    qoe = QoE(energy_j=9e9) if limit == "energy_j" else QoE(device_energy_j={blind.name: 9e9})
    devices = tuple(
        replace(each, **{missing: None}) if each is blind else each for each in problem.devices
    )
    with pytest.raises(UserError) as raised:
        make_plans(replace(problem, devices=devices, qoe=qoe))
    assert raised.value.device == blind.name
    assert "--power" in raised.value.next_step
    assert "meter" in raised.value.next_step
