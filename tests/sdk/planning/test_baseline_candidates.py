"""What other planners find in a home of many devices is ours too: all that could be of use."""

from dataclasses import replace
from math import inf

import pytest
from tests.sdk.planning.homes import random_branches, random_home

from potluck.bench.large_homes import LargeHome
from potluck.planning import anytime, baseline_candidates, check_plan
from potluck.planning.anytime import search
from potluck.planning.baselines.edgeshard import best_chains
from potluck.planning.registry import BASELINES
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import fits, with_depths
from potluck.planning.search.work_budget import WorkBudget, given_s, in_time
from potluck.records import Stage
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

HOMES = [
    ("alike", "switch", "training"),
    ("mixed", "sites", "streaming"),
    ("mixed", "wifi", "single"),
]


def many(kind, network, workload, *, n=9, n_layers=6, batch=8):
    """A home of many devices with a model of few layers."""
    problem = LargeHome(n, kind, network, workload, 21).problem()
    costs = {name: rows[:n_layers] for name, rows in problem.costs.items()}
    calls = replace(problem.workload, batch=min(problem.workload.batch, batch))
    return replace(problem, layers=problem.layers[:n_layers], costs=costs, workload=calls)


def make_pool(problem):
    table = CostTable(problem)
    return CandidatePool(problem, table, Direct(problem, table))


def best_of(problem, name, most=baseline_candidates.N_FIRST):
    """The least simulated latency of the plans that a baseline likes best."""
    simulator = Direct(problem)
    plans = sorted(BASELINES[name](problem, CostTable(problem)), key=lambda plan: plan.latency_s)
    return min((simulator.run(plan).latency_s for plan in plans[:most]), default=inf)


@pytest.mark.long
@pytest.mark.parametrize("home", HOMES)
def test_when_our_own_search_has_no_time_left_every_other_planner_is_asked(home):
    problem = many(*home)
    pool = make_pool(problem)
    search(pool, ends_own=lambda: True)
    for name in ("gpipe", "pipedream", "hetpipe", "alpa", "asteroid"):
        assert pool.best <= best_of(problem, name) * (1 + 1e-9), name


def test_who_is_late_is_asked_again_and_who_was_done_is_not(monkeypatch):
    problem, calls = many(*HOMES[0]), []
    monkeypatch.setattr(
        baseline_candidates, "in_time", lambda planner, *_: calls.append(planner) or []
    )
    pool = make_pool(problem)
    pool.is_late = lambda: len(calls) > 2
    list(baseline_candidates.borrow_cheap(pool))
    pool.is_late = lambda: False
    list(baseline_candidates.borrow_cheap(pool))
    assert calls == [*baseline_candidates.CHEAP, *baseline_candidates.CHEAP[2:]]


def test_dear_planners_are_asked_for_the_best_micro_batches_first_and_end_with_their_part(
    monkeypatch,
):
    problem, calls = many(*HOMES[0]), []

    def ask(planner, problem, budget, is_late, limit_s, known):
        if not is_late():
            calls.append((planner, problem.workload.micro_batch))
        budget.count(1, given_s(problem))
        return []

    monkeypatch.setattr(baseline_candidates, "in_time", ask)
    list(baseline_candidates.borrow_dear(make_pool(problem), [4, 8, 2]))
    assert calls == [(planner, 4) for planner in baseline_candidates.DEAR]


@pytest.mark.long
@pytest.mark.parametrize("workload", ["training", "streaming", "single"])
@pytest.mark.parametrize("kind", ["alike", "mixed"])
def test_below_a_limit_asteroid_finds_what_it_finds_without_one(kind, workload):
    problem = many(kind, "switch", workload, n=6)
    everything = in_time(BASELINES["asteroid"], problem, WorkBudget(), lambda: False)
    for part in (0.3, 0.7):
        limit_s = everything[int(len(everything) * part)].latency_s * (1 + 1e-9)
        found = in_time(BASELINES["asteroid"], problem, WorkBudget(), lambda: False, limit_s)
        wanted = {plan.stages for plan in everything if plan.latency_s < limit_s}
        assert wanted
        assert wanted <= {plan.stages for plan in found}


