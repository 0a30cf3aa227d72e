"""Looks at a problem: as it is; with more memory than there is, since closed forms of memory take
links to be as slow as they may be; with activations computed again; and next to the best plans.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf

from potluck.planning import feasibility
from potluck.planning.anytime import TRIES, improve, is_small, search
from potluck.planning.baselines.data_parallel import plan_data_parallel
from potluck.planning.baselines.dora import plan_dora
from potluck.planning.bounds.energy import holds_weights
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import shape
from potluck.planning.evaluate import judge
from potluck.planning.plans import is_thrifty, preference
from potluck.planning.search import recomputation
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.candidate_pool import MAX_WORK, CandidatePool
from potluck.planning.search.least_excess import within_memory
from potluck.planning.search.stage_merging import joined
from potluck.planning.search.tight_memory import alone
from potluck.planning.search.work_budget import WorkBudget, fewer, given_s, is_many
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost, direct_simulation, flows, footprint

MAX_SHOWN = 12  # plans judged in full besides the best of every set of devices
MAX_SETS = 24
MAX_LISTED = 60  # plans among which those are found: many are one another but for needless cuts
# plans of the one planner that knows parallel branches, to begin with where there are any
N_BRANCHED = 12
NO_HURRY_S = 1e12  # a latency that every plan holds: then the least energy decides
# steps of a search that need find nothing good, and plans simulated for those that just fit
GLANCE, LOOK = 15, 300
LEAST_LOOK = 40  # of those, where they have thousands of micro-batches
# plans that exceed memory least, by what part in all, and simulations to lessen that of each
N_NEAREST, NEAR_FRAC = 6, 0.6
N_NEAR = 8  # plans of those that hold, next to which others are looked for as simulated
MAX_LESSENED = 250
N_AMPLE = 12  # plans of ample memory that those that recompute begin with
# Looked at where nothing fits by closed forms: times the memory there is, and how many
# micro-batches wait. Requests wait for nobody's gradient, so that all of them may.
LOOSER = ((1.15, None), (1.4, None), (2.0, None))
PROMPTLY = ((1.0, 2), (1.0, 0), (1.4, 0))
PARTLY = LOOSER[1:2]  # where plans that recompute hold
# of a device's memory, that home's whole batch may fill before anybody computes
WAITING_PART = 0.1
BOUND_PART = 0.25  # of the time given, kept for the certificate
OTHERS_PART = 1 / 6  # in a home of many devices, kept for what other planners find
RELIEF_PART = 0.16  # there, kept for what the best plan of all lacks
THRIFT_PART = 0.65  # of the time given, kept for the thriftiest and the certificate

Looser = tuple[tuple[float, int | None], ...]
IsLate = Callable[[float], bool]  # whether no more than this part of the time is left


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPass:
    """One search for plans, and what it may spend.

    Parameters
    ----------
    problem
        What is planned; its memory may be more than there is.
    table
        Of this problem.
    simulator
        Of this problem, or of one that differs in limits alone.
    is_late
        Whether no more than this part of the time is left.
    budget
        What counts the work.
    budgets
        Bytes that simulated plans may use per device, where the problem says otherwise.
    thorough
        Work is limited by time alone.
    borrow
        Plans of other planners are candidates, too.
    max_plans
        Simulated at the most.
    """

    problem: Problem
    table: cost.CostTable
    simulator: direct_simulation.Direct
    is_late: IsLate
    budget: WorkBudget
    budgets: Mapping[str, int] | None = None
    thorough: bool = False
    borrow: bool = True
    max_plans: float = inf

    def plans(self, known: Sequence[Plan] = ()) -> list[Plan]:
        """The best plans found, judged in full: the fastest, and where joules decide or are limited
        the thriftiest.

        Parameters
        ----------
        known
            To begin with.
        """
        pools = self._searched(known)
        chosen: dict[Hashable, Plan] = {}
        watts = {d.name: (d.idle_w, d.busy_w, d.radio_w) for d in self.problem.devices}
        for pool in pools:
            for plan in _shown(pool):
                joules = tuple(watts[name] for name in plan.devices)
                chosen.setdefault((shape(plan, pools[0].peers), joules), plan)
        return [judge(self.problem, plan, self.table, self.simulator) for plan in chosen.values()]

    def _searched(self, known: Sequence[Plan]) -> list[CandidatePool]:
        """What was found, the pool of the fastest first."""
        problem, qoe = self.problem, self.problem.qoe
        limited = qoe.energy_j is not None or bool(qoe.device_energy_j)
        hurried = replace(problem, qoe=replace(qoe, latency_s=None))
        fastest = self._pool(hurried, keeps_joules=False)
        thrifty, many = qoe.latency_s is not None or limited, is_many(problem)
        certifies = self.thorough or not many  # else the bound counts for itself
        bound_part = BOUND_PART if certifies else 0.0
        others_part = bound_part + (RELIEF_PART if many else 0.0)
        own_part = others_part + (OTHERS_PART if many else 0.0)
        first = baselines(problem, self.table) if self.borrow else []
        search(
            fastest,
            [*known, *first],
            lambda: self.is_late(THRIFT_PART if thrifty else bound_part),
            ends_own=lambda: self.is_late(THRIFT_PART if thrifty else own_part),
            ends_others=lambda: self.is_late(THRIFT_PART if thrifty else others_part),
            borrow=self.borrow,
            max_plans=self.max_plans,
        )
        unhurried = replace(problem, qoe=replace(qoe, latency_s=qoe.latency_s or NO_HURRY_S))
        pools = [fastest]
        # Where nothing is on time, joules do not matter.
        if thrifty and is_thrifty(unhurried) and fastest.best <= (qoe.latency_s or inf):
            pools.append(self._pool(unhurried, keeps_joules=limited))
        if limited:  # the fastest of those that keep within their joules
            pools.append(self._pool(hurried, keeps_joules=True))
        for pool in pools[1:]:
            search(
                pool,
                [plan for other in pools for plan in other.ranking()[:MAX_SHOWN]],
                lambda: self.is_late(bound_part),
                ends_own=lambda: self.is_late(own_part),
                ends_others=lambda: self.is_late(others_part),
                borrow=self.borrow,
                max_plans=self.max_plans,
            )
        return pools

    def _pool(self, problem: Problem, *, keeps_joules: bool) -> CandidatePool:
        return CandidatePool(
            problem,
            self.table.sibling(problem),  # searches ask their table's problem
            self.simulator,
            max_work=inf if self.thorough else MAX_WORK,
            budget=self.budget,
            budgets=self.budgets or {},
            keeps_joules=keeps_joules,
        )

    def beyond(self, known: Sequence[Plan], looser: Looser | None = None) -> list[Plan]:
        """Judged plans of looks that take memory to be more than it is: some plans that closed
        forms refuse hold after all when they are simulated.

        Without any, plans that ignore memory, for saying by how much it is missed.

        Parameters
        ----------
        known
            Those that hold by closed forms.
        looser
            How much more memory, and how many micro-batches wait; default: by the problem.
        """
        problem, table = self.problem, self.table
        best, looks = self._best(known), looser or _looser(table)
        for factor, n_waiting in looks if holds_weights(table, problem.devices) else ():
            if self.is_late(0.0):
                break
            more = feasibility.with_more_memory(problem, factor)
            look = replace(
                self,
                problem=more,
                table=cost.CostTable(more, recomputes=table.recomputes, n_waiting=n_waiting),
                is_late=lambda _: self.is_late(0.0),
                budgets=table.budgets,
                max_plans=_looked(best),
            )
            best = self._best([*best, *look.plans(best)])
            if best and not is_small(table):
                break
        if best:
            return best
        free, steps = feasibility.with_more_memory(_finest(problem), inf), count()
        glance = replace(
            self,
            problem=free,
            table=table.sibling(free),
            is_late=lambda _: next(steps) > GLANCE,
            budget=WorkBudget(),
            borrow=True,
        )
        return glance.plans()

    def _best(self, plans: Sequence[Plan]) -> list[Plan]:
        """The first few, as plans of this problem: those that hold its limits before others."""
        own = {(p.stages, p.micro_batch): replace(p, problem=self.problem) for p in plans}

        def rank(plan: Plan) -> tuple[bool, tuple[float, ...]]:
            return bool(feasibility.breaches(self.problem, plan)), preference(plan, self.problem)

        return sorted(own.values(), key=rank)[:MAX_SHOWN]

    def recomputing(self, known: Sequence[Plan]) -> list[Plan]:
        """Judged plans whose stages may compute activations again: where memory keeps a better plan
        away, or every plan.

        Their starts are the plans of a home whose memory is no limit, as far as they exceed it.

        Parameters
        ----------
        known
            Judged without that.
        """
        problem, table = self.problem, self.table
        holding = [plan for plan in known if not feasibility.breaches(problem, plan)]
        if not _may_recompute(problem, table) or (holding and self.is_late(0.0)):
            return []
        again = replace(self, borrow=False, thorough=False)
        if is_many(problem) and not holding and self.is_late(0.0):  # what is counted begins anew
            budget = WorkBudget()
            again = replace(again, budget=budget, is_late=_counted(budget, given_s(problem)))
        best = self._best(holding)
        ample = again.without_limit(best)
        if best and not _gains(problem, ample, best[0]):
            return []
        looked = table.of(True)
        starts = [other for plan in ample[:N_AMPLE] for other in recomputation.starts(looked, plan)]
        again = replace(again, table=looked)
        found = replace(again, max_plans=2 * _looked(best)).plans([*best, *starts])
        if found and is_small(table):
            found += again.beyond(self._best([*best, *found]), PARTLY)
        stated = self._in_size_of(best, ample)
        if stated is not None:
            found += stated.recomputing(holding)
        return found if holding or found else again.beyond(())

    def as_simulated(self, judged: Sequence[Plan]) -> list[Plan]:
        """Judged plans of a small home next to the best, or where none holds next to those that
        exceed memory least, whatever closed forms of memory say: what is simulated has to hold.
        None where memory keeps no plan away.

        Parameters
        ----------
        judged
            All so far.
        """
        problem, table = self.problem, self.table
        qoe = problem.qoe
        holding = [plan for plan in judged if not feasibility.breaches(problem, plan)]
        if self.is_late(0.0) or not is_small(table):
            return []
        if holding and not may_hide_plans(problem, table):
            return []
        again = not holding and _may_recompute(problem, table)
        ample = self._ample(table.of(again))
        limited = qoe.energy_j is not None or bool(qoe.device_energy_j)
        pool = ample._pool(ample.problem, keeps_joules=limited or not holding)
        pool.is_late = lambda: self.is_late(0.0)
        starts, tries = self._best(holding)[:N_NEAR], TRIES
        if not holding:
            found = within_memory(pool, self._nearest(judged), MAX_LESSENED)
            starts, tries = [found] if found is not None else [], MAX_LESSENED
        for _ in improve(pool, starts, tries, StagePlacements(pool.table).ranked):
            if pool.is_over():
                break
        best = pool.ranking()[:N_NEAREST]
        return [judge(problem, plan, self.table, self.simulator) for plan in best]

    def _nearest(self, judged: Sequence[Plan]) -> list[Plan]:
        """Those that exceed memory or joules least, and no other limit; of devices alone, too."""
        problem = self.problem
        single = alone(problem, min(candidates.micro_batches(problem)))
        judged = [*judged, *(judge(problem, plan, self.table, self.simulator) for plan in single)]
        nearest = sorted((_excess_frac(problem, plan), i) for i, plan in enumerate(judged))
        return [judged[i] for excess, i in nearest[:N_NEAREST] if excess <= NEAR_FRAC]

    def _ample(self, table: cost.CostTable) -> "SearchPass":
        """A look whose closed forms take memory to be no limit; what is simulated has to hold."""
        free = feasibility.with_more_memory(self.problem, inf)
        return replace(self, problem=free, table=table.sibling(free), budgets=self.table.budgets)

    def _in_size_of(self, best: Sequence[Plan], ample: Sequence[Plan]) -> "SearchPass | None":
        """The same look in the micro-batches of the best plan alone, where none of ample memory has
        that size: larger ones may be better, and not hold in any way. None in a home of many
        devices.
        """
        problem, workload = self.problem, self.problem.workload
        if not isinstance(workload, Training) or workload.micro_batch is not None:
            return None
        if not best or is_many(problem):
            return None
        size = best[0].micro_batch
        if size in {plan.micro_batch for plan in ample[:N_AMPLE]}:
            return None
        problem = replace(problem, workload=replace(workload, micro_batch=size))
        return replace(self, problem=problem, table=self.table.sibling(problem))

    def without_limit(self, known: Sequence[Plan]) -> list[Plan]:
        """Judged plans of the same home if its memory were no limit, the best first.

        Parameters
        ----------
        known
            To begin with.
        """
        free = feasibility.with_more_memory(self.problem, inf)
        look = replace(self, problem=free, table=self.table.sibling(free), max_plans=LOOK)
        found = [replace(plan, problem=self.problem) for plan in look.plans(known)]
        return sorted(found, key=lambda plan: preference(plan, self.problem))


def _shown(pool: CandidatePool) -> list[Plan]:
    """The best plans, the best of every set of devices, and those of one device."""
    places = StagePlacements(pool.table)
    best, sets = dict[Hashable, Plan](), dict[frozenset[str], Plan]()
    ranking = pool.ranking()
    for plan in ranking[:MAX_LISTED]:
        if len(best) == MAX_SHOWN:
            break
        merged = joined(pool, places, plan)
        best.setdefault(shape(merged, pool.peers), merged)
    for plan in ranking:
        sets.setdefault(frozenset(plan.devices), plan)
    alone = [plan for plan in sets.values() if len(plan.devices) == 1]
    others = [*list(sets.values())[:MAX_SETS], *alone]
    return [*best.values(), *(joined(pool, places, plan) for plan in others)]


def baselines(problem: Problem, table: cost.CostTable) -> list[Plan]:
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
        plan
        for found, n_plans in zip(plans, (3, N_BRANCHED), strict=False)
        for plan in found[:n_plans]
    ]


def may_hide_plans(problem: Problem, table: cost.CostTable) -> bool:
    """Whether closed forms of memory may keep a better plan from a small problem: where some device
    cannot hold all of the model and a whole batch, however many share it. In larger ones a second
    look would take as long as the first: it is taken where a device alone holds a request only as
    long as little waits.
    """
    n = len(problem.devices)
    n_layers = len(problem.layers)
    batch = problem.workload.batch
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


def _looser(table: cost.CostTable) -> Looser:
    """How much more than there is memory is taken to be, and how many micro-batches wait."""
    problem = table.problem
    if not isinstance(problem.workload, Training):
        return PROMPTLY
    fed_bytes = problem.input_bytes + problem.target_bytes
    waits = fed_bytes * problem.workload.batch > WAITING_PART * min(table.budgets.values())
    if waits or not all(flows.learning_layers(problem)):
        return (*LOOSER, *PROMPTLY[:1])
    return LOOSER


def _may_recompute(problem: Problem, table: cost.CostTable) -> bool:
    """Whether a step keeps activations, and some device cannot hold all of the model and those of
    a whole batch.
    """
    if not isinstance(problem.workload, Training):
        return False
    rows, n_layers = problem.workload.batch, len(problem.layers)
    needed = footprint.memory_bytes(table, 0, n_layers, rows, warm_up=1)
    return any(needed > nbytes for nbytes in table.budgets.values())


def _looked(best: Sequence[Plan]) -> int:
    """Plans that a look simulates: fewer where the best has so many micro-batches that each takes
    long.
    """
    return fewer(LOOK, LEAST_LOOK, best[0].n_micro_batches if best else 1)


def _excess_frac(problem: Problem, plan: Plan) -> float:
    """By which parts of what they may use devices need more memory or joules, added up; infinite
    where that is not all that keeps the plan from being carried out.
    """
    broken = feasibility.breaches(problem, plan)
    if any(breach.limit in ("rows", "latency") or not breach.available for breach in broken):
        return inf
    return sum(breach.needed / breach.available - 1 for breach in broken)


def _counted(budget: WorkBudget, given: float) -> IsLate:
    def is_late(part: float) -> bool:
        return budget() >= given * (1 - part)

    return is_late


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
