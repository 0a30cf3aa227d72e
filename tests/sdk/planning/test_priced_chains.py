"""Plans that the cheapest chains at prices stand for: each device once, and some are better."""

import pytest
from tests.sdk.planning.test_large import small

from potluck.bench.large_homes import LargeHome
from potluck.planning import check_plan
from potluck.planning.baselines.single_device import plan_single
from potluck.planning.bounds.stage_chains import first_prices, priced
from potluck.planning.bounds.stage_options import StageOptions
from potluck.planning.priced_chains import look_at_chains, plan_of
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.work_budget import WorkBudget
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct


@pytest.mark.few(2)
@pytest.mark.parametrize("workload", ["streaming", "training"])
@pytest.mark.parametrize("kind", ["alike", "two kinds", "mixed"])
@pytest.mark.parametrize("rows", [2, 4, 8])
def test_a_chain_becomes_a_plan_of_devices_that_are_there(kind, workload, rows):
    problem = small(LargeHome(12, kind, "switch", workload, 3), batch=16)
    if problem.workload.batch % rows:
        pytest.skip("no micro-batch of this batch")
    table = CostTable(problem)
    alone_s = min(plan.latency_s for plan in plan_single(problem, table))
    stages = StageOptions(table, rows)
    chains = priced(stages, 0.8 * alone_s, first_prices(stages), WorkBudget())
    for plan in (plan_of(table, chain, rows) for price, chain in chains if price <= 1):
        if plan is not None:
            check_plan(plan, problem)
            assert sum(len(stage.devices) for stage in plan.stages) == len(plan.devices)


def test_streams_are_faster_by_chains():
    problem = small(LargeHome(24, "alike", "switch", "streaming", 11), n_layers=20)
    table = CostTable(problem)
    pool = CandidatePool(problem, table, Direct(problem, table), budget=WorkBudget())
    for plan in plan_single(problem, table):
        pool.score(plan)
    alone_s = pool.best
    for _ in look_at_chains(pool):
        pass
    assert pool.best < 0.8 * alone_s
