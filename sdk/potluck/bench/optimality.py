"""How far planners are from the optimum on random small homes of every kind, where every plan can
be looked at.

The kinds of homes are those of `small_homes`; `problems` of each are drawn. The oracle lists every
order, grouping, cut and micro-batch size (rows by Algorithm 1; depths K_p, and where memory binds
shallower ones), whatever the closed form says of memory. The simulator judges those that the closed
form thinks fastest, until `judged` of them are within memory as simulated. The oracle leaves out
other rows and depths, and plans in which a device has several stages. Baselines are judged the same
way: of each planner's plans the simulator takes the `rejudged` that it thinks fastest, and the best
that memory holds counts, which is more than its authors give.

A gap is our latency over the oracle's, less one. It is below zero where ours is better, by what the
oracle leaves out. Infinite gaps, where we say Infeasible and the oracle or a baseline has a plan
that memory holds, are counted as `false_infeasible` and left out of the medians.

Many of the baselines' plans are candidates of our own search, so "never worse than a baseline" is
partly by construction: `..._own_search` is our search without them.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from statistics import median

from potluck.bench import small_homes
from potluck.bench.harness import Result
from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.exhaustive import plan_whatever_memory_says
from potluck.planning.registry import BASELINES
from potluck.records import Plan, Problem
from potluck.simulate.cost import CostTable, budget_bytes
from potluck.simulate.direct_simulation import Direct

SETTINGS: Mapping[str, float] = {
    "problems": 100,
    "devices": 4,
    "layers": 7,
    "judged": 1500,
    "rejudged": 24,
    "candidates": 4000,
    "seed": 1,
    "processes": 2,
}
GOALS = {
    "gap_median_frac": ("<=", 0.0),
    "gap_p95_frac": ("<=", 0.01),
    "worst_ratio_to_best_baseline_tight": ("<=", 1.0),
    "false_infeasible": ("<=", 0.0),
    "certified_gap_median_frac": ("<=", 0.05),
}
SAME = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimalityRow:
    """One problem: seconds of the best plan of each, infinite without one. `own_s`: of our search
    without the baselines' plans; `baselines_s`: per baseline. `certified_frac`: the gap that our
    best plan claims at most."""

    kind: str
    seed: str
    optimum_s: float
    ours_s: float
    own_s: float
    certified_frac: float = 0.0
    baselines_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def baseline_s(self) -> float:
        """The best baseline's."""
        return min(self.baselines_s.values(), default=inf)

    @property
    def known_s(self) -> float:
        """The best that anybody but us has."""
        return min(self.optimum_s, self.baseline_s)


def run(settings: Mapping[str, float]) -> Result:
    """Gaps by kind, ours, our search's alone, Asteroid's and Dora's; ratios to the best
    baseline.
    """
    wanted = [
        (kind, f"{settings['seed']}/{number}", dict(settings))
        for kind in small_homes.KINDS
        for number in range(int(settings["problems"]))
    ]
    with ProcessPoolExecutor(max_workers=int(settings["processes"])) as pool:
        rows = list(pool.map(measure, *zip(*wanted, strict=True), chunksize=4))
    return Result(name="optimality", figures=figures(rows), settings=dict(settings), goals=GOALS)


def measure(kind: str, seed: str, settings: Mapping[str, float]) -> OptimalityRow:
    """Ask the oracle, every baseline, our search, and our search without the baselines' plans."""
    problem = small_homes.draw(kind, seed, settings)
    table = CostTable(problem)
    direct = Direct(problem, table)
    plans_by_time = sorted(plan_whatever_memory_says(problem), key=_estimated_s)
    baselines_s = {}
    for name, planner in BASELINES.items():
        plans = sorted(
            islice(planner(problem, table), int(settings["candidates"])), key=_estimated_s
        )
        baselines_s[name] = best_s(problem, direct, plans[: int(settings["rejudged"])])
    ours, own = _ours(problem, borrow=True), _ours(problem, borrow=False)
    return OptimalityRow(
        kind=kind,
        seed=seed,
        optimum_s=best_s(problem, direct, plans_by_time, int(settings["judged"])),
        baselines_s=baselines_s,
        ours_s=ours.latency_s or inf if ours else inf,
        own_s=own.latency_s or inf if own else inf,
        certified_frac=(ours.gap_frac or 0.0) if ours else 0.0,
    )


def best_s(
    problem: Problem, direct: Direct, plans: Iterable[Plan], max_plans: float = inf
) -> float:
    """The least simulated latency of plans that are within memory as the simulator finds it.

    Of the first `max_plans`.
    """
    budgets, best = {device.name: budget_bytes(problem, device) for device in problem.devices}, inf
    for plan in plans:
        if max_plans <= 0:
            break
        outcome = direct.run(plan)
        if all(nbytes <= budgets[name] for name, nbytes in outcome.peak_bytes().items()):
            best, max_plans = min(best, outcome.latency_s), max_plans - 1
    return best


def _ours(problem: Problem, *, borrow: bool) -> Plan | None:
    with suppress(Infeasible):
        return make_plans(problem, borrow=borrow).best
    return None


def _estimated_s(plan: Plan) -> float:
    return plan.latency_s or inf


def figures(rows: Sequence[OptimalityRow]) -> dict[str, float]:
    """What is reported: of all kinds together, then by kind."""
    solvable = [row for row in rows if row.known_s < inf]
    found = _gaps("", solvable)
    for planner in ("asteroid", "dora"):
        theirs = [
            row.baselines_s[planner] / row.optimum_s - 1 for row in solvable if row.optimum_s < inf
        ]
        found |= _spread(f"_{planner}", [gap for gap in theirs if gap < inf])
    for suffix, seconds in (("", "ours_s"), ("_own_search", "own_s")):
        found[f"false_infeasible{suffix}"] = float(
            sum(getattr(row, seconds) == inf for row in solvable)
        )
        for kind in small_homes.KINDS:
            ratios = [
                getattr(r, seconds) / r.baseline_s
                for r in solvable
                if r.kind == kind and r.baseline_s < inf
            ]
            worse = sum(ratio > SAME for ratio in ratios)
            found[f"worst_ratio_to_best_baseline_{kind}{suffix}"] = max(ratios, default=0.0)
            found[f"n_worse_than_best_baseline_{kind}{suffix}"] = float(worse)
    for kind in small_homes.KINDS:
        found |= _gaps(f"_{kind}", [row for row in solvable if row.kind == kind])
    found["certified_gap_median_frac"] = median(
        row.certified_frac for row in solvable if row.ours_s < inf
    )
    return found | {"n_problems": float(len(rows)), "n_solvable": float(len(solvable))}


def _gaps(suffix: str, rows: Sequence[OptimalityRow]) -> dict[str, float]:
    """Ours to the oracle, with and without the baselines' plans."""
    ours = [row.ours_s / row.optimum_s - 1 for row in rows if max(row.ours_s, row.optimum_s) < inf]
    own = [row.own_s / row.optimum_s - 1 for row in rows if max(row.own_s, row.optimum_s) < inf]
    return _spread(suffix, ours) | _spread(f"{suffix}_own_search", own)


def _spread(suffix: str, gaps: Sequence[float]) -> dict[str, float]:
    if not gaps:
        return {}
    return {
        f"gap_median_frac{suffix}": median(gaps),
        f"gap_p95_frac{suffix}": sorted(gaps)[int(0.95 * (len(gaps) - 1))],
        f"gap_max_frac{suffix}": max(gaps),
        f"gap_min_frac{suffix}": min(gaps),
        f"n_gap_beyond_1_percent{suffix}": float(sum(gap > 0.01 for gap in gaps)),
    }
