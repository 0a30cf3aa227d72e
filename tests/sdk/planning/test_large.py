"""Homes of many devices: an end by any clock, work that grows slowly, and no plan of others that is
better.
"""

from dataclasses import replace

import pytest

from potluck.bench.large_homes import KINDS, NETWORKS, WORKLOADS, LargeHome
from potluck.errors import Infeasible
from potluck.planning import anytime, baseline_candidates, check_plan, make_plans
from potluck.planning import planner as make_module
from potluck.planning.anytime import search
from potluck.planning.bounds.latency import quick_bound_s
from potluck.planning.registry import BASELINES
from potluck.planning.search import work_budget
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.link_costs import busiest_medium
from potluck.planning.search.stage_costs import StageCostTable
from potluck.planning.search.subset_dp import SubsetSearch
from potluck.planning.search.work_budget import (
    BudgetSpent,
    MeteredTable,
    WorkBudget,
    given_s,
    in_time,
)
from potluck.planning.search_passes import baselines
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

ENOUGH_S = 0.3  # counted


def small(home, n_layers=8, batch=16):
    """A home of many devices with a model of few layers."""
    problem = home.problem()
    costs = {name: rows[:n_layers] for name, rows in problem.costs.items()}
    workload = replace(problem.workload, batch=min(problem.workload.batch, batch))
    return replace(problem, layers=problem.layers[:n_layers], costs=costs, workload=workload)


def labels_of(n_devices):
    """Counted seconds of one search over groups of alike devices, without a limit."""
    problem = small(LargeHome(n_devices, "alike", "switch", "training", 0))
    budget = WorkBudget()
    SubsetSearch(CostTable(problem), 2, range(9), beam=60, budget=budget).run()
    return budget()


def test_the_search_over_alike_devices_grows_like_a_polynomial():
    """States are how many are taken, not which: squared with the devices, times the sizes of
    groups.
    """
    few, many = labels_of(12), labels_of(48)
    assert 0 < many <= few * (48 / 12) ** 3


@pytest.mark.long
@pytest.mark.parametrize("network", NETWORKS)
def test_64_alike_devices_get_a_plan_by_a_clock_that_runs_fast(network):
    """Every look at the clock takes a second: a hundred looks are all there is."""
    problem = small(LargeHome(64, "alike", network, "training", 1))
    looks = iter(range(10**9))
    best = make_plans(problem, clock=lambda: float(next(looks)), budget_s=100.0).best
    check_plan(best, problem)
    assert next(looks) < 200
    alone_s = min(
        Direct(problem).run(plan).latency_s for plan in baselines(problem, CostTable(problem))
    )
    assert quick_bound_s(problem) <= best.latency_s <= alone_s * (1 + 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [24, 64])
def test_what_is_counted_ends_the_search(n, kind):
    problem = small(LargeHome(n, kind, "sites", "streaming", 2))
    table, budget = CostTable(problem), WorkBudget()
    pool = CandidatePool(problem, table, Direct(problem, table), budget=budget)
    search(pool, (), lambda: budget() >= ENOUGH_S)
    assert pool.scores
    assert ENOUGH_S <= budget() < 2 * ENOUGH_S  # the last piece of work goes beyond


def test_no_pass_is_made_twice_and_who_borrows_nothing_asks_nobody(monkeypatch):
    problem, made = small(LargeHome(24, "alike", "switch", "training", 2)), []
    table = CostTable(problem)

    def passes(_board, _sizes, efforts):
        made.extend((effort.n_cuts, effort.pipelines_only) for effort in efforts)
        return iter(())

    monkeypatch.setattr(anytime, "passes", passes)
    monkeypatch.setattr(
        baseline_candidates,
        "in_time",
        lambda planner, *_: pytest.fail(f"{planner.__name__} was asked"),
    )
    search(CandidatePool(problem, table, Direct(problem, table)), borrow=False)
    assert len(made) == len(set(made)) == len(anytime.EFFORTS)


@pytest.mark.long
def test_without_a_clock_the_outcome_is_always_the_same(monkeypatch):
    monkeypatch.setattr(work_budget, "GIVEN_S", ENOUGH_S)
    problem = small(LargeHome(24, "mixed", "sites", "single", 3))
    assert make_plans(problem).best == make_plans(problem).best


def test_more_devices_get_more_work():
    homes = [LargeHome(n, "alike", "wifi", "single", 0).problem() for n in (24, 64)]
    assert given_s(homes[0]) < given_s(homes[1]) < 8 * given_s(homes[0])


