"""Plans that just fit: closed forms of memory take links to be as slow as they may be, so that some
hold only as simulated. Then the simulated peaks say which rows have to move.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from math import inf

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.row_allocation import proportion
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import moved, smaller, terminates
from potluck.records import Plan, Problem, Stage, Training
from potluck.simulate import flows

MAX_SHARES = 40  # of rows of one plan
MAX_PLACES = 10  # where a device alone may cut its layers


def spread(pool: CandidatePool, sizes: Sequence[int]) -> Iterator[None]:
    """All devices share all layers, in one stage or in two that each keep less at once, with rows
    by room: where the search takes memory to be more than it is, no other plan may hold.

    Parameters
    ----------
    pool
        Where plans are simulated and kept.
    sizes
        Rows of a micro-batch, all that are tried.
    """
    problem, n_layers = pool.problem, len(pool.problem.layers)
    if pool.budgets is pool.table.budgets or problem.branches:
        return
    names = tuple(device.name for device in problem.devices)
    fewest = candidates.fewest_rows(problem)
    room = [max(1, pool.budgets[name] - pool.table.floor_bytes) for name in names]
    for size in (size for size in sizes if size >= len(names) * fewest):
        spare = proportion(size - len(names) * fewest, room)
        shares = tuple(fewest + rows for rows in spare)
        for cut in range(1, n_layers + 1):
            first = Stage(start=0, stop=cut, devices=names, shares=shares, warm_up=1)
            rest = [replace(first, start=cut, stop=n_layers)] if cut < n_layers else []
            plan = Plan(
                planner="potluck",
                model=problem.model,
                stages=(first, *rest),
                micro_batch=size,
                n_micro_batches=problem.workload.batch // size,
                training=isinstance(problem.workload, Training),
            )
            pool.score(relieved(pool, plan))
            yield


def alone(problem: Problem, size: int) -> Iterator[Plan]:
    """Each device alone in two stages, cut anywhere, and in as many as there are layers: less may
    be there at once than of one stage.

    Parameters
    ----------
    problem
        What is planned.
    size
        Rows of a micro-batch.
    """
    places = candidates.cuts(problem, MAX_PLACES)
    for device in problem.devices:
        for ends in (*((0, cut, places[-1]) for cut in places[1:-1]), places):
            stages = tuple(
                Stage(start=start, stop=stop, devices=(device.name,), shares=(size,))
                for start, stop in pairwise(ends)
            )
            yield Plan(
                planner="potluck",
                model=problem.model,
                stages=stages,
                micro_batch=size,
                n_micro_batches=problem.workload.batch // size,
                training=isinstance(problem.workload, Training),
            )


def cut_alone(pool: CandidatePool, sizes: Sequence[int]) -> Iterator[None]:
    """Each device alone in several stages, where the search takes memory to be more than it is, as
    long as nothing else holds.

    Parameters
    ----------
    pool
        Where plans are simulated and kept.
    sizes
        Rows of a micro-batch, all that are tried.
    """
    if pool.budgets is pool.table.budgets:
        return
    plans = chain(*(alone(pool.problem, size) for size in sizes))
    while not pool.holds and (plan := next(plans, None)) is not None:
        pool.score(plan)
        yield


def squeeze(pool: CandidatePool, plan: Plan) -> Iterator[None]:
    """A plan that memory does not hold with fewer micro-batches under way, other rows, and other
    cuts, where the search takes memory to be more than it is.

    Parameters
    ----------
    pool
        Where plans are simulated and kept.
    plan
        That does not hold.
    """
    if pool.budgets is not pool.table.budgets:
        pool.score(relieved(pool, plan))
        yield
        recut = (replace(plan, stages=stages) for stages in moved(plan))
        for other in (*parted(pool.problem, plan), *islice(smaller(plan), MAX_SHARES), *recut):
            for one in (other, _keeping(other)):
                pool.score(one)
            yield


def score_flat_too(pool: CandidatePool, plan: Plan, held: Plan | None = None) -> Plan:
    """The plan, simulated; or where memory does not hold it, and the search takes memory to be more
    than it is, the same no deeper than another, or with one micro-batch after the other.

    Parameters
    ----------
    pool
        Where plans are simulated and kept.
    plan
        To be simulated.
    held
        One next to it, that memory holds.
    """
    if pool.score(plan) < inf or not plan.training or pool.budgets is pool.table.budgets:
        return plan
    stages = (held or plan).stages
    depths = [stage.warm_up for stage in stages for _ in range(stage.start, stage.stop)]
    for most in (depths, [1] * len(depths)):
        stages = tuple(
            replace(stage, warm_up=min(stage.warm_up, most[stage.start])) for stage in plan.stages
        )
        less = replace(plan, stages=stages)
        if terminates(pool.table, less, stages) and pool.score(less) < inf:
            return less
    return plan


def parted(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """The plan with its frozen first layers as a stage of their own on the same devices, where they
    are not yet: of what no gradient reaches nothing is kept.

    Parameters
    ----------
    problem
        What is planned.
    plan
        Of a chain.
    """
    learns = flows.learning_layers(problem)
    first = learns.index(True) if plan.training and True in learns else 0
    for p, stage in enumerate(plan.stages):
        if stage.start < first < stage.stop:
            parts = replace(stage, stop=first, recompute=False), replace(stage, start=first)
            yield replace(plan, stages=(*plan.stages[:p], *parts, *plan.stages[p + 1 :]))


def _keeping(plan: Plan) -> Plan:
    """The plan with activations kept where one micro-batch is under way: to compute them again
    takes as much memory, or more.
    """
    stages = (replace(s, recompute=s.recompute and s.warm_up > 1) for s in plan.stages)
    return replace(plan, stages=tuple(stages))


def relieved(pool: CandidatePool, plan: Plan) -> Plan:
    """The plan as flat as can be. Where a device holds too much when it is simulated, rows go to
    those of its stage that have most room. It ends when the plan holds or no row is left to move.

    Parameters
    ----------
    pool
        Knows what each device may use.
    plan
        That may not hold.
    """
    plan = replace(plan, stages=tuple(replace(stage, warm_up=1) for stage in plan.stages))
    for _ in range(plan.micro_batch):
        peaks = pool.simulate(plan).peak_bytes().items()
        lighter = moved_to_room(plan, {name: pool.budgets[name] - peak for name, peak in peaks})
        if lighter is None:
            break
        plan = lighter
    return plan


def moved_to_room(plan: Plan, room: Mapping[str, int]) -> Plan | None:
    """The plan with one row of the device that lacks most memory on the one of the same stage that
    has most left. None where none lacks any, or no such row can move.

    Parameters
    ----------
    plan
        Simulated.
    room
        Per device the bytes that are left, below 0 where it needs more than it may use.
    """
    for name in sorted((name for name in room if room[name] < 0), key=lambda name: room[name]):
        for p, stage in enumerate(plan.stages):
            takers = [other for other in stage.devices if room[other] > 0]
            if name not in stage.devices or not takers:
                continue
            i = stage.devices.index(name)
            j = stage.devices.index(max(takers, key=lambda other: room[other]))
            if stage.shares[i] > 1:
                shares = list(stage.shares)
                shares[i] -= 1
                shares[j] += 1
                changed = replace(stage, shares=tuple(shares))
                return replace(plan, stages=(*plan.stages[:p], changed, *plan.stages[p + 1 :]))
    return None
