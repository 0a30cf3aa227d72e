"""What every planner may choose from: micro-batch sizes and places to cut."""

from potluck.records import Problem, Training
from potluck.simulate import cost, footprint

MAX_MICRO_BATCHES = 32  # more only fill the schedule: the bubble is below (P - 1) / 32 already
ENOUGH_MICRO_BATCHES = 16  # where the coarse sizes of a batch such as 222 or 99 end before: finer
MOST_MICRO_BATCHES = 256  # where larger ones may not fit, or there are too few sizes
# Batches such as 257 and 514, whose next divisor is far away: up to so many where without it a
# micro-batch would be more than such a part of the batch.
LAST_MICRO_BATCHES, COARSE_FRAC = 2048, 1 / 16
# sizes up to the one number of micro-batches, and from there to the other
MAX_SIZES, MAX_FINE = 6, 3
MOST_STATED = 4096  # more micro-batches take minutes to simulate
FEW_SIZES = 4  # divisors of a batch such as 37 or 82: fewer leave no choice
MAX_CUTS = 32


def fewest_rows(problem: Problem, start: int = 0, stop: int | None = None) -> int:
    """The fewest rows that a device can take of a micro-batch for layers [start, stop).

    What compares rows needs all of a batch; in training some batch norms cannot learn from 1.

    Parameters
    ----------
    problem
        What is planned.
    start, stop
        Layers [start, stop); default: all.
    """
    layers = problem.layers[start:stop]
    if any(layer.whole_batch for layer in layers):
        return problem.workload.batch
    if not isinstance(problem.workload, Training):
        return 1
    return 2 if any(layer.norm_values == 1 for layer in layers) else 1


def micro_batches(problem: Problem) -> tuple[int, ...]:
    """Micro-batch sizes to try, largest first: divisors of the batch, few enough per step, spread
    evenly.

    Where memory is short, or the batch has few divisors or none between, smaller ones too: up to
    `MOST_MICRO_BATCHES` per step, and one size beyond where the batch has none that is small.
    """
    workload, fewest = problem.workload, fewest_rows(problem)
    if isinstance(workload, Training) and workload.micro_batch is not None:
        return (workload.micro_batch,)
    sizes = [size for size in divisions(workload.batch, LAST_MICRO_BATCHES) if size >= fewest]
    fine = [size for size in sizes if workload.batch // size <= MOST_MICRO_BATCHES]
    if not fine or fine[-1] > COARSE_FRAC * workload.batch:
        fine = sizes[: len(fine) + 1]
    coarse = [size for size in fine if workload.batch // size <= MAX_MICRO_BATCHES]
    ends_early = workload.batch // coarse[-1] < ENOUGH_MICRO_BATCHES
    finer = ends_early or len(coarse) < FEW_SIZES or is_short(problem, coarse[-1])
    fine = fine[len(coarse) :] if finer else []
    return (*_spread(coarse, MAX_SIZES), *_spread(fine, MAX_FINE))


def finer_micro_batches(problem: Problem) -> list[int]:
    """Sizes for where memory holds none of the others, smallest first; none where one is stated."""
    workload = problem.workload
    if not isinstance(workload, Training) or workload.micro_batch is not None:
        return []
    return smaller_sizes(problem, MOST_STATED)[::-1]


def smaller_sizes(problem: Problem, max_parts: int) -> list[int]:
    """Sizes below those of `micro_batches`, largest first.

    Of each at most `max_parts` make up a batch.
    """
    least, fewest = min(micro_batches(problem)), fewest_rows(problem)
    return [size for size in divisions(problem.workload.batch, max_parts) if fewest <= size < least]


def all_micro_batches(problem: Problem) -> tuple[int, ...]:
    """Those to try where that costs little: no size between the coarse ones is left out."""
    tried, fewest = micro_batches(problem), fewest_rows(problem)
    if getattr(problem.workload, "micro_batch", None) is not None:
        return tried
    coarse = divisions(problem.workload.batch, MAX_MICRO_BATCHES)
    return tuple(sorted({*tried, *(size for size in coarse if size >= fewest)}, reverse=True))


def near_sizes(problem: Problem, size: int) -> list[int]:
    """Half of a micro-batch size and twice of it, the next smaller and the next larger; without it,
    and none where one is stated.
    """
    batch, fewest = problem.workload.batch, fewest_rows(problem)
    if getattr(problem.workload, "micro_batch", None) is not None:
        return []
    sizes = divisions(batch, MOST_STATED)
    above = [other for other in sizes if other > size][-1:]
    below = [other for other in sizes if other < size][:1]
    near = dict.fromkeys((size // 2, size * 2, *below, *above))
    return [other for other in near if other in sizes and other >= fewest]


def divisions(batch: int, max_parts: int) -> list[int]:
    """The sizes, largest first, of which at most `max_parts` micro-batches make up the batch.

    >>> divisions(12, 4), divisions(99999999, 32)
    ([12, 6, 4, 3], [99999999, 33333333, 11111111, 9090909])
    """
    return [batch // n for n in range(1, min(batch, max_parts) + 1) if batch % n == 0]


def _spread(sizes: list[int], n_kept: int) -> tuple[int, ...]:
    """`n_kept` of the sizes, the first and the last of them included."""
    if len(sizes) <= n_kept:
        return tuple(sizes)
    return tuple(sizes[i * (len(sizes) - 1) // (n_kept - 1)] for i in range(n_kept))


def is_short(problem: Problem, rows: int) -> bool:
    """Whether some device cannot hold the whole model with micro-batches of so many rows."""
    table = cost.CostTable(problem)
    n_micro_batches = problem.workload.batch // rows
    needed = footprint.memory_bytes(
        table, 0, len(problem.layers), rows, warm_up=1, n_micro_batches=n_micro_batches
    )
    return any(nbytes < needed for nbytes in table.budgets.values())


def cuts(problem: Problem, limit: int = MAX_CUTS) -> tuple[int, ...]:
    """Layer indices where a stage may begin or end, 0 and the end included: all, or the `limit`
    that matter most.

    Of more, the cut between the two neighbours of least time together goes, again and again.
    """
    n_layers = len(problem.layers)
    seconds = [
        sum(costs[i].forward_s[-1] / costs[i].rows[-1] for costs in problem.costs.values())
        for i in range(n_layers)
    ]
    places = list(range(n_layers + 1))
    while len(places) - 1 > limit:
        i = min(range(len(seconds) - 1), key=lambda k: seconds[k] + seconds[k + 1])
        seconds[i : i + 2] = [seconds[i] + seconds[i + 1]]
        del places[i + 1]
    return tuple(places)
