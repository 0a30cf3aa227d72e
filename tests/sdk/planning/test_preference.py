"""The order of plans: joules are weighed against joules only, and where power is unknown that is
said.
"""

import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import random_home

from potluck.display import html, text
from potluck.planning import Plans, make_plans
from potluck.planning.explain import explain
from potluck.planning.plans import preference
from potluck.planning.registry import ask
from potluck.records import Plan, QoE, Stage


def some_plans(seed, known):
    """Judged plans of random latency; `known`: "all", "some" or "no" energies."""
    rng = random.Random(f"{known} {seed}")
    stages = (Stage(start=0, stop=3, devices=("d0",), shares=(2,)),)
    return [
        Plan(
            planner=str(i),
            model="chain",
            stages=stages,
            micro_batch=2,
            latency_s=10 ** rng.uniform(-3, 3),
            energy_j=10 ** rng.uniform(-3, 3)
            if known == "all" or (known == "some" and rng.random() < 0.5)
            else None,
        )
        for i in range(12)
    ]


def without_power(problem, *names):
    return replace(
        problem,
        devices=tuple(replace(d, busy_w=None) if d.name in names else d for d in problem.devices),
    )


def names_in_order(plans, problem):
    return [plan.planner for plan in sorted(plans, key=lambda plan: preference(plan, problem))]


def in_other_units(plans, problem, seconds, joules):
    """The same, told in units of so many seconds and joules."""
    converted = [
        replace(
            p,
            latency_s=p.latency_s / seconds,
            energy_j=None if p.energy_j is None else p.energy_j / joules,
        )
        for p in plans
    ]
    qoe = problem.qoe
    latency_s = None if qoe.latency_s is None else qoe.latency_s / seconds
    limits = replace(qoe, latency_s=latency_s, lambda_j_per_s=qoe.lambda_j_per_s / joules * seconds)
    return converted, replace(problem, qoe=limits)


@pytest.mark.few(6)
@pytest.mark.parametrize("powers", ["known", "one unknown"])
@pytest.mark.parametrize("known", ["all", "some", "no"])
@pytest.mark.parametrize("latency_s", [None, 0.01, 1.0, 1e4])
def test_the_order_is_total_and_the_same_in_any_units(latency_s, known, powers):
    """So no second is ever weighed against a joule."""
    for seed in range(20):
        plans = some_plans(seed, known)
        problem = replace(random_home(seed), qoe=QoE(latency_s=latency_s))
        problem = without_power(problem, "d1") if powers == "one unknown" else problem
        order = names_in_order(plans, problem)
        for seconds, joules in ((1e-3, 1.0), (1.0, 3.6e6), (60.0, 1e-3)):
            assert names_in_order(*in_other_units(plans, problem, seconds, joules)) == order
        shuffled = random.Random(seed).sample(plans, len(plans))
        assert names_in_order(shuffled, problem) == order


@pytest.mark.parametrize("known", ["all", "some", "no"])
def test_where_a_power_is_unknown_time_alone_decides(known):
    problem = without_power(replace(random_home(1), qoe=QoE(latency_s=50.0)), "d1")
    plans = some_plans(3, known)
    assert names_in_order(plans, problem) == [
        p.planner for p in sorted(plans, key=lambda plan: plan.latency_s)
    ]


def test_where_all_powers_are_known_plans_of_unknown_energy_come_last_by_time():
    problem = replace(random_home(1), qoe=QoE(latency_s=50.0))
    plans = some_plans(4, "some")
    unknown = [
        plan.planner for plan in sorted(plans, key=lambda p: p.latency_s) if plan.energy_j is None
    ]
    assert 0 < len(unknown) < len(plans)
    assert names_in_order(plans, problem)[-len(unknown) :] == unknown


@pytest.mark.parametrize("planner", ["potluck", "asteroid"])
def test_planning_for_energy_where_a_power_is_unknown_says_so(planner):
    problem = without_power(replace(random_home(2), qoe=QoE(latency_s=1e3)), "d1")
    plans = make_plans(problem) if planner == "potluck" else ask(problem, planner)
    (note,) = plans.notes
    assert "fastest plan comes first" in note
    assert "of d1 is not known" in note  # and not of d0
    assert "--power" in note  # what to do
    latencies_s = [plan.latency_s for plan in plans]
    assert latencies_s == pytest.approx(sorted(latencies_s), rel=1e-9)
    shown = [
        repr(plans),
        plans._repr_html_(),
        text.plans(plans.items, plans.best),
        text.plan(plans.best, problem),
    ]
    explanation = explain(plans.best, improvements=False)
    shown += [repr(explanation), html.explanation(explanation), html.plan(plans.best, problem)]
    assert all("power of d1 is not known" in " ".join(one.split()) for one in shown)


@pytest.mark.long
def test_nothing_is_said_where_nobody_asked_for_joules_or_all_powers_are_known():
    problem = random_home(2)
    assert make_plans(without_power(problem, "d1")).notes == ()
    assert make_plans(replace(problem, qoe=QoE(latency_s=1e3))).notes == ()


def test_an_unknown_energy_neither_beats_nor_is_beaten():
    fast, slow = (
        replace(plan, latency_s=seconds, energy_j=joules, peak_bytes={"d0": 1})
        for plan, seconds, joules in zip(
            some_plans(0, "all"), (1.0, 2.0), (5.0, None), strict=False
        )
    )
    assert Plans((fast, slow)).pareto == (fast,)  # by time and memory, which are known of both
    thrifty = replace(slow, energy_j=4.0)
    assert Plans((thrifty, fast)).pareto == (fast, thrifty)
