"""Every planner on every setting and model of the papers, all judged by the one simulator on the shared network.

`worst_ratio_to_best_rival`: over all cases our latency by that of the best rival. The speed-ups are over the best of
Asteroid, EdgeShard, Alpa and Metis. Energy: ours at 0.8 times the latency of the fastest of these four (Dora, section
6.2), and at the same latency, where our planner reaches it, against the energy of that fastest one; the figures n_...
count these cases. A rival is judged on the plans it estimates fastest; `settings` says how many.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from statistics import median

from potluck.bench import cases
from potluck.bench.cases import Case
from potluck.bench.frame import Result
from potluck.errors import Infeasible
from potluck.plan import make_plans
from potluck.plan.cost import CostTable
from potluck.plan.feasibility import breaches
from potluck.plan.judge import judge
from potluck.plan.planners import RIVALS
from potluck.records import Plan, Problem, QoE
from potluck.simulate.direct import Direct

SETTINGS: Mapping[str, float] = {"judged": 12, "candidates": 4000, "dora": 1, "asteroid": 1, "every": 1}
GOALS = {"worst_ratio_to_best_rival": ("<=", 1.0)}
PAPERS = ("asteroid", "edgeshard", "alpa", "metis")  # whom Dora compares with
URGENT_FRAC = 0.8
OURS = "potluck"


@dataclass(slots=True)
class Row:
    """One case: per planner its best plan, if any fits, and its planning seconds; the energy that ours saves."""

    case: Case
    best: dict[str, Plan] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    saving_urgent: float | None = None
    saving_equal: float | None = None

    def latency_s(self, *names: str) -> float:
        """The least latency of these planners; infinite where none has a plan that fits."""
        return min((self.best[name].latency_s or inf for name in names if name in self.best), default=inf)


def run(settings: Mapping[str, float]) -> Result:
    """All cases; figures per planner as well."""
    chosen = [*(cases.dora() if settings["dora"] else ()), *(cases.asteroid() if settings["asteroid"] else ())]
    rows = [measure(case, settings) for case in chosen[:: int(settings["every"])]]
    return Result(name="planners", figures=figures(rows), settings=dict(settings), goals=GOALS)


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """What is reported of all cases."""
    solved = [row for row in rows if OURS in row.best]
    rivalled = [row for row in solved if row.latency_s(*RIVALS) < inf]
    found: dict[str, float] = {
        "worst_ratio_to_best_rival": max(
            (row.latency_s(OURS) / row.latency_s(*RIVALS) for row in rivalled), default=0.0
        ),
        "median_ratio_to_best_rival": median(row.latency_s(OURS) / row.latency_s(*RIVALS) for row in rivalled),
    }
    for what, train in (("train", True), ("infer", False)):
        ups = [
            row.latency_s(*PAPERS) / row.latency_s(OURS) for row in rivalled
            if row.case.group == "dora" and row.case.train == train and row.latency_s(*PAPERS) < inf
        ]  # fmt: skip
        found |= _of(f"speedup_dora_settings_{what}", ups)
    found |= _of("energy_saving", (row.saving_urgent for row in solved))
    found |= _of("energy_saving_equal_latency", (row.saving_equal for row in solved))
    found |= {
        "n_cases": float(len(rows)),
        "n_infeasible": float(len(rows) - len(solved)),
        "n_only_ours_fits": float(len(solved) - len(rivalled)),
        "median_gap_frac": median(row.best[OURS].gap_frac or 0.0 for row in solved),
    }
    for name in (*RIVALS, OURS):
        key = name.replace(" ", "_")
        found[f"plan_s_{key}"] = median(row.seconds[name] for row in rows)
        behind = [row.latency_s(name) / row.latency_s(OURS) for row in solved if name in row.best]
        if behind and name != OURS:
            found[f"median_slower_{key}"] = median(behind)
            found[f"n_out_of_memory_{key}"] = float(len(solved) - len(behind))
    return found


def _of(key: str, values: Iterable[float | None]) -> dict[str, float]:
    known = [value for value in values if value is not None]
    return {f"n_{key}": float(len(known))} | (
        {f"median_{key}": median(known), f"max_{key}": max(known), f"min_{key}": min(known)} if known else {}
    )


def measure(case: Case, settings: Mapping[str, float]) -> Row:
    """Ask every planner."""
    row, problem = Row(case), case.problem()
    table = CostTable(problem)
    simulator = Direct(problem, table)
    for name, planner in RIVALS.items():
        since = time.perf_counter()
        plans = list(islice(planner(problem, CostTable(problem)), int(settings["candidates"])))
        row.seconds[name] = time.perf_counter() - since
        plans.sort(key=lambda plan: plan.latency_s or inf)
        judged = [judge(problem, plan, table, simulator) for plan in plans[: int(settings["judged"])]]
        fitting = [plan for plan in judged if not breaches(problem, plan)]
        if fitting:
            row.best[name] = min(fitting, key=lambda plan: plan.latency_s or inf)
    since = time.perf_counter()
    with suppress(Infeasible):  # where no plan fits, the case counts as infeasible
        row.best[OURS] = make_plans(problem).best
    row.seconds[OURS] = time.perf_counter() - since
    row.saving_urgent, row.saving_equal = _saving(problem, row, URGENT_FRAC), _saving(problem, row, 1.0)
    return row


def _saving(problem: Problem, row: Row, part: float) -> float | None:
    """The part of the energy that ours saves against the fastest of the papers' plans, at `part` of its latency.

    None where power is unknown or no plan is that fast.
    """
    theirs = [row.best[name] for name in PAPERS if name in row.best]
    if not theirs or any(plan.energy_j is None for plan in theirs):
        return None
    fastest = min(theirs, key=lambda plan: plan.latency_s or inf)
    limit_s = (fastest.latency_s or inf) * part * (1 + 1e-9)
    if row.latency_s(OURS) > limit_s:
        return None
    ours = make_plans(replace(problem, qoe=QoE(latency_s=limit_s))).best
    return None if ours.energy_j is None else 1 - ours.energy_j / (fastest.energy_j or inf)
