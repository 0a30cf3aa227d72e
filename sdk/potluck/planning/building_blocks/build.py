"""From cuts and groups of devices to a plan, and the few things that several baselines share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from potluck.planning.building_blocks.closed_form import PipelineStep
from potluck.planning.building_blocks.stages import communication, estimate_of, make_stage
from potluck.records import Device, LayerCost, Medium, Network, Path, Plan, Problem, Stage, Training
from potluck.schedule.policies import warm_up_depth
from potluck.simulate import cost, equations
from potluck.simulate.interpolation import interpolate

Group = tuple[str, ...]
_Even = tuple[float, tuple[int, ...]]  # the slowest of some stages, and their bounds


def build(
    table: cost.CostTable,
    planner: str,
    bounds: Sequence[int],
    groups: Sequence[Group],
    micro_batch: int,
    *,
    depths: Sequence[int] | None = None,
) -> Plan | None:
    """Stage p has layers [bounds[p], bounds[p + 1]) on `groups[p]`, rows by Algorithm 1; None where
    it does not fit, or takes longer than the table's limit.

    Warm-up depths are K_p unless given. The latency is the closed form's.

    Parameters
    ----------
    table
        Of the problem.
    planner
        Its name, for the plan.
    bounds
        Of the stages: one number more than there are stages, ascending.
    groups
        Devices of each stage.
    micro_batch
        Rows of a micro-batch.
    depths
        Warm-up of each stage; default: K_p.
    """
    problem, n_stages = table.problem, len(groups)
    n_micro_batches = problem.workload.batch // micro_batch
    stages, steps = list[Stage](), list[PipelineStep]()
    for p, ((start, stop), group) in enumerate(zip(pairwise(bounds), groups, strict=True)):
        depth = depths[p] if depths is not None else warm_up_depth(p, n_stages, n_micro_batches)
        made = make_stage(table, start, stop, group, micro_batch, depth)
        if made is None:
            return None
        stage, step = made
        if n_micro_batches * (step.forward_s + step.backward_s) > table.limit_s:
            return None
        steps += [communication(problem, stages[-1], stage), step] if stages else [step]
        stages.append(stage)
    return Plan(
        planner=planner,
        model=problem.model,
        stages=tuple(stages),
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
        training=isinstance(problem.workload, Training),
        latency_s=estimate_of(problem)(steps, n_micro_batches),
    )


def rebuilt(table: cost.CostTable, planner: str, plan: Plan, order: Sequence[str]) -> Plan | None:
    """A plan for devices `0`, `1`, ... on real ones, in this order.

    Parameters
    ----------
    table
        Of the problem.
    planner
        Its name, for the plan.
    plan
        For devices called by their numbers.
    order
        The real device of each number.
    """
    groups = [tuple(order[int(name)] for name in stage.devices) for stage in plan.stages]
    bounds = [0, *(stage.stop for stage in plan.stages)]
    return build(table, planner, bounds, groups, plan.micro_batch)


def shared_s(
    table: cost.CostTable,
    groups: Sequence[Group],
    micro_batch: int,
    known: dict[tuple[str, int], list[float]],
) -> Callable[[int, int, int], float]:
    """`stage_s(p, start, stop)`: seconds of a micro-batch that group p shares in proportion to
    speed.

    Endless where the layers fit on none of the group. More layers never take less. `known`: for who
    asks again on this table, by device and micro-batch size the seconds of the layers in front of
    each.

    Parameters
    ----------
    table
        Of the problem.
    groups
        Devices of each stage.
    micro_batch
        Rows of a micro-batch.
    known
        Kept between calls on this table.
    """
    layers = range(len(table.problem.layers) + 1)
    for name in (name for group in groups for name in group):
        if (name, micro_batch) not in known:
            known[name, micro_batch] = [table.compute_s(name, 0, i, micro_batch) for i in layers]
    works = [[known[name, micro_batch] for name in group] for group in groups]
    roomiest = [max(table.budgets[name] for name in group) for group in groups]

    def stage_s(p: int, start: int, stop: int) -> float:
        if equations.static_bytes(table, start, stop) > roomiest[p]:
            return inf
        first, *others = works[p]
        if not others:
            return max(first[stop] - first[start], 1e-12)
        return 1 / sum([1 / max(sums[stop] - sums[start], 1e-12) for sums in works[p]])

    return stage_s


def balanced(
    places: Sequence[int], n_stages: int, stage_s: Callable[[int, int, int], float]
) -> list[int] | None:
    """Bounds at `places` that make the slowest stage fastest; None with too few places.

    `stage_s(p, start, stop)`: what a stage takes, never less for more layers.

    >>> balanced([0, 1, 2, 3], 2, lambda p, a, b: (b - a) * (1 if p else 2))
    [0, 1, 3]

    Parameters
    ----------
    places
        Where a stage may begin and end, ascending.
    n_stages
        How many.
    stage_s
        Called as stage_s(p, start, stop).
    """
    last = len(places) - 1
    if n_stages > last:
        return None
    best = _no_stages(places)
    for p in range(n_stages):
        best = _with_stage(best, p, last - (n_stages - p - 1), places, stage_s)
    return _covering(best)


def each_balanced(
    places: Sequence[int], most_stages: int, stage_s: Callable[[int, int, int], float]
) -> Iterator[list[int] | None]:
    """`balanced` for 1, 2, ... stages, together.

    Parameters
    ----------
    places
        Where a stage may begin and end, ascending.
    most_stages
        How many at most.
    stage_s
        Called as stage_s(p, start, stop).
    """
    best, last = _no_stages(places), len(places) - 1
    for p in range(most_stages):
        best = _with_stage(best, p, last, places, stage_s)
        yield _covering(best)


def _no_stages(places: Sequence[int]) -> list[_Even | None]:
    return [(0.0, (0,)), *[None] * (len(places) - 1)]


def _with_stage(
    best: Sequence[_Even | None],
    p: int,
    last: int,
    places: Sequence[int],
    stage_s: Callable[[int, int, int], float],
) -> list[_Even | None]:
    """Per place up to number `last` the bounds of p + 1 stages that end there, from those of p."""
    following: list[_Even | None] = [None] * len(places)
    for j in range(p + 1, last + 1):
        for i in range(j - 1, p - 1, -1):
            before, found = best[i], following[j]
            if before is None:
                continue
            if found is not None and before[0] > found[0]:
                continue
            stage = stage_s(p, places[i], places[j])
            if found is not None and stage > found[0]:
                break
            worst = max(before[0], stage)
            if found is None or worst <= found[0]:
                following[j] = worst, (*before[1], places[j])
    return following


def _covering(best: Sequence[_Even | None]) -> list[int] | None:
    """The bounds of stages for all layers."""
    found = best[-1]
    return list(found[1]) if found is not None and found[0] < inf else None


def orders(table: cost.CostTable) -> Iterator[tuple[str, ...]]:
    """The orders of devices that a planner for equal devices is given as its best shot: as listed,
    by speed, by memory.

    Fast first, slow first; much memory first, as early stages keep more.
    """
    problem = table.problem
    names, stop = [device.name for device in problem.devices], len(problem.layers)
    speed = {name: 1 / max(table.forward_s(name, 0, stop, 1), 1e-12) for name in names}
    budget = {device.name: cost.budget_bytes(problem, device) for device in problem.devices}
    yield from dict.fromkeys(
        (
            tuple(names),
            tuple(sorted(names, key=lambda name: -speed[name])),
            tuple(sorted(names, key=lambda name: speed[name])),
            tuple(sorted(names, key=lambda name: -budget[name])),
        )
    )


AT_ONCE = 1e12  # bytes per second of a path that crosses no medium, in a mean with others


def mean_problem(problem: Problem) -> Problem:
    """As many devices `0`, `1`, ... of mean speed and memory, and links of mean bandwidth: for
    planners of clusters.

    They cannot express devices or links that differ.
    """
    n = len(problem.devices)
    devices = problem.devices
    network = problem.network
    pairs = [
        (a.name, b.name)
        for a in devices
        for b in devices
        if a != b and (a.name, b.name) in network.paths
    ]
    capacity = (
        sum(min(network.bandwidth(a, b), AT_ONCE) for a, b in pairs) / len(pairs)
        if pairs
        else AT_ONCE
    )
    latency_s = sum(network.latency(a, b) for a, b in pairs) / len(pairs) if pairs else 0.0
    names = [str(i) for i in range(n)]
    ends = [(a, b) for a in names for b in names if a != b]
    tables = list(problem.costs.values())
    mean = tuple(
        _mean([tables[d][layer] for d in range(n)]) for layer in range(len(problem.layers))
    )
    budget = sum(cost.budget_bytes(problem, device) for device in devices) // n
    overhead_s = sum(device.overhead_s for device in devices) / n
    copy = sum(device.copy_bytes_per_s for device in devices) / n
    return replace(
        problem,
        devices=tuple(
            Device(name=name, memory_bytes=budget, overhead_s=overhead_s, copy_bytes_per_s=copy)
            for name in names
        ),
        network=Network(
            media=tuple(Medium(name=f"{a}>{b}", capacity_bytes_per_s=capacity) for a, b in ends),
            paths={(a, b): Path(media=((f"{a}>{b}", 1),), latency_s=latency_s) for a, b in ends},
        ),
        costs=dict.fromkeys(names, mean),
        qoe=replace(problem.qoe, memory_bytes={}, device_energy_j={}),
    )


def _mean(costs: Sequence[LayerCost]) -> LayerCost:
    rows, n = costs[0].rows, len(costs)

    def mean(columns: Sequence[Sequence[float]]) -> tuple[float, ...]:
        each = [
            seconds if c.rows == rows else [interpolate(c.rows, seconds, at) for at in rows]
            for c, seconds in zip(costs, columns, strict=True)
        ]
        return tuple(sum(times) / n for times in zip(*each, strict=True))

    forward = mean([c.forward_s for c in costs])
    trains = all(c.backward_s for c in costs)  # a profile for inference has no backward times
    backward = mean([c.backward_s for c in costs]) if trains else ()
    return LayerCost(rows=rows, forward_s=forward, backward_s=backward, source=costs[0].source)
