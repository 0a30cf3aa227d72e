"""What the papers print, and what our simulator gives for the same settings.

Asteroid's Table 4: how many times as fast as the fastest device alone, data parallelism and a
straight pipeline, both balanced, the plan of its planner as printed (`..._asteroid`) and ours
(`..._ours`) are. All devices compute `slower` times slower than their data sheets say.

Dora's Figures 8 to 11 and 17, and its Table 4: the time of the best of Asteroid, EdgeShard, Alpa
and Metis as printed (without turns on the network) by that of ours. Language models answer in half
precision and token by token (`:float16:decode`), as Dora's figures are "per-token generation
latency"; BERT reads a text at once.

`_printed`: the paper's figure. All others are simulated on shared links from data sheets: who is
faster than whom can be compared, not seconds. What Intra-DP prints is measured in `split`.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import inf
from statistics import median

from potluck.bench import paper_cases, planners
from potluck.bench.harness import Result
from potluck.bench.paper_cases import PaperCase
from potluck.planning import judge, make_plans
from potluck.planning.baselines.asteroid import plan_hybrid
from potluck.planning.baselines.data_parallel import plan_data_parallel
from potluck.planning.baselines.single_device import plan_single
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import balanced, build, shared_s
from potluck.planning.feasibility import breaches
from potluck.records import Plan, Problem
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

SETTINGS: Mapping[str, float] = {
    "asteroid": 1,
    "batch": 2048,
    "batch_resnet50": 256,
    "slower": 1,
    "dora": 1,
    "judged": 12,
    "candidates": 4000,
    "every": 1,
    "processes": 2,
}
GOALS: Mapping[str, tuple[str, float]] = {}

# Asteroid, Table 4: by the device, data parallelism, the pipeline
TABLE_4 = {
    ("efficientnet-b1-cifar", "a-100"): (4.4, 2.1, 2.8),
    ("efficientnet-b1-cifar", "b-100"): (3.0, 4.8, 9.7),
    ("efficientnet-b1-cifar", "b-1000"): (3.7, 2.1, 1.4),
    ("mobilenet-v2-cifar", "a-100"): (4.5, 1.5, 3.5),
    ("mobilenet-v2-cifar", "b-100"): (3.2, 2.3, 11.2),
    ("mobilenet-v2-cifar", "b-1000"): (3.8, 1.2, 1.3),
    ("resnet50", "a-100"): (3.4, 3.6, 5.8),
    ("resnet50", "b-100"): (1.5, 6.1, 12.2),
    ("resnet50", "b-1000"): (3.7, 2.9, 3.1),
    ("bert-small-32", "a-100"): (3.5, 6.4, 1.0),
    ("bert-small-32", "b-100"): (1.3, 6.8, 1.0),
    ("bert-small-32", "b-1000"): (3.9, 4.2, 1.3),
}
ALONE = "device"
PARALLEL = "data_parallel"
STRAIGHT = "pipeline"

# Dora: Figures 8 and 9 (section 6.2), and Table 4 (seconds of Metis, Asteroid and Dora)
SPEEDUPS = {
    "train_min": 1.1,
    "train_max": 6.3,
    "infer_min": 1.2,
    "infer_max": 2.8,
    "smart-home-1_qwen3-0.6b_train": 1.9,
    "smart-home-2_qwen3-0.6b_train": 3.3,
}
SAVINGS = {"train_min": 0.10, "train_max": 0.82, "infer_min": 0.15, "infer_max": 0.82}
PLANNING_S = {
    ("bert-base", "smart-home-2"): (0.32, 0.17, 0.12),
    ("qwen3-1.7b", "smart-home-2"): (0.85, 0.50, 0.20),
    ("omni-7b", "smart-home-2"): (1.383, 1.14, 0.79),
    ("bert-base", "traffic-monitor"): (0.28, 0.13, 0.11),
    ("qwen3-1.7b", "traffic-monitor"): (0.78, 0.39, 0.17),
    ("omni-7b", "traffic-monitor"): (1.25, 1.02, 0.72),
}
TOP = (1, 2, 4, 8)


def run(settings: Mapping[str, float]) -> Result:
    """Both papers' tables; `every` takes one case in so many."""
    stride = int(settings["every"])
    with ProcessPoolExecutor(max_workers=int(settings["processes"])) as pool:
        table = [*TABLE_4][::stride] if settings["asteroid"] else []
        tables = pool.map(table_4, table, [dict(settings)] * len(table))
        figures = {key: value for found in tables for key, value in found.items()}
        chosen = [*dora()][::stride] if settings["dora"] else []
        rows = [*pool.map(planners.measure, chosen, [dict(settings)] * len(chosen))]
    if rows:
        figures |= _speed(rows) | _energy(rows) | _top(rows) | _planning(rows)
    notes = (
        "Simulated from data sheets on shared links; the papers measured. Our implementations of "
        "what they describe.",
    )
    return Result(name="papers", figures=figures, settings=dict(settings), goals=GOALS, notes=notes)


def dora() -> Iterator[PaperCase]:
    """Dora's settings and models; models that write do so token by token."""
    for case in paper_cases.dora():
        if case.train:
            yield case
        elif case.model == "bert-base":
            yield replace(case, model=f"{case.model}:float16", batch=1)
        else:
            yield replace(case, model=f"{case.model}:float16:decode", batch=1)


# --- Asteroid -------------------------------------------------------------------------------------


