"""Plans of other planners, taken as candidates: our own search is not exact, least of all in a home
of many devices.

Whatever they find is simulated as ours is: so our plan is no worse than theirs, as far as they get
in their part of the time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

from potluck.planning.baselines.alpa import plan_alpa
from potluck.planning.baselines.asteroid import plan_hybrid
from potluck.planning.baselines.dapple import plan_dapple
from potluck.planning.baselines.dora import plan_dora
from potluck.planning.baselines.edgeshard import plan_edgeshard
from potluck.planning.baselines.gpipe import plan_gpipe
from potluck.planning.baselines.hetpipe import plan_hetpipe
from potluck.planning.baselines.metis import plan_metis
from potluck.planning.baselines.pipedream import plan_pipedream
from potluck.planning.plans import is_thrifty
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.work_budget import given_s, in_time
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost

Planner = Callable[[Problem, cost.CostTable], Iterator[Plan]]

# some 0.1 s each at most
CHEAP: tuple[Planner, ...] = (plan_gpipe, plan_pipedream, plan_hetpipe, plan_alpa)
# the first two: their time grows with the cube of the devices
DEAR: tuple[Planner, ...] = (plan_hybrid, plan_dora, plan_edgeshard)
# those that have hardly ever a plan that no other has
RARE: tuple[Planner, ...] = (plan_dapple, plan_metis)
N_BORROWED = 24  # plans of a planner, those it thinks best
N_FIRST = 3  # of these, whatever the time
OFF = 1.25  # its estimates may be too high by this, at most
DEAR_PART = 0.1  # of all counted work, for each of those that take long


def borrow_cheap(pool: CandidatePool) -> Iterator[None]:
    """What others find of those plans that could be the best.

    As long as time is left: a plan there is already. Who was done before is not asked again.
    """
    for planner in CHEAP:
        if planner in pool.planners_run:
            continue
        found = in_time(
            planner, pool.problem, pool.budget, pool.is_late, _limit_s(pool), pool.table
        )
        if not pool.is_late():
            pool.planners_run.add(planner)
        yield from _taken(pool, found)


def borrow_dear(
    pool: CandidatePool, sizes: Sequence[int], planners: Sequence[Planner] = DEAR
) -> Iterator[None]:
    """The same of planners that take long: each for a part of all counted work.

    Parameters
    ----------
    pool
        Gets the plans.
    sizes
        Of micro-batches, the most promising first: others are asked for these one by one.
    planners
        Who is asked.
    """
    for planner in planners:
        end_s = pool.budget() + DEAR_PART * given_s(pool.problem)

        def is_late(end_s: float = end_s) -> bool:
            return pool.budget() >= end_s or pool.is_late()

        for problem in _of_sizes(pool.problem, sizes):
            found = in_time(planner, problem, pool.budget, is_late, _limit_s(pool), pool.table)
            yield from _taken(pool, found)


def _of_sizes(problem: Problem, sizes: Sequence[int]) -> Iterator[Problem]:
    """The problem for one micro-batch size after the other, where it may have several."""
    if not isinstance(problem.workload, Training):
        yield problem
        return
    for size in sizes:
        yield replace(problem, workload=replace(problem.workload, micro_batch=size))


def _limit_s(pool: CandidatePool) -> float:
    """The estimate from which on plans of others are of no use."""
    return inf if is_thrifty(pool.problem) else pool.best * OFF


def _taken(pool: CandidatePool, found: Sequence[Plan]) -> Iterator[None]:
    """Simulate the best of them, the first few however late it is."""
    for number, plan in enumerate(found[:N_BORROWED], 1):
        if pool.may_beat(plan, pool.best):
            pool.score(plan)
        if number >= N_FIRST:
            yield
    yield
