"""Plans with other schedules than the usual: which policy suits the stages of a plan, and stages
that come back to their devices for those that want it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from potluck.errors import PlanError, UserError
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import balanced, build, shared_s
from potluck.planning.evaluate import judge
from potluck.planning.feasibility import breaches
from potluck.planning.search.plan_floor import least_in_any_order_s
from potluck.records import Plan, Problem, Training
from potluck.schedule.policies import POLICIES
from potluck.schedule.zero_bubble import ZERO_BUBBLE
from potluck.simulate import cost, direct_simulation

ANY = "any"
STRAIGHT = ("zb-h1", "zb-2p", "zb-compact")
N_PLANS = 12  # the best pipelines, whose schedules are tried


def names_of(schedules: str | Sequence[str]) -> tuple[str, ...]:
    """The policies to try beside the usual.

    Raises
    ------
    UserError
        There is no policy of that name, or it is not one to choose.
    """
    if schedules == ANY:
        schedules = tuple(ZERO_BUBBLE)
    names = (schedules,) if isinstance(schedules, str) else tuple(schedules)
    for name in names:
        if name not in ZERO_BUBBLE and name not in POLICIES:
            raise UserError(
                f"no schedule is called {name!r}.",
                next_step=f"There are {', '.join((ANY, *POLICIES, *ZERO_BUBBLE))}.",
            )
    return names


def scheduled(
    problem: Problem, table: cost.CostTable, plans: Sequence[Plan], names: Sequence[str]
) -> list[Plan]:
    """The best pipelines of `plans` with these schedules, judged; none for inference.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem.
    plans
        Judged, the best first.
    names
        Policies.
    """
    if not isinstance(problem.workload, Training):
        return []
    pipelines = [plan for plan in plans if len(plan.stages) > 1]
    variants = (v for plan in pipelines[:N_PLANS] for v in _variants(table, plan, names))
    return promising(problem, table, variants, best_s(problem, plans))


def best_s(problem: Problem, plans: Sequence[Plan]) -> float:
    """Seconds of the fastest of judged plans that hold the limits, where nothing else decides.

    Parameters
    ----------
    problem
        What is planned.
    plans
        Judged.
    """
    qoe = problem.qoe
    if qoe.latency_s is not None or qoe.energy_j is not None or qoe.device_energy_j:
        return inf
    return min((p.latency_s or inf for p in plans if not breaches(problem, p)), default=inf)


def promising(
    problem: Problem, table: cost.CostTable, plans: Iterable[Plan], most_s: float
) -> list[Plan]:
    """Those that may take less than `most_s`, and than those before them, judged, as far as their
    policies suit their stages.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem.
    plans
        With schedules.
    most_s
        Seconds of the fastest that is known.
    """
    simulator, found = direct_simulation.Direct(problem, table), list[Plan]()
    for plan in plans:
        if least_in_any_order_s(table, plan) >= most_s:
            continue
        with suppress(PlanError):
            found.append(judge(problem, plan, table, simulator))
            most_s = min(most_s, best_s(problem, found[-1:]))
    return found


def _variants(table: cost.CostTable, plan: Plan, names: Sequence[str]) -> Iterator[Plan]:
    for name in names:
        yield replace(plan, schedule=name)
        if name in ("zb-v", "zb-interleaved", "interleaved"):
            again = _coming_back(table, plan, there_and_back=name == "zb-v")
            if again is not None:
                yield replace(again, schedule=name)


def _coming_back(table: cost.CostTable, plan: Plan, *, there_and_back: bool) -> Plan | None:
    """The plan with twice as many stages, every device in two; None where its layers are too few,
    or devices come back already.
    """
    groups = [stage.devices for stage in plan.stages]
    names = [name for group in groups for name in group]
    if len(set(names)) < len(names):
        return None
    twice = [*groups, *(groups[::-1] if there_and_back else groups)]
    places = candidates.cuts(table.problem)
    bounds = balanced(places, len(twice), shared_s(table, twice, plan.micro_batch, {}))
    if bounds is None:
        return None
    return build(table, plan.planner, bounds, twice, plan.micro_batch)
