"""Micro-batches of stages' own sizes where links lose 40 to 60 % of their bandwidth, simulated: the
micro-batch adapter of DeepCEE (section 3.4 and Figure 12).

Two kinds of homes. DeepCEE's first setting with a device of each of four groups, in a pipeline of
four stages that is cut evenly: with four and eight micro-batches a step, or as few as memory holds,
and with the size that is best while the links are whole. And small homes drawn by seeds, with the
best plan for the whole links, where that is a pipeline. Every loss is drawn for each medium.

`speedup_...`: seconds of the plan that stays by those with other sizes, the median over losses;
`uniform_...` the same with the best one size for all stages; `anew_...` where the cuts are chosen
anew, too (in small homes: all of the plan), for which weights would have to move. `kept_...`: what
the sizes for the loss cost where the links are whole again and nobody goes back. The adapter goes
back: a switch moves nothing.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from potluck.adapt.conditions import MEDIUM, Conditions, under
from potluck.bench.harness import Result
from potluck.bench.paper_cases import PaperCase
from potluck.bench.small_homes import random_problem
from potluck.errors import PlanError
from potluck.planning import judge, make_plans
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import balanced, build, shared_s
from potluck.planning.feasibility import breaches
from potluck.planning.scenario import only
from potluck.planning.stage_sizes import MOST_PARTS, better_sizes, resized
from potluck.records import Plan, Problem, Training
from potluck.simulate.cost import CostTable

SETTINGS: Mapping[str, float] = {
    "batch": 128,
    "losses": 10,
    "homes": 40,
    "devices": 3,
    "layers": 8,
    "seed": 0,
}
GOALS = {"worst_ratio_to_staying": ("<=", 1.0), "speedup_4_best": (">=", 1.35)}
LOST = 0.4, 0.6  # of the bandwidth (DeepCEE, section 4.4)
GROUPS = "cloud-1-1", "cloud-2-1", "edge-1-1", "end-1"
MODELS = "resnet101-cifar", "bert-small", "gpt2"
BASES = {"4": 4, "8": 8, "best": None}  # micro-batches of a step
INSIDE = "bus"  # of a machine: it loses nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Seconds of a step while links lose bandwidth, and with whole links of the plan before and of
    the sizes for the loss.
    """

    staying_s: float
    own_s: float
    uniform_s: float
    anew_s: float
    whole_s: float
    kept_s: float


def run(settings: Mapping[str, float]) -> Result:
    """The paper's setting, then small homes."""
    figures: dict[str, float] = {}
    outcomes: list[Outcome] = []
    speedups: dict[str, list[float]] = {base: [] for base in BASES}
    for model in MODELS:
        for base, n in BASES.items():
            found = [*_of_setting(model, n, settings)]
            figures |= _figures(f"{model}_{base}", found)
            speedups[base].append(figures[f"speedup_{model}_{base}"])
            outcomes += found
    homes = [*_of_homes(settings)]
    figures |= _figures("homes", homes)
    ratios = [each.staying_s / each.own_s for each in homes]
    against = [each.uniform_s / each.own_s for each in homes]
    figures |= {f"speedup_{base}_best": max(each) for base, each in speedups.items()}
    figures["n_homes"] = float(len(homes))
    figures["homes_with_gain_frac"] = sum(ratio > 1.01 for ratio in ratios) / len(ratios)
    figures["speedup_homes_max"] = max(ratios)
    figures["uniform_to_own_homes_median"] = median(against)
    figures["uniform_to_own_homes_max"] = max(against)
    figures["worst_ratio_to_staying"] = max(e.own_s / e.staying_s for e in (*outcomes, *homes))
    return Result(name="stage_sizes", figures=figures, settings=settings, goals=GOALS)


def _figures(name: str, found: Sequence[Outcome]) -> dict[str, float]:
    return {
        f"speedup_{name}": median(each.staying_s / each.own_s for each in found),
        f"uniform_{name}": median(each.staying_s / each.uniform_s for each in found),
        f"anew_{name}": median(each.staying_s / each.anew_s for each in found),
        f"kept_{name}_frac": median(each.kept_s / each.whole_s - 1 for each in found),
    }


