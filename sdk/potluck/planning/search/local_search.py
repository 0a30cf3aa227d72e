"""Local search on a plan: move a cut, shift rows, change depths, swap devices.

The simulator says what helps.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, pairwise, permutations, product

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import classes_of, peers
from potluck.planning.building_blocks.row_levels import allocate_by_level, edges_of, may_level
from potluck.planning.building_blocks.stages import make_stage
from potluck.planning.search.work_budget import is_many
from potluck.records import Plan, Stage, Training
from potluck.schedule.policies import warm_up_depth, warm_ups_of_rows
from potluck.simulate import cost, footprint

STEPS = (8, 4, 2, 1)  # layers by which a cut moves, parts of a share that shift
PARTS = 4  # equal parts of a stage, between which it may be cut; its cuts are moved later


def neighbours(table: cost.CostTable, plan: Plan) -> Iterator[Plan]:
    """Plans that differ from `plan` in one thing and fit in memory, those that help most often
    first; last those with rows at the edges of steps, where rows next to them are no better.
    """
    yield from near(table, plan)
    yield from at_edges(table, plan)


def near(table: cost.CostTable, plan: Plan) -> Iterator[Plan]:
    """The same without those at edges."""
    for stages in _recomputing(table, plan):  # several of a device: the closed form is too high
        yield replace(plan, stages=stages)
    others = _deeper(plan), moved(plan), _shifted(table, plan), _swapped(table, plan)
    yield from _fitting(table, plan, chain(*others))
    yield from _other_micro_batches(table, plan)
    for stages in _partly_recomputing(table, plan):
        yield replace(plan, stages=stages)


def at_edges(table: cost.CostTable, plan: Plan) -> Iterator[Plan]:
    """Plans that fit in memory, with rows of one device of a stage on another up to the edge of a
    step.
    """
    yield from _fitting(table, plan, _to_edges(table, plan))


def _fitting(
    table: cost.CostTable, plan: Plan, changed: Iterable[tuple[Stage, ...]]
) -> Iterator[Plan]:
    """Those that memory holds by the closed form, and that end; each once."""
    seen, limits = {plan.stages}, _limits(table, plan)
    for other in changed:
        stages = keeping_less(table, other, limits) if table.recomputes else other
        if stages in seen or not terminates(table, plan, stages):
            continue
        if fits(table, plan, stages, limits=limits):
            seen.add(stages)
            yield replace(plan, stages=stages)


def deeper(table: cost.CostTable, plan: Plan) -> Plan | None:
    """The plan with warm-ups that hide links on which a micro-batch stays longer than in a stage;
    None: no room.
    """
    n, m = len(plan.stages), plan.n_micro_batches
    depths = [min(3 * (n - p) - 2, m) for p in range(n)]
    stages = tuple(
        replace(stage, warm_up=depth) for stage, depth in zip(plan.stages, depths, strict=True)
    )
    if not plan.training or stages == plan.stages or not fits(table, plan, stages):
        return None
    return replace(plan, stages=stages)


def reordered(plan: Plan) -> Iterator[Plan]:
    """The plan, and with other orders of the devices within its stages: they decide who sends which
    rows to whom.
    """
    for orders in product(
        *(permutations(zip(s.devices, s.shares, strict=True)) for s in plan.stages)
    ):
        stages = tuple(
            replace(
                stage,
                devices=tuple(name for name, _ in order),
                shares=tuple(rows for _, rows in order),
            )
            for stage, order in zip(plan.stages, orders, strict=True)
        )
        yield replace(plan, stages=stages)


def reshared(plan: Plan) -> Iterator[Plan]:
    """The plan with rows of one device of a stage on another, any number of them, the fewest
    first.
    """
    for rows in range(1, plan.micro_batch):
        for p, stage in enumerate(plan.stages):
            for i, j in permutations(range(len(stage.devices)), 2):
                if stage.shares[i] > rows:
                    shares = list(stage.shares)
                    shares[i] -= rows
                    shares[j] += rows
                    stages = (
                        *plan.stages[:p],
                        replace(stage, shares=tuple(shares)),
                        *plan.stages[p + 1 :],
                    )
                    yield replace(plan, stages=stages)


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans of the same stages that may need less memory where it is short: less deep, then with
    other rows too.
    """
    ceilings = [
        range(min(stage.warm_up, len(plan.stages) - p + 1), 0, -1)
        for p, stage in enumerate(plan.stages)
    ]
    depths = sorted(
        (d for d in product(*ceilings) if all(a >= b for a, b in pairwise(d))),
        key=sum,
        reverse=True,
    )
    for least in (plan.stages, *(other.stages for other in reshared(plan))):
        for deep in [depths[-1]] if least is not plan.stages else [*depths[-1:], *depths[:-1]]:
            stages = (
                replace(stage, warm_up=depth) for stage, depth in zip(least, deep, strict=True)
            )
            yield replace(plan, stages=tuple(stages))


