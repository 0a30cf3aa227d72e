"""Orders of actions for updates that come late: legal, within memory, and without the bubbles of
the ends of steps.
"""

import random
from dataclasses import replace

import pytest

from potluck.records import Plan, Stage
from potluck.schedule import policies
from potluck.schedule.bubbles import chain_of, is_within, lower_bound_s, makespan_s
from potluck.schedule.late_order import late_orders
from potluck.schedule.stage_graph import chain
from potluck.schedule.stage_rows import rows_of
from potluck.schedule.validate import check, check_one_step_late


def plans_of(devices, sizes, kept):
    """A plan with one row a micro-batch, with those of each step, then of all."""
    n = len(devices)
    warm_ups = [min(2 * (n - p) - 1, sizes[0], kept) for p in range(n)]
    stages = tuple(
        Stage(start=p, stop=p + 1, devices=(name,), shares=(1,), warm_up=warm_ups[p])
        for p, name in enumerate(devices)
    )
    made = Plan(planner="test", model="m", stages=stages, micro_batch=1)
    return [replace(made, n_micro_batches=m) for m in (*sizes, sum(sizes))]


def steps_of(sizes, n_stages):
    return [[j for j, m in enumerate(sizes) for _ in range(m)]] * n_stages


@pytest.mark.few(15)
@pytest.mark.parametrize("seed", range(80))
def test_every_one_is_legal_within_memory_and_the_first_no_later_than_step_after_step(seed):
    rng = random.Random(seed)
    devices = rng.choice(["a", "ab", "abc", "abcd", "aab", "abab", "abba"])
    n, m = len(devices), rng.randint(1, 7)
    sizes = [m] * rng.randint(1, 5) + [rng.randint(1, m)]
    kept = rng.randint(n, 12)
    plans, steps = plans_of(devices, sizes, kept), steps_of(sizes, n)
    times = replace(
        chain_of(n, kept, rows=rows_of(plans[0])),
        forward_s=tuple(rng.choice([0.5, 1.0, 3.0]) for _ in range(n)),
        input_s=tuple(rng.choice([0.0, 1.0, 2.0]) for _ in range(n)),
        handed_s={(p, p + 1): (rng.choice([0.0, 0.3, 4.0]),) * 2 for p in range(n - 1)},
    )
    times = replace(times, most_kept=(kept,) * len(times.rows))
    found = late_orders(plans, chain(n), steps, lambda plan: times)
    planned = [sum(plans[0].stages[p].warm_up for p in row) for row in times.rows]
    room = replace(times, most_kept=tuple(max(kept, n) for n in planned))
    for schedule in found:
        check(schedule, sum(sizes), before=chain(n))
        check_one_step_late(schedule, steps)
        assert is_within(schedule, room)
    alone_s = sum(makespan_s(policies.POLICIES["1f1b"](plan), times) for plan in plans[:-1])
    if len(times.rows) == n:
        assert makespan_s(found[0], times) <= alone_s * (1 + 1e-9)
    assert makespan_s(found[0], times) >= lower_bound_s(times, sum(sizes)) * (1 - 1e-9)


@pytest.mark.parametrize("n", [2, 3, 4, 6])
@pytest.mark.parametrize("n_steps", [2, 5])
def test_a_pipeline_fills_and_drains_once(n, n_steps):
    """Where a step has micro-batches for it: then P - 1 of them are all that is idle."""
    sizes = [2 * n] * n_steps
    plans = plans_of([f"d{p}" for p in range(n)], sizes, 2 * n)
    known = chain_of(n, 2 * n)
    found = late_orders(plans, chain(n), steps_of(sizes, n), lambda plan: known)
    assert makespan_s(found[0], known) == 3 * (sum(sizes) + n - 1)
    single = makespan_s(policies.POLICIES["1f1b"](plans[0]), known)
    assert n_steps * single == 3 * n_steps * (2 * n + n - 1)


def test_steps_of_one_micro_batch_are_two_at_a_time():
    """On four stages, where a synchronous step has one at work: 12 units of F = I = W = 1 each."""
    sizes = [1] * 6
    plans, known = plans_of("abcd", sizes, 1), chain_of(4, 2)
    found = late_orders(plans, chain(4), steps_of(sizes, 4), lambda plan: known)
    assert makespan_s(found[0], known) <= 12 * 3 + 3
    assert [str(action) for action in found[0][0][:4]] == ["0F0", "0F1", "0B0", "0F2"]


def test_without_times_graphs_that_are_no_chain_are_kept_to():
    """Stage 3 takes from 1 and 2, which take from 0."""
    before = ((), (0,), (0,), (1, 2))
    plans, steps = plans_of("abcd", [2, 2, 2], 3), steps_of([2, 2, 2], 4)
    for schedule in late_orders(plans, before, steps, None):
        check(schedule, 6, before=before)
        check_one_step_late(schedule, steps)
