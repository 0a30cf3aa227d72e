"""Alpa's inter-operator program: stages on submeshes of equal devices, T = sum of stages + (M - 1)
slowest stage.

Zheng et al., "Alpa", OSDI 2022, its inter-operator pass: for every bound t_max on a stage's time
the program F(s, k, d; t_max) minimises the sum over stages. Submeshes hold 1, 2, 4, ... devices or
all of them.

Where we differ: inside a submesh only data parallelism is left of its intra-operator search, as
tensor parallelism does not cross machines here. Links between stages are left out, as Alpa does;
mean devices, real ones in several orders.
"""

from collections.abc import Iterator
from itertools import islice, pairwise
from math import inf
from typing import NamedTuple

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import build, mean_problem, orders
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost
from potluck.simulate.equations import all_reduce_s

# values of t_max tried, evenly among the stages' times (Alpa skips those closer than epsilon)
N_BOUNDS = 24


def plan_alpa(
    problem: Problem, table: cost.CostTable | None = None, *, as_printed: bool = False
) -> Iterator[Plan]:
    """Its plan for every micro-batch size, in every order of `orders`.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem, if there is one already.
    as_printed
        On all devices, in the order in which they are listed.
    """
    table = table or cost.CostTable(problem)
    mean = cost.CostTable(mean_problem(problem))
    for micro_batch in candidates.micro_batches(problem):
        for bounds, sizes in _stages(mean, candidates.cuts(problem, 16), micro_batch):
            if as_printed and sum(sizes) < len(problem.devices):
                continue
            for order in islice(orders(table), 1 if as_printed else None):
                ends = [sum(sizes[:p]) for p in range(len(sizes) + 1)]
                groups = [order[a:b] for a, b in pairwise(ends)]
                plan = build(table, "alpa", bounds, groups, micro_batch)
                if plan is not None:
                    yield plan


def _stages(
    mean: cost.CostTable, places: tuple[int, ...], micro_batch: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    problem = mean.problem
    n = len(problem.devices)
    last = len(places) - 1
    m = problem.workload.batch // micro_batch
    sizes = sorted(
        {size for size in (1, 2, 4, 8, 16, 32, 64) if size <= min(n, micro_batch)}
        | ({n} if n <= micro_batch else set())
    )
    times = {
        (i, j, size): _stage_s(mean, places[i], places[j], size, micro_batch, m)
        for i in range(last)
        for j in range(i + 1, last + 1)
        for size in sizes
    }
    values = sorted(set(times.values()))
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    for t_max in [values[k * (len(values) - 1) // (N_BOUNDS - 1)] for k in range(N_BOUNDS)]:
        best: list[dict[int, _Best]] = [{} for _ in places]
        best[last][0] = _Best(0.0, 0.0, (places[last],), ())
        for i in range(last - 1, -1, -1):
            for j in range(i + 1, last + 1):
                for size in sizes:
                    t = times[i, j, size]
                    if t <= t_max:
                        _put_before(best[i], best[j], places[i], size, t, n)
        for suffix in (best[0][d] for d in sorted(best[0])):
            total = suffix.summed_s + (m - 1) * suffix.slowest_s
            key = suffix.bounds, suffix.sizes
            found[key] = min(total, found.get(key, inf))
    yield from sorted(found, key=lambda key: found[key])[: 2 * n]


class _Best(NamedTuple):
    """The stages behind a cut on so many devices whose times add up to the least."""

    summed_s: float
    slowest_s: float
    bounds: tuple[int, ...]
    sizes: tuple[int, ...]


def _put_before(
    best: dict[int, _Best], behind: dict[int, _Best], start: int, size: int, t: float, n: int
) -> None:
    """A stage of `t` seconds on `size` devices before all that is behind, where that is better."""
    for d, rest in behind.items():
        if d + size > n:
            continue
        known = best.get(d + size)
        if known is None or t + rest.summed_s < known.summed_s:
            best[d + size] = _Best(
                t + rest.summed_s,
                max(t, rest.slowest_s),
                (start, *rest.bounds),
                (size, *rest.sizes),
            )


def _stage_s(
    mean: cost.CostTable, start: int, stop: int, size: int, micro_batch: int, m: int
) -> float:
    """A micro-batch on a submesh, its part of the all-reduce included."""
    problem = mean.problem
    names = [str(i) for i in range(size)]
    work = mean.compute_s("0", start, stop, -(-micro_batch // size))
    if not isinstance(problem.workload, Training):
        return work
    return work + all_reduce_s(problem.network, names, mean.summed_bytes(start, stop)) / m
