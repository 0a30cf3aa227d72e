"""From a problem to judged plans: our planner and the cheap rivals; the simulator decides."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from potluck.plan import cost, feasibility
from potluck.plan.anytime import MAX_WORK, Board, search
from potluck.plan.bound import lower_bound_s
from potluck.plan.check import check_problem
from potluck.plan.judge import judge
from potluck.plan.plans import Plans, preference
from potluck.plan.rivals.data_parallel import plan_data_parallel
from potluck.plan.rivals.dora import plan_dora
from potluck.records import Plan, Problem, Stage
from potluck.simulate import direct

MAX_SHOWN = 12  # plans judged in full besides the best of every set of devices
MAX_SETS = 24
N_BRANCHED = 12  # plans of the one planner that knows parallel branches, to begin with where there are any
NO_HURRY_S = 1e12  # a latency that every plan holds: then the least energy decides
BOUND_PART = 0.25  # of the time given, kept for the certificate


def make_plans(problem: Problem, *, clock: Callable[[], float] | None = None, budget_s: float | None = None) -> Plans:
    """All plans that hold the limits, best first; `Infeasible` when there is none, saying why and what would help.

    With a `clock` (seconds, such as `time.monotonic`) and a `budget_s` the search ends when that time is over; without,
    its effort is fixed and the outcome always the same. The best plan has `gap_frac`: how far it may be from the
    optimum at most.
    """
    check_problem(problem)
    table = cost.CostTable(problem)
    end_s = clock() + budget_s if clock is not None and budget_s is not None else inf

    def is_late(part: float = 0.0) -> bool:
        return clock is not None and clock() >= end_s - part * (budget_s or 0.0)

    judged = _judged(problem, table, lambda: is_late(BOUND_PART), thorough=end_s < inf)
    holding = [plan for plan in judged if not feasibility.breaches(problem, plan)]
    if not holding:
        raise feasibility.infeasible(problem, judged or _unlimited(problem, is_late))
    holding.sort(key=lambda plan: preference(plan, problem.qoe))
    best = holding[0]
    holding[0] = replace(
        best,
        unused=feasibility.why_unused(problem, best, judged),
        gap_frac=gap_frac(problem, table, holding, is_late),
    )
    return Plans(tuple(holding))


def gap_frac(
    problem: Problem, table: cost.CostTable, plans: Sequence[Plan], is_late: Callable[[], bool] = lambda: False
) -> float:
    """By which part of its latency the first of `plans` may be slower than the fastest plan there can be."""
    fastest_s = min(plan.latency_s or inf for plan in plans)
    return 1 - lower_bound_s(problem, table, fastest_s, is_late=is_late) / (plans[0].latency_s or inf)


def _judged(
    problem: Problem, table: cost.CostTable, is_late: Callable[[], bool], *, thorough: bool = False
) -> list[Plan]:
    """The best plans found, judged in full: the fastest, and where joules decide or are limited the thriftiest."""
    simulator, max_work = direct.Direct(problem, table), inf if thorough else MAX_WORK
    hasty = replace(problem, qoe=replace(problem.qoe, latency_s=None))
    fastest = Board(hasty, cost.CostTable(hasty), simulator, max_work=max_work)  # searches ask their table's problem
    search(fastest, rivals(problem, table), is_late)
    boards = [fastest]
    qoe = problem.qoe
    if qoe.latency_s is not None or qoe.energy_j is not None or qoe.device_energy_j:
        asked = replace(problem, qoe=replace(qoe, latency_s=qoe.latency_s or NO_HURRY_S))
        boards.append(Board(asked, cost.CostTable(asked), simulator, max_work=max_work))
        search(boards[-1], fastest.ranking()[:MAX_SHOWN], is_late)
    chosen: dict[tuple[tuple[Stage, ...], int], Plan] = {}
    for board in boards:
        sets: dict[frozenset[str], Plan] = {}
        for plan in board.ranking():
            sets.setdefault(frozenset(plan.devices), plan)
        alone = [plan for plan in sets.values() if len(plan.devices) == 1]
        for plan in (*board.ranking()[:MAX_SHOWN], *list(sets.values())[:MAX_SETS], *alone):
            chosen.setdefault((plan.stages, plan.micro_batch), plan)
    return [judge(problem, plan, table, simulator) for plan in chosen.values()]


def rivals(problem: Problem, table: cost.CostTable) -> list[Plan]:
    """Plans of planners that cost next to nothing, and of the one that knows branches; ours must beat them."""
    planners = [plan_data_parallel, plan_dora] if problem.branches else [plan_data_parallel]
    plans = (sorted(planner(problem, table), key=lambda plan: plan.latency_s or 0.0) for planner in planners)
    return [plan for found, most in zip(plans, (3, N_BRANCHED), strict=False) for plan in found[:most]]


def _unlimited(problem: Problem, is_late: Callable[[], bool]) -> list[Plan]:
    """Judged plans that ignore memory, for saying by how much it is missed."""
    free = feasibility.without_memory_limits(problem)
    return _judged(free, cost.CostTable(free), is_late)
