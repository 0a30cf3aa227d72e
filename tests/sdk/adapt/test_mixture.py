"""Mixed plans hold a deadline with the least energy that any counts of whole steps have."""

import random
from itertools import permutations

import pytest

from potluck.adapt.mixture import mix
from potluck.errors import Infeasible, UserError
from potluck.records import Plan, Stage


def plan(latency_s, energy_j):
    return Plan(
        planner="by hand",
        model="m",
        stages=(Stage(start=0, stop=1, devices=("a",), shares=(1,)),),
        micro_batch=1,
        latency_s=latency_s,
        energy_j=energy_j,
    )


def pareto(rng, n):
    """Faster plans take more energy: the more, the faster."""
    seconds = sorted(rng.uniform(0.5, 3.0) for _ in range(n))
    joules = sorted((rng.uniform(1.0, 9.0) for _ in range(n)), reverse=True)
    found = [plan(s, j) for s, j in zip(seconds, joules, strict=True)]
    rng.shuffle(found)  # the one at work is any of them
    return found


def costs(plans, order, steps, switch_s):
    """(seconds, joules) of steps of plans in this order, switches between them and at the start."""
    at = plans[0]
    seconds = 0.0
    joules = 0.0
    for index, n in zip(order, steps, strict=True):
        if n == 0:
            continue
        if plans[index] is not at:
            seconds += switch_s
            joules += switch_s * at.energy_j / at.latency_s
            at = plans[index]
        seconds += n * at.latency_s
        joules += n * at.energy_j
    return seconds, joules


def brute_force(plans, n_steps, deadline_s, switch_s):
    """The least joules over all counts of all plans in all orders; None where all are late."""
    n, found = len(plans), []

    def counts(total, places):
        if places == 1:
            yield (total,)
            return
        for first in range(total + 1):
            for rest in counts(total - first, places - 1):
                yield (first, *rest)

    for steps in counts(n_steps, n):
        for order in permutations(range(n)):
            seconds, joules = costs(plans, order, [steps[i] for i in order], switch_s)
            if seconds <= deadline_s + 1e-9:
                found.append(joules)
    return min(found, default=None)


def test_ten_steps_of_two_plans_by_hand():
    found = mix([plan(1.0, 4.0), plan(2.0, 2.0)], 10, 15.0)
    assert found.steps == (5, 5)
    assert [each.latency_s for each in found.plans] == [2.0, 1.0]
    assert (found.seconds, found.energy_j) == (15.0, 30.0)
    assert found.fractions == pytest.approx((1 / 3, 2 / 3))


@pytest.mark.parametrize("seed", range(60))
def test_two_plans_are_mixed_as_by_brute_force(seed):
    rng = random.Random(seed)
    plans, n_steps = pareto(rng, 2), rng.randint(1, 30)
    deadline_s, switch_s = n_steps * rng.uniform(0.4, 3.2), rng.choice((0.0, 0.1, 1.0))
    check(plans, n_steps, deadline_s, switch_s, brute_force(plans, n_steps, deadline_s, switch_s))


@pytest.mark.parametrize("seed", range(20))
def test_of_four_plans_the_rounding_to_whole_steps_costs_less_than_one_step(seed):
    """Three plans may fill the last second a little better than two do."""
    rng = random.Random(seed)
    plans, n_steps = pareto(rng, 4), rng.randint(2, 8)
    deadline_s = n_steps * rng.uniform(0.6, 3.2)
    least_j = brute_force(plans, n_steps, deadline_s, 0.0)
    spread_j = max(p.energy_j for p in plans) - min(p.energy_j for p in plans)
    check(plans, n_steps, deadline_s, 0.0, least_j, spread_j)


def check(plans, n_steps, deadline_s, switch_s, least_j, slack_j=1e-6):
    if least_j is None:
        with pytest.raises(Infeasible, match="deadline"):
            mix(plans, n_steps, deadline_s, switch_s=switch_s)
        return
    found = mix(plans, n_steps, deadline_s, switch_s=switch_s)
    assert sum(found.steps) == n_steps
    order = [next(i for i, p in enumerate(plans) if p is each) for each in found.plans]
    seconds, joules = costs(plans, order, found.steps, switch_s)
    assert (found.seconds, found.energy_j) == pytest.approx((seconds, joules))
    assert seconds <= deadline_s + 1e-6
    assert least_j - 1e-6 <= joules <= least_j + slack_j


@pytest.mark.parametrize("seed", range(20))
def test_the_programs_fractions_are_no_dearer_than_whole_steps(seed):
    rng = random.Random(seed)
    plans, n_steps = pareto(rng, 3), 20
    deadline_s = n_steps * rng.uniform(1.0, 3.0)
    try:
        found = mix(plans, n_steps, deadline_s)
    except Infeasible:
        return
    relaxed = sum(
        x * deadline_s * p.energy_j / p.latency_s
        for x, p in zip(found.fractions, plans, strict=True)
    )
    assert relaxed <= found.energy_j + 1e-6
    assert sum(found.fractions) <= 1 + 1e-9


def test_what_cannot_be_mixed_is_said():
    with pytest.raises(UserError, match="no time or energy"):
        mix([plan(1.0, None)], 1, 1.0)
    with pytest.raises(UserError, match="0 steps"):
        mix([plan(1.0, 1.0)], 0, 1.0)
    with pytest.raises(Infeasible, match=r"take 10\.0 s or more; the deadline is in 5\.00 s"):
        mix([plan(1.0, 1.0)], 10, 5.0)