def table_4(row: tuple[str, str], settings: Mapping[str, float]) -> dict[str, float]:
    """A row of Asteroid's Table 4: each column as printed, by Asteroid's plan and by ours."""
    model, environment = row
    batch = int(settings.get(f"batch_{model}", settings["batch"]))
    case = PaperCase(
        home=f"asteroid-{environment}", model=model, train=True, batch=batch, group="asteroid"
    )
    problem = _slower(case.problem(), settings["slower"])
    table = CostTable(problem)
    simulator = Direct(problem, table)

    def least_s(plans: Iterator[Plan] | list[Plan]) -> float:
        """Of those that hold, the fastest by the simulator."""
        found = (judge(problem, plan, table, simulator) for plan in plans)
        return min((p.latency_s or inf for p in found if not breaches(problem, p)), default=inf)

    asteroid = sorted(
        plan_hybrid(problem, table, leave_out=False), key=lambda plan: plan.latency_s or inf
    )
    ways = {"asteroid": least_s(asteroid[:1]), "ours": make_plans(problem).best.latency_s or inf}
    others = {
        ALONE: least_s(plan_single(problem, table)),
        PARALLEL: least_s(plan_data_parallel(problem, table)),
        STRAIGHT: least_s(straight(problem, table)),
    }
    key = f"asteroid_table_4_{model}_{environment}"
    found: dict[str, float] = {}
    for (other, seconds), printed in zip(others.items(), TABLE_4[row], strict=True):
        found[f"{key}_by_{other}_printed"] = printed
        if seconds < inf:  # else it has no room
            found |= {f"{key}_by_{other}_{way}": seconds / way_s for way, way_s in ways.items()}
    return found


def _slower(problem: Problem, times: float) -> Problem:
    """The problem with devices that take so many times as long."""
    costs = {
        name: tuple(
            replace(
                cost,
                forward_s=tuple(times * s for s in cost.forward_s),
                backward_s=tuple(times * s for s in cost.backward_s),
            )
            for cost in layers
        )
        for name, layers in problem.costs.items()
    }
    return replace(problem, costs=costs)


def straight(problem: Problem, table: CostTable) -> Iterator[Plan]:
    """Pipelines of all devices, one each, the roomiest first, cut so that all take alike."""
    devices = sorted(problem.devices, key=lambda device: -device.memory_bytes)
    groups = [(device.name,) for device in devices]
    known: dict[tuple[str, int], list[float]] = {}
    for micro_batch in candidates.micro_batches(problem):
        stage_s = shared_s(table, groups, micro_batch, known)
        bounds = balanced(candidates.cuts(problem), len(groups), stage_s)
        plan = bounds and build(table, STRAIGHT, bounds, groups, micro_batch)
        if plan:
            yield plan


# --- Dora -----------------------------------------------------------------------------------------


def _name(case: PaperCase) -> str:
    mode = "train" if case.train else "infer"
    return f"{case.home}_{case.model.partition(':')[0]}_{mode}"


def _speed(rows: list[planners.PlannersRow]) -> dict[str, float]:
    """Figures 8 and 9."""
    found = {f"dora_speedup_{key}_printed": value for key, value in SPEEDUPS.items()}
    for mode, train in (("train", True), ("infer", False)):
        ups = {
            _name(row.case): min(plan.latency_s or inf for plan in row.published) / row.turned_s
            for row in rows
            if row.case.train == train and row.published and row.turned_s < inf
        }
        found |= {f"dora_speedup_{name}": up for name, up in ups.items()}
        found |= _spread(f"dora_speedup_{mode}", list(ups.values()))
        fitting = [row for row in rows if row.case.train == train and row.turned_s < inf]
        found[f"dora_n_{mode}_nothing_fits"] = float(
            sum(row.case.train == train for row in rows) - len(fitting)
        )
        found[f"dora_n_{mode}_only_ours_fits"] = float(sum(not row.published for row in fitting))
    return found


def _energy(rows: list[planners.PlannersRow]) -> dict[str, float]:
    """Figures 10 and 11, at their latency by 0.8."""
    found = {f"dora_energy_saving_{key}_printed": value for key, value in SAVINGS.items()}
    for mode, train in (("train", True), ("infer", False)):
        key = ("_published", planners.ALLOWED[""])
        saved = [row.saving[key] for row in rows if row.case.train == train and key in row.saving]
        found |= _spread(f"dora_energy_saving_{mode}", saved)
    return found


def _top(rows: list[planners.PlannersRow]) -> dict[str, float]:
    """Figure 17: the best of Dora's first K plans, by the best of all that were judged."""
    found: dict[str, float] = {}
    for n_first in TOP:
        ratios = [
            min(plan.latency_s or inf for plan in plans[:n_first])
            / min(plan.latency_s or inf for plan in plans)
            for plans in (row.plans.get("dora", ()) for row in rows)
            if plans
        ]
        if ratios:
            found[f"dora_top_{n_first}_median"], found[f"dora_top_{n_first}_max"] = (
                median(ratios),
                max(ratios),
            )
    return found


def _planning(rows: list[planners.PlannersRow]) -> dict[str, float]:
    """Table 4, in training: seconds of our implementations, and of our planner."""
    found: dict[str, float] = {}
    for row in rows:
        printed = PLANNING_S.get((row.case.model, row.case.home))
        if row.case.train and printed:
            key = f"dora_table_4_{row.case.home}_{row.case.model}"
            for name, seconds in zip(("metis", "asteroid", "dora"), printed, strict=True):
                found[f"{key}_{name}_s_printed"] = seconds
                found[f"{key}_{name}_s"] = row.seconds[name]
            found[f"{key}_ours_s"] = row.seconds[planners.OURS]
    return found


def _spread(key: str, values: list[float]) -> dict[str, float]:
    return (
        {f"{key}_min": min(values), f"{key}_median": median(values), f"{key}_max": max(values)}
        if values
        else {}
    )
