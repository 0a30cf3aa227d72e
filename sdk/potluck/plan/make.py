"""From a problem to judged plans: ask the planners, keep the promising, let the simulator decide."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from potluck.errors import EmptyHome
from potluck.plan import cost, feasibility
from potluck.plan.data_parallel import plan_data_parallel
from potluck.plan.hybrid import plan_hybrid
from potluck.plan.judge import judge
from potluck.plan.plans import Plans, preference
from potluck.plan.single import plan_single
from potluck.records import Plan, Problem
from potluck.simulate import direct

Planner = Callable[[Problem, cost.CostTable], Iterator[Plan]]

PLANNERS: tuple[Planner, ...] = (plan_single, plan_data_parallel, plan_hybrid)
MAX_JUDGED = 12  # per planner, those it estimates fastest; a simulation takes milliseconds


def make_plans(problem: Problem) -> Plans:
    """All plans that hold the limits, best first; `Infeasible` when there is none, saying why and what would help."""
    if not problem.devices:
        raise EmptyHome("This home has no devices.", next_step="Start an agent on one: `potluck agent`.")
    table = cost.CostTable(problem)
    simulator = direct.Direct(problem, table)
    judged = [judge(problem, plan, table, simulator) for plan in candidates(problem, table)]
    judged = judged or _unlimited(problem)
    holding = [plan for plan in judged if not feasibility.breaches(problem, plan)]
    if not holding:
        raise feasibility.infeasible(problem, judged)
    holding.sort(key=lambda plan: preference(plan, problem.qoe))
    holding[0] = replace(holding[0], unused=feasibility.why_unused(problem, holding[0], judged))
    return Plans(tuple(holding))


def candidates(problem: Problem, table: cost.CostTable) -> Iterator[Plan]:
    """The fastest plans by each planner's own estimate, each once."""
    seen = set()
    for planner in PLANNERS:
        for plan in fastest(planner(problem, table), MAX_JUDGED):
            if (plan.stages, plan.micro_batch) not in seen:
                seen.add((plan.stages, plan.micro_batch))
                yield plan


def fastest(plans: Iterable[Plan], n: int) -> list[Plan]:
    """The `n` plans of the least estimated latency."""
    return sorted(plans, key=lambda plan: plan.latency_s or 0.0)[:n]


def _unlimited(problem: Problem) -> list[Plan]:
    """Judged plans that ignore memory, for saying by how much it is missed."""
    free = feasibility.without_memory_limits(problem)
    table = cost.CostTable(free)
    return [judge(free, plan, table) for plan in candidates(free, table)]
