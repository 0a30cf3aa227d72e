"""Neighbouring stages of the same devices as one: the same work, with one thing less to load, start
and read.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise

from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import fits, terminates
from potluck.records import Plan

ROUNDING = 1 + 1e-9


def joined(pool: CandidatePool, places: StagePlacements, plan: Plan) -> Plan:
    """`plan` in as few stages as it can be on the same devices without being slower.

    Parameters
    ----------
    pool
        Where plans are simulated and kept.
    places
        Of its problem.
    plan
        Simulated.
    """
    other: Plan | None = plan
    while other is not None:
        plan, limit = other, pool.exact_score(other) * ROUNDING
        wholes = chain(_without_cuts(pool, places, plan), places.joined(plan))
        other = next((one for one in wholes if pool.exact_score(one) <= limit), None)
    return plan


def _without_cuts(pool: CandidatePool, places: StagePlacements, plan: Plan) -> Iterator[Plan]:
    """Plans with one needless cut less, all else as it is."""
    for p, (left, right) in enumerate(pairwise(plan.stages)):
        like = replace(left, start=right.start, stop=right.stop, warm_up=right.warm_up)
        if like == right and left.stop not in places.ends:
            merged = replace(left, stop=right.stop)
            stages = (*plan.stages[:p], merged, *plan.stages[p + 2 :])
            if fits(pool.table, plan, stages) and terminates(pool.table, plan, stages):
                yield replace(plan, stages=stages)
