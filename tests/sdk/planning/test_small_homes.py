"""Small homes of every kind: our plans against brute force over all rows, orders and depths, and
every baseline's.
"""

from dataclasses import replace
from itertools import islice
from math import inf

import pytest
from tests.sdk.planning.homes import every_plan, later

from potluck.bench import small_homes
from potluck.bench.optimality import best_s, measure
from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.building_blocks import candidates
from potluck.planning.evaluate import judge
from potluck.planning.exhaustive import plan_exhaustive, plan_whatever_memory_says
from potluck.planning.feasibility import breaches, with_more_memory
from potluck.planning.registry import BASELINES
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import fits, moved
from potluck.planning.search.tight_memory import squeeze
from potluck.records import Inference, Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

SMALL = {"devices": 3, "layers": 4}
LARGER = {"devices": 4, "layers": 7}


def ours_s(problem, **options):
    try:
        best = make_plans(problem, **options).best
    except Infeasible:
        return inf
    assert not breaches(problem, judge(problem, best))
    return best.latency_s


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(3), *later(range(3, 5))])
@pytest.mark.parametrize("kind", small_homes.KINDS)
def test_our_own_search_is_within_1_percent_of_brute_force(kind, seed):
    """Of the plans that memory holds by the closed form and as simulated."""
    problem = small_homes.draw(kind, f"brute force {seed}", SMALL)
    table = CostTable(problem)
    plans = (plan for plan in every_plan(problem) if fits(table, plan, plan.stages))
    assert ours_s(problem, borrow=False) <= best_s(problem, Direct(problem, table), plans) * 1.01


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [259, *range(6), *later(range(6, 20))])
def test_rows_that_a_stream_wants_on_slow_links_are_found_though_their_neighbours_are_worse(seed):
    problem = small_homes.draw("latency", f"brute force {seed}", {"devices": 3, "layers": 5})
    problem = replace(problem, workload=Inference(batch=8, streaming=True))
    assert (
        ours_s(problem, borrow=False)
        <= best_s(problem, Direct(problem), every_plan(problem)) * 1.01
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(4), *later(range(4, 10)), 15, 19, 40, 59])
def test_where_memory_binds_plans_that_only_the_simulator_knows_to_hold_are_found(seed):
    problem = small_homes.draw("tight", f"falsify {seed}", {"devices": 3, "layers": 5})
    least_s = best_s(problem, Direct(problem), every_plan(problem))
    # infinite where only plans that come back to a device hold, or none
    assert ours_s(problem) <= least_s * 1.01


@pytest.mark.long
@pytest.mark.parametrize("seed", [8, 52])
def test_a_plan_that_memory_does_not_hold_is_tried_with_its_cuts_elsewhere(seed):
    tight = small_homes.draw("tight", f"recut {seed}", {"devices": 3, "layers": 6})
    tight = replace(tight, workload=Inference(batch=6))
    more = with_more_memory(tight, 1.3)
    best, table = make_plans(more, borrow=False).best, CostTable(more)
    pool = CandidatePool(more, table, Direct(more, table), budgets=CostTable(tight).budgets)
    assert pool.score(best) == inf
    for _ in squeeze(pool, best):
        pass
    recut = [judge(tight, replace(best, stages=stages, problem=None)) for stages in moved(best)]
    least_s = min(plan.latency_s for plan in recut if not breaches(tight, plan))
    assert pool.best <= least_s < inf


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(3), *later([15, 79, *range(3, 12)])])
def test_no_divisor_of_a_batch_is_better_than_those_that_are_tried(seed):
    problem = small_homes.draw("batch", f"divisors {seed}", {"devices": 2, "layers": 3})
    batch = (24, 36, 48, 60)[seed % 4]
    stated = [
        replace(problem, workload=Training(batch=batch, micro_batch=size))
        for size in candidates.divisions(batch, candidates.MAX_MICRO_BATCHES)
    ]
    ours = ours_s(replace(problem, workload=Training(batch=batch)))
    assert ours <= min(map(ours_s, stated)) * 1.002


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(8), *later(range(8, 16))])
def test_a_home_is_infeasible_only_if_no_plan_at_all_holds_when_simulated(seed):
    problem = small_homes.draw("tight", f"infeasible {seed}", SMALL)
    simulator = Direct(problem)
    assert (ours_s(problem) == inf) == (best_s(problem, simulator, every_plan(problem)) == inf)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(1, 6), *later([0, 18, 19, 21, 24, 34, 37, 39])])
@pytest.mark.parametrize("kind", ["tight", "latency", "batch", "plain"])
def test_is_never_worse_than_any_baseline_with_and_without_their_plans(kind, seed):
    problem = small_homes.draw(kind, f"0/{seed}", LARGER)
    table = CostTable(problem)
    simulator = Direct(problem, table)
    with_theirs, without = ours_s(problem), ours_s(problem, borrow=False)
    for name, planner in BASELINES.items():
        plans = sorted(
            islice(planner(problem, table), 4000), key=lambda plan: plan.latency_s or inf
        )[:24]
        theirs = best_s(problem, simulator, plans)
        assert with_theirs <= theirs * (1 + 1e-6), name
        assert without <= theirs * 1.01, name


@pytest.mark.parametrize("kind", small_homes.KINDS)
def test_the_kinds_of_homes_are_what_they_say(kind):
    problems = [small_homes.draw(kind, str(seed), LARGER) for seed in range(30)]
    assert problems[0] == small_homes.draw(kind, "0", LARGER)
    paths = [
        (p.network.path(a, b), p.network.path(b, a)) for p in problems for a, b in p.network.paths
    ]
    rates = [
        max(p.network.bandwidth(a, b) / p.network.bandwidth(b, a) for a, b in p.network.paths)
        for p in problems
    ]
    if kind == "tight":
        assert any(ours_s(problem) == inf for problem in problems)
        assert any(
            len({device.memory_bytes for device in problem.devices}) > 1 for problem in problems
        )
    if kind == "asymmetric":
        assert max(rates) > 10
    if kind == "latency":
        assert max(path.latency_s for path, _ in paths) > 0.5
    if kind == "batch":
        costs = [
            layer for problem in problems for layers in problem.costs.values() for layer in layers
        ]
        gains = [layer.forward_s[0] * layer.rows[-1] / layer.forward_s[-1] for layer in costs]
        assert min(gains) < 1 < max(gains)
    if kind == "powerline":
        assert all(
            any(medium.name == "powerline" for medium in problem.network.media)
            for problem in problems
        )
    if kind == "far":
        assert all(
            any(medium.name == "site 0 up" for medium in problem.network.media)
            for problem in problems
        )


@pytest.mark.long
def test_the_bench_reports_what_it_found():
    row = measure(
        "tight", "0/1", {"devices": 3, "layers": 4, "judged": 50, "rejudged": 4, "candidates": 100}
    )
    assert row.kind == "tight"
    assert set(row.baselines_s) == set(BASELINES)
    assert row.known_s == min(row.optimum_s, *row.baselines_s.values())


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(8))
def test_the_oracle_of_the_bench_knows_plans_that_only_the_simulator_knows_to_hold(seed):
    """It is never worse than one that goes by the closed form of memory, and every plan is one plan
    once.
    """
    problem = small_homes.draw("tight", f"falsify {seed}", {"devices": 3, "layers": 5})
    plans = list(plan_whatever_memory_says(problem))
    assert len({(plan.stages, plan.micro_batch) for plan in plans}) == len(plans)
    assert {p.stages for p in plan_exhaustive(problem)} <= {p.stages for p in plans}
    assert any(not fits(CostTable(problem), plan, plan.stages) for plan in plans)
