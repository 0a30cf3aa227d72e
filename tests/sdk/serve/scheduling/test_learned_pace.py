"""How much longer than was measured something takes."""

from random import Random

import pytest

from potluck.serve.scheduling.learned_pace import DEVIATIONS, LEAST_DEVIATION, MOST, LearnedPace

LEAST = 1 + DEVIATIONS * LEAST_DEVIATION


@pytest.mark.parametrize("seed", range(10))
def test_nearly_all_keep_what_is_safe_and_half_of_them_the_mean(seed):
    rng = Random(seed)
    base, spread = rng.uniform(1, 3), rng.uniform(0.01, 0.5)
    pace = LearnedPace()
    within_mean, within_safe = 0, 0
    n_looks = 2000
    for number in range(n_looks + 50):
        took = base + rng.uniform(0, spread)
        if number >= 50:
            within_mean += took <= pace.mean
            within_safe += took <= pace.safe
        pace.learn(took, 1.0)
    assert 0.4 < within_mean / n_looks < 0.6
    assert within_safe / n_looks > 0.85


def test_what_is_quicker_than_was_measured_promises_nothing():
    pace = LearnedPace()
    for _ in range(20):
        pace.learn(0.5, 1.0)
    assert pace.mean == 1.0
    assert pace.safe == LEAST


def test_one_outlier_counts_little_and_is_forgotten():
    pace = LearnedPace()
    pace.learn(1e6, 1.0)
    assert pace.safe < MOST
    for _ in range(40):
        pace.learn(1.0, 1.0)
    assert pace.safe == pytest.approx(LEAST, abs=0.01)


def test_what_is_really_slower_now_is_learned():
    pace = LearnedPace()
    for _ in range(30):
        pace.learn(10.0, 1.0)
    assert pace.mean == pytest.approx(10.0, rel=0.05)


def test_what_is_short_says_little():
    pace = LearnedPace()
    pace.learn(0.5, 0.01, weight=0.01)
    assert pace.mean < 1.01


def test_what_was_not_measured_teaches_nothing():
    pace = LearnedPace()
    pace.learn(1.0, 0.0)
    assert pace.safe == 1.0
