"""From a problem to plans, the best first, and how far that may be from the optimum."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from potluck.errors import Infeasible
from potluck.planning import feasibility
from potluck.planning.baselines.deepcee import plan_deepcee
from potluck.planning.baselines.single_device import plan_single
from potluck.planning.bounds.energy import least_energy_j
from potluck.planning.bounds.infeasible import refuse_impossible
from potluck.planning.bounds.latency import lower_bound_s
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import peers, shape
from potluck.planning.check import check_problem
from potluck.planning.evaluate import judge
from potluck.planning.plans import Plans, is_thrifty, preference
from potluck.planning.rare_collections import rare_collections
from potluck.planning.rerank import N_PLANS, rerank
from potluck.planning.search.device_order import in_one_order
from potluck.planning.search.schedules import best_s, promising, scheduled
from potluck.planning.search.work_budget import WorkBudget, given_s, is_many
from potluck.planning.search_passes import SearchPass, may_hide_plans
from potluck.planning.stage_sizes import better_sizes
from potluck.planning.tensor_parallel import has_lanes, plan_lanes
from potluck.records import HOME, Path, Plan, Problem, Training
from potluck.simulate import cost
from potluck.simulate.simulator_cache import SimulatorCache

N_SIZED = 3  # plans whose stages are tried with other micro-batches
N_REGIONAL = 12  # plans of DeepCEE's search, where schedules are chosen


@rare_collections()
def make_plans(
    problem: Problem,
    *,
    clock: Callable[[], float] | None = None,
    budget_s: float | None = None,
    order_transfers: bool = False,
    refine_s: float = 0.0,
    borrow: bool = True,
    schedules: Sequence[str] = (),
    stage_sizes: bool = False,
) -> Plans:
    """All plans that hold the limits, best first.

    With a `clock` (seconds, such as `time.monotonic`) and a `budget_s` the search ends when that
    time is over. Without, its effort is fixed (in a home of many devices: counted) and the outcome
    always the same. The best plan has `gap_frac`, and where joules decide `energy_gap_frac`: how
    far it may be from the optimum at most. With `order_transfers` it has not: the first plans are
    ranked as they are predicted step after step, transfers in order, which an exact solver may
    better for `refine_s` seconds. `borrow`: plans of other planners are candidates too.

    Parameters
    ----------
    problem
        What is planned.
    clock
        Seconds, such as `time.monotonic`.
    budget_s
        Seconds by that clock.
    order_transfers
        Rank the first plans with transfers in order.
    refine_s
        Seconds of CP-SAT for that order.
    borrow
        Plans of other planners are candidates, too.
    schedules
        Policies that the best plans are tried with, beside the usual.
    stage_sizes
        The best plans are tried with micro-batches of their stages' own sizes, too.

    Raises
    ------
    Infeasible
        There is none; says why, and what would help.
    """
    check_problem(problem)
    if has_lanes(problem):
        return _by_lanes(problem)
    made = partial(
        _made,
        clock=clock,
        budget_s=budget_s,
        order_transfers=order_transfers,
        refine_s=refine_s,
        borrow=borrow,
        schedules=schedules,
        stage_sizes=stage_sizes,
    )
    try:
        return made(problem)
    except Infeasible:
        found = _in_finer_micro_batches(problem, made)
        if found is None:
            raise
        return found


def _by_lanes(problem: Problem) -> Plans:
    """Plans of a model that is divided by tensor: by its lanes, or by a device alone."""
    table = cost.CostTable(problem)
    refuse_impossible(problem, table)
    simulator = SimulatorCache(problem, table)
    found = [*plan_lanes(problem, table), *plan_single(problem, table)]
    judged = [judge(problem, plan, table, simulator) for plan in found]
    holding = [plan for plan in judged if not feasibility.breaches(problem, plan)]
    if not holding:
        raise feasibility.infeasible(problem, judged)
    best, *others = _different(sorted(holding, key=lambda p: preference(p, problem)), table)
    unused = feasibility.why_unused(problem, best, judged)
    return Plans((replace(best, unused=unused), *others))


def _in_finer_micro_batches(problem: Problem, made: Callable[[Problem], Plans]) -> Plans | None:
    """Plans in smaller micro-batches than are tried otherwise, in the largest that memory holds;
    None where it does not even hold the smallest.
    """
    workload = problem.workload
    if not isinstance(workload, Training):
        return None
    sizes, found = candidates.finer_micro_batches(problem), list[Plans]()
    first, end = 0, len(sizes)  # those before are held, those from there on are not
    while first < end:
        middle = (first + end) // 2
        try:
            found.append(
                made(replace(problem, workload=replace(workload, micro_batch=sizes[middle])))
            )
            first = middle + 1
        except Infeasible as error:
            if error.facts.get("limit") in ("memory", "rows"):
                end = middle
            else:  # larger ones are faster, and take fewer joules
                first = middle + 1
    if not found:
        return None
    plans = min(found, key=lambda plans: preference(plans.best, problem))
    known = [plan for each in found for plan in each]
    gap = gap_frac(problem, cost.CostTable(problem), [plans.best, *known], lambda: True)
    best = replace(plans.best, gap_frac=gap)
    return Plans(tuple(replace(plan, problem=problem) for plan in (best, *[*plans][1:])))


def _made(
    problem: Problem,
    *,
    clock: Callable[[], float] | None,
    budget_s: float | None,
    order_transfers: bool,
    refine_s: float,
    borrow: bool,
    schedules: Sequence[str],
    stage_sizes: bool,
) -> Plans:
    """As `make_plans`, in the sizes of micro-batches that are tried at first."""
    table = cost.CostTable(problem)
    refuse_impossible(problem, table)
    stated, problem = problem, in_one_order(table)
    table = table.sibling(problem)
    timed, budget = clock is not None and budget_s is not None, WorkBudget()
    if not timed and is_many(problem):
        clock, budget_s = budget, given_s(problem)
    end_s = clock() + budget_s if clock is not None and budget_s is not None else inf

    def is_late(part: float = 0.0) -> bool:
        return clock is not None and clock() >= end_s - part * (budget_s or 0.0)

    # Searches keep to closed forms of memory, which take links to be as slow as they may be; of
    # what is near them the simulator has the last word.
    look = SearchPass(
        problem=problem,
        table=table,
        simulator=SimulatorCache(problem, table),
        is_late=is_late,
        budget=budget,
        borrow=borrow,
    )
    judged = replace(look, thorough=timed).plans()
    if not judged or may_hide_plans(problem, table):
        judged += replace(look, borrow=borrow and not judged).beyond(judged)
    judged += look.recomputing(judged)
    judged += look.as_simulated(judged)
    if schedules:
        judged += scheduled(problem, table, _best_of(problem, judged), schedules)
        judged += _of_regions(problem, table, judged) if borrow else []
    if stage_sizes:
        best = _best_of(problem, judged)[:N_SIZED]
        judged += [plan for each in best if (plan := better_sizes(problem, each, table))]
    holding = [plan for plan in judged if not feasibility.breaches(problem, plan)]
    if not holding:
        raise feasibility.infeasible(stated, judged)
    holding = _different(sorted(holding, key=lambda plan: preference(plan, problem)), table)
    if order_transfers or refine_s > 0:
        ranked = rerank(problem, holding, refine_s, also=_fed_ahead(look))
        unused = feasibility.why_unused(problem, ranked[0][0], judged)
        holding = [plan for _, plan in ranked]
        holding[0] = replace(holding[0], unused=unused)
    else:
        # What is counted has ended the search alone: the bound counts for itself.
        counted = is_many(problem) and not timed
        hurries = (lambda: False) if counted else is_late
        holding[0] = _certified(problem, table, holding, judged, hurries, closely=not counted)
    return Plans(tuple(replace(plan, problem=stated) for plan in holding))


def _fed_ahead(look: SearchPass) -> list[Plan]:
    """Judged plans of a home where each device has its rows already, the best there first: step
    after step they come while the step before is computed.
    """
    problem = look.problem
    if not isinstance(problem.workload, Training):
        return []
    at_once = {pair: Path(media=()) for pair in problem.network.paths if pair[0] == HOME}
    network = replace(problem.network, paths={**problem.network.paths, **at_once})
    fed = replace(problem, network=network)
    table = look.table.sibling(fed)
    there = replace(look, problem=fed, table=table, simulator=SimulatorCache(fed, table))
    found = _different(_best_of(fed, there.plans()), table)[:N_PLANS]
    judged = [judge(problem, plan, look.table, look.simulator) for plan in found]
    return [plan for plan in judged if not feasibility.breaches(problem, plan)]


def _best_of(problem: Problem, judged: Sequence[Plan]) -> list[Plan]:
    """Those that hold the limits, or all where none does, the best first."""
    kept = [plan for plan in judged if not feasibility.breaches(problem, plan)] or judged
    return sorted(kept, key=lambda plan: preference(plan, problem))


def _of_regions(problem: Problem, table: cost.CostTable, known: Sequence[Plan]) -> list[Plan]:
    """Judged plans of the planner that has a schedule of its own, which may be faster than all that
    are known; none for inference.
    """
    if not isinstance(problem.workload, Training):
        return []
    found = sorted(plan_deepcee(problem, table), key=lambda plan: plan.latency_s or inf)
    return promising(problem, table, found[:N_REGIONAL], best_s(problem, known))


def _certified(
    problem: Problem,
    table: cost.CostTable,
    holding: Sequence[Plan],
    judged: Sequence[Plan],
    is_late: Callable[[], bool],
    *,
    closely: bool,
) -> Plan:
    """The first plan with how far it may be from the optimum, and why it leaves devices out."""
    # the bounds are those of whole backwards, and of micro-batches of one size
    same_size = len(holding[0].sizes) == 1
    usual = same_size and not holding[0].schedule
    return replace(
        holding[0],
        unused=feasibility.why_unused(problem, holding[0], judged),
        gap_frac=gap_frac(problem, table, holding, is_late, closely=closely) if usual else None,
        energy_gap_frac=energy_gap_frac(problem, table, holding[0]) if same_size else None,
    )


def _different(plans: Sequence[Plan], table: cost.CostTable) -> list[Plan]:
    """The first of those that differ only in which of alike devices does what."""
    alike, found = peers(table), dict[Hashable, Plan]()
    for plan in plans:
        found.setdefault(shape(plan, alike), plan)
    return list(found.values())


def gap_frac(
    problem: Problem,
    table: cost.CostTable,
    plans: Sequence[Plan],
    is_late: Callable[[], bool] = lambda: False,
    *,
    closely: bool = True,
) -> float:
    """By which part of its latency the first of `plans` may be slower than the fastest plan there
    can be.

    Than the fastest with whole backwards; of a chain, that gives each device one stage at most.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem.
    plans
        Judged, the best first.
    is_late
        Asked between pieces of work.
    closely
        Structure is looked at, where that takes some seconds.
    """
    fastest_s = min(plan.latency_s or inf for plan in plans)
    least_s = lower_bound_s(problem, table, fastest_s, is_late=is_late, closely=closely)
    return 1 - least_s / (plans[0].latency_s or inf)


def energy_gap_frac(problem: Problem, table: cost.CostTable, plan: Plan) -> float | None:
    """By which part of its joules `plan` may exceed the thriftiest plan on time.

    None unless joules decide.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem.
    plan
        Judged.
    """
    if not is_thrifty(problem) or not plan.energy_j:
        return None
    return max(0.0, 1 - least_energy_j(problem, table) / plan.energy_j)
