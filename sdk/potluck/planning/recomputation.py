"""What stages that recompute activations save and cost, in words. Pure."""

from dataclasses import replace

from potluck import units
from potluck.planning.evaluate import judge
from potluck.records import Plan


def recomputation_notes(plan: Plan) -> tuple[str, ...]:
    """Which stages recompute, and where the plan was judged what that saves at most on a device,
    and costs: against the same plan that keeps all activations.
    """
    stages = [str(p) for p, stage in enumerate(plan.stages) if stage.recompute]
    if not stages:
        return ()
    one = len(stages) == 1
    sentence = f"stage{'' if one else 's'} {', '.join(stages)} recompute{'s' * one} activations"
    if plan.problem is None or plan.latency_s is None:
        return (sentence,)
    keeping = tuple(replace(stage, recompute=False) for stage in plan.stages)
    kept = judge(plan.problem, replace(plan, stages=keeping))
    saved = {name: kept.peak_bytes[name] - plan.peak_bytes.get(name, 0) for name in kept.devices}
    device = max(saved, key=lambda name: saved[name])
    costs_s = plan.latency_s - (kept.latency_s or 0.0)
    return (
        f"{sentence}: saves {units.size(max(0, saved[device]))} on {device}, "
        f"costs {units.duration(max(0.0, costs_s))}",
    )
