"""PipeDream: stages with replicas that make the slowest stage or link fastest, for equal devices.

Narayanan et al., "PipeDream", SOSP 2019, section 3.1: A(j, m) = min over i, m' of max(A(i, m - m'),
2 a_i / B, T(i+1 -> j, m')), T = max(computing, 4 (m'-1) |w| / B) / m'.

Where we differ: it is asynchronous and hides the all-reduce; here the plan runs synchronously, as
in Asteroid's own comparison. Devices and links are mean ones while it plans; then its stages get
the real devices in several orders, rows by Algorithm 1.
"""

from collections.abc import Iterator
from math import inf

from potluck.planning.baselines.build import build, mean_problem, orders, seconds
from potluck.planning.search import candidates
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost


def plan_pipedream(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """Its partition of every number of devices, in every order of `orders`, for every micro-batch
    size.
    """
    table = table or cost.CostTable(problem)
    mean = cost.CostTable(mean_problem(problem))
    places = candidates.cuts(problem)
    for micro_batch in candidates.micro_batches(problem):
        for bounds, sizes in _partitions(mean, places, micro_batch):
            for order in orders(table):
                taken, groups = 0, []
                for size in sizes:
                    groups.append(order[taken : taken + size])
                    taken += size
                plan = build(table, "pipedream", bounds, groups, micro_batch)
                if plan is not None:
                    yield plan


def _partitions(
    mean: cost.CostTable, places: tuple[int, ...], micro_batch: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(bounds, replicas per stage) of the best pipeline on 1, 2, ... devices."""
    problem = mean.problem
    n_devices, last = len(problem.devices), len(places) - 1
    training = isinstance(problem.workload, Training)
    rate = problem.network.bandwidth("0", "1") if n_devices > 1 else inf
    nothing: tuple[float, tuple[int, ...], tuple[int, ...]] = (inf, (), ())
    best = {(0, 0): (0.0, (0,), ())} | {(j, 0): nothing for j in range(1, last + 1)}
    costs = {
        (i, j): (
            seconds(mean, "0", places[i], places[j], micro_batch),
            mean.parameter_bytes(places[i], places[j]) if training else 0,
            _sent_s(problem, places[i], micro_batch, rate),
        )
        for j in range(1, last + 1)
        for i in range(j)
    }
    for m in range(1, n_devices + 1):
        best[0, m] = nothing
        for j in range(1, last + 1):
            found = nothing
            for i in range(j):
                work, weights, sent = costs[i, j]
                if max(sent, work / m) >= found[0]:
                    continue
                for size in range(max(1, int(work / found[0])), m + 1):  # fewer are slower
                    before = best[i, m - size]
                    stage = max(work, 4 * (size - 1) * weights / rate) / size if size > 1 else work
                    value = max(before[0], sent, stage)
                    if value < found[0]:
                        found = value, (*before[1], places[j]), (*before[2], size)
            best[j, m] = found
        if best[last, m][0] < inf:
            yield best[last, m][1:]


def _sent_s(problem: Problem, cut: int, micro_batch: int, rate: float) -> float:
    """A micro-batch over the cut in front of layer `cut`, both ways."""
    layer, training = problem.layers[cut - 1], isinstance(problem.workload, Training)
    return (
        micro_batch * (layer.output_bytes + layer.gradient_bytes * training) / rate if cut else 0.0
    )
