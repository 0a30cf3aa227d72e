"""Micro-batches of stages' own sizes: smaller ones before a link that is slow, so that the next
stage begins sooner; larger ones where each transfer or instruction costs more than its rows.

After the micro-batch adapter of DeepCEE (Wang et al., section 3.4), which goes by thresholds of
bandwidth, and changes sizes within a step, too. Here the simulator says what helps, and a stage
keeps to one size. Stages whose layers see what a micro-batch is, batch norms and dropout, keep
theirs: nothing but the order of sums changes. Pure.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, pairwise

from potluck.errors import PlanError
from potluck.planning.building_blocks.row_allocation import proportion
from potluck.planning.evaluate import judge
from potluck.planning.feasibility import breaches
from potluck.planning.plans import preference
from potluck.records import Layer, Plan, Problem, Stage, Training
from potluck.schedule.policies import warm_ups_of_rows
from potluck.schedule.stage_graph import Before, chain
from potluck.simulate import cost, flows
from potluck.simulate.direct_simulation import Direct

MOST_TRIES = 96  # plans that are simulated
MOST_WORK = 8000  # micro-batches of stages in them, all together
MOST_PARTS = 64  # micro-batches of a step, beyond which none is made smaller
HARD = "memory", "rows"  # limits that keep a plan from running at all


def resized(
    problem: Problem, plan: Plan, sizes: Sequence[int], *, ahead: int = 2, deep: bool = False
) -> Plan:
    """The plan with micro-batches of these sizes, its rows shared as before, and warm-ups deep
    enough for them. Nothing is predicted of it yet.

    Parameters
    ----------
    problem
        What the plan is for.
    plan
        For training.
    sizes
        Per stage, the rows that it takes at a time.
    ahead
        As of `warm_ups_of_rows`.
    deep
        Warm-ups keep as many rows as those of the plan, where these are more.

    Raises
    ------
    PlanError
        The sizes do not meet, or a device of a stage would get no row.
    """
    before = flows.before(flows.output_groups(problem, plan.stages))
    kept = [stage.warm_up * stage.rows * deep for stage in plan.stages]
    return unjudged(plan, _resized(plan, plan.stages, sizes, before, kept, ahead))


def _resized(
    plan: Plan,
    stages: Sequence[Stage],
    sizes: Sequence[int],
    before: Before,
    kept_rows: Sequence[int],
    ahead: int = 2,
) -> tuple[Stage, ...]:
    """`kept_rows`: those that each stage is to keep at once, at the least."""
    if any(size < 1 or plan.batch % size for size in sizes):
        raise PlanError(f"a batch of {plan.batch} rows cannot be cut into {tuple(sizes)}.")
    counts = [plan.batch // size for size in sizes]
    depths = warm_ups_of_rows(sizes, counts, before, ahead=ahead)
    return tuple(
        replace(
            stage,
            shares=proportion(size, stage.shares),
            warm_up=min(n, max(depth, -(-rows // size))),
            micro_batch=None if size == plan.micro_batch else size,
        )
        for stage, size, n, depth, rows in zip(
            stages, sizes, counts, depths, kept_rows, strict=True
        )
    )


def unjudged(plan: Plan, stages: tuple[Stage, ...]) -> Plan:
    """The plan with other stages, of which nothing is predicted yet.

    Parameters
    ----------
    plan
        Any.
    stages
        That take the place of its own.
    """
    return replace(
        plan,
        stages=stages,
        latency_s=None,
        energy_j=None,
        energy_source="",
        peak_bytes={},
        device_energy_j={},
        gap_frac=None,
        energy_gap_frac=None,
    )


def better_sizes(
    problem: Problem, plan: Plan, table: cost.CostTable | None = None, *, most_work: int = MOST_WORK
) -> Plan | None:
    """The plan with the stages' micro-batches made smaller or larger, several neighbours at once,
    as long as that is better; judged. None where nothing is.

    Parameters
    ----------
    problem
        What is planned, as it is now.
    plan
        For training.
    table
        Of this problem, if there is one already.
    most_work
        Micro-batches of stages, in all plans that are simulated, at the most.

    Raises
    ------
    PlanError
        The plan cannot be carried out for this problem.
    """
    if not isinstance(problem.workload, Training):
        return None
    table = table or cost.CostTable(problem)
    search = _SizeSearch(problem, table, most_work)
    return search.run(judge(problem, plan, table))


class _SizeSearch:
    """Goes to the best neighbour as long as there is a better one."""

    def __init__(self, problem: Problem, table: cost.CostTable, most_work: int) -> None:
        self._problem, self._table = problem, table
        self._simulator = Direct(problem, table)
        self._tries, self._work = MOST_TRIES, most_work
        self._seen = set[tuple[int, ...]]()

    def run(self, plan: Plan) -> Plan | None:
        """From this one on."""
        first = plan
        while True:
            around = [*self._around(first, plan)]
            best = min(around, key=self._rank, default=None)
            if best is None or self._rank(best) >= self._rank(plan):
                return None if plan is first else plan
            plan = best

    def _rank(self, plan: Plan) -> tuple[bool, object]:
        return bool(breaches(self._problem, plan)), preference(plan, self._problem)

    def _around(self, first: Plan, plan: Plan) -> Iterator[Plan]:
        for sizes in _neighbours(self._problem, plan):
            if sizes not in self._seen:
                self._seen.add(sizes)
                yield from self._held(first, sizes)

    def _held(self, first: Plan, sizes: tuple[int, ...]) -> Iterator[Plan]:
        """With these sizes: as deep as usual, and as deep as before; where memory has no room, less
        deep.
        """
        usual = [*self._judged(first, sizes, ahead=2)]
        yield from usual
        if usual:
            yield from self._judged(first, sizes, ahead=2, deep=True)
        else:
            yield from self._judged(first, sizes, ahead=1)

    def _judged(
        self, first: Plan, sizes: tuple[int, ...], *, ahead: int, deep: bool = False
    ) -> Iterator[Plan]:
        with suppress(PlanError):
            other = resized(self._problem, first, sizes, ahead=ahead, deep=deep)
            self._tries -= 1
            self._work -= sum(other.counts)
            if min(self._tries, self._work) < 0:
                return
            judged = judge(self._problem, other, self._table, self._simulator)
            if not any(b.limit in HARD for b in breaches(self._problem, judged)):
                yield judged


def _neighbours(problem: Problem, plan: Plan) -> Iterator[tuple[int, ...]]:
    """Sizes of which those of some stages in a row are half of what they are, or twice."""
    now = tuple(stage.rows for stage in plan.stages)
    fixed = [
        any(layer.sees_micro_batch for layer in problem.layers[stage.start : stage.stop])
        for stage in plan.stages
    ]
    n = len(now)
    for length in range(n, 0, -1):
        for start in range(n - length + 1):
            chosen = [p for p in range(start, start + length) if not fixed[p]]
            if not chosen or {start, start + length - 1} - {*chosen}:
                continue  # the same as a shorter run
            for smaller in (True, False):
                sizes = tuple(
                    (size // 2 if smaller else 2 * size) if p in chosen else size
                    for p, size in enumerate(now)
                )
                if _are_possible(plan, now, sizes, smaller=smaller):
                    yield sizes


def _are_possible(plan: Plan, now: Sequence[int], sizes: Sequence[int], *, smaller: bool) -> bool:
    if smaller and any(size % 2 for size, new in zip(now, sizes, strict=True) if new != size):
        return False
    fewest = [len(stage.devices) for stage in plan.stages]
    chained = sorted({plan.micro_batch, *sizes})
    return (
        all(size >= n for size, n in zip(sizes, fewest, strict=True))
        and all(plan.batch % size == 0 for size in sizes)
        and all(more % less == 0 for less, more in pairwise(chained))
        and max(plan.batch // size for size in sizes) <= max(MOST_PARTS, max(plan.counts))
    )


def with_sizes_of(before: Plan, plan: Plan, layers: Sequence[Layer]) -> Plan:
    """The plan with every layer that sees what a micro-batch is in one of the size that `before`
    gives it: stages that hold layers of several sizes are cut between them.

    Where `before` takes one size everywhere, or no layer sees any, the plan as it is.

    Parameters
    ----------
    before
        Of the same batch and micro-batch.
    plan
        That takes its place; its sizes are its own.
    layers
        Of the model.

    Raises
    ------
    PlanError
        A device of a stage would get no row.
    """
    wanted = [stage.rows for stage in before.stages for _ in range(stage.start, stage.stop)]
    seeing = [layer.sees_micro_batch for layer in layers]
    if (before.micro_batch, before.n_micro_batches) != (plan.micro_batch, plan.n_micro_batches):
        return plan
    found, sizes = list[Stage](), list[int]()
    for stage in plan.stages:
        for start, stop, size in _runs(stage, wanted, seeing):
            found.append(replace(stage, start=start, stop=stop))
            sizes.append(size)
    if sizes == [stage.rows for stage in plan.stages]:
        return plan
    stages = _resized(plan, found, sizes, chain(len(found)), [0] * len(found))
    return unjudged(plan, stages)


def _runs(
    stage: Stage, wanted: Sequence[int], seeing: Sequence[bool]
) -> Iterator[tuple[int, int, int]]:
    """Layers [start, stop) of the stage and their size: those that see none go with those before
    them, or at first with those behind.
    """
    layers = range(stage.start, stage.stop)
    known = [i for i in layers if seeing[i]]
    if not known:
        yield stage.start, stage.stop, stage.rows
        return
    size_of, size = {}, wanted[known[0]]
    for i in layers:
        size = wanted[i] if seeing[i] else size
        size_of[i] = size
    for size, run in groupby(layers, key=size_of.__getitem__):
        own = [*run]
        yield own[0], own[-1] + 1, size
