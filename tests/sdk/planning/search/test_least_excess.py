"""From plans that memory does not hold to one that it does."""

from dataclasses import replace
from math import inf

import pytest
from tests.sdk.planning.homes import later, random_home

from potluck.planning.feasibility import with_more_memory
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.least_excess import within_memory
from potluck.records import Plan, Stage, Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

TRIES = 250


def two_stages(problem, cut, *, recompute=False):
    """The first layers on d0, the others on d1, one micro-batch after the other."""
    bounds = ((0, cut, "d0"), (cut, len(problem.layers), "d1"))
    return Plan(
        planner="by hand",
        model=problem.model,
        stages=tuple(
            Stage(start=start, stop=stop, devices=(name,), shares=(2,), recompute=recompute)
            for start, stop, name in bounds
        ),
        micro_batch=2,
        n_micro_batches=4,
    )


def pool_of(seed, n_bytes):
    """Activations are many times what is handed on; each device may use so much."""
    home = with_more_memory(random_home(seed, Training(batch=8, micro_batch=2), devices=2), inf)
    layers = tuple(replace(layer, activation_bytes=9 * layer.output_bytes) for layer in home.layers)
    home = replace(home, layers=layers)
    budgets = n_bytes(home)
    return CandidatePool(home, CostTable(home, recomputes=True), Direct(home), budgets=budgets)


@pytest.mark.parametrize("seed", [*range(4), *later(range(4, 30))])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_plan_is_found_in_what_another_needs(seed, recompute):
    pool = pool_of(
        seed, lambda home: Direct(home).run(two_stages(home, 2, recompute=recompute)).peak_bytes()
    )
    found = within_memory(pool, [two_stages(pool.problem, 1)], TRIES)
    peaks = Direct(pool.problem).run(found).peak_bytes()
    assert all(nbytes <= pool.budgets[name] for name, nbytes in peaks.items())


def test_none_is_found_where_there_is_none_within_the_simulations_given():
    pool = pool_of(0, lambda home: dict.fromkeys(("d0", "d1"), 1))
    assert within_memory(pool, [two_stages(pool.problem, 1)], TRIES) is None
    assert pool.simulator.n_simulated > 0


def test_a_start_that_holds_is_the_answer():
    pool = pool_of(0, lambda home: dict.fromkeys(("d0", "d1"), 10**9))
    start = two_stages(pool.problem, 1)
    assert within_memory(pool, [start], TRIES) == replace(start, planner="potluck")
