"""How far policies are from the soonest schedule there is, in small cases."""

import random
from dataclasses import replace

import pytest

from potluck.contention.exact_schedule import best_schedule
from potluck.schedule.bubbles import chain_of, is_within, lower_bound_s, makespan_s
from potluck.schedule.validate import check
from potluck.schedule.zero_bubble import ZERO_BUBBLE

pytest.importorskip("ortools")
NAMES = ("zb-h1", "zb-2p", "zb-compact")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("n", "m", "kept", "transfer_s", "best_s"),
    [(2, 3, 2, 0.0, 10.0), (3, 4, 3, 0.0, 14.0), (4, 6, 4, 0.0, 21.0), (3, 4, 3, 1.0, 22.0)],
)
def test_the_best_is_proved_and_a_policy_finds_it(n, m, kept, transfer_s, best_s):
    times = chain_of(n, kept, transfer_s=transfer_s)
    best = best_schedule(times, m)
    assert best.is_proved
    assert best.makespan_s == pytest.approx(best_s)
    check(best.schedule, m)
    assert is_within(best.schedule, times)
    assert min(makespan_s(ZERO_BUBBLE[name](times, m), times) for name in NAMES) == best_s


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(12))
def test_the_best_policy_is_near_the_best_there_is_at_random_times(seed):
    rng = random.Random(seed)
    n, m = rng.randint(2, 3), rng.randint(2, 5)
    times = chain_of(n, rng.randint(2, 5), transfer_s=rng.choice([0.0, 0.5, 2.0]))
    times = replace(
        times,
        forward_s=tuple(rng.choice([0.5, 1.0, 1.5]) for _ in range(n)),
        input_s=tuple(rng.choice([0.5, 1.0, 1.5]) for _ in range(n)),
        weight_s=tuple(rng.choice([0.0, 0.5, 1.0]) for _ in range(n)),
    )
    best = best_schedule(times, m)
    assert lower_bound_s(times, m) <= best.bound_s * (1 + 1e-9)
    found = min(makespan_s(ZERO_BUBBLE[name](times, m), times) for name in NAMES)
    assert best.bound_s * (1 - 1e-9) <= found <= 1.15 * best.makespan_s
