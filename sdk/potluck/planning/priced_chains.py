"""Plans from the chains by which the bound is found: what is cheapest at prices of devices, air and
time is often a good plan, where a home has so many devices that a search over their sets is coarse.

Such a chain may take more devices of a kind than there are, or parts of one; then it is no plan.
"""

import heapq
from collections.abc import Iterator, Sequence
from math import inf

from potluck.planning.bounds.stage_chains import (
    EXACT_ROWS,
    Chain,
    first_prices,
    micro_batches,
    priced,
)
from potluck.planning.bounds.stage_options import StageOptions
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import with_depths
from potluck.planning.search.plan_floor import least_s
from potluck.planning.search.work_budget import WorkBudget
from potluck.records import Plan, Stage, Training
from potluck.simulate import cost

PARTS = (0.95, 0.9, 0.85, 0.8, 0.7)  # of the seconds of the best plan, to look for chains
MOST_ROWS = 16  # of a micro-batch: of more, a chain is mostly parts of devices
GIVEN_S = 0.6  # counted apart from the search: what is simulated counts there
N_SIMULATED = 10
DEAR = 1.5  # chains beyond this price are far from any plan


def look_at_chains(pool: CandidatePool) -> Iterator[None]:
    """Simulate plans that chains become for ever fewer seconds, those that may be fastest.

    Parameters
    ----------
    pool
        Where plans are simulated and kept; of a problem without branches.
    """
    found = list[Plan]()
    for plan in _plans(pool.table, pool.best, pool.ranking()):
        if plan is not None and not pool.knows(plan):
            found.append(plan)
        yield
    for plan in heapq.nsmallest(N_SIMULATED, found, key=lambda plan: least_s(pool.table, plan)):
        if pool.may_beat(plan, pool.best):
            pool.score(plan)
        yield


def _plans(table: cost.CostTable, best_s: float, known: Sequence[Plan]) -> Iterator[Plan | None]:
    """What every chain stands for, the micro-batches of known plans first."""
    budget, sizes = WorkBudget(), micro_batches(table.problem)
    first = [*dict.fromkeys(plan.micro_batch for plan in known)]
    for rows in sorted(sizes, key=lambda rows: [*first, rows].index(rows)):
        if rows > MOST_ROWS:
            continue
        stages = StageOptions(table, rows)
        prices = first_prices(stages)
        for part in PARTS:
            price = inf
            for price, chain in priced(stages, part * best_s, prices, budget):
                if price > DEAR or budget() >= GIVEN_S:
                    break
                yield plan_of(table, chain, rows)
            if price > DEAR or budget() >= GIVEN_S:
                break
        if budget() >= GIVEN_S:
            return


def plan_of(table: cost.CostTable, chain: Chain, micro_batch: int) -> Plan | None:
    """The plan that a chain stands for; None where it takes devices that there are not.

    Parameters
    ----------
    table
        Of the problem.
    chain
        Its stages.
    micro_batch
        Rows of a micro-batch.
    """
    problem, kinds = table.problem, chain.known.floors.kinds
    used = [0] * len(kinds)
    stages = list[Stage]()
    for (start, option), parts in zip(chain.stages, chain.groups(), strict=True):
        shares, left = dict[str, int](), micro_batch
        for kind, rows, _ in parts:
            while left and used[kind] < len(kinds[kind]):
                name = problem.devices[kinds[kind][used[kind]]].name
                used[kind] += 1
                shares[name] = min(rows, left)
                left -= shares[name]
                if micro_batch <= EXACT_ROWS:
                    break
        if left:
            return None
        stages.append(
            Stage(start=start, stop=option.stop, devices=(*shares,), shares=(*shares.values(),))
        )
    return Plan(
        planner="potluck",
        model=problem.model,
        stages=with_depths(table, stages),
        micro_batch=micro_batch,
        n_micro_batches=problem.workload.batch // micro_batch,
        training=isinstance(problem.workload, Training),
    )
