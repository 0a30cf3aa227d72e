"""One device does it all: the simplest baseline, and often the best plan where links are slow."""

from collections.abc import Iterator

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.stages import estimate_of, make_stage
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost


def plan_single(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """For every device that can hold the model, the best micro-batch size."""
    table = table or cost.CostTable(problem)
    for device in problem.devices:
        found = []
        for micro_batch in candidates.micro_batches(problem):
            made = make_stage(table, 0, len(problem.layers), (device.name,), micro_batch, warm_up=1)
            if made is not None:
                n_micro_batches = problem.workload.batch // micro_batch
                found.append(
                    (estimate_of(problem)([made[1]], n_micro_batches), micro_batch, made[0])
                )
        if found:
            seconds, micro_batch, stage = min(found, key=lambda item: item[:2])
            yield Plan(
                planner="single",
                model=problem.model,
                stages=(stage,),
                micro_batch=micro_batch,
                n_micro_batches=problem.workload.batch // micro_batch,
                training=isinstance(problem.workload, Training),
                latency_s=seconds,
            )
