"""PipeDream: stages with replicas that make the slowest stage or link fastest, for equal devices.

Narayanan et al., "PipeDream", SOSP 2019, section 3.1: A(j, m) = min over i, m' of max(A(i, m - m'),
2 a_i / B, T(i+1 -> j, m')), T = max(computing, 4 (m'-1) |w| / B) / m'.

Where we differ: it is asynchronous and hides the all-reduce; here the plan runs synchronously, as
in Asteroid's own comparison. Devices and links are mean ones while it plans; then its stages get
the real devices in several orders, rows by Algorithm 1.
"""

from collections.abc import Iterator
from math import inf

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import build, mean_problem, orders
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
    rate = problem.network.bandwidth("0", "1") if n_devices > 1 else inf
    stages = {
        (i, j): _Stages(mean, places[i], places[j], micro_batch, rate)
        for j in range(1, last + 1)
        for i in range(j)
    }
    best: list[list[float]] = [[inf] * (n_devices + 1) for _ in places]
    best[0][0] = 0.0
    last_stage: dict[tuple[int, int], tuple[int, int]] = {}
    for m in range(1, n_devices + 1):
        for j in range(1, last + 1):
            found = inf
            for i in range(j):
                stage, before = stages[i, j], best[i]
                if stage.sent_s >= found or stage.work_s / m >= found:
                    continue
                first = max(1, int(stage.work_s / found))  # fewer are slower
                for size, stage_s in enumerate(stage.slowest_s[first : m + 1], first):
                    value = before[m - size]
                    if value < found and stage_s < found:
                        found = value if value > stage_s else stage_s
                        last_stage[j, m] = i, size
            best[j][m] = found
        if best[last][m] < inf:
            yield _bounds(places, last_stage, last, m)


class _Stages:
    """Layers [start, stop) of mean devices: seconds of a micro-batch, of what is sent to them, and
    the slowest of both and of the all-reduce for any number of replicas.
    """

    def __init__(
        self, mean: cost.CostTable, start: int, stop: int, micro_batch: int, rate: float
    ) -> None:
        problem = mean.problem
        work = self.work_s = mean.compute_s("0", start, stop, micro_batch)
        sent = self.sent_s = _sent_s(problem, start, micro_batch, rate)
        training = isinstance(problem.workload, Training)
        weights = mean.summed_bytes(start, stop) if training else 0
        self.slowest_s = [inf, max(sent, work)]
        for size in range(2, len(problem.devices) + 1):
            reduce_s = 4 * (size - 1) * weights / rate
            self.slowest_s.append(max(sent, max(work, reduce_s) / size))


def _bounds(
    places: tuple[int, ...], last_stage: dict[tuple[int, int], tuple[int, int]], j: int, m: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(bounds, replicas per stage) of the best way to cut j on m devices."""
    bounds, sizes = [places[j]], list[int]()
    while j:
        j, size = last_stage[j, m]
        bounds.append(places[j])
        sizes.append(size)
        m -= size
    return tuple(reversed(bounds)), tuple(reversed(sizes))


def _sent_s(problem: Problem, cut: int, micro_batch: int, rate: float) -> float:
    """A micro-batch over the cut in front of layer `cut`, both ways."""
    layer, training = problem.layers[cut - 1], isinstance(problem.workload, Training)
    return (
        micro_batch * (layer.output_bytes + layer.gradient_bytes * training) / rate if cut else 0.0
    )
