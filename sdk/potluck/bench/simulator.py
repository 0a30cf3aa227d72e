"""How fast the simulator is: actions (computing and transfers) per second on a four-stage,
32-micro-batch round.

`actions_per_s`: transfers one at a time in order of urgency, as a schedule sends them;
`actions_per_s_fair`: flows share the medium by max-min fairness. Both on one shared medium, the
engine alone. `plans_per_s`: all of a plan from its stages to its latency, its shape known.
`peak_mb`: the most memory while doing so.
"""

import time
import tracemalloc
from collections.abc import Callable, Mapping
from statistics import median

from potluck.bench.harness import Result
from potluck.contention.list_scheduler import run as run_scheduled
from potluck.records import (
    Device,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    Stage,
    Training,
)
from potluck.simulate.direct_simulation import Direct
from potluck.simulate.engine import TaskGraph
from potluck.simulate.engine import run as run_fair

SETTINGS: Mapping[str, float] = {"stages": 4, "micro_batches": 32, "repeats": 30}
GOALS = {"actions_per_s": (">=", 200_000.0)}


def run(settings: Mapping[str, float]) -> Result:
    """Measure the engine in both ways, and whole plans."""
    n_stages, n_micro_batches = int(settings["stages"]), int(settings["micro_batches"])
    problem, plan = _round(n_stages, n_micro_batches)
    direct = Direct(problem)
    graph = direct.graph(plan)
    n, repeats = len(graph.resource), int(settings["repeats"])
    figures = {
        "actions_per_s": n / _median_s(lambda: run_scheduled(graph), repeats),
        "actions_per_s_fair": n / _median_s(lambda: run_fair(graph), repeats),
        "plans_per_s": 1 / _median_s(lambda: direct.run(plan), repeats),
        "actions": float(n),
    }
    tracemalloc.start()
    Direct(problem).run(plan)
    figures["peak_mb"] = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return Result(name="simulator", figures=figures, settings=dict(settings), goals=GOALS)


def _median_s(work: Callable[[], TaskGraph | object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        since = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - since)
    return median(seconds)


def _round(n_stages: int, n_micro_batches: int) -> tuple[Problem, Plan]:
    """A pipeline whose transfers take the air for about as long as its stages compute."""
    names = [f"d{i}" for i in range(n_stages)]
    cost = LayerCost(rows=(1,), forward_s=(0.010,), backward_s=(0.020,))
    problem = Problem(
        model="chain",
        workload=Training(batch=n_micro_batches),
        costs=dict.fromkeys(names, (cost,) * n_stages),
        devices=tuple(Device(name=name, memory_bytes=10**9) for name in names),
        layers=tuple(
            Layer(name=f"l{i}", output_bytes=50_000, gradient_bytes=50_000) for i in range(n_stages)
        ),
        network=Network(
            media=(Medium(name="air", capacity_bytes_per_s=10_000_000.0),),
            paths={(a, b): Path(media=(("air", 1),)) for a in names for b in names if a != b},
        ),
    )
    stages = tuple(
        Stage(
            start=p,
            stop=p + 1,
            devices=(name,),
            shares=(1,),
            warm_up=min(2 * (n_stages - p) - 1, n_micro_batches),
        )
        for p, name in enumerate(names)
    )
    return problem, Plan(
        planner="bench",
        model="chain",
        stages=stages,
        micro_batch=1,
        n_micro_batches=n_micro_batches,
    )
