"""Cloud, edge and end devices train together: DeepCEE's two settings and four models at paper size,
all judged by the one simulator on the shared network.

`ours`: our search, which chooses among all schedules. `all`: baselines as the paper runs them, each
with the one plan that it likes best of those that memory holds and that use nine devices of ten
at least; DDP and FSDP with collectives beside the computing. `speedup_NAME_SETTING` is their
seconds by ours, the median over the models; `deepcee_speedup_...` the same by those of DeepCEE's
plan, which uses every device, too.

`worst_ratio_to_best_baseline`: over all cases our seconds by those of the best baseline, of whose
plans the simulator judges the `judged` that it estimates fastest, also on fewer devices.
`worst_ratio_to_one_machine`: by those of DDP and FSDP on the first machine alone, whose overlap of
sums and backwards no plan of ours has.

`no_second`: the part of its throughput that DeepCEE's best plan loses where the groups of the
second level get no stages of their own. `scaling_...`: FSDP's seconds by ours and by DeepCEE's,
from 3 to 22 devices. `search_s`: seconds of a processor that a search takes.

`lab_...`: on real agents, see `regions_lab`. Without it where `lab_steps` is 0; `paper` 0: the lab
alone.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from statistics import median

from potluck.bench import collectives, paper_cases, regions_lab
from potluck.bench.harness import Result
from potluck.bench.judging import Judging
from potluck.bench.paper_cases import PaperCase
from potluck.planning import make_plans
from potluck.planning.baselines.alpa import plan_alpa
from potluck.planning.baselines.asteroid import plan_hybrid
from potluck.planning.baselines.deepcee import plan_deepcee
from potluck.planning.baselines.hetpipe import plan_hetpipe
from potluck.planning.baselines.metis import plan_metis
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import balanced, build, mean_problem, shared_s
from potluck.planning.registry import BASELINES, Planner
from potluck.planning.scenario import only
from potluck.planning.search.schedules import ANY, names_of
from potluck.records import Plan, Problem
from potluck.simulate.cost import CostTable

SETTINGS: Mapping[str, float] = {
    "batch": 128,
    "judged": 12,
    "candidates": 1000,
    "every": 1,
    "scaling": 1,
    "processes": 2,
    "paper": 1,
    "lab_steps": 4,
    "lab_batch": 64,
    "lab_time_scale": 60,
}
GOALS = {
    "worst_ratio_to_best_baseline": ("<=", 1.0),
    "lab_worst_ratio_to_best_baseline": ("<=", 1.0),
    "median_search_s": ("<=", 2.0),
    "max_search_s": ("<=", 2.0),
}
# devices of the cloud, the edge and the end, of Figure 13
SCALES = ((1, 1, 1), (4, 1, 1), (4, 2, 2), (8, 4, 3), (12, 6, 4))
SCALED_MODELS = ("resnet101-cifar", "gpt2")
SITES = ("cloud", "edge", "end")
MACHINE = "cloud-1-"  # devices of the first machine
COLLECTIVE: Mapping[str, Callable[[Problem, CostTable], float]] = {
    "ddp": collectives.ddp_s,
    "fsdp": collectives.fsdp_s,
}


def plan_even(
    problem: Problem, table: CostTable | None = None, *, all_forwards: bool = False
) -> Iterator[Plan]:
    """Pipelines of all devices as they are listed, cut so that a mean device takes as long for each
    stage: 1F1B, or GPipe's order.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem, if there is one already.
    all_forwards
        Before all backwards, as GPipe does.
    """
    table, known = table or CostTable(problem), dict[tuple[str, int], list[float]]()
    mean, n = CostTable(mean_problem(problem)), len(problem.devices)
    groups = [(device.name,) for device in problem.devices]
    name = "gpipe" if all_forwards else "1f1b"
    for micro_batch in candidates.micro_batches(problem):
        stage_s = shared_s(mean, [("0",)] * n, micro_batch, known)
        bounds = balanced(candidates.cuts(problem), n, stage_s)
        n_micro_batches = problem.workload.batch // micro_batch
        depths = [
            n_micro_batches if all_forwards else min(n - p, n_micro_batches) for p in range(n)
        ]
        plan = bounds and build(table, name, bounds, groups, micro_batch, depths=depths)
        if plan:
            yield plan


N_CUTS = 8  # of Asteroid's search, which with 32 took minutes for 22 devices
ALL: Mapping[str, Planner] = {
    "gpipe": partial(plan_even, all_forwards=True),
    "1f1b": plan_even,
    "alpa": partial(plan_alpa, as_printed=True),
    "metis": plan_metis,
    "hetpipe": plan_hetpipe,
    "asteroid": partial(plan_hybrid, leave_out=False, most_cuts=N_CUTS),
    "deepcee": plan_deepcee,
}
# those that may leave devices out; of the others all plans are above
DATA_PARALLEL = "data parallel"
FREE = {name: BASELINES[name] for name in ("single", DATA_PARALLEL, "gpipe", "alpa")}
DEEPCEE, OURS = "deepcee", "ours"


@dataclass(slots=True)
class RegionsRow:
    """One case: seconds of a step.

    `all_s`: of baselines on all devices; `free_s`: of the best baseline plan, on fewer too;
    `machine_s`: of DDP and FSDP on one machine; `levels_s`: of DeepCEE's with its second level and
    without; `search_s`: that each search takes.
    """

    case: PaperCase
    ours: Plan
    all_s: dict[str, float] = field(default_factory=dict)
    free_s: dict[str, float] = field(default_factory=dict)
    machine_s: dict[str, float] = field(default_factory=dict)
    levels_s: tuple[float, float] = (inf, inf)
    search_s: dict[str, float] = field(default_factory=dict)

    @property
    def ours_s(self) -> float:
        """Of our plan."""
        return self.ours.latency_s or inf


def run(settings: Mapping[str, float]) -> Result:
    """All cases, the scaling, and the lab."""
    found = _on_paper(settings) if settings["paper"] else {}
    if settings["lab_steps"]:
        found |= regions_lab.figures(
            {DATA_PARALLEL: FREE[DATA_PARALLEL], **ALL},
            int(settings["lab_batch"]),
            int(settings["lab_steps"]),
            settings["lab_time_scale"],
        )
    notes = (
        "ours leaves devices out; the paper's systems run on all 22. "
        f"Baselines: {', '.join(dict.fromkeys((*FREE, *ALL, *COLLECTIVE)))}.",
    )
    return Result(name="regions", figures=found, settings=dict(settings), goals=GOALS, notes=notes)


def _on_paper(settings: Mapping[str, float]) -> dict[str, float]:
    chosen = [*paper_cases.deepcee(int(settings["batch"]))][:: int(settings["every"])]
    scaled = [case for case in chosen if case.home == "deepcee-1" and case.model in SCALED_MODELS]
    jobs = [(case, scale) for case in scaled for scale in SCALES] if settings["scaling"] else []
    with ProcessPoolExecutor(max_workers=int(settings["processes"])) as pool:
        rows = list(pool.map(measure, chosen, [dict(settings)] * len(chosen)))
        ratios = dict(
            zip(jobs, pool.map(scaling, *zip(*jobs, strict=True)), strict=True) if jobs else ()
        )
    found = figures(rows)
    for (case, scale), by in ratios.items():
        found |= {f"scaling_{case.model}_{sum(scale)}_{who}": ratio for who, ratio in by.items()}
    return found


def figures(rows: Sequence[RegionsRow]) -> dict[str, float]:
    """What is reported of all cases."""
    ratios = [row.ours_s / min(*row.free_s.values(), *row.all_s.values()) for row in rows]
    alone = [row.ours_s / min(row.machine_s.values()) for row in rows]
    found = {
        "worst_ratio_to_best_baseline": max(ratios),
        "median_ratio_to_best_baseline": median(ratios),
        "worst_ratio_to_one_machine": max(alone),
        "median_ratio_to_one_machine": median(alone),
    }
    for home in dict.fromkeys(row.case.home for row in rows):
        in_home = [row for row in rows if row.case.home == home]
        for name in (*COLLECTIVE, *ALL):
            found |= _median(f"speedup_{name}_{home}", [r.all_s[name] / r.ours_s for r in in_home])
        for name in (*COLLECTIVE, *(name for name in ALL if name != DEEPCEE)):
            ups = [row.all_s[name] / row.all_s[DEEPCEE] for row in in_home]
            found |= _median(f"deepcee_speedup_{name}_{home}", ups)
    for row in rows:
        key = f"{row.case.home}_{row.case.model}"
        found[f"rows_per_s_{key}"] = row.case.batch / row.ours_s
        found[f"devices_{key}"] = float(len(row.ours.devices))
        if isfinite(row.levels_s[1]):
            found[f"no_second_{key}"] = 1 - row.levels_s[0] / row.levels_s[1]
    for name in rows[0].search_s:
        seconds = [row.search_s[name] for row in rows]
        key = "search_s" if name == OURS else f"search_s_{name}"
        found |= {f"median_{key}": median(seconds), f"max_{key}": max(seconds)}
    return found


def _median(key: str, ratios: Sequence[float]) -> dict[str, float]:
    """Of those that exist: some baselines have no plan for all devices."""
    finite = [ratio for ratio in ratios if isfinite(ratio)]
    return {key: median(finite)} if finite else {}


def measure(case: PaperCase, settings: Mapping[str, float]) -> RegionsRow:
    """Ask everybody."""
    problem = case.problem()
    since = time.process_time()
    row = RegionsRow(case, make_plans(problem, schedules=names_of(ANY)).best)
    row.search_s[OURS] = time.process_time() - since
    judging = Judging(problem, int(settings["candidates"]))
    for name, planner in ALL.items():
        since = time.process_time()
        plans = judging.liked(planner)
        row.search_s[name] = time.process_time() - since
        row.all_s[name] = judging.first_s(plans)
        row.free_s[name] = judging.best_s(plans[: int(settings["judged"])])
    for name, planner in FREE.items():
        seconds = judging.best_s(judging.liked(planner)[: int(settings["judged"])])
        row.free_s[name] = min(row.free_s.get(name, inf), seconds)
    row.levels_s = judging.levels_s(int(settings["judged"]))
    machine = only(problem, [d.name for d in problem.devices if d.name.startswith(MACHINE)])
    for name, step_s in COLLECTIVE.items():
        row.all_s[name] = step_s(problem, judging.table)
        row.machine_s[name] = step_s(machine, CostTable(machine))
    return row


def scaling(case: PaperCase, scale: tuple[int, ...]) -> dict[str, float]:
    """FSDP's seconds on so many devices of each site by ours and by DeepCEE's there."""
    full = case.problem()
    names = [device.name for device in full.devices]
    sites = ([name for name in names if name.startswith(site)] for site in SITES)
    problem = only(full, [n for site, size in zip(sites, scale, strict=True) for n in site[:size]])
    judging = Judging(problem, max_plans=10**6)
    ours_s = make_plans(problem, schedules=names_of(ANY)).best.latency_s or inf
    theirs_s = judging.first_s(judging.liked(plan_deepcee))
    fsdp_s = collectives.fsdp_s(problem, judging.table)
    return {OURS: fsdp_s / ours_s, DEEPCEE: fsdp_s / theirs_s}
