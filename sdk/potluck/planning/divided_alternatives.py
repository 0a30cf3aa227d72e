"""Plans of a model, and of the same model divided by tensor: ranked together, with what its
exchanges cost the latter.
"""

from collections.abc import Callable
from dataclasses import replace

from potluck.errors import Infeasible, UserError
from potluck.planning.explain import explain
from potluck.planning.planner import make_plans
from potluck.planning.plans import Plans, preference
from potluck.planning.tensor_parallel import has_lanes, n_lanes
from potluck.records import Plan, Problem
from potluck.units import duration, percent


def plans_of_both(plan_undivided: Callable[[], Plans], divided: Problem) -> Plans:
    """All plans of both, best first; the remark says by numbers what dividing gives or costs.

    Parameters
    ----------
    plan_undivided
        Makes the plans of the model as it is, perhaps with those of another division.
    divided
        The problem of the divided one, of the same home and workload.

    Raises
    ------
    UserError
        The other profile is not of a divided model.
    Infeasible
        Neither has a plan that holds the limits.
    """
    if not has_lanes(divided):
        raise UserError(
            f"{divided.model} is not divided by tensor.",
            next_step="Profile model.divided((1, 1)), and pass its profile.",
        )
    try:
        other: Plans | None = make_plans(divided)
    except Infeasible:
        other = None
    by_lanes = [plan for plan in other or () if len(plan.devices) > 1]
    try:
        plans = plan_undivided()
    except Infeasible:
        if not by_lanes:
            raise
        return Plans(tuple(by_lanes))
    if not by_lanes:
        return replace(plans, remarks=(*plans.remarks, _none(divided)))
    merged = sorted([*plans, *by_lanes], key=lambda plan: preference(plan, divided))
    remark = _compared(divided, plans.best, by_lanes[0])
    return Plans(tuple(merged), remarks=(*plans.remarks, remark))


def _none(divided: Problem) -> str:
    alone = len(divided.devices) == 1
    why = "there is one" if alone else "none of its plans holds the limits"
    return f"divided by tensor it needs several devices, and {why}"


def _compared(divided: Problem, best: Plan, lanes: Plan) -> str:
    """What the fastest division takes, and how much of it is waiting for the others."""
    parts = explain(lanes, improvements=False).parts
    waiting = max(1 - part.compute_frac for part in parts)
    exchanges = len(lanes.stages) // n_lanes(divided.layers)
    alone_s, its_s = best.latency_s or 0.0, lanes.latency_s or 0.0
    return (
        f"divided by tensor over {', '.join(lanes.devices)} {lanes.model} takes {duration(its_s)} "
        f"against {duration(alone_s)}: up to {percent(waiting)} of that is waiting for {exchanges} "
        "exchanges a direction"
    )
