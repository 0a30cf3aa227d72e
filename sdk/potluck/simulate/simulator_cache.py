"""A simulator that remembers what it found: several searches of one problem meet the same plans
again and again, and three of four need not be simulated.
"""

from collections import OrderedDict
from collections.abc import Mapping
from math import inf

from potluck.records import Plan, Problem, Stage
from potluck.simulate import cost
from potluck.simulate.direct_simulation import Direct, StepOutcome

MOST_TASKS = 400_000  # of the outcomes kept: some 40 MB

_Key = tuple[tuple[Stage, ...], int, str]


class SimulatorCache(Direct):
    """Simulates plans of one problem, each once as long as its outcome is kept.

    Limits on memory, latency and energy change no outcome: the same object serves problems that
    differ in nothing else.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem, if there is one already.
    most_tasks
        That the outcomes kept have together; of more, those asked for longest ago go.
    """

    def __init__(
        self, problem: Problem, table: cost.CostTable | None = None, *, most_tasks: int = MOST_TASKS
    ) -> None:
        super().__init__(problem, table)
        self._outcomes = OrderedDict[_Key, StepOutcome]()
        self._most_tasks = most_tasks
        self._n_kept = 0

    def run(
        self, plan: Plan, most_s: float = inf, budgets: Mapping[str, int] | None = None
    ) -> StepOutcome:
        """As of any simulator; of a plan that is remembered at once.

        Parameters
        ----------
        plan
            To be carried out.
        most_s
            Plans that take longer are of no use to who asks.
        budgets
            Nor plans that hold more bytes on a device.
        """
        key = plan.stages, plan.micro_batch, plan.schedule
        found = self._outcomes.pop(key, None)
        if found is not None and (found.is_settled or not found.keeps_to(most_s, budgets)):
            self._outcomes[key] = found
            return found
        self._n_kept -= found.n_tasks if found is not None else 0
        found = self._outcomes[key] = super().run(plan, most_s, budgets)
        self._n_kept += found.n_tasks
        while self._n_kept > self._most_tasks and len(self._outcomes) > 1:
            self._n_kept -= self._outcomes.popitem(last=False)[1].n_tasks
        return found
