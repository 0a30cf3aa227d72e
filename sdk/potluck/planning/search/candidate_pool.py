"""The plans that a search has looked at: each simulated once, those that memory holds in their
order.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import peers, shape
from potluck.planning.plans import is_thrifty, rounded
from potluck.planning.search.local_search import floor_s
from potluck.planning.search.plan_floor import least_s
from potluck.planning.search.subset_dp import objective
from potluck.planning.search.work_budget import TASK_S, WorkBudget, given_s, is_many
from potluck.records import Plan, Problem, QoE, Stage
from potluck.simulate import cost, direct_simulation, footprint

MAX_WORK = 3e5  # a pass beyond takes seconds; only who gives a time limit gets it
# of its memory by the closed form, that is near the simulated peak: up to here a plan holds
PLENTY = 0.9
HOPELESS = 1.5  # a plan that takes this many times the best is not looked at
PACE_ERROR = 1.25  # by which the first look at the pace of a stream may be wrong
SMALL_J = 1e-9  # a limit of nothing
LATE_J = 1e12  # the latency asked for is a limit: a plan on time comes before any that is late
HOLDS = 1e6  # a score beyond is that of a plan that is late, or exceeds its joules


@dataclass(slots=True)
class CandidatePool:
    """Every plan that was looked at and that memory holds, and its score.

    The best first when asked.

    Of plans that differ only in which of alike devices does what, one is simulated. `budgets`:
    bytes that each device may use; those of the table unless given. `keeps_joules`: a plan within
    the limits on energy comes before any that is not.
    """

    problem: Problem
    table: cost.CostTable
    simulator: direct_simulation.Direct
    scores: dict[tuple[tuple[Stage, ...], int], tuple[float, Plan]] = field(default_factory=dict)
    best: float = inf
    max_work: float = MAX_WORK
    budget: WorkBudget = field(default_factory=WorkBudget)
    is_late: Callable[[], bool] = field(default=lambda: False)
    # planners that were run and had the time that they took
    planners_run: set[Callable[..., object]] = field(default_factory=set)
    # score and latency, by `shape`
    known: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    sets: set[frozenset[str]] = field(default_factory=set)  # of devices, of plans simulated
    budgets: Mapping[str, int] = field(default_factory=dict)
    keeps_joules: bool = False
    peers: dict[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.budgets = self.budgets or self.table.budgets
        self.peers = peers(self.table)

    def knows(self, plan: Plan) -> bool:
        """Whether `plan` was simulated already, or one like it."""
        return shape(plan, self.peers) in self.known

    @property
    def holds(self) -> bool:
        """Whether some plan keeps to memory, and to seconds and joules as far as they are looked
        at.
        """
        return self.best < HOLDS

    def is_over(self) -> bool:
        """Whether time is up and there is a plan. In a home of many devices, where counted work
        ends the search, also if there is none by the half of it: the other half is for looks at
        plans that may fit after all.
        """
        if self.scores:
            return self.is_late()
        return (
            is_many(self.problem) and self.budget() >= given_s(self.problem) / 2 and self.is_late()
        )

    def score(self, plan: Plan) -> float:
        """Simulate `plan` unless it is known or cannot be the best; its score, infinite if it was
        not simulated, or memory does not hold it.
        """
        key = plan.stages, plan.micro_batch
        if key in self.scores:
            return self.scores[key][0]
        if any(
            min(s.shares) < candidates.fewest_rows(self.problem, s.start, s.stop)
            for s in plan.stages
        ):
            return inf
        like = shape(plan, self.peers)
        if like not in self.known:
            if not is_thrifty(self.problem) and self._is_hopeless(plan):
                return inf
            self.sets.add(frozenset(plan.devices))
            self.known[like] = self._simulated(plan)
        score, latency_s = self.known[like]
        if score == inf:
            return inf
        self.scores[key] = score, replace(plan, latency_s=latency_s)
        self.best = min(self.best, score)
        return score

    @property
    def _asks_for_joules(self) -> bool:
        return is_thrifty(self.problem) or self.keeps_joules

    def exact_score(self, plan: Plan) -> float:
        """The same, of a stream with the pace of many requests however slow it is."""
        score = self.score(plan)
        if score < inf and self.simulator.streaming and not self._asks_for_joules:
            return self.simulator.run(plan).latency_s
        return score

    def may_beat(self, plan: Plan, score: float) -> bool:
        """Whether `plan` may have a lower score: where joules decide its seconds do not tell."""
        return is_thrifty(self.problem) or least_s(self.table, plan) < score

    def _is_hopeless(self, plan: Plan) -> bool:
        """Whether the plan is far from the best however fast its links are; or with those there
        are, where it need not say what its devices would take.
        """
        limit_s = self.best * HOPELESS
        if floor_s(self.table, plan) >= limit_s:
            return True
        is_explored = is_many(self.problem) or frozenset(plan.devices) in self.sets
        return is_explored and least_s(self.table, plan) >= limit_s

    def simulate(self, plan: Plan) -> direct_simulation.StepOutcome:
        """What would become of the plan; counted, unless the simulator remembers it. Of streams
        that are not among the fastest, or that memory does not hold, the pace is not exact.
        """
        before = self.simulator.n_simulated
        most_s = inf if self._asks_for_joules else self.best * PACE_ERROR
        budgets = None if self._has_plenty(plan) else self.budgets
        outcome = self.simulator.run(plan, most_s, budgets)
        self.budget.count(self.simulator.n_simulated - before, TASK_S)
        return outcome

    def _simulated(self, plan: Plan) -> tuple[float, float]:
        """Score and latency; of a plan that memory cannot hold neither is looked at."""
        least = footprint.least_bytes(self.table, plan.stages)
        if any(nbytes > self.budgets[name] for name, nbytes in least.items()):
            return inf, inf
        outcome = self.simulate(plan)
        if not self._holds(plan, outcome):
            return inf, outcome.latency_s
        latency_s, qoe = outcome.latency_s, self.problem.qoe
        joules = outcome.device_energy_j() if self._asks_for_joules else {}
        excess = LATE_J * excess_joules(qoe, joules) if self.keeps_joules else 0.0
        if not is_thrifty(self.problem):
            return latency_s + excess, latency_s
        lateness = latency_s / (qoe.latency_s or inf)
        late = LATE_J * lateness if lateness > 1 else 0.0
        return objective(qoe, latency_s, sum(joules.values())) + late + excess, latency_s

    def _holds(self, plan: Plan, outcome: direct_simulation.StepOutcome) -> bool:
        """Whether every device has memory for what it has at once; not looked at where there is
        plenty.
        """
        return self._has_plenty(plan) or outcome.keeps_to(inf, self.budgets)

    def _has_plenty(self, plan: Plan) -> bool:
        """Whether memory holds the plan by far, by the closed form."""
        if self.budgets is not self.table.budgets:
            return False
        n_requests = direct_simulation.in_flight(plan) if self.simulator.streaming else 1
        needed = footprint.plan_bytes(self.table, plan.stages, n_requests)
        return all(nbytes <= PLENTY * self.budgets[name] for name, nbytes in needed.items())

    def ranking(self) -> list[Plan]:
        """All simulated plans, the best first; of equally good ones, those of the fewest stages."""

        def rank(item: tuple[float, Plan]) -> tuple[float, int]:
            return rounded(item[0]), len(item[1].stages)

        return [plan for _, plan in sorted(self.scores.values(), key=rank)]


def excess_joules(qoe: QoE, joules: Mapping[str, float]) -> float:
    """By which parts of themselves limits on energy are exceeded, added up.

    Parameters
    ----------
    qoe
        The limits.
    joules
        Of each device.
    """
    limits = [(joules.get(name, 0.0), limit) for name, limit in qoe.device_energy_j.items()]
    if qoe.energy_j is not None:
        limits.append((sum(joules.values()), qoe.energy_j))
    return sum(max(0.0, used - limit) / max(limit, SMALL_J) for used, limit in limits)
