"""The oracle for small cases: every way to cut, every ordered grouping of devices, every
micro-batch size.

Where a model has parallel branches a device may have several stages, so that one can take two
branches one by one; in a chain it has one. Rows within a stage come from Algorithm 1; depths are
K_p, and where memory is short shallower too. Some 10^5 plans at 4 devices and 8 layers: for tests
alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from math import inf

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.stages import (
    communication,
    estimate_of,
    execution,
    make_stage,
)
from potluck.planning.feasibility import with_more_memory
from potluck.planning.search.local_search import fits, floor_s, with_depths
from potluck.records import Plan, Problem, Stage, Training
from potluck.simulate import cost, flows

FACTORS = (1.0, 1.15, 1.4, 2.0, inf)  # of the memory there is


def plan_exhaustive(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """Every plan, each with the closed form's latency (where there are branches, what its busiest
    device computes); see `judge` for the simulated one.
    """
    table = table or cost.CostTable(problem)
    if problem.branches:
        yield from _branched(problem, table)
        return
    names = [device.name for device in problem.devices]
    for micro_batch in _sizes(problem):
        for groups in groupings(names, min(len(names), len(problem.layers))):
            for cuts in combinations(range(1, len(problem.layers)), len(groups) - 1):
                for stages in _choices(table, (0, *cuts, len(problem.layers)), groups, micro_batch):
                    yield _plan(table, stages, micro_batch)


def plan_whatever_memory_says(problem: Problem) -> Iterator[Plan]:
    """`plan_exhaustive`, then with ever more memory than there is, for the simulator to say what
    holds: each plan once, those that only more memory gives at depth 1 too.
    """
    seen = set[tuple[tuple[Stage, ...], int]]()
    for factor in FACTORS:
        relaxed = problem if factor == 1 else with_more_memory(problem, factor)
        for plan in plan_exhaustive(relaxed):
            if (plan.stages, plan.micro_batch) in seen:
                continue
            shallow = tuple(replace(stage, warm_up=1) for stage in plan.stages)
            for stages in (plan.stages, shallow) if factor > 1 else (plan.stages,):
                if (stages, plan.micro_batch) not in seen:
                    seen.add((stages, plan.micro_batch))
                    yield replace(plan, stages=stages)


def _sizes(problem: Problem) -> list[int]:
    """Every micro-batch size there is."""
    fixed, fewest = getattr(problem.workload, "micro_batch", None), candidates.fewest_rows(problem)
    sizes = candidates.divisions(problem.workload.batch, problem.workload.batch)
    return [fixed] if fixed is not None else [size for size in sizes if size >= fewest]


def _branched(problem: Problem, table: cost.CostTable) -> Iterator[Plan]:
    names = [d.name for d in problem.devices]
    n_layers = len(problem.layers)
    ends = flows.chain_ends(problem)
    groups = [group for n in range(1, len(names) + 1) for group in combinations(names, n)]
    for micro_batch in _sizes(problem):
        n_micro_batches = problem.workload.batch // micro_batch
        for cuts in (cuts for n in range(n_layers) for cuts in combinations(range(1, n_layers), n)):
            spans = list(pairwise((0, *cuts, n_layers)))
            made = {
                (span, group): make_stage(table, *span, group, micro_batch, 1)
                for span in spans
                for group in groups
            }
            for chosen in product(groups, repeat=len(spans)):
                if any(
                    a == b and at not in ends
                    for (a, b), at in zip(pairwise(chosen), cuts, strict=True)
                ):
                    continue  # the same as without this cut
                stages = [
                    found[0]
                    for item in zip(spans, chosen, strict=True)
                    if (found := made[item]) is not None
                ]
                if len(stages) < len(spans) or any(
                    s.devices != c for s, c in zip(stages, chosen, strict=True)
                ):
                    continue
                plan = Plan(
                    planner="exhaustive",
                    model=problem.model,
                    stages=with_depths(table, stages),
                    micro_batch=micro_batch,
                    n_micro_batches=n_micro_batches,
                    training=isinstance(problem.workload, Training),
                )
                if fits(table, plan, plan.stages):
                    yield replace(plan, latency_s=floor_s(table, plan))


def groupings(names: Sequence[str], max_groups: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every sequence of at most `max_groups` disjoint groups of some of `names`.

    The order within a group is `names`' own.
    """
    seen = set()
    for n in range(1, len(names) + 1):
        for order in permutations(names, n):
            for n_groups in range(1, min(n, max_groups) + 1):
                for ends in combinations(range(1, n), n_groups - 1):
                    bounds = (0, *ends, n)
                    groups = tuple(
                        tuple(sorted(order[a:b], key=names.index)) for a, b in pairwise(bounds)
                    )
                    if groups not in seen:
                        seen.add(groups)
                        yield groups


def _choices(
    table: cost.CostTable,
    bounds: Sequence[int],
    groups: Sequence[tuple[str, ...]],
    micro_batch: int,
) -> Iterator[tuple[Stage, ...]]:
    """The stages at depths K_p; where memory holds those not, or only with other rows, also at
    those of plain 1F1B and at depth 1.
    """
    n = len(groups)
    deep = _stages(table, bounds, groups, micro_batch, [2 * (n - p) - 1 for p in range(n)])
    if deep is not None:
        yield deep
    if n == 1 or not isinstance(table.problem.workload, Training):
        return
    for depths in ([n - p for p in range(n)], [1] * n):
        stages = _stages(table, bounds, groups, micro_batch, depths)
        if stages is not None and (
            deep is None or [s.shares for s in stages] != [s.shares for s in deep]
        ):
            yield stages


def _stages(
    table: cost.CostTable,
    bounds: Sequence[int],
    groups: Sequence[tuple[str, ...]],
    micro_batch: int,
    depths: Sequence[int],
) -> tuple[Stage, ...] | None:
    n_micro_batches = table.problem.workload.batch // micro_batch
    stages = []
    for (start, stop), group, depth in zip(pairwise(bounds), groups, depths, strict=True):
        warm_up = min(depth, n_micro_batches)
        made = make_stage(table, start, stop, group, micro_batch, warm_up)
        if made is None:
            return None
        stages.append(made[0])
    return tuple(stages)


def _plan(table: cost.CostTable, stages: tuple[Stage, ...], micro_batch: int) -> Plan:
    problem = table.problem
    steps = [execution(table, stages[0])]
    for left, right in pairwise(stages):
        steps += [communication(problem, left, right), execution(table, right)]
    n_micro_batches = problem.workload.batch // micro_batch
    return Plan(
        planner="exhaustive",
        model=problem.model,
        stages=stages,
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
        training=isinstance(problem.workload, Training),
        latency_s=estimate_of(problem)(steps, n_micro_batches),
    )