def _of_setting(model: str, n: int | None, settings: Mapping[str, float]) -> Iterator[Outcome]:
    """DeepCEE's first setting, with so many micro-batches a step at the least."""
    case = PaperCase(
        home="deepcee-1", model=model, train=True, batch=int(settings["batch"]), group="deepcee"
    )
    problem = only(case.problem(), GROUPS)
    batch = problem.workload.batch
    tried = _pipelines(problem, candidates.divisions(batch, MOST_PARTS))
    held = [plan for plan in tried if n is None or plan.micro_batch * n <= batch]
    plan = held[0] if n is not None else min(held, key=_latency_s)
    for number in range(int(settings["losses"])):
        rng = random.Random(f"{settings['seed']} {number}")
        lossy = _lossy(problem, rng)
        anew = _pipelines(lossy, candidates.divisions(batch, MOST_PARTS))
        yield _outcome(problem, lossy, plan, min(map(_latency_s, anew)))


def _pipelines(problem: Problem, sizes: Sequence[int]) -> list[Plan]:
    """Of the devices as they are listed, cut evenly; those that memory holds, the largest
    micro-batch first.
    """
    table = CostTable(problem)
    groups = [(device.name,) for device in problem.devices]
    found = []
    for rows in sizes:
        stage_s = shared_s(table, groups, rows, {})
        bounds = balanced(candidates.cuts(problem), len(groups), stage_s)
        plan = bounds and build(table, "even", bounds, groups, rows)
        if plan:
            judged = judge(problem, plan, table)
            found += [] if breaches(problem, judged) else [judged]
    return found


def _of_homes(settings: Mapping[str, float]) -> Iterator[Outcome]:
    """Small homes whose best plan is a pipeline."""
    for number in range(int(settings["homes"])):
        rng = random.Random(f"stage sizes {settings['seed']} {number}")
        problem = random_problem(rng, settings)
        problem = _with_batch(problem, rng.choice((16, 32)))
        plan = make_plans(problem).best
        lossy = _lossy(problem, rng)
        if len(plan.stages) > 1:
            yield _outcome(problem, lossy, plan, _latency_s(make_plans(lossy).best))


def _with_batch(problem: Problem, batch: int) -> Problem:
    return replace(problem, workload=Training(batch=batch, optimizer_copies=2))


def _lossy(problem: Problem, rng: random.Random) -> Problem:
    factors = {
        (MEDIUM, medium.name): 1 / (1 - rng.uniform(*LOST))
        for medium in problem.network.media
        if INSIDE not in medium.name
    }
    return under(problem, Conditions(factors=factors))


def _outcome(problem: Problem, lossy: Problem, plan: Plan, anew_s: float) -> Outcome:
    own = better_sizes(lossy, plan) or judge(lossy, plan)
    return Outcome(
        staying_s=_latency_s(judge(lossy, plan)),
        own_s=_latency_s(own),
        uniform_s=_best_uniform_s(lossy, plan),
        anew_s=anew_s,
        whole_s=_latency_s(judge(problem, plan)),
        kept_s=_latency_s(judge(problem, own)),
    )


def _best_uniform_s(problem: Problem, plan: Plan) -> float:
    """With one size for all stages, the best of all; as deep as usual, or as the plan itself."""
    found = [_latency_s(judge(problem, plan))]
    for rows in candidates.divisions(plan.batch, MOST_PARTS):
        for deep in (False, True):
            try:
                other = resized(problem, plan, [rows] * len(plan.stages), deep=deep)
            except PlanError:  # it does not meet the plan's own size, or leaves a device without
                continue
            judged = judge(problem, other)
            found += [] if breaches(problem, judged) else [_latency_s(judged)]
    return min(found)


def _latency_s(plan: Plan) -> float:
    return plan.latency_s or 0.0
