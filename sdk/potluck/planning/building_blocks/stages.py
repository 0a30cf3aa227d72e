"""A stage with its rows, and the steps that a pipeline of stages takes: Asteroid, eqs. (4)-(8)."""

from collections.abc import Callable, Sequence

from potluck.planning.building_blocks.closed_form import PipelineStep, period_s, request_s, round_s
from potluck.planning.building_blocks.row_allocation import allocate
from potluck.records import Problem, Stage, Training
from potluck.simulate import cost, equations

Estimate = Callable[[Sequence[PipelineStep], int], float]


def estimate_of(problem: Problem) -> Estimate:
    """The closed form that suits the workload."""
    if isinstance(problem.workload, Training):
        return round_s
    return period_s if problem.workload.streaming else request_s


def make_stage(
    table: cost.CostTable,
    start: int,
    stop: int,
    group: Sequence[str],
    micro_batch: int,
    warm_up: int,
    share: Callable[..., tuple[int, ...] | None] = allocate,
) -> tuple[Stage, PipelineStep] | None:
    """A stage with its rows by Algorithm 1 and its execution step, eqs. (7) and (8).

    None when it does not fit.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    group
        Devices of the stage.
    micro_batch
        Rows of a micro-batch.
    warm_up
        Micro-batches that it keeps at once, K_p.
    share
        Gives the rows of each device, called as Algorithm 1 is.
    """
    problem = table.problem
    n_micro_batches = problem.workload.batch // micro_batch
    training = isinstance(problem.workload, Training)
    warm_up = warm_up if training else 1
    shares = share(
        table, start, stop, group, micro_batch, warm_up=warm_up, n_micro_batches=n_micro_batches
    )
    if shares is None:
        return None
    used = [(name, rows) for name, rows in zip(group, shares, strict=True) if rows]
    stage = Stage(
        start=start,
        stop=stop,
        devices=tuple(name for name, _ in used),
        shares=tuple(rows for _, rows in used),
        warm_up=warm_up,
        recompute=table.recomputes,
    )
    return stage, execution(table, stage)


def execution(table: cost.CostTable, stage: Stage) -> PipelineStep:
    """eq. (8): the slowest device's forward, backward and all-reduce with optimizer step."""
    problem = table.problem
    start = stage.start
    stop = stage.stop
    devices = [table.devices[name] for name in stage.devices]
    pairs = list(zip(devices, stage.shares, strict=True))
    forward = max(table.forward_s(d.name, start, stop, rows) + d.overhead_s for d, rows in pairs)
    if not isinstance(problem.workload, Training):
        return PipelineStep(forward)
    backward = max(table.backward_s(d.name, start, stop, rows) + d.overhead_s for d, rows in pairs)
    nbytes = table.summed_bytes(start, stop) + table.averaged_bytes(start, stop)
    update = max(equations.update_s(table, device, start, stop) for device in devices)
    return PipelineStep(
        forward, backward, equations.all_reduce_s(problem.network, stage.devices, nbytes) + update
    )


def communication(problem: Problem, left: Stage, right: Stage) -> PipelineStep:
    """The communication step over the cut between two stages: activations forward, gradients back.

    Parameters
    ----------
    problem
        Its network.
    left, right
        The stages before and behind the cut.
    """
    network, layer = problem.network, problem.layers[left.stop - 1]
    forward = equations.cut_s(
        network, layer.output_bytes, left.devices, left.shares, right.devices, right.shares
    )
    if not isinstance(problem.workload, Training):
        return PipelineStep(forward)
    back = equations.cut_s(
        network, layer.gradient_bytes, right.devices, right.shares, left.devices, left.shares
    )
    return PipelineStep(forward, back)
