"""How far planners are from the optimum on random small homes, where every plan can be looked at.

The oracle lists every order, grouping, cut and micro-batch size (rows by Algorithm 1, depths K_p) and the simulator
judges them all, or the `judged` that the closed form likes best. Ours may beat it: it also tries other rows and depths.
"""

import random
from collections.abc import Mapping
from math import inf
from statistics import median

from potluck.bench.frame import Result
from potluck.plan import make_plans
from potluck.plan.exhaustive import plan_exhaustive
from potluck.plan.hybrid import plan_hybrid
from potluck.plan.rivals.dora import plan_dora
from potluck.records import (
    Device,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Problem,
    Training,
)
from potluck.simulate.cost import CostTable
from potluck.simulate.direct import Direct

SETTINGS: Mapping[str, float] = {"problems": 200, "devices": 4, "layers": 8, "judged": 1500, "seed": 1}
WORKLOADS: tuple[Training | Inference, ...] = (
    Training(batch=8, micro_batch=2),
    Training(batch=16, micro_batch=4),
    Inference(batch=4),
)
GOALS = {"gap_median_frac": ("<=", 0.0), "gap_p95_frac": ("<=", 0.01)}


def run(settings: Mapping[str, float]) -> Result:
    """Gaps of our planner, Asteroid and Dora to the oracle, and of ours to its own bound."""
    gaps: dict[str, list[float]] = {"": [], "_asteroid": [], "_dora": []}
    certified: list[float] = []
    for number in range(int(settings["problems"])):
        problem = random_problem(random.Random(f"{settings['seed']}/{number}"), settings)
        table = CostTable(problem)
        direct = Direct(problem, table)

        every = sorted(plan_exhaustive(problem, table), key=lambda plan: plan.latency_s or inf)
        optimum_s = min(direct.run(plan).latency_s for plan in every[: int(settings["judged"])])
        best = make_plans(problem).best
        optimum_s = min(optimum_s, best.latency_s or inf)
        gaps[""].append((best.latency_s or inf) / optimum_s - 1)
        certified.append(best.gap_frac or 0.0)
        for name, planner in (("_asteroid", plan_hybrid), ("_dora", plan_dora)):
            found = sorted(planner(problem, table), key=lambda plan: plan.latency_s or inf)[:12]
            gaps[name].append(min(direct.run(plan).latency_s for plan in found) / optimum_s - 1)
    figures = {}
    for name, values in gaps.items():
        figures[f"gap_median_frac{name}"] = median(values)
        figures[f"gap_p95_frac{name}"] = sorted(values)[int(0.95 * (len(values) - 1))]
        figures[f"gap_max_frac{name}"] = max(values)
    figures["certified_gap_median_frac"] = median(certified)
    return Result(name="optimality", figures=figures, settings=dict(settings), goals=GOALS)


def random_problem(rng: random.Random, settings: Mapping[str, float]) -> Problem:
    """A home of two or more devices on WiFi, a switch or both, and a chain of layers; every workload."""
    n_devices, n_layers = rng.randint(2, int(settings["devices"])), rng.randint(3, int(settings["layers"]))
    names = [f"d{i}" for i in range(n_devices)]
    capacity, wired = 10 ** rng.uniform(4, 7), {name for name in names if rng.random() < 0.5}
    media = [Medium(name="air", capacity_bytes_per_s=capacity)]
    media += [Medium(name=f"{n} {way}", capacity_bytes_per_s=4 * capacity) for n in names for way in ("up", "down")]

    def path(a: str, b: str) -> Path:
        parts = [(f"{a} up", 1)] if a in wired else []
        parts += [(f"{b} down", 1)] if b in wired else []
        air = (a not in wired) + (b not in wired)
        return Path(media=(*parts, *([("air", air)] if air else [])), latency_s=0.001)

    speeds = {name: 10 ** rng.uniform(1, 2.5) for name in names}
    work = [rng.uniform(0.3, 3.0) for _ in range(n_layers)]
    costs = {
        name: tuple(
            LayerCost(
                rows=(1, 4, 16), forward_s=tuple(w / speeds[name] * (0.5 + n) for n in (1, 4, 16)),
                backward_s=tuple(2 * w / speeds[name] * (0.5 + n) for n in (1, 4, 16)),
            )
            for w in work
        )
        for name in names
    }  # fmt: skip
    sizes = [rng.choice([300, 3000, 30_000]) for _ in range(n_layers)]
    return Problem(
        model="random",
        devices=tuple(Device(name=name, memory_bytes=10**9) for name in names),
        network=Network(media=tuple(media), paths={(a, b): path(a, b) for a in names for b in names if a != b}),
        layers=tuple(
            Layer(
                name=f"l{i}", parameter_bytes=rng.choice([400, 4000, 40_000]), output_bytes=size, gradient_bytes=size,
                activation_bytes=size,
            )
            for i, size in enumerate(sizes)
        ),
        costs=costs,
        workload=rng.choice(WORKLOADS),
    )  # fmt: skip
