"""The plans of a baseline, as the simulator judges them on the shared network."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import inf

from potluck.planning.baselines.deepcee import grouped_plans
from potluck.planning.evaluate import judge
from potluck.planning.feasibility import breaches
from potluck.planning.registry import Planner
from potluck.records import Plan, Problem
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

MOST_LEFT_OUT = 0.1  # of the devices, by a plan for all of them: HetPipe's workers are alike
MOST_REGIONS = 4  # as in Figure 12a; with a region for each device there is no second level


class Judging:
    """One judge for the plans of one problem.

    Parameters
    ----------
    problem
        What is planned.
    max_plans
        Candidates of one planner.
    """

    def __init__(self, problem: Problem, max_plans: int) -> None:
        self.problem, self.max_plans = problem, max_plans
        self.table = CostTable(problem)
        self.simulator = Direct(problem, self.table)

    def liked(self, planner: Planner) -> list[Plan]:
        """Its plans, those it estimates fastest first."""
        found = islice(planner(self.problem, CostTable(self.problem)), self.max_plans)
        return sorted(found, key=lambda plan: plan.latency_s or inf)

    def levels_s(self, max_plans: int) -> tuple[float, float]:
        """The least seconds of DeepCEE's first plans for all devices in a few regions.

        With the second level, and with one stage for each group of the first.
        """
        found = [
            (len(plan.stages) == len(grouping.regions), plan)
            for grouping, plan in grouped_plans(self.problem, CostTable(self.problem))
            if len(grouping.regions) <= MOST_REGIONS and self._is_whole(plan)
        ]
        found.sort(key=lambda pair: pair[1].latency_s or inf)
        first_s = self.best_s([plan for is_first, plan in found if is_first][:max_plans])
        return min(first_s, self.best_s([plan for _, plan in found][:max_plans])), first_s

    def first(self, plans: Sequence[Plan]) -> Plan | None:
        """The first that memory holds, of those that give nearly every device rows."""
        return next(self._held(filter(self._is_whole, plans)), None)

    def first_s(self, plans: Sequence[Plan]) -> float:
        """Its seconds; infinite where there is none."""
        plan = self.first(plans)
        return inf if plan is None else plan.latency_s or inf

    def _is_whole(self, plan: Plan) -> bool:
        n = len(self.problem.devices)
        return n - len(plan.devices) <= MOST_LEFT_OUT * n

    def best_s(self, plans: Sequence[Plan]) -> float:
        """The least seconds of those that memory holds."""
        return min((plan.latency_s or inf for plan in self._held(plans)), default=inf)

    def _held(self, plans: Iterable[Plan]) -> Iterator[Plan]:
        for plan in plans:
            judged = judge(self.problem, plan, self.table, self.simulator)
            if not breaches(self.problem, judged):
                yield judged
