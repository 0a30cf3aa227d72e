"""Does a plan belong to this problem: its model, its layers, its devices, its batch."""

from difflib import get_close_matches

from potluck.errors import PlanError
from potluck.records import Plan, Problem, Training


def check_plan(plan: Plan, problem: Problem) -> None:
    """Raise `PlanError` unless `plan` can be carried out for `problem` (memory and limits are the judge's)."""
    if plan.model != problem.model:
        raise PlanError(f"The plan is for the model {plan.model!r}, not for {problem.model!r}.", next_step="Plan anew.")
    if plan.home and problem.home and plan.home != problem.home:
        raise PlanError(f"The plan is for the home {plan.home!r}, not for {problem.home!r}.", next_step="Plan anew.")
    n_layers = len(problem.layers)
    if plan.stages[-1].stop != n_layers:
        raise PlanError(f"The plan's stages cover {plan.stages[-1].stop} layers; {plan.model} has {n_layers}.")
    known = [device.name for device in problem.devices]
    for name in plan.devices:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"This home has {', '.join(known)}."
            raise PlanError("is not in this home.", device=name, next_step=hint)
    if plan.training != isinstance(problem.workload, Training):
        asked = "training" if isinstance(problem.workload, Training) else "inference"
        raise PlanError(f"The plan is for {'training' if plan.training else 'inference'}; asked was {asked}.")
    if plan.batch != problem.workload.batch:
        raise PlanError(
            f"The plan takes {plan.n_micro_batches} micro-batches of {plan.micro_batch} rows, {plan.batch} in all; "
            f"the batch has {problem.workload.batch}."
        )
