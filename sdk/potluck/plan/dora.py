"""Dora's phase 1: stages for the QoE objective, the best K plans kept per state, contention left for later.

"Dora", section 4.1, eqs. (2)-(5) and Algorithm 1, for models that are one chain: Q1(l, s, n) combines the best K plans
of fewer layers, stages and devices with one new stage on the next devices; links at the full device-to-device
bandwidth; rows in proportion to speed. Objective, eq. (2): energy + lambda max(0, T - T_QoE), or T where nothing limits
the latency.

Where we differ: built from the last stage to the first, so that warm-up depths are known; devices in several orders;
the number of stages is not part of the state (the best K over all are kept). Parallel branches (Q2) need a model with
branches; layers here are a chain, so branches share the stage of their neighbours.
"""

from collections.abc import Iterator, Sequence

from potluck.plan import choices, cost
from potluck.plan.build import orders
from potluck.plan.hybrid import Partial, Search
from potluck.plan.subset import is_thrifty, objective
from potluck.records import Plan, Problem

K = 4  # plans per state; the paper finds small K near the optimum (Fig. 17)
N_CUTS = 12  # neighbours of few parameters are merged (the paper merges below 5 %)


def plan_dora(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """The K best plans of every number of devices, for every order and micro-batch size."""
    table = table or cost.CostTable(problem)
    for micro_batch in choices.micro_batches(problem):
        for order in orders(table):
            search = Search(table, order, micro_batch)
            search.cuts = choices.cuts(problem, N_CUTS)
            for found in _best(search, order):
                yield Plan(
                    planner="dora", model=problem.model, stages=found.stages, micro_batch=micro_batch,
                    n_micro_batches=search.n_micro_batches, training=search.training, latency_s=found.seconds,
                )  # fmt: skip


def _best(search: Search, order: Sequence[str]) -> list[Partial]:
    last, n_devices = len(search.cuts) - 1, len(order)
    states: dict[tuple[int, int], list[Partial]] = {(last, n): [Partial(0.0)] for n in range(n_devices + 1)}
    for i in range(last - 1, -1, -1):
        for n in range(1, n_devices + 1):
            found = list(states.get((i, n - 1), []))  # the device may be left out
            for n_behind in range(n):
                group = tuple(order[n_devices - n : n_devices - n_behind])
                for j in range(i + 1, last + 1):
                    for rest in states.get((j, n_behind), []):
                        whole = _extended(search, search.cuts[i], search.cuts[j], group, rest)
                        if whole is not None:
                            found.append(whole)
            unique = {partial.stages: partial for partial in found}
            states[i, n] = sorted(unique.values(), key=lambda partial: _value(search, partial))[:K]
    return [partial for n in range(1, n_devices + 1) for partial in states[0, n]]


def _extended(search: Search, start: int, stop: int, group: tuple[str, ...], rest: Partial) -> Partial | None:
    if (stop == search.cuts[-1]) != (not rest.stages):
        return None
    head = search.head(start, stop, group, len(rest.stages) + 1)
    if head is None:
        return None
    steps = (head[1], *search.crossing(head[0], rest), *rest.steps)
    return Partial(search.estimate(steps, search.n_micro_batches), (head[0], *rest.stages), steps)


def _value(search: Search, partial: Partial) -> float:
    """eq. (2) by the estimate: computing and idling joules of the devices that take part."""
    problem = search.problem
    if not is_thrifty(problem):
        return partial.seconds
    energy = 0.0
    for stage in partial.stages:
        for name, rows in zip(stage.devices, stage.shares, strict=True):
            device = problem.device(name)
            busy_s = search.table.forward_s(name, stage.start, stage.stop, rows)
            busy_s += search.table.backward_s(name, stage.start, stage.stop, rows)
            used = cost.energy_j(device, partial.seconds, busy_s * search.n_micro_batches, 0.0)
            energy += used or 0.0
    return objective(problem.qoe, partial.seconds, energy)
