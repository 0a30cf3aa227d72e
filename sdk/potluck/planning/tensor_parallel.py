"""Plans of a model that is divided by tensor: its lanes on devices of their own, in any order of
the devices, or several of them on one, as a fast device may take more than another.

Its layers say which lane they are of. A stage is one layer, so that a device sends its summand the
moment it is there. What a step costs, exchanges included, is the judge's as for any other plan.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice, permutations, product

from potluck.planning.building_blocks import candidates
from potluck.records import Layer, Plan, Problem, Stage, Training
from potluck.simulate import cost

MAX_ORDERS = 120  # of devices: all of five; and as many ways to give one several lanes
MAX_SIZES = 4  # of micro-batches


def has_lanes(problem: Problem) -> bool:
    """Whether the model is divided by tensor."""
    return any(layer.lane is not None for layer in problem.layers)


def n_lanes(layers: Sequence[Layer]) -> int:
    """How many devices it is divided among."""
    return 1 + max((layer.lane or 0 for layer in layers), default=0)


def plan_lanes(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """For every order of the devices, and with several lanes on some of them, the sizes of
    micro-batches, with one or two under way. None where the model is not divided, or there is one
    device alone.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem.
    """
    n = n_lanes(problem.layers)
    if not has_lanes(problem):
        return
    table = table or cost.CostTable(problem)
    training = isinstance(problem.workload, Training)
    stop = len(problem.layers)
    names = sorted((d.name for d in problem.devices), key=lambda d: table.forward_s(d, 0, stop, 1))
    several = (chosen for chosen in product(names, repeat=n) if 1 < len({*chosen}) < n)
    orders = islice(permutations(names, n), MAX_ORDERS)
    for devices in chain(orders, islice(several, MAX_ORDERS)):
        for rows in candidates.micro_batches(problem)[:MAX_SIZES]:
            n_micro_batches = problem.workload.batch // rows
            for depth in {1, min(2, n_micro_batches)} if training else {1}:
                yield plan_of(
                    problem.model,
                    problem.layers,
                    devices,
                    rows,
                    n_micro_batches=n_micro_batches,
                    training=training,
                    warm_up=depth,
                )


def plan_of(
    model: str,
    layers: Sequence[Layer],
    devices: Sequence[str],
    micro_batch: int,
    *,
    n_micro_batches: int = 1,
    training: bool = True,
    warm_up: int = 1,
) -> Plan:
    """The plan of a divided model with its lanes on these devices.

    Parameters
    ----------
    model
        Its name.
    layers
        Its layers, for training or for inference.
    devices
        Of each lane.
    micro_batch, n_micro_batches
        Rows at a time, and how often.
    training
        Gradients come back, too.
    warm_up
        Micro-batches under way at once.
    """
    stages = tuple(
        Stage(
            start=i,
            stop=i + 1,
            devices=(devices[layer.lane or 0],),
            shares=(micro_batch,),
            warm_up=warm_up,
        )
        for i, layer in enumerate(layers)
    )
    return Plan(
        planner="tensor",
        model=model,
        stages=stages,
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
        training=training,
    )