OF_24 = [
    ("alike", "switch", 4),
    ("two kinds", "sites", 5),
    ("mixed", "sites", 6),
    ("mixed", "wifi", 7),
]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize(("kind", "network", "seed"), OF_24)
def test_is_never_slower_than_any_baseline_in_a_home_of_24(kind, network, seed, workload):
    problem = small(LargeHome(24, kind, network, workload, seed), n_layers=6)
    table = CostTable(problem)
    direct, best = Direct(problem, table), make_plans(problem).best
    for name, planner in BASELINES.items():
        steps = iter(range(2000))
        plans = in_time(
            planner, problem, WorkBudget(), lambda steps=steps: next(steps, None) is None
        )
        least_s = min((direct.run(plan).latency_s for plan in plans[:8]), default=float("inf"))
        assert best.latency_s <= least_s * (1 + 1e-6), name


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["asteroid", "dora", "dapple"])
def test_a_planner_that_knows_no_clock_is_ended(name):
    problem, budget = small(LargeHome(64, "alike", "switch", "training", 8)), WorkBudget()
    in_time(BASELINES[name], problem, budget, lambda: budget() > 0.05)
    assert 0.05 < budget() < 0.06


def test_a_metered_table_tells_the_same_until_time_is_up():
    problem = small(LargeHome(24, "mixed", "wifi", "training", 9))
    table, budget = CostTable(problem), WorkBudget()
    metered = MeteredTable(problem, budget, lambda: budget() > 0)
    assert metered.forward_s("d3", 1, 4, 8) == table.forward_s("d3", 1, 4, 8)
    with pytest.raises(BudgetSpent):
        sum(metered.backward_s("d3", 1, 4, 8) for _ in range(1000))


@pytest.mark.few(3)
@pytest.mark.parametrize("micro_batch", [4, pytest.param(8, marks=pytest.mark.long), 16])
@pytest.mark.parametrize("workload", ["training", "single"])
@pytest.mark.parametrize(("network", "seed"), [("switch", 4), ("wifi", 11), ("sites", 2)])
def test_no_label_is_given_up_whose_whole_pipeline_is_better(network, workload, seed, micro_batch):
    """Told to find what is a little worse than the best there is, the search over alike devices
    finds the best.
    """
    problem = small(LargeHome(12, "alike", network, workload, seed), n_layers=8, batch=64)
    if problem.workload.batch % micro_batch:
        pytest.skip("no micro-batch of this batch")
    table = CostTable(problem)
    search = SubsetSearch(table, micro_batch, range(9), keep=1000)
    best = search.run()[0].score
    found = search.run(best * 1.001)
    assert found
    assert found[0].score <= best * (1 + 1e-9)


def test_a_cable_of_one_device_is_no_medium_that_all_share():
    media = [
        busiest_medium(LargeHome(12, "alike", network, "training", 0).problem())
        for network in NETWORKS
    ]
    assert media[NETWORKS.index("wifi")] == "air"
    assert media[NETWORKS.index("switch")] is None
    assert media[NETWORKS.index("sites")].startswith("site")


@pytest.mark.parametrize("n", [4, 16])
def test_a_stage_of_alike_devices_is_priced_as_if_each_were_another(n):
    problem = small(LargeHome(16, "alike", "switch", "training", 1))
    table = CostTable(problem)
    alike = StageCostTable(table, 16, range(9), [range(16)], [(n,)])
    unlike = StageCostTable(
        table, 16, range(9), [[i] for i in range(16)], [tuple(int(i < n) for i in range(16))]
    )
    assert alike.cost(0, 5, 0, float("inf")) == unlike.cost(0, 5, 0, float("inf"))


@pytest.mark.long
def test_where_the_simulator_rejects_every_plan_counted_work_ends_the_search_and_the_error_says_why(
    monkeypatch,
):
    """By the closed form, which knows of one request at a time, plans fit.

    The many of a stream do not.
    """
    monkeypatch.setattr(work_budget, "GIVEN_S", ENOUGH_S)
    problem = small(LargeHome(24, "mixed", "switch", "streaming", 6))
    rejecting = replace(
        problem,
        devices=tuple(replace(device, memory_bytes=12_000_000) for device in problem.devices),
        layers=tuple(
            replace(layer, parameter_bytes=4 << 20, output_bytes=1 << 19)
            for layer in problem.layers
        ),
    )
    tallies = [WorkBudget()]
    monkeypatch.setattr(
        make_module, "WorkBudget", lambda: tallies.append(WorkBudget()) or tallies[-1]
    )
    with pytest.raises(
        Infeasible, match=r"no plan for chain fits: it would need .* MB, and may use 12 MB"
    ) as error:
        make_plans(rejecting)
    assert error.value.facts["limit"] == "memory"
    assert ENOUGH_S / 2 <= sum(budget() for budget in tallies) < 2 * ENOUGH_S
