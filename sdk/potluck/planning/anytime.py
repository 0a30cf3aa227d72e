"""Our own planner: a first plan at once, better ones as long as time is left.

First each device alone; then pipelines for every micro-batch size, over few cuts and over many;
then, with what is known to beat, all groups of devices over ever finer cuts. Last, what other
planners find. In a home of many devices those come early, and what is done is counted. The search
estimates, the simulator decides, and the best plans are improved step by step. The clock comes in
as an argument; without one the effort is fixed, and the outcome always the same.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import inf
from typing import NamedTuple

from potluck.planning.baseline_candidates import DEAR, RARE, borrow_cheap, borrow_dear
from potluck.planning.baselines.single_device import plan_single
from potluck.planning.bounds.latency import quick_bound_s
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import ordered
from potluck.planning.plans import is_thrifty
from potluck.planning.priced_chains import look_at_chains
from potluck.planning.scenario import only
from potluck.planning.search.best_first import least_busy
from potluck.planning.search.bottleneck_relief import relieving
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import deeper, fits, neighbours, reordered, reshared
from potluck.planning.search.micro_batch_sizes import promising, usual
from potluck.planning.search.stage_merging import joined
from potluck.planning.search.subset_dp import ParetoLabel, SubsetSearch
from potluck.planning.search.tight_memory import (
    MAX_SHARES,
    cut_alone,
    parted,
    score_flat_too,
    spread,
    squeeze,
)
from potluck.planning.search.work_budget import NEIGHBOUR_S, WorkBudget, fewer, given_s, is_many
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost, direct_simulation

COARSE = 10  # cuts: groups over so many are always looked at
TRIES = 50  # simulations to improve a plan
RELIEVED = 400  # the same in a home of many devices, at the end
BETTER = 1 - 1e-4  # of the time of a plan: what takes longer is no gain
FEWEST_TRIES = 6  # where a step has hundreds of micro-batches
N_STARTS = 8  # plans whose branches are placed anew
N_APART = 12  # plans with the branches on any devices, of those that may be fastest
N_SIDE = 3  # orders of devices, whose plans may have devices come back
N_RETURNS = 6  # plans of a chain that come back to their first device, of those that may be fastest
N_WORSE, NEAR_WORSE = 6, 1.1  # plans changed once more: how many, how near to the best
N_FINE = 32  # cuts tried along one order of devices
# labels, plans simulated, and by how much estimates may be too high
KEEP_CLOSELY = 16
N_CLOSELY = 100
MOST_SHARES = 120  # ways to share the rows of a micro-batch
ERROR = 1.05
MAX_ORDERS = 6  # of the devices within the stages of one plan
# sets of devices looked at again: how near, how many, with how many plans
NEAR_SETS, NEAR_SIZES = 1.05, 1.15
N_SETS = 2
N_KNOWN = 3
N_RECUT = 3  # the same along one order of devices
NEAR = 1.01  # a simulated plan that takes more than this many times its estimate waits somewhere
SLACK = 1.2  # an estimate that is this many times that of another micro-batch size is not looked at
N_JUDGED = 8  # of one micro-batch size at most, those of the best estimates
BEAM = 60  # states kept in a home of many devices

Neighbours = Callable[[cost.CostTable, Plan], Iterator[Plan]]


class Effort(NamedTuple):
    """One pass over all micro-batch sizes: which plans it looks at, and how many of them how
    closely.
    """

    n_cuts: int
    pipelines_only: bool  # no device shares a stage
    n_judged: int  # plans simulated, those of the best estimates
    n_improved: int  # plans improved
    tries: int  # simulations to improve one


EFFORTS = (
    Effort(8, True, 4, 1, 8),
    Effort(32, True, 4, 1, 8),
    Effort(COARSE, False, 24, 2, TRIES),
    Effort(16, False, 32, 3, 80),
    Effort(32, False, 32, 3, 120),
)

# In a home of many devices: before what others find, and after.
LARGE, LARGER = (Effort(COARSE, False, 24, 0, 0),), (EFFORTS[1], *EFFORTS[3:])


class Candidate(NamedTuple):
    """A plan that a search proposes."""

    score: float
    label: ParetoLabel
    search: SubsetSearch


def plan_anytime(
    problem: Problem,
    table: cost.CostTable | None = None,
    *,
    simulator: direct_simulation.Direct | None = None,
) -> Iterator[Plan]:
    """Plans as they are found, each better than the one before, with the latency that the simulator
    gives them.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem, if there is one already.
    simulator
        Of this problem, if there is one already.
    """
    table, budget = table or cost.CostTable(problem), WorkBudget()
    enough_s = given_s(problem) if is_many(problem) else inf
    pool = CandidatePool(
        problem,
        table,
        simulator or direct_simulation.Direct(problem, table),
        budget=budget,
        is_late=lambda: budget() >= enough_s,
    )
    best = inf
    for _ in chain(_steps(pool, ()), _others(pool, borrow=True), _last(pool)):
        if pool.is_over():
            break
        if pool.best < best:
            best = pool.best
            yield pool.ranking()[0]


def search(
    pool: CandidatePool,
    first: Sequence[Plan] = (),
    is_late: Callable[[], bool] = lambda: False,
    *,
    ends_own: Callable[[], bool] | None = None,
    ends_others: Callable[[], bool] | None = None,
    borrow: bool = True,
    max_plans: float = inf,
) -> None:
    """Fill the pool until nothing better is found, it `is_over`, or has `max_plans` simulated.

    `first`: plans to be beaten. `borrow`: plans of other planners are candidates too.

    Parameters
    ----------
    pool
        Gets the plans, and knows when time is over.
    first
        Plans to be beaten.
    is_late
        Asked between pieces of work.
    ends_own
        The same of our own search in a home of many devices: then others have the rest of the time.
    ends_others
        The same of others there: what is left is for the best plan of all.
    borrow
        Plans of other planners are candidates, too.
    max_plans
        Simulated, about, at most.
    """
    own = chain(_steps(pool, first, borrow=borrow), _fewer(pool))
    others = _others(pool, borrow=borrow)
    for work, ends in ((own, ends_own), (others, ends_others), (_last(pool), None)):
        pool.is_late = ends or is_late
        for _ in work:
            if len(pool.known) >= max_plans or pool.is_over():
                break


def _steps(pool: CandidatePool, first: Sequence[Plan], *, borrow: bool = True) -> Iterator[None]:
    """One bit of work after the other."""
    for plan in (*plan_single(pool.problem, pool.table), *first):
        if pool.score(plan) == inf:
            for other in parted(pool.problem, plan):
                pool.score(other)
        yield
    places, sizes = StagePlacements(pool.table), usual(pool.problem, closely=is_small(pool.table))
    added = promising(pool.table, sizes)
    yield from spread(pool, sizes)
    yield from cut_alone(pool, sizes)
    sizes += added
    yield from passes(pool, sizes, EFFORTS[:1])
    if pool.problem.branches:  # what a pass finds is far off where branches can be at work at once
        yield from improve(pool, pool.ranking()[:1], TRIES, places.ranked)
    if is_many(pool.problem):
        yield from passes(pool, sizes, LARGE)
        yield from _recut(pool, sizes, 2)
        yield from borrow_cheap(pool) if borrow else ()
        yield from _recut(pool, sizes, 2)
        yield from _relieve(pool, 2, TRIES)
    yield from passes(pool, sizes, LARGER if is_many(pool.problem) else EFFORTS[1:])
    if not is_many(pool.problem):
        yield from _closely(pool, sizes)
        if is_small(pool.table) and not is_thrifty(pool.problem):
            yield from least_busy(pool, places, sizes)
    if not is_many(pool.problem) and (not pool.problem.branches or is_small(pool.table)):
        yield from _return(pool, places, sizes)
    if pool.problem.branches and (len(pool.problem.layers) <= COARSE or pool.max_work == inf):
        yield from _place(pool, places)
    if not is_many(pool.problem) or pool.problem.branches:
        yield from _join(pool, places)
    if is_many(pool.problem) or not borrow:
        return
    # others look elsewhere: whatever they find must be beaten, or taken
    yield from borrow_cheap(pool)
    yield from borrow_dear(pool, _promising(pool), (*DEAR, *RARE))
    yield from improve(pool, _distinct(pool, 1), TRIES)
    if is_small(pool.table):
        yield from _twice_changed(pool, places)


def _others(pool: CandidatePool, *, borrow: bool) -> Iterator[None]:
    """In a home of many devices what chains become, and what planners find that take long, and the
    best plan improved.
    """
    if is_many(pool.problem):
        yield from borrow_cheap(pool) if borrow else ()
        if _is_stream(pool.problem) and not is_thrifty(pool.problem) and pool.holds:
            yield from look_at_chains(pool)
        yield from improve(pool, _distinct(pool, 1), TRIES, StagePlacements(pool.table).regrouped)
        yield from borrow_dear(pool, _promising(pool)) if borrow else ()
        yield from improve(pool, _distinct(pool, 1), TRIES)


def _is_stream(problem: Problem) -> bool:
    """Whether requests of a chain overlap: for others the chains are hardly ever better plans."""
    workload = problem.workload
    return not isinstance(workload, Training) and workload.streaming and not problem.branches


def _last(pool: CandidatePool) -> Iterator[None]:
    """In a home of many devices the best plans of all improved, with what time is left."""
    if is_many(pool.problem):
        yield from _relieve(pool, 2, RELIEVED)


def _relieve(pool: CandidatePool, n: int, max_tries: int) -> Iterator[None]:
    """Local search from the best plans that takes work from their busiest stages."""

    def counted(table: cost.CostTable, plan: Plan) -> Iterator[Plan]:
        for other in relieving(table, plan):
            pool.budget.count(1, NEIGHBOUR_S)
            if pool.is_over():
                return
            yield other

    others = neighbours if pool.problem.branches else counted
    yield from improve(pool, _distinct(pool, n), max_tries, others)


def _promising(pool: CandidatePool) -> list[int]:
    """All micro-batch sizes, those of the best plans first."""
    found = dict.fromkeys(plan.micro_batch for plan in pool.ranking())
    return [*dict.fromkeys((*found, *candidates.micro_batches(pool.problem)))]


def _fewer(pool: CandidatePool) -> Iterator[None]:
    """The best sets of devices again, as if there were no others: of fewer devices a search looks
    more closely.
    """
    if is_many(pool.problem):
        return
    sets: dict[frozenset[str], list[Plan]] = {}
    for plan in pool.ranking():
        sets.setdefault(frozenset(plan.devices), []).append(plan)
    near = [names for names, plans in sets.items() if pool.score(plans[0]) <= pool.best * NEAR_SETS]
    for names in [names for names in near if 1 < len(names) < len(pool.problem.devices)][:N_SETS]:
        part = only(pool.problem, names)
        budgets = {} if pool.budgets is pool.table.budgets else pool.budgets
        fewer = CandidatePool(
            part,
            pool.table.sibling(part),
            pool.simulator,
            max_work=pool.max_work,
            budget=pool.budget,
            is_late=pool.is_late,
            budgets=budgets,
        )
        yield from _steps(fewer, sets[names][:N_KNOWN], borrow=False)
        for plan in fewer.ranking()[:N_KNOWN]:
            pool.score(plan)


def _place(pool: CandidatePool, places: StagePlacements) -> Iterator[None]:
    """Branches anywhere, a device with several stages too, from many starts."""
    for micro_batch in candidates.micro_batches(pool.problem):
        for plan in places.by_chains(micro_batch):
            pool.score(plan)
            yield
        for plan in heapq.nsmallest(N_APART, places.apart(micro_batch), key=places.least_s):
            if places.least_s(plan) < pool.best or is_thrifty(pool.problem):
                yield from _deep_enough(pool, plan)
            yield
    yield from improve(
        pool, [*_distinct(pool, N_STARTS), *_of_each_size(pool)], TRIES, places.ranked
    )


def _return(pool: CandidatePool, places: StagePlacements, sizes: Sequence[int]) -> Iterator[None]:
    """Chains that come back to a device, or in which one that has a stage helps with another:
    where such a plan may be faster than the best so far, or there is none.
    """
    if pool.best <= quick_bound_s(pool.problem) * NEAR and not is_thrifty(pool.problem):
        return
    known = list(dict.fromkeys(plan.micro_batch for plan in _distinct(pool, 2)))
    for micro_batch in known or candidates.micro_batches(pool.problem):
        for plan in heapq.nsmallest(N_RETURNS, places.returning(micro_batch), key=places.least_s):
            if places.least_s(plan) < pool.best or is_thrifty(pool.problem):
                yield from _deep_enough(pool, plan)
            yield
    usual_sizes = iter(candidates.micro_batches(pool.problem))
    while not pool.scores and (size := next(usual_sizes, None)) is not None:
        for plan in places.helping(size):
            if pool.score(plan) == inf:
                yield from squeeze(pool, plan)
            yield
    together = (plan for plan in pool.ranking() if len(plan.stages) == 1 < len(plan.devices))
    starts = _distinct(pool, N_SIDE)
    if is_small(pool.table):
        starts += [*islice(together, 1), *_of_each_size(pool), *_best_pipeline(pool, sizes)]
    yield from improve(pool, starts, TRIES, places.ranked)


def _deep_enough(pool: CandidatePool, plan: Plan) -> Iterator[None]:
    """A plan that promises to be the best; where it is not, with deeper warm-ups too: what comes
    back to a device waits there for the first stage's micro-batches.
    """
    if pool.score(plan) > pool.best and (deep := deeper(pool.table, plan)) is not None:
        yield
        pool.score(deep)


def _of_each_size(pool: CandidatePool) -> list[Plan]:
    """The best plan of every micro-batch size, as far as it is nearly as good as the best of
    all.
    """
    sizes: dict[int, Plan] = {}
    for plan in pool.ranking():
        sizes.setdefault(plan.micro_batch, plan)
    return [plan for plan in sizes.values() if pool.score(plan) <= pool.best * NEAR_SIZES]


def _best_pipeline(pool: CandidatePool, sizes: Sequence[int]) -> list[Plan]:
    """Of all pipelines of several devices that share no stage, the one of the best estimate: where
    sharing is better, another size may be best for those.
    """
    cuts, found = candidates.cuts(pool.problem, COARSE), list[Candidate]()
    for size in sizes:
        search = SubsetSearch(pool.table, size, cuts, pipelines_only=True)
        labels = search.run(min((item.score for item in found), default=inf))
        found += [Candidate(label.score, label, search) for label in labels if label.behind][:1]
    best = min(found, key=lambda item: item.score, default=None)
    return [] if best is None else [best.search.plan(best.label)]


def _twice_changed(pool: CandidatePool, places: StagePlacements) -> Iterator[None]:
    """Next to the best plan, two changes of which the first alone does not pay."""
    before = inf
    while pool.best < before * BETTER:
        before = pool.best
        for other in [n for plan in pool.ranking()[:1] for n in places.ranked(pool.table, plan)]:
            pool.score(other)
            yield
        worse = [p for p in pool.ranking() if before * (1 + 1e-6) < pool.score(p)]
        near = [plan for plan in worse[:N_WORSE] if pool.score(plan) <= before * NEAR_WORSE]
        yield from improve(pool, near, TRIES, places.ranked)


def _join(pool: CandidatePool, places: StagePlacements) -> Iterator[None]:
    """The best plan in as few stages as it can be."""
    for plan in pool.ranking()[:1]:
        joined(pool, places, plan)
        yield


def passes(pool: CandidatePool, sizes: list[int], efforts: Sequence[Effort]) -> Iterator[None]:
    """Our own search over ever finer cuts; sorts the micro-batch sizes by what they promise.

    Parameters
    ----------
    pool
        Where plans are simulated and kept.
    sizes
        Rows of a micro-batch, all that are tried; in order of promise afterwards.
    efforts
        How fine, one pass each.
    """
    for effort in efforts:
        cuts = candidates.cuts(pool.problem, effort.n_cuts)
        if (
            not effort.pipelines_only
            and effort.n_cuts > COARSE
            and _work(pool, len(cuts)) > pool.max_work
        ):
            return
        found: list[Candidate] = []
        reached: dict[int, float] = {}
        for micro_batch in sizes:
            search = _search(pool, micro_batch, cuts, effort.pipelines_only)
            # where memory is taken to be more than it is, the best estimates may not hold
            trusted = reached.values() if pool.budgets is pool.table.budgets else ()
            labels = search.run(min(pool.best, SLACK * min(trusted, default=inf)))
            reached[micro_batch] = labels[0].score if labels else inf
            if labels and not pool.scores:
                pool.score(search.plan(labels[0]))
            found += [Candidate(label.score, label, search) for label in labels[:N_JUDGED]]
            yield
        yield from _judge(pool, found, effort.n_judged)
        sizes.sort(key=lambda size: reached[size])  # the most promising first in the next pass
        yield from _recut(pool, sizes, effort.n_improved)
        yield from improve(pool, _distinct(pool, effort.n_improved), effort.tries)
        if len(cuts) > len(pool.problem.layers) and not effort.pipelines_only:
            return


def _closely(pool: CandidatePool, sizes: Sequence[int]) -> Iterator[None]:
    """Small homes once more: rows by each stage's own layers, more labels, and what is estimated a
    little worse too.
    """
    cuts, found = candidates.cuts(pool.problem, N_FINE), list[Candidate]()
    for micro_batch in sizes:
        search = SubsetSearch(pool.table, micro_batch, cuts, keep=KEEP_CLOSELY, own_shares=True)
        if not search.is_small:
            return
        with_more_shares = SubsetSearch(pool.table, micro_batch, cuts, n_shares=MOST_SHARES)
        for looked in (search, with_more_shares) if with_more_shares.is_small else (search,):
            labels = looked.run(pool.best * ERROR)
            found += [Candidate(label.score, label, looked) for label in labels]
            yield
    for estimate, label, search in sorted(found, key=lambda item: item.score)[:N_CLOSELY]:
        if estimate >= pool.best * ERROR:
            break
        plan = search.plan(label)
        for other in islice(reordered(plan), MAX_ORDERS):
            pool.score(other)
            yield
        score = pool.score(plan)
        if score == inf:
            yield from squeeze(pool, plan)
        if score > estimate * NEAR and estimate < pool.best:
            yield from _reshare(pool, plan)
    yield from improve(pool, _distinct(pool, N_STARTS), TRIES)
    for plan in pool.ranking()[:1]:
        yield from _reshare(pool, plan)


def is_small(table: cost.CostTable) -> bool:
    """Whether a problem is so small that all of it is looked at closely."""
    size, cuts = usual(table.problem)[0], candidates.cuts(table.problem, N_FINE)
    return not is_many(table.problem) and SubsetSearch(table, size, cuts).is_small


def _reshare(pool: CandidatePool, plan: Plan) -> Iterator[None]:
    """A plan that promised to be the best and is not, with all other rows that could make it so:
    where links or the requests under way hold it up, rows by speed are not the best ones, nor need
    those next to them be better.
    """
    promising = (other for other in reshared(plan) if pool.may_beat(other, pool.best))
    for other in islice(promising, MAX_SHARES):
        if fits(pool.table, other, other.stages):
            pool.score(other)
        yield


def _judge(pool: CandidatePool, found: list[Candidate], n: int) -> Iterator[None]:
    """Simulate the `n` best estimates; where one disappoints and is the best still, with deeper
    warm-ups too.
    """
    for estimate, label, search in sorted(found, key=lambda item: item.score)[:n]:
        if estimate >= pool.best:
            return
        plan = search.plan(label)
        score = pool.score(plan)
        yield
        if score == inf:
            yield from squeeze(pool, plan)
        if score == pool.best > estimate * NEAR:
            deep = deeper(pool.table, plan)
            if deep is not None:
                pool.score(deep)
                yield


def _work(pool: CandidatePool, n_cuts: int) -> float:
    """How many ways there are to put a stage before others, about: what a pass costs."""
    search = _search(pool, usual(pool.problem)[0], candidates.cuts(pool.problem, 1), False)
    return float(search.radix[-1] * len(search.codes) * n_cuts**2)


def _recut(pool: CandidatePool, sizes: Sequence[int], n: int) -> Iterator[None]:
    """The best orders of devices again, over all cuts: a search along one order is cheap."""
    cuts = candidates.cuts(pool.problem, N_FINE)
    for plan in _distinct(pool, n):
        if sum(len(stage.devices) for stage in plan.stages) > len(plan.devices):
            continue  # a device in several stages, which this search does not know
        near = [size for size in sizes if plan.micro_batch / 2 <= size <= plan.micro_batch * 2]
        for micro_batch in near:
            search = SubsetSearch(pool.table, micro_batch, cuts, along=plan)
            labels = search.run(pool.best)
            yield
            yield from _judge(
                pool, [Candidate(label.score, label, search) for label in labels], N_RECUT
            )


def _search(
    pool: CandidatePool, micro_batch: int, cuts: Sequence[int], pipelines_only: bool
) -> SubsetSearch:
    if not is_many(pool.problem):
        return SubsetSearch(pool.table, micro_batch, cuts, pipelines_only=pipelines_only)
    return SubsetSearch(
        pool.table,
        micro_batch,
        cuts,
        beam=BEAM,
        pipelines_only=pipelines_only,
        is_late=pool.is_over,
        budget=pool.budget,
    )


def _distinct(pool: CandidatePool, n: int) -> list[Plan]:
    """The best plans: of the `n` best orders of devices the best two, apart in their cuts."""
    starts: dict[tuple[tuple[str, ...], ...], dict[tuple[int, ...], Plan]] = {}
    for plan in pool.ranking():
        order = ordered(plan, pool.peers)
        if order not in starts and len(starts) == n:
            continue
        same = starts.setdefault(order, {})
        if len(same) < 2:
            same.setdefault((plan.micro_batch, *(stage.stop for stage in plan.stages)), plan)
    return [plan for same in starts.values() for plan in same.values()]


def improve(
    pool: CandidatePool, starts: Sequence[Plan], max_tries: int, others: Neighbours = neighbours
) -> Iterator[None]:
    """Local search from each of `starts`.

    Parameters
    ----------
    pool
        Where plans are simulated and kept.
    starts
        Plans to improve.
    max_tries
        Simulations for each of them at most.
    others
        Gives the plans to try next to a plan.
    """
    for plan in starts:
        tries, max_here = 0, fewer(max_tries, FEWEST_TRIES, plan.n_micro_batches)
        better: Plan | None = plan
        while better is not None:
            current, better = better, None
            reached = pool.score(current)
            for other in others(pool.table, current):
                if tries >= max_here:
                    break
                if pool.knows(other) or not pool.may_beat(other, reached):
                    continue
                tries += 1
                other = replace(other, planner="potluck")  # whoever made it
                ours = score_flat_too(pool, other, current)
                if pool.score(ours) < reached * BETTER:
                    better = ours
                    break
                yield
