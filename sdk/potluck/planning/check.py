"""Can this be planned at all, and does a plan belong to this problem: its model, layers, devices
and batch.
"""

from difflib import get_close_matches

from potluck.errors import EmptyHome, PlanError, UserError
from potluck.planning.building_blocks.candidates import MOST_STATED, fewest_rows
from potluck.provenance import UNKNOWN
from potluck.records import Device, Plan, Problem, Training


def check_problem(problem: Problem) -> None:
    """Refuse what keeps `problem` from being planned: no devices, two that cannot reach each other,
    unknown power, too many micro-batches, or such of which nothing can be learned.

    Raises
    ------
    EmptyHome
        There is no device.
    UserError
        Inputs of layers are more than those of the model, two devices have no path, a limit on
        energy meets unknown power, there are too many micro-batches, or a batch norm would learn
        from one row.
    """
    if not problem.devices:
        raise EmptyHome(
            "This home has no devices.", next_step="Start an agent on one: `potluck agent`."
        )
    fed_bytes = sum(layer.feed_bytes for layer in problem.layers)
    if fed_bytes > problem.input_bytes:
        raise UserError(
            f"layers of {problem.model} take {fed_bytes} bytes of a row's inputs from home, of "
            f"which a row has {problem.input_bytes}.",
            next_step="State input_bytes with all inputs, those of later layers included.",
        )
    names = [device.name for device in problem.devices]
    for source in names:
        for target in names:
            if source != target:
                problem.network.path(source, target)
    for device in problem.devices:
        limited = problem.qoe.energy_j is not None or device.name in problem.qoe.device_energy_j
        if limited:
            need_power(device, "energy is limited")
    stated = getattr(problem.workload, "micro_batch", None)
    batch = problem.workload.batch
    if stated is not None and batch // stated > MOST_STATED:
        raise UserError(
            f"a batch of {batch} in micro-batches of {stated} makes {batch // stated} of them a "
            f"step; plans have {MOST_STATED} at most.",
            next_step="Choose larger micro-batches, or a smaller batch.",
        )
    slots = min((layer.slots for layer in problem.layers if layer.slots), default=batch)
    if batch > slots:
        raise UserError(
            f"{problem.model} keeps something of {slots} rows for the next request; a request of "
            f"{batch} does not fit.",
            next_step=f"Plan with Inference(batch={slots}), or make the model with more rows.",
        )
    smallest = stated or batch
    if smallest < fewest_rows(problem) and any(layer.whole_batch for layer in problem.layers):
        raise UserError(
            f"{problem.model} compares rows: micro-batches of {smallest} rows cannot "
            f"be those of a batch of {batch}.",
            next_step="Leave micro_batch to the planner.",
        )
    if smallest < fewest_rows(problem):
        raise UserError(
            f"{problem.model} cannot be trained on {smallest} row at a time: the batch norm of "
            f"layer {next(layer.name for layer in problem.layers if layer.norm_values == 1)!r} "
            "needs more than 1 value per channel when training.",
            next_step="Choose micro-batches of 2 rows or more.",
        )


def need_power(device: Device, why: str) -> None:
    """Refuse joules of a device whose watts nobody knows.

    Raises
    ------
    UserError
        Nobody does; says how to change that.
    """
    if device.power_mark == UNKNOWN:
        raise UserError(
            f"{why}, and nobody knows its power.",
            device=device.name,
            next_step="State idle_w and busy_w (`potluck agent start --power IDLE,BUSY,RADIO`), "
            "have it measured (`potluck doctor` says what its meter lacks), or ask for less time "
            "instead.",
        )


def check_plan(plan: Plan, problem: Problem) -> None:
    """Refuse a plan that cannot be carried out for `problem` (memory and limits are the judge's).

    Raises
    ------
    PlanError
        It belongs to another model, home, batch or mode, or names a device that is not there.
    """
    if plan.model != problem.model:
        raise PlanError(
            f"The plan is for the model {plan.model!r}, not for {problem.model!r}.",
            next_step="Plan anew.",
        )
    if plan.home and problem.home and plan.home != problem.home:
        raise PlanError(
            f"The plan is for the home {plan.home!r}, not for {problem.home!r}.",
            next_step="Plan anew.",
        )
    n_layers = len(problem.layers)
    if plan.stages[-1].stop != n_layers:
        raise PlanError(
            f"The plan's stages cover {plan.stages[-1].stop} layers; {plan.model} has {n_layers}."
        )
    known = [device.name for device in problem.devices]
    for name in plan.devices:
        if name in problem.excluded:
            raise PlanError(
                f"it {problem.excluded[name]}.", device=name, next_step="Plan without it."
            )
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"This home has {', '.join(known)}."
            raise PlanError("is not in this home.", device=name, next_step=hint)
    if plan.training != isinstance(problem.workload, Training):
        mode = "training" if isinstance(problem.workload, Training) else "inference"
        raise PlanError(
            f"The plan is for {'training' if plan.training else 'inference'}; asked was {mode}."
        )
    if plan.batch != problem.workload.batch:
        raise PlanError(
            f"The plan takes {plan.n_micro_batches} micro-batches of {plan.micro_batch} rows, "
            f"{plan.batch} in all; the batch has {problem.workload.batch}."
        )
