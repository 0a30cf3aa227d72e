"""A stage with its rows, and the steps that a pipeline of stages takes: Asteroid, eqs. (4)-(8)."""

from collections.abc import Callable, Sequence

from potluck.planning.building_blocks.closed_form import PipelineStep, period_s, request_s, round_s
from potluck.planning.building_blocks.row_allocation import allocate
from potluck.records import Problem, Stage, Training
from potluck.simulate import cost

Estimate = Callable[[Sequence[PipelineStep], int], float]
Sharing = tuple[tuple[str, ...], tuple[int, ...]]  # devices of a stage, and rows of each


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
    twins = tuple(table.twins[name] for name in stage.devices)
    place = stage.start, stage.stop
    forward, backward, update = table.recalled(
        ("work", *place, twins, stage.shares), lambda: _work(table, *place, twins, stage.shares)
    )
    if not isinstance(table.problem.workload, Training):
        return PipelineStep(forward)
    nbytes = table.summed_bytes(*place) + table.averaged_bytes(*place)
    reduce_s = table.recalled(
        ("ring", stage.devices, nbytes),
        lambda: cost.all_reduce_s(table.problem.network, stage.devices, nbytes),
    )
    return PipelineStep(forward, backward, reduce_s + update)


def _work(
    table: cost.CostTable, start: int, stop: int, names: Sequence[str], shares: Sequence[int]
) -> tuple[float, float, float]:
    """Seconds of the slowest device: forward, backward, optimizer step."""
    devices = [table.devices[name] for name in names]
    pairs = list(zip(devices, shares, strict=True))
    forward = max(table.forward_s(d.name, start, stop, rows) + d.overhead_s for d, rows in pairs)
    if not isinstance(table.problem.workload, Training):
        return forward, 0.0, 0.0
    backward = max(table.backward_s(d.name, start, stop, rows) + d.overhead_s for d, rows in pairs)
    kinds = [table.devices[name] for name in dict.fromkeys(names)]
    return forward, backward, max(cost.update_s(table, device, start, stop) for device in kinds)


def communication(table: cost.CostTable, left: Stage, right: Stage) -> PipelineStep:
    """The communication step over the cut between two stages: activations forward, gradients back.

    Parameters
    ----------
    table
        Of the problem.
    left, right
        The stages before and behind the cut.
    """
    layer = table.problem.layers[left.stop - 1]
    before, behind = (left.devices, left.shares), (right.devices, right.shares)
    return passing(table, layer.output_bytes, layer.gradient_bytes, before, behind)


def passing(
    table: cost.CostTable, output_bytes: int, gradient_bytes: int, before: Sharing, behind: Sharing
) -> PipelineStep:
    """The same of so many bytes per row.

    Parameters
    ----------
    table
        Of the problem.
    output_bytes, gradient_bytes
        Bytes of one row that go forward, and back.
    before, behind
        Who gives, and who takes.
    """

    def made() -> PipelineStep:
        network = table.problem.network
        forward = cost.cut_s(network, output_bytes, *before, *behind)
        if not isinstance(table.problem.workload, Training):
            return PipelineStep(forward)
        return PipelineStep(forward, cost.cut_s(network, gradient_bytes, *behind, *before))

    return table.recalled(("cut", output_bytes, gradient_bytes, *before, *behind), made)
