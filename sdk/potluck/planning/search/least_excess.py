"""Where no plan is found that memory, and joules where they are limited, hold: from those that
exceed them least step by step to one that does not, as simulated.

Closed forms of memory take links to be as slow as they may be, and a search keeps or computes again
all activations. So what just fits may need some stages that compute again, and some that do not,
with rows and cuts that no estimate of time leads to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from potluck.planning.building_blocks import candidates
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.candidate_pool import CandidatePool, excess_joules
from potluck.planning.search.local_search import near
from potluck.records import Plan

LEAST_STEP = 1e-3  # a part of the excess, by which a step betters it at the least


def within_memory(pool: CandidatePool, starts: Sequence[Plan], max_tries: int) -> Plan | None:
    """A plan within memory and joules as simulated; None where none is found by so many
    simulations.

    Parameters
    ----------
    pool
        Its table's memory is no limit; its budgets are what there is.
    starts
        That exceed limits, the nearest first.
    max_tries
        Simulations from each of them.
    """
    places = StagePlacements(pool.table)
    for start in starts:
        tries, current = max_tries, start
        excess = _excess(pool, current)
        found: Plan | None = start
        while found is not None and excess > 0:
            current, found = found, None
            for other in _flat(pool, places, current):
                if tries == 0 or pool.is_late():
                    break
                tries -= 1
                reached = _excess(pool, other)
                if reached < excess * (1 - LEAST_STEP):
                    found, excess = other, reached
                    break
        if excess == 0:
            return replace(found or current, planner="potluck")
    return None


def _excess(pool: CandidatePool, plan: Plan) -> float:
    """By which parts of what they may use devices need more, of memory and joules, added up."""
    outcome, qoe = pool.simulate(plan), pool.problem.qoe
    peaks = outcome.peak_bytes().items()
    excess = sum(max(0.0, nbytes / pool.budgets[name] - 1) for name, nbytes in peaks)
    limited = qoe.energy_j is not None or bool(qoe.device_energy_j)
    return excess + (excess_joules(qoe, outcome.device_energy_j()) if limited else 0.0)


def _flat(pool: CandidatePool, places: StagePlacements, plan: Plan) -> Iterator[Plan]:
    """The plan, and those next to it, with one micro-batch after the other; also with all stages
    that compute again, or one more or less.
    """
    recomputes, problem = pool.table.recomputes, pool.problem
    for other in chain((plan,), near(pool.table, plan), places.neighbours(pool.table, plan)):
        stages = tuple(replace(stage, warm_up=1) for stage in other.stages)
        if any(min(s.shares) < candidates.fewest_rows(problem, s.start, s.stop) for s in stages):
            continue
        yield replace(other, stages=stages)
        if recomputes and not all(stage.recompute for stage in stages):
            again = tuple(replace(stage, recompute=True) for stage in stages)
            yield replace(other, stages=again)
