"""`potluck.plan`: from a profile and a wish to judged plans; plans from files and to files.

Other people's, judged.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from potluck.documents import file_path, read_text, write_text
from potluck.errors import FileError, Infeasible, UserError
from potluck.handle import Handle, resolved
from potluck.records import Inference, Plan, Problem, QoE, Training

if TYPE_CHECKING:
    from potluck.planning import Plans
    from potluck.profile.profiles import Profile

    Profiled: TypeAlias = Profile | Handle[Profile]

HASTE_S = 0.5  # of a planning that looks for what would make an infeasible problem feasible
OURS = "potluck"  # the planner that is asked unless another is named


def plan(
    profile: "Profile | Handle[Profile]",
    workload: Training | Inference,
    qoe: QoE | None = None,
    *,
    planner: str = OURS,
    budget_s: float | None = None,
    order_transfers: bool = False,
    refine_s: float = 0.0,
    schedules: str | Sequence[str] = (),
    stage_sizes: bool = False,
    divided: "Profiled | Sequence[Profiled] | None" = None,
) -> "Plans":
    """Plans for `workload` on the profiled home, best first.

    Parameters
    ----------
    profile
        From `home.profile(model)` or `potluck.estimate(home, model)`; a handle is waited for.
    workload
        What is planned for: `potluck.Training(batch=64)`, or `potluck.Inference()`.
    qoe
        The user's limits; none by default.
    planner
        One of the literature instead of our own: a name in `potluck.planning.registry.PLANNERS`.
    budget_s
        How long our own planner may look for better plans; by default a second or some.
    order_transfers, refine_s
        Whether its first plans, and those that would be the first if each batch were there already,
        are ranked as they are predicted step after step, with their transfers in order, as
        `home.deploy` finds it. CP-SAT (ortools) may better that for
        `refine_s` seconds, as it may there. Takes seconds.
    schedules
        Names of policies that its best plans for training are tried with, beside 1F1B; "any" tries
        all zero-bubble ones. A plan says which it was judged with. Their agents must do backwards
        in two parts (protocol 1.9).
    stage_sizes
        Whether stages of its best plans may take micro-batches of their own sizes. Those with batch
        norm or dropout keep the plan's. Nobody knows then how far the best is from the optimum.
    divided
        The profile of `model.divided(shares)` on the same home, or of several such: their plans are
        ranked among the others, and `plans.notes` says what the links cost them. A plan's `model`
        says which of the models it is for.

    Returns
    -------
    Plans
        Judged plans; `best` is the first.

    Raises
    ------
    Infeasible
        Where no plan holds the limits; says by how much, and what would do.
    UserError
        The profile, workload, limits or planner is not what it should be.
    """
    known = _profile_of(profile)
    if not isinstance(workload, Training | Inference):
        raise UserError(
            f"plans are made for training or inference, got {workload!r}.",
            next_step="potluck.Training(batch=64), or potluck.Inference()",
        )
    if qoe is not None and not isinstance(qoe, QoE):
        raise UserError(
            f"limits are a potluck.QoE, got {qoe!r}.", next_step="potluck.QoE(latency_s=0.5)"
        )
    solved = partial(
        solve,
        budget_s=budget_s,
        order_transfers=order_transfers,
        refine_s=refine_s,
        schedules=schedules,
        stage_sizes=stage_sizes,
    )
    problem = known.problem(workload, qoe or QoE())
    made = partial(solved, problem, planner)
    if divided is None:
        return made()
    from potluck.planning.divided_alternatives import plans_of_both

    for each in divided if isinstance(divided, list | tuple) else (divided,):
        other = _profile_of(each).problem(workload, qoe or QoE())
        made = partial(plans_of_both, made, other)
    return made()


def _profile_of(profile: "Profile | Handle[Profile]") -> "Profile":
    known = resolved(profile)
    if not hasattr(known, "problem"):
        raise UserError(
            f"plans are made from a profile, and judged by one; got {type(known).__name__}.",
            next_step="Make one: home.profile(model), or potluck.estimate(home, model).",
        )
    return known


def solve(
    problem: Problem,
    planner: str = OURS,
    *,
    remedies: bool = True,
    budget_s: float | None = None,
    order_transfers: bool = False,
    refine_s: float = 0.0,
    schedules: str | Sequence[str] = (),
    stage_sizes: bool = False,
) -> "Plans":
    """The judged plans of one planner for `problem`.

    Where there is none, `remedies` are looked for.

    Parameters
    ----------
    problem
        From `profile.problem(workload, qoe)`.
    planner
        A name in `potluck.planning.registry.PLANNERS`.
    remedies
        Where no plan holds the limits, look for the changes that would make one do.
    budget_s
        Seconds that our own planner may look for better plans; default: until its search ends.
    order_transfers, refine_s, schedules, stage_sizes
        As for `plan`; our own planner only.

    Raises
    ------
    UserError
        There is no such planner, or it takes no such option.
    Infeasible
        No plan holds the limits.
    """
    from potluck.planning import make_plans
    from potluck.planning.registry import PLANNERS, ask
    from potluck.planning.relax import explained
    from potluck.planning.search.schedules import names_of

    if planner not in PLANNERS:
        raise UserError(
            f"there is no planner {planner!r}.", next_step=f"There are {', '.join(PLANNERS)}."
        )
    if budget_s is not None and (planner != OURS or not 0 < budget_s < float("inf")):
        raise UserError(
            f"planning for {budget_s:g} s with {planner!r} is not possible.",
            next_step=f"A time above zero goes with {OURS!r}; others end by themselves.",
        )
    if (order_transfers or refine_s > 0) and planner != OURS:
        raise UserError(
            f"{planner!r} plans no order of transfers.",
            next_step=f"Ask {OURS!r}, or deploy(plan, order_transfers=True).",
        )
    if schedules and planner != OURS:
        raise UserError(
            f"schedules are not what {planner!r} chooses among.",
            next_step=f"Ask {OURS!r}, or deploy(plan, schedule='zb-h1').",
        )
    if stage_sizes and planner != OURS:
        raise UserError(
            f"sizes of stages' own are not what {planner!r} chooses.",
            next_step=f"Ask {OURS!r}, or write micro_batch into the stages of its plan.",
        )
    names = names_of(schedules)
    planning = partial(ask, name=planner)
    hasty = planning
    first = planning
    if planner == OURS:
        clock = None if budget_s is None else time.monotonic
        planning = partial(
            make_plans,
            clock=clock,
            budget_s=budget_s,
            order_transfers=order_transfers,
            refine_s=refine_s,
            schedules=names,
            stage_sizes=stage_sizes,
        )
        hasty, first = (
            partial(make_plans, clock=time.process_time, budget_s=budget_s)
            for budget_s in (HASTE_S, 0.0)
        )
    try:
        return planning(problem)
    except Infeasible as error:
        raise explained(error, problem, hasty, first) if remedies else error from None


def judge(
    plan: Plan,
    profile: "Profile | Handle[Profile]",
    workload: Training | Inference | None = None,
    qoe: QoE | None = None,
) -> Plan:
    """Any plan, such as an edited one, with the time, energy and memory that the simulator gives it
    on this home.

    Without a `workload` it is judged for what it says it is for: training or inference, of its
    batch.

    Parameters
    ----------
    plan
        Any plan for this model, also an edited one.
    profile
        Of the home that it is judged on; a handle is waited for.
    workload
        Default: training or inference, whichever the plan says, of its batch.
    qoe
        The user's limits; none by default.

    Returns
    -------
    Plan
        The plan with `latency_s`, `energy_j` and `peak_bytes` filled in.

    Raises
    ------
    PlanError
        Where it belongs to another model or home.
    """
    from potluck.planning import judge as judged

    workload = workload or (
        Training(batch=plan.batch) if plan.training else Inference(batch=plan.batch)
    )
    return judged(_profile_of(profile).problem(workload, qoe or QoE()), plan)


def load_plan(path: str | Path) -> Plan:
    """A plan from its text form.

    Raises
    ------
    FileError
        The file cannot be read.
    PlanError
        It holds no plan.
    """
    from potluck.planning.text import loads

    try:
        text = read_text(file_path(path))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is no text")
        raise FileError(f"cannot read the plan {path}: {why}.", path=str(path)) from error
    return loads(text, str(path))


def save_plan(plan: Plan, path: str | Path) -> Path:
    """Write the text form of `plan`; the way back is `load_plan`.

    Raises
    ------
    FileError
        The file cannot be written.
    """
    from potluck.planning.text import dumps

    return write_text(path, dumps(plan))
