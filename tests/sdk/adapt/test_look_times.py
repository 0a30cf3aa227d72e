"""When the adapter looks: regularly within its budget, and at once where steps change."""

from itertools import pairwise

import hypothesis
import pytest
from hypothesis import strategies as st

from potluck.adapt.look_times import CHANGED_FRAC, LOOKING_FRAC, WINDOW, LookTimes

SPENT_S = 0.5


def looks_of(times, took_s, plan=lambda step: 0, acts=lambda step: False):
    """The steps at which looks happen, of steps that take so long, and each costs SPENT_S."""
    looks = []
    for step, seconds in enumerate(took_s, 1):
        if times.is_due(step, plan(step), seconds):
            looks.append(step)
            times.looked(step, SPENT_S, seconds, acts=acts(step), waits=False)
    return looks


def test_steps_that_stay_as_they_are_are_looked_at_within_the_budget():
    looks = looks_of(LookTimes(0), [0.1] * 1000)
    rest = SPENT_S / LOOKING_FRAC / 0.1
    assert looks == [WINDOW, *range(WINDOW + round(rest), 1000, round(rest))]


@pytest.mark.parametrize("factor", [1 + 2 * CHANGED_FRAC, 1 / (1 + 2 * CHANGED_FRAC)])
def test_a_change_is_looked_at_when_it_comes(factor):
    looks = looks_of(LookTimes(0), [0.1] * 50 + [0.1 * factor] * 100)
    assert looks[:2] == [WINDOW, 51]


def test_noise_is_no_change():
    took_s = [0.1 * (1 + CHANGED_FRAC * (-1) ** step / 3) for step in range(200)]
    assert looks_of(LookTimes(0), took_s) == [WINDOW]


def test_another_plan_is_looked_at_after_its_first_window():
    looks = looks_of(LookTimes(0), [0.1] * 50 + [0.3] * 60, plan=lambda step: step > 50)
    assert looks == [WINDOW, 51 + WINDOW]


def test_a_second_change_is_looked_at_where_the_first_look_did_something():
    took_s = [0.1] * 30 + [0.2] * 30 + [0.1] * 30
    assert looks_of(LookTimes(0), took_s, acts=lambda step: True) == [8, 31, 61]
    assert looks_of(LookTimes(0), took_s) == [8, 31]


@pytest.mark.long
@hypothesis.given(st.lists(st.floats(0.01, 1.0), min_size=300, max_size=600))
def test_whatever_steps_do_looks_in_vain_at_most_double(took_s):
    """A look before its time is paid for by the rest after the regular one before it."""
    looks = looks_of(LookTimes(0), took_s)
    rest_steps = SPENT_S / LOOKING_FRAC / 1.0  # after the cheapest look
    assert len(looks) <= 2 * (1 + len(took_s) / max(WINDOW, rest_steps))
    assert all(after - before >= WINDOW for before, after in pairwise(looks))