def with_depths(table: cost.CostTable, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages with warm-ups K_p, each by the longest way from it to the end, and by the rows of
    the stages behind it.

    Parameters
    ----------
    table
        Of the problem.
    stages
        In order.
    """
    workload = table.problem.workload
    if not isinstance(workload, Training):
        return tuple(stages)
    rows = [stage.rows for stage in stages]
    counts = [workload.batch // n for n in rows]
    depths = warm_ups_of_rows(rows, counts, table.before(stages))
    return tuple(map(_at_depth, stages, depths))


@lru_cache(maxsize=1 << 14)  # a search makes the same stages again and again
def _at_depth(stage: Stage, depth: int) -> Stage:
    return replace(stage, warm_up=depth)


def floor_s(table: cost.CostTable, plan: Plan) -> float:
    """What the busiest device computes: the step takes no less."""
    busy = dict.fromkeys(plan.devices, 0.0)
    for stage, n in zip(plan.stages, plan.counts, strict=True):
        learns = plan.training and not table.runs_ahead(stage.start, stage.stop)
        for name, rows in zip(stage.devices, stage.shares, strict=True):
            seconds = table.forward_s(name, stage.start, stage.stop, rows)
            if learns:
                backward_s = table.of(stage.recompute).backward_s
                seconds += backward_s(name, stage.start, stage.stop, rows)
            busy[name] += seconds * n
    return max(busy.values())


def fits(
    table: cost.CostTable,
    plan: Plan,
    stages: Sequence[Stage],
    limits: Mapping[str, int] | None = None,
) -> bool:
    """Whether every device holds all its stages, by the closed form of memory.

    Parameters
    ----------
    table
        Of the problem.
    plan
        Gives the number of micro-batches.
    stages
        To be held.
    limits
        What that is; default: the budgets of the table.
    """
    needed, limits = (footprint.plan_bytes(table, stages), limits or table.budgets)
    return all(nbytes <= limits[name] for name, nbytes in needed.items())


def terminates(table: cost.CostTable, plan: Plan, stages: Sequence[Stage]) -> bool:
    """Whether no stage waits for ever for a gradient: none is less deep than one that takes from
    it.

    Parameters
    ----------
    table
        Of the problem.
    plan
        Says whether it is for training.
    stages
        Those in question.
    """
    before = table.before(stages) if plan.training else ()
    return all(
        stages[p].warm_up >= stages[q].warm_up for q, sources in enumerate(before) for p in sources
    )


def _recomputing(table: cost.CostTable, plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """One stage keeps its activations, or computes them again: only where that is asked about."""
    for p, stage in enumerate(plan.stages) if table.recomputes else ():
        yield (*plan.stages[:p], _other_way(stage), *plan.stages[p + 1 :])


def _partly_recomputing(table: cost.CostTable, plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """The same of the first layers of a stage, or of its last."""
    for p, stage in enumerate(plan.stages) if table.recomputes else ():
        for cut in equal_cuts(stage):
            first, last = replace(stage, stop=cut), replace(stage, start=cut)
            yield (*plan.stages[:p], _other_way(first), last, *plan.stages[p + 1 :])
            yield (*plan.stages[:p], first, _other_way(last), *plan.stages[p + 1 :])


def equal_cuts(stage: Stage) -> list[int]:
    """Layers before which the stage may be cut into equal parts.

    Parameters
    ----------
    stage
        Of one layer it has none.
    """
    n_layers = stage.stop - stage.start
    return sorted(
        {stage.start + n_layers * part // PARTS for part in range(1, PARTS)} - {stage.start}
    )


def _other_way(stage: Stage) -> Stage:
    return replace(stage, recompute=not stage.recompute)


def _limits(table: cost.CostTable, plan: Plan) -> dict[str, int]:
    """Bytes that devices may need by the closed form: as much as they may use, or as the plan has
    them need, which holds as simulated.
    """
    needed = footprint.plan_bytes(table, plan.stages)
    return {name: max(nbytes, needed.get(name, 0)) for name, nbytes in table.budgets.items()}


def keeping_less(
    table: cost.CostTable, stages: tuple[Stage, ...], limits: Mapping[str, int]
) -> tuple[Stage, ...]:
    """The stages, those of devices that do not hold all of theirs recomputing.

    Parameters
    ----------
    table
        Of the problem.
    stages
        Of a plan.
    limits
        Bytes that devices may need.
    """
    needed = footprint.plan_bytes(table, stages)
    full = {name for name, nbytes in needed.items() if nbytes > limits[name]}
    return tuple(
        replace(stage, recompute=True) if full.intersection(stage.devices) else stage
        for stage in stages
    )


def moved(plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """Its stages with one cut elsewhere."""
    stages = plan.stages
    for p, (left, right) in enumerate(pairwise(stages)):
        for step in (sign * size for size in STEPS for sign in (1, -1)):
            cut = left.stop + step
            if left.start < cut < right.stop:
                yield (
                    *stages[:p],
                    replace(left, stop=cut),
                    replace(right, start=cut),
                    *stages[p + 2 :],
                )


def _to_edges(table: cost.CostTable, plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """Where times go in steps: rows from one device of a stage to another, so many that the one is
    no longer beyond a step, or the other just before one.
    """
    edges = edges_of(table)
    for p, stage in enumerate(plan.stages):
        pairs = permutations(range(len(stage.devices)), 2)
        for i, j in pairs if may_level(table, stage.devices) else ():
            mine, theirs = stage.shares[i], stage.shares[j]
            amounts = {mine - max((e for e in edges[stage.devices[i]] if e < mine), default=mine)}
            amounts |= {min((e for e in edges[stage.devices[j]] if e > theirs), default=0) - theirs}
            for rows in sorted(amounts):
                if 0 < rows < mine:
                    shares = list(stage.shares)
                    shares[i] -= rows
                    shares[j] += rows
                    yield (
                        *plan.stages[:p],
                        replace(stage, shares=tuple(shares)),
                        *plan.stages[p + 1 :],
                    )


def _shifted(table: cost.CostTable, plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """Rows from one device of a stage to another.

    In a home of many, of alike ones with as many rows only the first.
    """
    stages, same = plan.stages, peers(table) if is_many(table.problem) else {}
    for p, stage in enumerate(stages):
        n = len(stage.devices)
        for size in STEPS if n > 1 else ():
            rows = max(1, plan.micro_batch * size // 64)
            kinds = set[Hashable]()
            for i, j in (
                (i, j) for i in range(n) for j in range(n) if i != j and stage.shares[i] > rows
            ):
                kind = tuple((same.get(stage.devices[k], k), stage.shares[k]) for k in (i, j))
                if kind in kinds:
                    continue
                kinds.add(kind)
                shares = list(stage.shares)
                shares[i] -= rows
                shares[j] += rows
                yield (*stages[:p], replace(stage, shares=tuple(shares)), *stages[p + 1 :])


def _deeper(plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """Other depths: the least, those of plain 1F1B, K_p, some more.

    One stage alone a little deeper or shallower.
    """
    if not plan.training:
        return
    stages = plan.stages
    n = len(plan.stages)
    m = plan.n_micro_batches
    for depths in (
        [min(n - p, m) for p in range(n)],
        [warm_up_depth(p, n, m) for p in range(n)],
        [min(warm_up_depth(p, n, m) + 1, m) for p in range(n)],
        [min(3 * (n - p) - 2, m) for p in range(n)],
        *(
            [s.warm_up + (k if q == p else 0) for q, s in enumerate(stages)]
            for p in range(n)
            for k in (1, -1, 2, -2)
        ),
    ):
        if min(depths) >= 1 and max(depths) <= m:
            yield tuple(
                replace(stage, warm_up=depth) for stage, depth in zip(stages, depths, strict=True)
            )


def _swapped(table: cost.CostTable, plan: Plan) -> Iterator[tuple[Stage, ...]]:
    """Two stages change devices, two neighbours in a stage their places.

    A device makes room for an unused one.
    """
    stages = plan.stages
    for p in range(len(stages)):
        for q in range(p + 1, len(stages)):
            if len(stages[p].devices) == len(stages[q].devices):
                swapped = list(stages)
                swapped[p] = replace(stages[p], devices=stages[q].devices, shares=stages[q].shares)
                swapped[q] = replace(stages[q], devices=stages[p].devices, shares=stages[p].shares)
                yield tuple(swapped)
    for p, stage in enumerate(stages):  # the order within a stage: who sends which rows to whom
        for i in range(len(stage.devices) - 1):
            order = [*range(i), i + 1, i, *range(i + 2, len(stage.devices))]
            names, shares = (
                tuple(stage.devices[k] for k in order),
                tuple(stage.shares[k] for k in order),
            )
            yield (*stages[:p], replace(stage, devices=names, shares=shares), *stages[p + 1 :])
    for spare in _spares(table, plan):
        for p, stage in enumerate(stages):
            for i in range(len(stage.devices)):
                names = (*stage.devices[:i], spare, *stage.devices[i + 1 :])
                yield (*stages[:p], replace(stage, devices=names), *stages[p + 1 :])


def _spares(table: cost.CostTable, plan: Plan) -> Iterator[str]:
    """Of every class of alike devices the first that has nothing to do."""
    used = set(plan.devices)
    for same in classes_of(table):
        yield from [
            name for name in (table.problem.devices[i].name for i in same) if name not in used
        ][:1]


def _other_micro_batches(table: cost.CostTable, plan: Plan) -> Iterator[Plan]:
    """The same stages at half and at twice the micro-batch, and at the sizes next to it; rows by
    Algorithm 1.
    """
    for micro_batch in candidates.near_sizes(table.problem, plan.micro_batch):
        n = table.problem.workload.batch // micro_batch
        made = [
            make_stage(
                table, s.start, s.stop, s.devices, micro_batch, min(s.warm_up, n), allocate_by_level
            )
            for s in plan.stages
        ]
        stages = tuple(stage for found in made if found is not None for stage in found[:1])
        if len(stages) == len(plan.stages):
            yield replace(plan, stages=stages, micro_batch=micro_batch, n_micro_batches=n)
