"""What every planner may choose from: micro-batch sizes and places to cut."""

from potluck.records import Problem, Training

MAX_MICRO_BATCHES = 32  # more only fill the schedule: the bubble is below (P - 1) / 32 already
MAX_SIZES = 6
MAX_CUTS = 32


def fewest_rows(problem: Problem, start: int = 0, stop: int | None = None) -> int:
    """The fewest rows of a micro-batch that layers [start, stop) can learn from; of 1, some batch norms cannot.

    Parameters
    ----------
    problem
        What is planned.
    start, stop
        Layers [start, stop); default: all.
    """
    trains = isinstance(problem.workload, Training)
    return 2 if trains and any(layer.norm_values == 1 for layer in problem.layers[start:stop]) else 1


def micro_batches(problem: Problem) -> tuple[int, ...]:
    """Micro-batch sizes to try, largest first: divisors of the batch, few enough per step, spread evenly."""
    workload, fewest = problem.workload, fewest_rows(problem)
    if isinstance(workload, Training) and workload.micro_batch is not None:
        return (workload.micro_batch,)
    sizes = [
        size for size in range(workload.batch, fewest - 1, -1)
        if workload.batch % size == 0 and workload.batch // size <= MAX_MICRO_BATCHES
    ]  # fmt: skip
    if len(sizes) <= MAX_SIZES:
        return tuple(sizes)
    return tuple(dict.fromkeys(sizes[i * (len(sizes) - 1) // (MAX_SIZES - 1)] for i in range(MAX_SIZES)))


def cuts(problem: Problem, limit: int = MAX_CUTS) -> tuple[int, ...]:
    """Layer indices where a stage may begin or end, 0 and the end included: all, or the `limit` that matter most.

    Of more, the cut between the two neighbours of least time together goes, again and again.
    """
    n_layers = len(problem.layers)
    seconds = [
        sum(costs[i].forward_s[-1] / costs[i].rows[-1] for costs in problem.costs.values()) for i in range(n_layers)
    ]
    places = list(range(n_layers + 1))
    while len(places) - 1 > limit:
        i = min(range(len(seconds) - 1), key=lambda k: seconds[k] + seconds[k + 1])
        seconds[i : i + 2] = [seconds[i] + seconds[i + 1]]
        del places[i + 1]
    return tuple(places)