@pytest.mark.parametrize("workload", ["training", "streaming", "single"])
def test_below_a_limit_edgeshard_finds_as_good_pipelines_as_without_one(workload):
    """Of equally good ones it may be another."""
    problem = many("mixed", "switch", workload, n=6)
    names, limited = [device.name for device in problem.devices], CostTable(problem)
    everything = [value for value, *_ in best_chains(CostTable(problem), names, 2)]
    limited.limit_s = everything[len(everything) // 2] * problem.workload.batch / 2 * (1 + 1e-9)
    found = [value for value, *_ in best_chains(limited, names, 2)]
    assert found == everything[: len(found)]
    assert len(everything) > len(found) >= len(everything) // 2


@pytest.mark.parametrize("seed", range(12))
def test_dora_s_best_plan_is_found_below_any_limit_that_it_holds(seed):
    problem = random_branches(seed) if seed % 2 else random_home(seed)
    least_s = in_time(BASELINES["dora"], problem, WorkBudget(), lambda: False)[0].latency_s
    found = in_time(BASELINES["dora"], problem, WorkBudget(), lambda: False, least_s * (1 + 1e-9))
    assert found[0].latency_s == pytest.approx(least_s)


@pytest.mark.parametrize("workload", ["training", "streaming", "single"])
@pytest.mark.parametrize("name", ["gpipe", "pipedream", "hetpipe", "alpa"])
def test_below_a_limit_cheap_planners_find_what_they_find_without_one(name, workload):
    problem = many("mixed", "switch", workload, n=6)
    everything = in_time(BASELINES[name], problem, WorkBudget(), lambda: False)
    limit_s = everything[len(everything) // 3].latency_s * (1 + 1e-9)
    found = in_time(BASELINES[name], problem, WorkBudget(), lambda: False, limit_s)
    wanted = {plan.stages for plan in everything if plan.latency_s < limit_s}
    assert wanted
    assert wanted <= {plan.stages for plan in found}


@pytest.mark.parametrize("home", HOMES)
def test_regrouped_plans_can_be_carried_out_and_join_cut_and_move(home):
    problem = many(*home)
    table = CostTable(problem)
    names = [device.name for device in problem.devices]
    start = next(iter(BASELINES["single"](problem, table)))
    rows = start.micro_batch
    stages = tuple(
        Stage(start=a, stop=b, devices=devices, shares=shares)
        for a, b, devices, shares in (
            (0, 2, (names[0], names[1]), (rows - 1, 1)),
            (2, 4, (names[2],), (rows,)),
            (4, 6, (names[3],), (rows,)),
        )
    )
    plan = replace(start, stages=with_depths(table, stages))
    found = list(StagePlacements(table).regrouped(table, plan))
    for other in found:
        check_plan(other, problem)
        assert fits(table, other, other.stages)
    groups = {tuple(stage.devices for stage in other.stages) for other in found}
    assert any(len(group) == 2 for group in groups)  # two as one
    assert any(len(group) == 4 for group in groups)  # one as two
    moved = [{names[1]} <= set(group[1]) for group in groups if len(group) == 3]
    assert any(moved)  # a device elsewhere
    assert any(len({name for group in g for name in group}) == 5 for g in groups)  # one more
    assert any(sum(map(len, g)) > len({n for s in g for n in s}) for g in groups)  # in two stages


def test_a_plan_that_one_move_of_a_device_makes_better_is_made_better(monkeypatch):
    """All layers on one of nine alike devices without costs of links."""
    problem = many("alike", "switch", "training")
    pool = make_pool(problem)
    single = next(iter(BASELINES["single"](problem, pool.table)))
    alone_s = pool.score(single)
    monkeypatch.setattr(anytime, "neighbours", lambda *_: iter(()))
    places = StagePlacements(pool.table)
    list(anytime.improve(pool, [single], 50, places.regrouped))
    assert pool.best < alone_s
