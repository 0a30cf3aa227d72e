"""Data parallelism: every device holds the whole model and takes some rows.

Equal shares, or balanced as in EDDL.

EDDL (Hao and Zhang, SEC 2021) sizes each device's batch to its speed; Asteroid's Algorithm 1 is
used here for that.
"""

from collections.abc import Iterator

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.row_allocation import proportion
from potluck.planning.building_blocks.stages import estimate_of, execution, make_stage
from potluck.records import Plan, Problem, Stage, Training
from potluck.simulate import cost, footprint


def plan_data_parallel(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """Equal and balanced shares over all devices, for every micro-batch size at which they fit."""
    table = table or cost.CostTable(problem)
    names = tuple(device.name for device in problem.devices)
    for micro_batch in candidates.micro_batches(problem):
        if micro_batch >= len(names) and (equal := _equal(table, names, micro_batch)) is not None:
            yield _plan(table, "data parallel, equal", equal)
        made = make_stage(table, 0, len(problem.layers), names, micro_batch, warm_up=1)
        if made is not None:
            yield _plan(table, "data parallel, balanced", made[0])


def _equal(table: cost.CostTable, names: tuple[str, ...], micro_batch: int) -> Stage | None:
    problem, stop = table.problem, len(table.problem.layers)
    shares = proportion(micro_batch, [1.0] * len(names))
    for name, rows in zip(names, shares, strict=True):
        room = footprint.rows_that_fit(
            table,
            0,
            stop,
            cost.budget_bytes(problem, problem.device(name)),
            warm_up=1,
            replicas=len(names),
            n_micro_batches=problem.workload.batch // micro_batch,
        )
        if rows > room or rows < candidates.fewest_rows(problem):
            return None
    return Stage(start=0, stop=stop, devices=names, shares=shares, recompute=table.recomputes)


def _plan(table: cost.CostTable, planner: str, stage: Stage) -> Plan:
    problem, micro_batch = table.problem, sum(stage.shares)
    n_micro_batches = problem.workload.batch // micro_batch
    return Plan(
        planner=planner,
        model=problem.model,
        stages=(stage,),
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
        training=isinstance(problem.workload, Training),
        latency_s=estimate_of(problem)([execution(table, stage)], n_micro_batches),
    )
