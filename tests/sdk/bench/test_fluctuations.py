"""Evenings of small random homes: the adapter is no worse than a plan that stays, switches nothing
where nothing changes, and uses nobody who is away.
"""

import pytest

from potluck.bench import adapt, fluctuations

SMALL = {**adapt.SETTINGS, "devices": 2, "layers": 5, "stretches": 5, "steps": 64}
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))]
NOISE_FRAC = 0.02  # of the seconds: what a wrong decision may cost


def evening(kind, seed):
    return fluctuations.drawn(kind, seed, SMALL)


@pytest.mark.long
@pytest.mark.parametrize("kind", fluctuations.KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_ours_is_between_the_oracle_and_the_plan_that_stays(kind, seed):
    drawn = evening(kind, seed)
    ours, stays = fluctuations.adapting(drawn), fluctuations.static(drawn)
    best = fluctuations.oracle(drawn, (*ours.plans, *stays.plans))
    assert best.seconds <= ours.seconds * (1 + 1e-9)
    assert ours.seconds <= stays.seconds * (1 + NOISE_FRAC)
    if kind == "stable":
        assert ours.n_switches == 0 or ours.seconds < stays.seconds


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_who_is_away_is_used_by_the_oracle(seed):
    drawn = evening("leaving", seed)
    plans = fluctuations.oracle(drawn).plans
    assert len(plans) == len(drawn.stretches)
    assert all(drawn.can(plan, number) for number, plan in enumerate(plans))


@pytest.mark.long
def test_the_oracle_of_two_stretches_is_the_best_of_all_ways():
    """Against every pair of plans, by hand."""
    drawn = fluctuations.drawn("load", 5, {**SMALL, "stretches": 2})
    start, plans = drawn.plans(0)[0], [*drawn.plans(0), *drawn.plans(1)]
    ways = [
        drawn.switching(start, first, 0)[0]
        + drawn.taking(first, 0, drawn.n_steps)[0]
        + drawn.switching(first, second, 1)[0]
        + drawn.taking(second, 1, drawn.n_steps)[0]
        for first in plans
        for second in plans
    ]
    assert fluctuations.oracle(drawn).seconds == pytest.approx(min(ways))
