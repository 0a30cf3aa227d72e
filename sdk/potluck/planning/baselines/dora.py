"""Dora's phase 1: stages for the QoE objective, the best K plans kept per state, contention left
for later.

"Dora", section 4.1, eqs. (2)-(5) and Algorithm 1. The model is a row of chains (serial
decomposition). A stage is part of one chain, Q1(j, l, s, n), or several whole chains, Q2(j, k, s,
n); Q is the better of both. Either combines the best K plans of fewer layers, stages and devices
with one new stage on the next devices. So chains that are parallel branches run on different
devices at once. Links at the full device-to-device bandwidth; rows in proportion to speed.
Objective, eq. (2): energy + lambda max(0, T - T_QoE), or T where nothing limits the latency.

Where we differ: built from the last stage to the first, so that warm-up depths are known; devices
in several orders. The number of stages is not part of the state (the best K over all are kept).
Where a stage has several chains there is also the plan in which its device takes them one by one:
the first need not wait for what the last needs. T is estimated by Asteroid's closed form along the
longest way through the stages, not by Dora's appendix; the simulator has the last word on what is
found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from potluck.planning.baselines.asteroid import Search
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import orders
from potluck.planning.building_blocks.closed_form import PipelineStep
from potluck.planning.plans import is_thrifty
from potluck.planning.search.local_search import with_depths
from potluck.planning.search.subset_dp import objective
from potluck.records import Plan, Problem, Stage, Training
from potluck.simulate import cost, equations, flows

K = 4  # plans per state; the paper finds small K near the optimum (Fig. 17)
N_CUTS = 12  # neighbours of few parameters are merged (the paper merges below 5 %)


@dataclass(frozen=True, slots=True)
class Suffix:
    """Some last stages: what each takes, and for each the stages behind it (counted from the end)
    with the link.
    """

    seconds: float = 0.0
    stages: tuple[Stage, ...] = ()
    steps: tuple[PipelineStep, ...] = ()
    links: tuple[tuple[tuple[int, PipelineStep], ...], ...] = ()


def plan_dora(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """The K best plans of every number of devices, for every order and micro-batch size."""
    table = table or cost.CostTable(problem)
    ends = flows.chain_ends(problem)
    for micro_batch in candidates.micro_batches(problem):
        for order in orders(table):
            search = Search(table, order, micro_batch)
            search.cuts = tuple(sorted({*candidates.cuts(problem, N_CUTS), *ends}))
            for found in _best(search, order, ends):
                plan = Plan(
                    planner="dora",
                    model=problem.model,
                    stages=found.stages,
                    micro_batch=micro_batch,
                    n_micro_batches=search.n_micro_batches,
                    training=search.training,
                    latency_s=found.seconds,
                )
                yield plan
                if len(plan.stages) > 1 and any(
                    s.start < end < s.stop for s in plan.stages for end in ends
                ):
                    yield _one_by_one(table, plan, ends)


def _one_by_one(table: cost.CostTable, plan: Plan, ends: Sequence[int]) -> Plan:
    """The same plan with a stage for each of the chains in a stage, on the same devices."""
    stages = tuple(
        replace(stage, start=start, stop=stop)
        for stage in plan.stages
        for start, stop in pairwise(
            sorted({stage.start, stage.stop, *(e for e in ends if stage.start < e < stage.stop)})
        )
    )
    return replace(plan, stages=with_depths(table, stages))


def _best(search: Search, order: Sequence[str], ends: Sequence[int]) -> list[Suffix]:
    cuts = search.cuts
    last = len(search.cuts) - 1
    n_devices = len(order)
    states: dict[tuple[int, int], list[Suffix]] = {
        (last, n): [Suffix()] for n in range(n_devices + 1)
    }
    for i in range(last - 1, -1, -1):
        stops = [j for j in range(i + 1, last + 1) if _is_stage(cuts[i], cuts[j], ends)]
        for n in range(1, n_devices + 1):
            found = list(states.get((i, n - 1), []))  # the device may be left out
            for n_behind in range(n):
                group = tuple(order[n_devices - n : n_devices - n_behind])
                for j in stops:
                    if search.least_s(i, j, n, n_behind) >= search.limit_s:
                        break
                    for rest in states.get((j, n_behind), []):
                        longer = _extended(search, cuts[i], cuts[j], group, rest)
                        if longer is not None and longer.seconds < search.limit_s:
                            found.append(longer)
            unique = {suffix.stages: suffix for suffix in found}
            states[i, n] = sorted(unique.values(), key=lambda suffix: _value(search, suffix))[:K]
    return [suffix for n in range(1, n_devices + 1) for suffix in states[0, n]]


def _is_stage(start: int, stop: int, ends: Sequence[int]) -> bool:
    """eqs. (3) and (4): a part of one chain, or whole chains."""
    return (start in ends and stop in ends) or not any(start < end < stop for end in ends)


def _extended(
    search: Search, start: int, stop: int, group: tuple[str, ...], rest: Suffix
) -> Suffix | None:
    if (stop == search.cuts[-1]) != (not rest.stages):
        return None
    problem, n_behind = search.problem, len(rest.stages)
    handed = flows.handed(problem, start, stop, rest.stages)
    heights = _heights(rest.links)
    height = 1 + max((heights[n_behind - 1 - q] for bundle in handed for q in bundle.to), default=0)
    head = search.head(start, stop, group, height)
    if head is None:
        return None
    links = tuple(
        (n_behind - 1 - q, _link(problem, head[0], rest.stages[q], o, g))
        for q, o, g in _totals(handed)
    )
    steps, all_links = (head[1], *rest.steps), (links, *rest.links)
    return Suffix(_seconds(search, steps, all_links), (head[0], *rest.stages), steps, all_links)


def _totals(handed: Sequence[flows.OutputGroup]) -> list[tuple[int, int, int]]:
    """Bytes and bytes with a gradient for each stage that takes something."""
    totals: dict[int, tuple[int, int]] = {}
    for to, outputs, gradients in handed:
        for q in to:
            o, g = totals.get(q, (0, 0))
            totals[q] = o + outputs, g + gradients
    return [(q, o, g) for q, (o, g) in sorted(totals.items())]


def _link(
    problem: Problem, left: Stage, right: Stage, output_bytes: int, gradient_bytes: int
) -> PipelineStep:
    network = problem.network
    forward = equations.cut_s(
        network, output_bytes, left.devices, left.shares, right.devices, right.shares
    )
    if not isinstance(problem.workload, Training):
        return PipelineStep(forward)
    return PipelineStep(
        forward,
        equations.cut_s(
            network, gradient_bytes, right.devices, right.shares, left.devices, left.shares
        ),
    )


def _heights(links: Sequence[Sequence[tuple[int, PipelineStep]]]) -> list[int]:
    """Per stage from the end, the stages on the longest way to the end."""
    found: list[int] = []
    for ways in reversed(links):
        found.append(1 + max((found[q] for q, _ in ways), default=0))
    return found


def _seconds(
    search: Search,
    steps: Sequence[PipelineStep],
    links: Sequence[Sequence[tuple[int, PipelineStep]]],
) -> float:
    """The closed form of `pipeline` along the longest ways: eqs. (4)-(6) of Asteroid where stages
    are no chain.
    """
    n, last = search.n_micro_batches, len(steps) - 1
    everything = [*steps, *(link for ways in links for _, link in ways)]
    slowest = max(step.forward_s + step.backward_s for step in everything)
    if not search.fills:
        return n * slowest
    # the longest way to a stage, forward and both ways
    wait, shift = [0.0] * len(steps), [0.0] * len(steps)
    for p, step in enumerate(steps):
        for q, link in links[p]:
            at = last - q
            wait[at] = max(wait[at], wait[p] + step.forward_s + link.forward_s)
            both = step.forward_s + step.backward_s + link.forward_s + link.backward_s
            shift[at] = max(shift[at], shift[p] + both)
    if not search.training:
        return (
            max(w + step.forward_s for w, step in zip(wait, steps, strict=True)) + (n - 1) * slowest
        )
    aligned = 0.0
    for p, step in enumerate(steps):
        work = step.forward_s + step.backward_s
        aligned = max(aligned, n * work + shift[p])
        for _, link in links[p]:
            aligned = max(aligned, n * (link.forward_s + link.backward_s) + shift[p] + work)
    return max(
        w + aligned - s + step.all_reduce_s for w, s, step in zip(wait, shift, steps, strict=True)
    )


def _value(search: Search, suffix: Suffix) -> float:
    """eq. (2) by the estimate: computing and idling joules of the devices that take part."""
    problem = search.problem
    if not is_thrifty(problem):
        return suffix.seconds
    energy = 0.0
    for stage in suffix.stages:
        for name, rows in zip(stage.devices, stage.shares, strict=True):
            device = search.table.devices[name]
            busy_s = search.table.forward_s(name, stage.start, stage.stop, rows)
            busy_s += search.table.backward_s(name, stage.start, stage.stop, rows)
            used = equations.energy_j(device, suffix.seconds, busy_s * search.n_micro_batches, 0.0)
            energy += used or 0.0
    return objective(problem.qoe, suffix.seconds, energy)
