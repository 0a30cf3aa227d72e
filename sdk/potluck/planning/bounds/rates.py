"""The least that layers take on a device, whatever plan it has a part in."""

from collections.abc import Callable, Iterator, Sequence

from potluck.records import Device, LayerCost, Problem, Training
from potluck.simulate import cost, equations, flows
from potluck.simulate.interpolation import interpolate

# of one layer on one device, of its times at the measured numbers of rows, up to so many rows
Least = Callable[[LayerCost, Sequence[float], int], float]


def least_updates_s(table: cost.CostTable, device: Device) -> list[float]:
    """Per layer the seconds of an optimizer step that every plan with it on this device needs,
    beside overheads.
    """
    if not isinstance(table.problem.workload, Training):
        return [0.0] * len(table.problem.layers)
    return [
        equations.update_s(table, device, i, i + 1)
        - device.overhead_s
        - equations.again_s(table, device, i)
        if learns and layer.trained_bytes
        else 0.0
        for i, (layer, learns) in enumerate(
            zip(table.problem.layers, flows.learning_layers(table.problem), strict=True)
        )
    ]


def least_rates(problem: Problem, device: str, max_rows: int) -> list[float]:
    """Least seconds per row of each layer at any size up to `max_rows`.

    Of the forward, and of the backward that every plan needs.

    Parameters
    ----------
    problem
        What is planned.
    device
        Its name.
    max_rows
        The largest micro-batch size.

    Returns
    -------
    list[float]
        One number for each layer.
    """
    return [a + b for a, b in zip(*_of_layers(problem, device, max_rows, per_row), strict=True)]


def _of_layers(
    problem: Problem, device: str, max_rows: int, least: Least
) -> tuple[list[float], list[float]]:
    """Per layer the least of a forward, and of a needed backward."""
    training = isinstance(problem.workload, Training)
    forward = []
    backward = []
    for costs, learns in zip(problem.costs[device], flows.learning_layers(problem), strict=True):
        forward.append(least(costs, costs.forward_s, max_rows))
        backward.append(least(costs, costs.backward_s, max_rows) if training and learns else 0.0)
    return forward, backward


def per_row(costs: LayerCost, seconds: Sequence[float], batch: int) -> float:
    """Least seconds per row at any batch size up to `batch`: between measured sizes the best is at
    one of them.

    Parameters
    ----------
    costs
        Measured sizes of one layer on one device.
    seconds
        One time for each size.
    batch
        The largest size.
    """
    return min(each_s / n for n, each_s in _at_ends(costs, seconds, batch))


def least_pieces(problem: Problem, device: str, max_rows: int) -> tuple[list[float], list[float]]:
    """Per layer the least seconds of a forward, and of a needed backward, of any number of rows up
    to `max_rows`.

    Parameters
    ----------
    problem
        What is planned.
    device
        Its name.
    max_rows
        The largest micro-batch size.
    """
    return _of_layers(problem, device, max_rows, _least_s)


def _least_s(costs: LayerCost, seconds: Sequence[float], max_rows: int) -> float:
    return min(each_s for _, each_s in _at_ends(costs, seconds, max_rows))


def _at_ends(costs: LayerCost, seconds: Sequence[float], most: int) -> Iterator[tuple[int, float]]:
    """The numbers of rows up to `most` between which times are linear, and these times."""
    yield from (pair for pair in zip(costs.rows, seconds, strict=True) if pair[0] <= most)
    for n in {1, most}.difference(costs.rows):
        yield n, interpolate(costs.rows, seconds, n)
