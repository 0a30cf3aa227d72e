"""Every planner on every setting and model of the papers, all judged by the one simulator on the
shared network.

`worst_ratio_to_best_baseline`: over all cases our latency by that of the best baseline, of whose
plans the simulator judges the `judged` that it estimates fastest: more than its authors give it.
The first plans of those in `CANDIDATES` are among the plans that ours looks at, so that it can
hardly be worse; `max_ratio_to_other_baselines` is over all others. The speed-ups are over the best
of Asteroid, EdgeShard, Alpa and Metis, as Dora compares (section 6.2). Each has the one plan that
its own model of costs, without contention, likes best and memory holds. `..._rejudged`: each with
the best of its `judged` plans.

Our forms of these planners may leave devices out and try several orders. `..._published` compares
with what is printed: Asteroid and Alpa use every device, Alpa in the order listed. They run without
a schedule for the network, while ours takes turns on it where that is sooner. `transfer_order_gain`
is the part of our latency that turns save.

Energy, Dora section 6.2: the least joules at a latency of "0.8x latency performance of the best
baseline". Performance may be speed or time, so there are three figures: at 1/0.8 times its time
(`energy_saving`), at its time (`..._equal`) and at 0.8 times its time (`..._urgent`, which only
ours may reach). Each is against the thriftiest of the papers' plans that is on time, the last
against the fastest. `..._published` is the same with what is printed. The figures n_... count the
cases.

All 64 cases are looked at, or one in `every`.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import inf
from statistics import median

from potluck.bench import paper_cases
from potluck.bench.harness import Result
from potluck.bench.paper_cases import PaperCase
from potluck.contention.transfer_order import schedule_transfers
from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.baseline_candidates import CHEAP
from potluck.planning.baselines.alpa import plan_alpa
from potluck.planning.baselines.asteroid import plan_hybrid
from potluck.planning.baselines.data_parallel import plan_data_parallel
from potluck.planning.baselines.dora import plan_dora
from potluck.planning.baselines.edgeshard import plan_edgeshard
from potluck.planning.baselines.metis import plan_metis
from potluck.planning.baselines.single_device import plan_single
from potluck.planning.evaluate import compile_plan, judge
from potluck.planning.feasibility import breaches
from potluck.planning.registry import BASELINES, Planner
from potluck.records import Plan, Problem, QoE
from potluck.simulate import simulate
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

SETTINGS: Mapping[str, float] = {
    "judged": 12,
    "candidates": 4000,
    "dora": 1,
    "asteroid": 1,
    "every": 1,
    "first": 0,
    "processes": 2,
}
GOALS = {"worst_ratio_to_best_baseline": ("<=", 1.0)}
PAPERS = ("asteroid", "edgeshard", "alpa", "metis")  # whom Dora compares with
PUBLISHED: Mapping[str, Planner] = {
    "asteroid": partial(plan_hybrid, leave_out=False),
    "edgeshard": plan_edgeshard,
    "alpa": partial(plan_alpa, as_printed=True),
    "metis": plan_metis,
}
# Dora's only where the model has branches
OWN = (*CHEAP, plan_single, plan_data_parallel, plan_dora)
CANDIDATES = tuple(name for name, planner in BASELINES.items() if planner in OWN)
OTHERS = tuple(name for name in BASELINES if name not in CANDIDATES)
N_TURNED = 3  # of our plans, those whose transfers are tried in turns
# latency by that of the papers' fastest plan
ALLOWED = {"": 1 / 0.8, "_equal_latency": 1.0, "_urgent": 0.8}
OURS = "potluck"


@dataclass(slots=True)
class PlannersRow:
    """One case: per planner its judged plans that fit, those it likes best first, and its planning
    seconds.

    `published`: the one plan of each of the papers' planners as printed. `turned_s`: our latency in
    turns where that is sooner. `saving`: the part of the papers' energy that ours saves, per kind
    of theirs and latency allowed.
    """

    case: PaperCase
    plans: dict[str, list[Plan]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    published: list[Plan] = field(default_factory=list)
    turned_s: float = inf
    saving: dict[tuple[str, float], float] = field(default_factory=dict)

    def latency_s(self, *names: str, rejudged: bool = True) -> float:
        """The least latency of these planners, of all plans judged or of their first.

        Infinite where nothing fits.
        """
        fitting = (
            plan for name in names for plan in self.plans.get(name, ())[: None if rejudged else 1]
        )
        return min((plan.latency_s or inf for plan in fitting), default=inf)


def run(settings: Mapping[str, float]) -> Result:
    """All cases; figures per planner as well."""
    chosen = [
        *(paper_cases.dora() if settings["dora"] else ()),
        *(paper_cases.asteroid() if settings["asteroid"] else ()),
    ]
    chosen = chosen[int(settings["first"]) :: int(settings["every"])]
    with ProcessPoolExecutor(max_workers=int(settings["processes"])) as pool:
        rows = list(pool.map(measure, chosen, [dict(settings)] * len(chosen)))
    notes = (
        "Our implementations of what the papers describe. The first plans of "
        f"{', '.join(CANDIDATES)} (of dora only where a model has branches) are among our own "
        f"candidates; other baselines: {', '.join(OTHERS)}.",
    )
    return Result(
        name="planners", figures=figures(rows), settings=dict(settings), goals=GOALS, notes=notes
    )


def figures(rows: Sequence[PlannersRow]) -> dict[str, float]:
    """What is reported of all cases."""
    solved = [row for row in rows if OURS in row.plans]
    rivalled = [row for row in solved if row.latency_s(*BASELINES) < inf]
    ratios = [row.latency_s(OURS) / row.latency_s(*BASELINES) for row in rivalled]
    found = {
        "worst_ratio_to_best_baseline": max(ratios),
        "median_ratio_to_best_baseline": median(ratios),
    }
    others = [(row.latency_s(OURS), row.latency_s(*OTHERS)) for row in solved]
    found |= _of(
        "ratio_to_other_baselines", [ours / theirs for ours, theirs in others if theirs < inf]
    )
    for what, train in (("train", True), ("infer", False)):
        for how, rejudged in (("", False), ("_rejudged", True)):
            theirs = [
                (row, row.latency_s(*PAPERS, rejudged=rejudged))
                for row in solved
                if row.case.group == "dora" and row.case.train == train
            ]
            ups = [seconds / row.latency_s(OURS) for row, seconds in theirs if seconds < inf]
            found |= _of(f"speedup_dora_settings_{what}{how}", ups)
        ups = [
            min(plan.latency_s or inf for plan in row.published) / row.turned_s
            for row in solved
            if row.case.group == "dora" and row.case.train == train and row.published
        ]
        found |= _of(f"speedup_dora_settings_{what}_published", ups)
    for kind in ("", "_published"):
        for what, part in ALLOWED.items():
            found |= _of(
                f"energy_saving{what}{kind}",
                [r.saving[kind, part] for r in solved if (kind, part) in r.saving],
            )
    found |= _of("transfer_order_gain", [1 - row.turned_s / row.latency_s(OURS) for row in solved])
    found |= {
        "n_cases": float(len(rows)),
        "n_infeasible": float(len(rows) - len(solved)),
        "n_only_ours_fits": float(len(solved) - len(rivalled)),
        "median_gap_frac": median(row.plans[OURS][0].gap_frac or 0.0 for row in solved),
    }
    for name in (*BASELINES, OURS):
        key = name.replace(" ", "_")
        found[f"plan_s_{key}"] = median(row.seconds[name] for row in rows)
        behind = [row.latency_s(name) / row.latency_s(OURS) for row in solved if name in row.plans]
        if behind and name != OURS:
            found[f"median_slower_{key}"] = median(behind)
            found[f"n_out_of_memory_{key}"] = float(len(solved) - len(behind))
    return found


def _of(key: str, values: Sequence[float]) -> dict[str, float]:
    return {f"n_{key}": float(len(values))} | (
        {f"median_{key}": median(values), f"max_{key}": max(values), f"min_{key}": min(values)}
        if values
        else {}
    )


def measure(case: PaperCase, settings: Mapping[str, float]) -> PlannersRow:
    """Ask every planner."""
    row, problem = PlannersRow(case), case.problem()
    table = CostTable(problem)
    simulator = Direct(problem, table)

    def planned(planner: Planner) -> list[Plan]:
        plans = islice(planner(problem, CostTable(problem)), int(settings["candidates"]))
        return sorted(plans, key=lambda plan: plan.latency_s or inf)

    def judged(plans: Sequence[Plan]) -> list[Plan]:
        found = (
            judge(problem, plan, table, simulator) for plan in plans[: int(settings["judged"])]
        )
        return [plan for plan in found if not breaches(problem, plan)]

    for name, planner in BASELINES.items():
        since = time.perf_counter()
        plans = planned(planner)
        row.seconds[name] = time.perf_counter() - since
        fitting = judged(plans)
        if fitting:
            row.plans[name] = fitting
    for planner in PUBLISHED.values():
        row.published += judged(planned(planner))[:1]
    since, ours = time.perf_counter(), list[Plan]()
    with suppress(Infeasible):  # where no plan fits, the case counts as infeasible
        ours = list(make_plans(problem))
        row.plans[OURS] = ours[:1]
    row.seconds[OURS] = time.perf_counter() - since
    row.turned_s = min((_turned_s(problem, plan) for plan in ours[:N_TURNED]), default=inf)
    for kind, theirs in (
        ("", [p for name in PAPERS for p in row.plans.get(name, ())[:1]]),
        ("_published", row.published),
    ):
        for part in ALLOWED.values():
            saved = _saving(problem, row, theirs, part)
            if saved is not None:
                row.saving[kind, part] = saved
    return row


def _turned_s(problem: Problem, plan: Plan) -> float:
    """The latency of a plan whose transfers take turns where that is sooner."""
    compiled = compile_plan(problem, plan)
    turned = simulate(schedule_transfers(compiled, problem), problem)
    return min(plan.latency_s or inf, turned.step_s[0])


def _saving(
    problem: Problem, row: PlannersRow, theirs: Sequence[Plan], part: float
) -> float | None:
    """The part of the energy that ours saves at `part` of the latency of the fastest plan of
    `theirs`.

    None where power is unknown or no plan is that fast.
    """
    if not theirs or any(plan.energy_j is None for plan in theirs):
        return None
    fastest = min(theirs, key=lambda plan: plan.latency_s or inf)
    limit_s = (fastest.latency_s or inf) * part * (1 + 1e-9)
    if row.latency_s(OURS) > limit_s:
        return None
    on_time = [plan for plan in theirs if (plan.latency_s or inf) <= limit_s] or [fastest]
    ours = make_plans(replace(problem, qoe=QoE(latency_s=limit_s))).best
    return (
        None
        if ours.energy_j is None
        else 1 - ours.energy_j / min(plan.energy_j or inf for plan in on_time)
    )
