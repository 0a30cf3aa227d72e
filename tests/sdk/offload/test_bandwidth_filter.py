"""The estimate of the bandwidth follows drops at once and bursts never, and chooses table entries
well.
"""

import pytest

from potluck.bench.estimators import PLACES, RULES, fade, figures, trace
from potluck.offload.bandwidth_filter import (
    FIRST_WAIT_S,
    LEAST_BYTES,
    LONG,
    MOST_WAIT_S,
    STALE_S,
    Estimator,
    ProbeTimer,
)

N = 100_000


def after(rates, *, every_s=0.1):
    found = Estimator(5e6)
    for turn, rate in enumerate(rates):
        found.observe(N, N / rate, turn * every_s)
    return found.bytes_per_s


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], 5e6),
        ([2e6], 2e6),
        ([10e6] * LONG + [1e8], 10e6),  # a burst
        ([10e6] * LONG + [1e5], 1e5),  # a drop
        ([10e6] * LONG + [1e5, 10e6], 10e6),  # a stall is over at once
        ([1e5] * LONG + [10e6], 1e5),
        ([1e5] * LONG + [10e6] * (LONG // 2 + 1), 10e6),  # a recovery is believed when most show it
    ],
)
def test_a_drop_is_believed_at_once_and_a_burst_is_not(rates, expected):
    assert after(rates) == pytest.approx(expected)


def test_small_transfers_say_nothing():
    found = Estimator(5e6)
    found.observe(LEAST_BYTES - 1, 10.0, 0.0)
    assert found.bytes_per_s == 5e6


def test_what_was_before_an_idle_time_does_not_count():
    assert after([1e5] * LONG + [10e6], every_s=STALE_S + 1) == pytest.approx(10e6)


def test_latency_is_no_lack_of_bandwidth_and_no_time_is_no_error():
    found = Estimator(5e6, latency_s=0.05)
    found.observe(N, 0.05 + N / 1e6, 0.0)
    assert found.bytes_per_s == pytest.approx(1e6)
    for turn in range(LONG):  # sooner than the latency: only that it was fast is known
        found.observe(N, 0.0, 0.1 * turn)
    assert 1e6 < found.bytes_per_s < float("inf")


def test_links_have_the_means_of_the_paper_and_drop_to_near_zero():
    for place, (mean, _, _) in PLACES.items():
        rates = sorted(trace(place, 0))
        assert rates[0] < 0.05 * mean
        assert rates[len(rates) // 2] == pytest.approx(mean, rel=0.35)


def test_alone_it_is_asked_for_soon_then_less_and_less_often_and_soon_again_when_it_has_risen():
    probe_timer = ProbeTimer(0.0)
    waits_s = []
    now_s = 0.0
    for shown in (1.0,) * 9 + (10.0, 1.0):
        before_s = now_s
        while not probe_timer.is_due(now_s, alone=True):
            now_s += FIRST_WAIT_S / 8
        waits_s.append(now_s - before_s)
        probe_timer.observe(now_s, shown, 1.0, is_probe=True)
    assert waits_s[0] == FIRST_WAIT_S == waits_s[10]
    assert waits_s[:9] == sorted(waits_s[:9])
    assert MOST_WAIT_S <= waits_s[8] < MOST_WAIT_S + FIRST_WAIT_S


def test_where_requests_show_it_it_is_asked_for_only_when_none_come():
    probe_timer = ProbeTimer(0.0)
    probe_timer.observe(1.0, 5.0, 5.0, is_probe=False)
    assert not probe_timer.is_due(1.0 + MOST_WAIT_S / 2, alone=False)
    assert probe_timer.is_due(1.0 + MOST_WAIT_S, alone=False)


@pytest.mark.parametrize("place", PLACES)
def test_a_part_of_a_trace_drops_to_near_zero_in_its_middle(place):
    mean = PLACES[place][0]
    before, after = fade(place, 16)[:8], fade(place, 16)[8:]
    assert min(before) > 0.1 * mean > after[0]
    assert max(after) > 0.3 * mean  # and comes back


@pytest.mark.long
def test_the_default_chooses_nearly_as_well_as_the_best_rule_and_better_than_means_and_medians():
    found = figures(0)
    regrets = {name: found[f"{name}_regret"] for name in RULES}
    assert regrets["default"] <= min(regrets.values()) + 0.02
    simple = [name for name in RULES if name.startswith(("ewma", "median", "harmonic"))]
    assert all(regrets["default"] < regrets[name] for name in simple)
