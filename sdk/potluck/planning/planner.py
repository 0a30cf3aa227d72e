"""From a problem to judged plans: our planner and the cheap rivals; the simulator decides."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from potluck.planning import feasibility
from potluck.planning.anytime import is_small, search
from potluck.planning.baselines.data_parallel import plan_data_parallel
from potluck.planning.baselines.deepcee import plan_deepcee
from potluck.planning.baselines.dora import plan_dora
from potluck.planning.bounds.energy import holds_weights, least_energy_j
from potluck.planning.bounds.infeasible import refuse_impossible
from potluck.planning.bounds.latency import can_certify, lower_bound_s
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import peers, shape
from potluck.planning.check import check_problem
from potluck.planning.evaluate import judge
from potluck.planning.plans import Plans, is_thrifty, preference
from potluck.planning.rerank import rerank
from potluck.planning.search import recomputation
from potluck.planning.search.candidate_pool import MAX_WORK, CandidatePool
from potluck.planning.search.device_order import in_one_order
from potluck.planning.search.schedules import scheduled
from potluck.planning.search.work_budget import WorkBudget, given_s, is_many
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost, direct, flows, footprint
from potluck.simulate.remembering import Remembering

MAX_SHOWN = 12  # plans judged in full besides the best of every set of devices
MAX_SETS = 24
N_REGIONAL = 12  # plans of DeepCEE's search, where schedules are chosen
# plans of the one planner that knows parallel branches, to begin with where there are any
N_BRANCHED = 12
NO_HURRY_S = 1e12  # a latency that every plan holds: then the least energy decides
# steps of a search that need find nothing good, and plans simulated for those that just fit
GLANCE, LOOK = 15, 300
N_AMPLE = 12  # plans of ample memory that those that recompute begin with
# Looked at where nothing fits by closed forms: times the memory there is, and how many
# micro-batches wait. Requests wait for nobody's gradient, so that all of them may.
LOOSER = ((1.15, None), (1.4, None), (2.0, None))
PROMPTLY = ((1.0, 2), (1.0, 0), (1.4, 0))
# of a device's memory, that home's whole batch may fill before anybody computes
WAITING_PART = 0.1
BOUND_PART = 0.25  # of the time given, kept for the certificate
OTHERS_PART = 1 / 6  # in a home of many devices, kept for what other planners find
THRIFT_PART = 0.65  # of the time given, kept for the thriftiest and the certificate


def make_plans(
    problem: Problem,
    *,
    clock: Callable[[], float] | None = None,
    budget_s: float | None = None,
    order_transfers: bool = False,
    refine_s: float = 0.0,
    borrow: bool = True,
    schedules: Sequence[str] = (),
) -> Plans:
    """All plans that hold the limits, best first.

    With a `clock` (seconds, such as `time.monotonic`) and a `budget_s` the search ends when that
    time is over; without, its effort is fixed (in a home of many devices: counted) and the outcome
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

    Raises
    ------
    Infeasible
        There is none; says why, and what would help.
    """
    check_problem(problem)
    table = cost.CostTable(problem)
    refuse_impossible(problem, table)
    asked, problem = problem, in_one_order(table)
    table = table.sibling(problem)
    timed, budget = clock is not None and budget_s is not None, WorkBudget()
    if not timed and is_many(problem):
        clock, budget_s = budget, given_s(problem)
    end_s = clock() + budget_s if clock is not None and budget_s is not None else inf

    def is_late(part: float = 0.0) -> bool:
        return clock is not None and clock() >= end_s - part * (budget_s or 0.0)

    # Searches keep to closed forms of memory, which take links to be as slow as they may be; of
    # what is near them the simulator has the last word.
    simulator = Remembering(problem, table)
    judged = _judged(problem, table, simulator, is_late, budget, thorough=timed, borrow=borrow)
    if not judged or _may_hide_plans(problem, table):
        judged += _beyond(
            problem, table, simulator, is_late, budget, judged, borrow=borrow and not judged
        )
    judged += _recomputing(problem, table, simulator, is_late, budget, judged)
    if schedules:
        kept = [plan for plan in judged if not feasibility.breaches(problem, plan)] or judged
        best = sorted(kept, key=lambda plan: preference(plan, problem))
        judged += scheduled(problem, table, best, schedules)
        judged += _of_regions(problem, table) if borrow else []
    holding = [plan for plan in judged if not feasibility.breaches(problem, plan)]
    if not holding:
        raise feasibility.infeasible(asked, judged)
    holding = _different(sorted(holding, key=lambda plan: preference(plan, problem)), table)
    if order_transfers or refine_s > 0:
        ranked = rerank(problem, holding, refine_s)
        unused = feasibility.why_unused(problem, ranked[0][0], judged)
        holding = [plan for _, plan in ranked]
        holding[0] = replace(holding[0], unused=unused)
    else:
        # What is counted leaves no time for more than a quick bound.
        hurries = is_late if timed or not is_many(problem) else lambda: True
        holding[0] = _certified(problem, table, holding, judged, hurries)
    return Plans(tuple(replace(plan, problem=asked) for plan in holding))


def _of_regions(problem: Problem, table: cost.CostTable) -> list[Plan]:
    """Judged plans of the planner that has a schedule of its own; none for inference."""
    if not isinstance(problem.workload, Training):
        return []
    simulator = direct.Direct(problem, table)
    found = sorted(plan_deepcee(problem, table), key=lambda plan: plan.latency_s or inf)
    return [judge(problem, plan, table, simulator) for plan in found[:N_REGIONAL]]


def _certified(
    problem: Problem,
    table: cost.CostTable,
    holding: Sequence[Plan],
    judged: Sequence[Plan],
    is_late: Callable[[], bool],
) -> Plan:
    """The first plan with how far it may be from the optimum, and why it leaves devices out."""
    usual = not holding[0].schedule  # the bound is that of whole backwards
    return replace(
        holding[0],
        unused=feasibility.why_unused(problem, holding[0], judged),
        gap_frac=gap_frac(problem, table, holding, is_late) if usual else None,
        energy_gap_frac=energy_gap_frac(problem, table, holding[0]),
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
) -> float:
    """By which part of its latency the first of `plans` may be slower than the fastest plan there
    can be.

    Of a chain: than the fastest that gives each device one stage at most.

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
    """
    fastest_s = min(plan.latency_s or inf for plan in plans)
    return 1 - lower_bound_s(problem, table, fastest_s, is_late=is_late) / (
        plans[0].latency_s or inf
    )


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


def _judged(
    problem: Problem,
    table: cost.CostTable,
    simulator: direct.Direct,
    is_late: Callable[[float], bool],
    budget: WorkBudget,
    *,
    thorough: bool = False,
    borrow: bool = True,
    max_plans: float = inf,
    budgets: Mapping[str, int] | None = None,
    known: Sequence[Plan] = (),
) -> list[Plan]:
    """The best plans found, judged in full: the fastest, and where joules decide or are limited the
    thriftiest.

    `is_late(part)`: whether no more than this part of the time is left. `budgets`: the memory that
    simulated plans may use, where that is not what the problem says. `simulator`: of this problem,
    or of one that differs in limits alone.
    """
    qoe = problem.qoe
    max_work = inf if thorough else MAX_WORK

    limited = qoe.energy_j is not None or bool(qoe.device_energy_j)

    def empty(asked: Problem, *, keeps_joules: bool) -> CandidatePool:
        # searches ask their table's problem
        return CandidatePool(
            asked,
            table.sibling(asked),
            simulator,
            max_work=max_work,
            budget=budget,
            budgets=budgets or {},
            keeps_joules=keeps_joules,
        )

    hurried = replace(problem, qoe=replace(qoe, latency_s=None))
    fastest = empty(hurried, keeps_joules=False)
    pools = [fastest]
    thrifty = qoe.latency_s is not None or limited
    many = is_many(problem)
    bound_part = BOUND_PART if not many or (thorough and can_certify(table)) else 0.0
    own_part = max(OTHERS_PART, bound_part) if many else bound_part
    first = [*known, *(rivals(problem, table) if borrow else [])]
    search(
        fastest,
        first,
        lambda: is_late(THRIFT_PART if thrifty else bound_part),
        ends_own=lambda: is_late(THRIFT_PART if thrifty else own_part),
        borrow=borrow,
        max_plans=max_plans,
    )
    asked = replace(problem, qoe=replace(qoe, latency_s=qoe.latency_s or NO_HURRY_S))
    # Where nothing is on time, joules do not matter.
    if thrifty and is_thrifty(asked) and fastest.best <= (qoe.latency_s or inf):
        pools.append(empty(asked, keeps_joules=limited))
    if limited:  # the fastest of those that keep within their joules
        pools.append(empty(hurried, keeps_joules=True))
    for pool in pools[1:]:
        search(
            pool,
            [plan for other in pools for plan in other.ranking()[:MAX_SHOWN]],
            lambda: is_late(bound_part),
            ends_own=lambda: is_late(own_part),
            borrow=borrow,
            max_plans=max_plans,
        )
    chosen: dict[Hashable, Plan] = {}
    watts = {d.name: (d.idle_w, d.busy_w, d.radio_w) for d in problem.devices}
    for pool in pools:
        sets: dict[frozenset[str], Plan] = {}
        for plan in pool.ranking():
            sets.setdefault(frozenset(plan.devices), plan)
        alone = [plan for plan in sets.values() if len(plan.devices) == 1]
        for plan in (*pool.ranking()[:MAX_SHOWN], *list(sets.values())[:MAX_SETS], *alone):
            joules = tuple(watts[name] for name in plan.devices)
            chosen.setdefault((shape(plan, fastest.peers), joules), plan)
    return [judge(problem, plan, table, simulator) for plan in chosen.values()]


def rivals(problem: Problem, table: cost.CostTable) -> list[Plan]:
    """Plans of planners that cost next to nothing, and of the one that knows branches.

    Ours must beat them.
    """
    knows_branches = problem.branches and not is_many(problem)  # there the search asks it last
    planners = [plan_data_parallel, plan_dora] if knows_branches else [plan_data_parallel]
    plans = (
        sorted(planner(problem, table), key=lambda plan: plan.latency_s or 0.0)
        for planner in planners
    )
    return [
        plan for found, most in zip(plans, (3, N_BRANCHED), strict=False) for plan in found[:most]
    ]


def _may_hide_plans(problem: Problem, table: cost.CostTable) -> bool:
    """Whether closed forms of memory may keep a better plan from a small problem: where some device
    cannot hold all of the model and a whole batch, however many share it. In larger ones a second
    look would take as long as the first: it is taken where a device alone holds a request only as
    long as little waits.
    """
    n, n_layers, batch = len(problem.devices), len(problem.layers), problem.workload.batch
    if is_small(table):
        needed = footprint.memory_bytes(table, 0, n_layers, batch, warm_up=batch, replicas=n)
        return any(needed > nbytes for nbytes in table.budgets.values())
    if is_many(problem) or isinstance(problem.workload, Training):
        return False
    rows = min(candidates.micro_batches(problem))
    slow, prompt = (
        footprint.memory_bytes(either, 0, n_layers, rows, warm_up=1, n_micro_batches=batch // rows)
        for either in (table, cost.CostTable(problem, n_waiting=0))
    )
    return any(prompt <= nbytes < slow for nbytes in table.budgets.values())


def _beyond(
    problem: Problem,
    table: cost.CostTable,
    simulator: direct.Direct,
    is_late: Callable[[], bool],
    budget: WorkBudget,
    known: Sequence[Plan],
    *,
    borrow: bool = True,
) -> list[Plan]:
    """Judged plans of looks that take memory to be more than it is: closed forms assume the slowest
    links, so that some plans hold after all when they are simulated.

    `known`: those that hold by closed forms. Without any, and where nothing is found, plans that
    ignore memory, for saying by how much it is missed.
    """

    def better(plan: Plan) -> tuple[float, ...]:
        return preference(plan, problem)

    best = sorted(known, key=better)[:MAX_SHOWN]
    for factor, n_waiting in _looser(table) if holds_weights(table, problem.devices) else ():
        if is_late():
            break
        more = feasibility.with_more_memory(problem, factor)
        found = _judged(
            more,
            cost.CostTable(more, recomputes=table.recomputes, n_waiting=n_waiting),
            simulator,
            lambda _: is_late(),
            budget,
            borrow=borrow,
            max_plans=LOOK,
            budgets=table.budgets,
            known=best,
        )
        best = sorted((*best, *(replace(plan, problem=problem) for plan in found)), key=better)[
            :MAX_SHOWN
        ]
        if best and not is_small(table):
            break
    if best:
        return best
    free, steps = feasibility.with_more_memory(_finest(problem), inf), count()
    return _judged(
        free, table.sibling(free), simulator, lambda _: next(steps) > GLANCE, WorkBudget()
    )


def _looser(table: cost.CostTable) -> tuple[tuple[float, int | None], ...]:
    """How much more than there is memory is taken to be, and how many micro-batches wait."""
    problem = table.problem
    if not isinstance(problem.workload, Training):
        return PROMPTLY
    fed_bytes = problem.input_bytes + problem.target_bytes
    waits = fed_bytes * problem.workload.batch > WAITING_PART * min(table.budgets.values())
    if waits or not all(flows.learning_layers(problem)):
        return (*LOOSER, *PROMPTLY[:1])
    return LOOSER


def _recomputing(
    problem: Problem,
    table: cost.CostTable,
    simulator: direct.Direct,
    is_late: Callable[[float], bool],
    budget: WorkBudget,
    known: Sequence[Plan],
) -> list[Plan]:
    """Judged plans whose stages may compute activations again: where memory keeps a better plan
    away, or every plan.

    Their starts are the plans of a home whose memory is no limit, as far as they exceed it.
    """
    holding = [plan for plan in known if not feasibility.breaches(problem, plan)]
    if not _may_recompute(problem, table) or (holding and is_late(0.0)):
        return []
    if is_many(problem) and not holding and is_late(0.0):  # what is counted begins anew
        budget, given = WorkBudget(), given_s(problem)
        is_late = _counted(budget, given)
    best = sorted(holding, key=lambda plan: preference(plan, problem))[:MAX_SHOWN]
    ample = _without_limit(problem, table, simulator, is_late, budget, best)
    if best and not _gains(problem, ample, best[0]):
        return []
    looked = table.of(True)
    again = [other for plan in ample[:N_AMPLE] for other in recomputation.starts(looked, plan)]
    found = _judged(
        problem,
        looked,
        simulator,
        is_late,
        budget,
        borrow=False,
        max_plans=2 * LOOK,
        known=[*best, *again],
    )
    if holding or found:
        return found
    return _beyond(problem, looked, simulator, lambda: is_late(0.0), budget, (), borrow=False)


def _may_recompute(problem: Problem, table: cost.CostTable) -> bool:
    """Whether a step keeps activations, and some device cannot hold all of the model and those of
    a whole batch.
    """
    if not isinstance(problem.workload, Training):
        return False
    rows, n_layers = problem.workload.batch, len(problem.layers)
    needed = footprint.memory_bytes(table, 0, n_layers, rows, warm_up=1)
    return any(needed > nbytes for nbytes in table.budgets.values())


def _counted(budget: WorkBudget, given: float) -> Callable[[float], bool]:
    def is_late(part: float) -> bool:
        return budget() >= given * (1 - part)

    return is_late


def _without_limit(
    problem: Problem,
    table: cost.CostTable,
    simulator: direct.Direct,
    is_late: Callable[[float], bool],
    budget: WorkBudget,
    known: Sequence[Plan],
) -> list[Plan]:
    """Judged plans of the same home if its memory were no limit, the best first."""
    free = feasibility.with_more_memory(problem, inf)
    found = _judged(
        free,
        table.sibling(free),
        simulator,
        is_late,
        budget,
        borrow=False,
        max_plans=LOOK,
        known=known,
    )
    found = [replace(plan, problem=problem) for plan in found]
    return sorted(found, key=lambda plan: preference(plan, problem))


def _gains(problem: Problem, ample: Sequence[Plan], best: Plan) -> bool:
    """Whether the first plan of ample memory is one that memory does not hold, and better."""
    return (
        bool(ample)
        and bool(feasibility.breaches(problem, ample[0]))
        and preference(ample[0], problem) < preference(best, problem)
    )


def _finest(problem: Problem) -> Problem:
    """The problem in its smallest micro-batches, which need the least memory."""
    workload = problem.workload
    if not isinstance(workload, Training):
        return problem
    return replace(
        problem, workload=replace(workload, micro_batch=min(candidates.micro_batches(problem)))
    )
