"""What one step of the search changes, and what it leaves as it is: which stages recompute, and how
deep a plan is that memory just holds.
"""

import random
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import pytest
from tests.sdk.planning.homes import random_branches, random_home

from potluck.bench import small_homes
from potluck.planning import make_plans
from potluck.planning.building_blocks import candidates
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import with_depths
from potluck.planning.search.tight_memory import score_flat_too
from potluck.records import Plan, Stage, Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

WORKLOAD = Training(batch=8, micro_batch=2)


def planned(table, stages, rows):
    n = table.problem.workload.batch // rows
    return Plan(
        planner="p",
        model=table.problem.model,
        stages=with_depths(table, stages),
        micro_batch=rows,
        n_micro_batches=n,
    )


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("home", [random_home, random_branches])
@pytest.mark.parametrize("seed", range(3))
def test_layers_that_move_recompute_as_before(seed, home, recomputes):
    rng, problem = random.Random(seed), home(seed, WORKLOAD)
    table, n_layers = CostTable(problem, recomputes=recomputes), len(problem.layers)
    names = [device.name for device in problem.devices]
    cut = rng.randrange(1, n_layers)
    for flags in product([False, True], repeat=2):
        stages = [
            Stage(start=a, stop=b, devices=(rng.choice(names),), shares=(2,), recompute=again)
            for (a, b), again in zip([(0, cut), (cut, n_layers)], flags, strict=True)
        ]
        plan = planned(table, stages, 2)
        found = list(StagePlacements(table).neighbours(table, plan))
        assert len(found) > 3
        for stage in (stage for other in found for stage in other.stages):
            assert stage.recompute is flags[stage.start >= cut]


@pytest.mark.parametrize("seed", range(4))
def test_where_memory_holds_no_deeper_plan_depths_are_kept(seed):
    """Memory is what the plan beside it takes, which is deeper than one after the other."""
    problem = random_home(seed, WORKLOAD, devices=3)
    problem = replace(
        problem, layers=tuple(replace(item, activation_bytes=10**5) for item in problem.layers)
    )
    table, n_layers = CostTable(problem), len(problem.layers)
    direct, ends = Direct(problem, table), [0, 1, 2, n_layers]
    stages = [
        Stage(start=a, stop=b, devices=(problem.devices[p % 2].name,), shares=(2,))
        for p, (a, b) in enumerate(pairwise(ends))
    ]
    deep = planned(table, stages, 2)
    held = replace(
        deep,
        stages=tuple(
            replace(stage, warm_up=depth)
            for stage, depth in zip(deep.stages, (2, 2, 1), strict=True)
        ),
    )
    pool = CandidatePool(problem, table, direct, budgets=direct.run(held).peak_bytes())
    assert pool.score(deep) == inf
    assert score_flat_too(pool, deep, held).stages == held.stages


def helped_a_little(problem):
    """A device alone, but for some rows of its first or its last layers."""
    table, n_layers = CostTable(problem), len(problem.layers)
    names = [device.name for device in problem.devices]
    for size, cut in product(candidates.micro_batches(problem), range(1, n_layers)):
        for one, other, rows in product(names, names, range(1, size)):
            if one == other:
                continue
            alone, both = ((one,), (size,)), ((one, other), (size - rows, rows))
            for first, second in ((alone, both), (both, alone)):
                stages = [
                    Stage(start=0, stop=cut, devices=first[0], shares=first[1]),
                    Stage(start=cut, stop=n_layers, devices=second[0], shares=second[1]),
                ]
                yield planned(table, stages, size)


@pytest.mark.long
@pytest.mark.parametrize("seed", [301, 304])
def test_a_device_that_has_some_rows_of_some_layers_of_another_is_found(seed):
    problem = small_homes.draw("latency", f"f{seed}", {"devices": 4, "layers": 6})
    problem = replace(problem, workload=Training(batch=16, micro_batch=4))
    direct = Direct(problem)
    fastest_s = min(direct.run(plan).latency_s for plan in helped_a_little(problem))
    assert make_plans(problem).best.latency_s <= 1.01 * fastest_s
