"""Interchange formats: other planners get our problems in their own formats, and their plans come
back to be evaluated. Pure.

Text in, records out, and back. Their code stays where it is; what they leave open (which device
takes which stage, in what shares) is filled in as it serves them best.
"""

from collections.abc import Iterator

from potluck.errors import PlanError
from potluck.planning.evaluate import judge
from potluck.planning.feasibility import breaches
from potluck.planning.formats import metis, pipedream
from potluck.planning.plans import Plans, preference
from potluck.records import Plan, Problem
from potluck.simulate import cost, direct_simulation

# of a peer's plans and of the ways to fill them in, those of the best closed-form time
MAX_JUDGED = 48

__all__ = ["judged", "metis", "pipedream"]


def judged(text: str, problem: Problem) -> Plans:
    """What a peer's planner wrote, judged on the shared links of `problem`, best first.

    Parameters
    ----------
    text
        A `graph.txt` with stages, the partition that PipeDream's optimizer prints, or the ranking
        that Metis prints.

    Raises
    ------
    PlanError
        Where it is none of these, or does not belong to this problem.
    """
    table = cost.CostTable(problem)
    simulator = direct_simulation.Direct(problem, table)
    found = sorted(_plans(text, problem, table), key=lambda plan: plan.latency_s or float("inf"))
    if not found:
        raise PlanError(
            "none of these plans fits into the memory of this home.",
            next_step="Add devices, or memory.",
        )
    items = [judge(problem, plan, table, simulator) for plan in found[:MAX_JUDGED]]
    holding = [plan for plan in items if not breaches(problem, plan)]
    return Plans(tuple(sorted(holding or items, key=lambda plan: preference(plan, problem))))


def _plans(text: str, problem: Problem, table: cost.CostTable) -> Iterator[Plan]:
    if metis.is_plan(text):
        return metis.plans(text, problem, table)
    if pipedream.is_plan(text):
        return pipedream.plans(text, problem, table)
    raise PlanError(
        "this is no plan that is known here.",
        next_step="Known: a potluck plan, a PipeDream graph.txt with stages or its printed "
        "partition, Metis' ranking.",
    )
