"""Planning work, counted: a clock that tells the same on every machine.

Without a time limit the effort of planning must not depend on the machine, or two of them would
disagree on the plan. In a home of few devices the search ends by itself; in one of many what it has
done is counted, and ends it.
"""

from collections.abc import Callable, Iterator
from math import inf

from potluck.records import Plan, Problem
from potluck.simulate import cost

MANY = 8  # devices beyond which work is counted
# On a core of 2020 or so, about:
# a simulated task, a label and a stage of the search
TASK_S = 12e-6
LABEL_S = 6e-6
HEAD_S = 20e-6
# of others: the cost of some layers, a step, a plan per device
COST_S = 0.8e-6
STEP_S = 30e-6
DEVICE_S = 20e-6
NEIGHBOUR_S = 2e-4  # what a plan next to another takes at the least
LOOK_S = 2e-4  # between two looks at the clock
GIVEN_S, GIVEN_FOR = 2.8, 24  # a home of 24 devices
GROWTH = 1.7  # power of the devices beyond
QUICK_MICRO_BATCHES = 256  # up to so many a step is simulated in some 20 ms


class WorkBudget:
    """Seconds that the work done so far would take; `budget()` reads it as one reads a clock."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def __call__(self) -> float:
        """Seconds so far."""
        return self.elapsed_s

    def count(self, n: int, each_s: float) -> None:
        """`n` pieces of work are done."""
        self.elapsed_s += n * each_s


class BudgetSpent(Exception):
    """Time is up in the middle of a planner that knows no clock."""


class MeteredTable(cost.CostTable):
    """A table that counts what it is asked, and raises `BudgetSpent` once time is up: so any
    planner can be ended.

    Parameters
    ----------
    problem
        What is planned.
    budget
        Counts the work.
    is_late
        Whether time is up.
    limit_s
        Plans that take longer are of no use.
    known
        A table that has looked up some times already.
    """

    def __init__(
        self,
        problem: Problem,
        budget: WorkBudget,
        is_late: Callable[[], bool],
        limit_s: float = inf,
        known: cost.CostTable | None = None,
    ) -> None:
        super().__init__(problem)
        if known is not None:
            self.share_times(known)
        self.limit_s = limit_s
        self._budget = budget
        self._is_late = is_late
        self._unseen_s = 0.0

    def sibling(self, problem: Problem) -> "MeteredTable":
        """A table of another problem on the same clock."""
        return MeteredTable(problem, self._budget, self._is_late)

    def at_work(self) -> None:
        """A step of the planner is done."""
        self._count(STEP_S)

    def forward_s(self, device: str, start: int, stop: int, rows: int) -> float:
        """As of any table, counted.

        Parameters
        ----------
        device
            Its name.
        start, stop
            Layers [start, stop).
        rows
            Rows of a micro-batch.
        """
        self._count(COST_S)
        return super().forward_s(device, start, stop, rows)

    def backward_s(self, device: str, start: int, stop: int, rows: int) -> float:
        """As of any table, counted.

        Parameters
        ----------
        device
            Its name.
        start, stop
            Layers [start, stop).
        rows
            Rows of a micro-batch.
        """
        self._count(COST_S)
        return super().backward_s(device, start, stop, rows)

    def compute_s(self, device: str, start: int, stop: int, rows: int) -> float:
        """As of any table, counted as two.

        Parameters
        ----------
        device
            Its name.
        start, stop
            Layers [start, stop).
        rows
            Rows of a micro-batch.
        """
        self._count(2 * COST_S)
        return super().compute_s(device, start, stop, rows)

    def _count(self, seconds: float) -> None:
        self._unseen_s += seconds
        if self._unseen_s >= LOOK_S:
            self._look()

    def _look(self) -> None:
        self._budget.count(1, self._unseen_s)
        self._unseen_s = 0.0
        if self._is_late():
            raise BudgetSpent


def in_time(
    planner: Callable[[Problem, cost.CostTable], Iterator[Plan]],
    problem: Problem,
    budget: WorkBudget,
    is_late: Callable[[], bool],
    limit_s: float = inf,
    known: cost.CostTable | None = None,
) -> list[Plan]:
    """What `planner` finds before time is up, what it thinks best first.

    Parameters
    ----------
    planner
        Called with problem and table; gives plans one by one.
    problem
        What is planned.
    budget
        Counts the work.
    is_late
        Whether time is up.
    limit_s
        Plans that take longer are of no use: a planner need not find them.
    known
        A table that has looked up some times already.
    """
    found: list[Plan] = []
    try:
        for plan in planner(problem, MeteredTable(problem, budget, is_late, limit_s, known)):
            budget.count(len(problem.devices), DEVICE_S)
            found.append(plan)
            if is_late():
                break
    except BudgetSpent:
        pass
    return sorted(found, key=lambda plan: plan.latency_s or 0.0)


def is_many(problem: Problem) -> bool:
    """Whether a home has so many devices that a search over all their sets does not end."""
    return len(problem.devices) > MANY


def given_s(problem: Problem) -> float:
    """Counted seconds for a problem of many devices."""
    return GIVEN_S * float(max(1.0, len(problem.devices) / GIVEN_FOR) ** GROWTH)


def fewer(max_plans: int, min_plans: int, n_micro_batches: int) -> int:
    """How many plans to simulate where each has so many micro-batches: fewer where each takes long.

    Parameters
    ----------
    max_plans, min_plans
        Plans.
    n_micro_batches
        Of a plan.
    """
    return min(max_plans, max(min_plans, max_plans * QUICK_MICRO_BATCHES // n_micro_batches))
