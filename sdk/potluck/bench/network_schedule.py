"""Transfers that take turns on a shared medium against transfers that share it: Dora's second
phase, on and off.

Predicted on many congested pipelines (as runs choose: turns, their order by priority alone, or
neither; and turns always), and judged by CP-SAT where ortools is installed: gaps to the exact
schedule are of those that it proves best within `exact_s` (0: nobody judges; fewer on a busy
machine), the others' to its bound stands apart. Measured on a WiFi home of the lab: the same plan
deployed three times, steps of all in alternation. In turns, as a run chooses; one value after the
other from each device, in the order of the programs ("off"); and all values at once, which the air
shares as it does: what Dora compares with. A pipeline's load is how long its transfers keep the
air, by how long its busiest device computes; stages differ in speed by up to two.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result
from potluck.contention import cp_sat
from potluck.contention.transfer_order import expand, schedule_transfers, with_ordered_transfers
from potluck.errors import UserError
from potluck.planning.evaluate import compile_plan
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
from potluck.simulate import simulate

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.profile.profiles import Profile

SETTINGS: Mapping[str, float] = {"pipelines": 24, "steps": 3, "rounds": 3, "exact_s": 5, "lab": 1}
GOALS = {"scheduling_max_s": ("<=", 0.1)}
LOADS = (0.7, 1.0, 1.5, 2.5)
MEASURED_LOADS = (0.7, 1.0, 1.5)
# WiFi of 600 Mbit/s, 40 times slower: 0.9 MB/s from device to device
HOME, TIME_SCALE = "smart-home-2", 40.0
WIDTH = 512
ROWS = 16
N_MICRO_BATCHES = 6
ORDERED = "ordered"
OFF = "off"
AT_ONCE = "at once"
SPEEDS = (1.0, 1.6, 1.1, 1.4)  # of the stages, that of the slowest is 1


def run(settings: Mapping[str, float]) -> Result:
    """Predict, judge, and measure."""
    figures = _predicted(int(settings["pipelines"]), settings["exact_s"])
    if settings["lab"]:
        figures |= _measured(settings)
    return Result(name="network_schedule", figures=figures, settings=dict(settings), goals=GOALS)


# --- predicted ------------------------------------------------------------------------------------


def _predicted(n_pipelines: int, exact_s: float) -> dict[str, float]:
    ups = list[float]()
    always = list[float]()
    seconds = list[float]()
    gaps, unproved = list[float](), list[float]()
    for problem, plan in pipelines(n_pipelines):
        compiled = compile_plan(problem, plan)
        since = time.perf_counter()
        ordered = schedule_transfers(compiled, problem)
        seconds.append(time.perf_counter() - since)
        alone_s = simulate(compiled, problem).step_s[0]
        ups.append(alone_s / simulate(with_ordered_transfers(compiled, problem), problem).step_s[0])
        always.append(alone_s / simulate(ordered, problem).step_s[0])
        if not exact_s:
            continue
        expanded = expand(compiled, problem)
        order = expanded.order
        try:
            best = cp_sat.solve(expanded.graph, order, limit_s=exact_s)
        except UserError:  # no ortools here: nobody judges
            continue
        gap = max(max(order.stop_s) / best.bound_s - 1, 0.0)  # the exact one counts in whole ticks
        (gaps if best.proved else unproved).append(gap)
    figures = {
        "predicted_speedup_median": median(ups),
        "predicted_speedup_max": max(ups),
        "predicted_speedup_of_turns_median": median(always),
        "scheduling_median_s": median(seconds),
        "scheduling_max_s": max(seconds),
    }
    if len(gaps) > 1:
        p95 = quantiles(gaps, n=20, method="inclusive")[-1]
        figures |= {"gap_to_exact_median_frac": median(gaps), "gap_to_exact_p95_frac": p95}
        figures |= {
            "n_proved": float(len(gaps)),
            "gap_to_bound_of_unproved_max_frac": max(unproved, default=0.0),
        }
    return figures


def pipelines(n: int) -> Iterator[tuple[Problem, Plan]]:
    """Pipelines of 3 to 5 stages, some of them shared by two devices, on one air."""
    for seed in range(n):
        rng, load = random.Random(seed), LOADS[seed % len(LOADS)]
        n_stages, n_micro_batches = rng.choice((3, 4, 5)), rng.choice((4, 8, 16))
        groups = [tuple(f"d{p}{i}" for i in range(rng.choice((1, 1, 2)))) for p in range(n_stages)]
        names = [name for group in groups for name in group]
        layer_s = [rng.uniform(0.05, 0.1) for _ in groups]
        cost = tuple(
            LayerCost(rows=(1, 8), forward_s=(s, s), backward_s=(2 * s, 2 * s)) for s in layer_s
        )
        plan = _plan(groups, 8, n_micro_batches)
        problem = Problem(
            model="pipeline",
            workload=Training(batch=plan.batch, micro_batch=8),
            costs=dict.fromkeys(names, cost),
            devices=tuple(Device(name=name, memory_bytes=10**9) for name in names),
            layers=tuple(
                Layer(name=f"l{p}", parameter_bytes=40_000, output_bytes=4000, gradient_bytes=4000)
                for p in range(n_stages)
            ),
            network=Network(
                media=(Medium(name="air", capacity_bytes_per_s=1.0),),
                paths={(a, b): Path(media=(("air", 2),)) for a in names for b in names if a != b},
            ),
        )
        capacity = _air_bytes(problem, plan) / (load * 3 * max(layer_s) * n_micro_batches)
        network = replace(
            problem.network, media=(Medium(name="air", capacity_bytes_per_s=capacity),)
        )
        yield replace(problem, network=network), plan


def _plan(
    groups: Sequence[tuple[str, ...]],
    micro_batch: int,
    n_micro_batches: int,
    model: str = "pipeline",
) -> Plan:
    return Plan(
        planner="by hand",
        model=model,
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
        stages=tuple(
            Stage(
                start=p,
                stop=p + 1,
                devices=group,
                shares=(micro_batch // len(group),) * len(group),
                warm_up=min(2 * (len(groups) - p) - 1, n_micro_batches),
            )
            for p, group in enumerate(groups)
        ),
    )


def _air_bytes(problem: Problem, plan: Plan) -> float:
    """Bytes that one step puts on the air, each as often as it crosses it."""
    compiled, total = compile_plan(problem, plan), 0.0
    for device, program in compiled.programs.items():
        for item in program.instructions:
            peer = item.attrs.get("peer", "")
            if item.op == "send" and (device, peer) in problem.network.paths:
                crossings = sum(times for _, times in problem.network.path(device, peer).media)
                total += compiled.notes[device][item.id].nbytes * crossings
    return total


# --- measured -------------------------------------------------------------------------------------


def _measured(settings: Mapping[str, float]) -> dict[str, float]:
    from potluck.home import Home
    from potluck.profile.measure import name_of

    over_all = []
    over_off = []
    predicted = []
    errors = []
    with Home.lab(HOME, time_scale=TIME_SCALE) as home:
        model, batch = _model()
        plan = _plan(
            [(name,) for name in tuple(home.devices)[: len(SPEEDS)]],
            ROWS,
            N_MICRO_BATCHES,
            name_of(model),
        )
        for load in MEASURED_LOADS:
            loaded = _profile(home, model, plan, load)
            measured_s, predicted_s = _sides(home, model, plan, loaded, batch, settings)
            over_all.append(measured_s[AT_ONCE] / measured_s[ORDERED])
            over_off.append(measured_s[OFF] / measured_s[ORDERED])
            predicted.append(predicted_s[OFF] / predicted_s[ORDERED])
            errors += [abs(predicted_s[side] / measured_s[side] - 1) for side in (ORDERED, OFF)]
    return {
        "speedup_median": median(over_all),
        "speedup_max": max(over_all),
        "speedup_min": min(over_all),
        "speedup_over_off_median": median(over_off),
        "speedup_over_off_min": min(over_off),
        "predicted_speedup_over_off_median": median(predicted),
        "prediction_error_median_frac": median(errors),
        "prediction_error_max_frac": max(errors),
    }


def _sides(
    home: "Home",
    model: Any,
    plan: Plan,
    profile: "Profile",
    batch: Any,
    settings: Mapping[str, float],
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of a step of each side, measured and predicted."""
    no_paths = replace(profile, network=Network(media=(), paths={}))  # so nothing has a pace
    runs = {
        ORDERED: home.deploy(plan, model, profile=profile).wait(),
        OFF: home.deploy(plan, model, order_transfers=False, profile=profile).wait(),
        AT_ONCE: home.deploy(plan, model, order_transfers=False, profile=no_paths).wait(),
    }
    try:
        steps: dict[str, list[float]] = {side: [] for side in runs}
        for _ in range(int(settings["rounds"])):
            for side, run in runs.items():
                seconds = run.fit([batch] * (int(settings["steps"]) + 1)).wait().step_s
                steps[side] += seconds[1:]  # the first fills the pipeline of steps
        predicted = {side: runs[side].predicted for side in (ORDERED, OFF)}
        predicted_s = {side: median(trace.step_s[1:]) for side, trace in predicted.items() if trace}
    finally:
        for run in runs.values():
            run.close()
    return {side: median(seconds) for side, seconds in steps.items()}, predicted_s


def _model() -> tuple[Any, tuple[Any, Any]]:
    """Four layers whose numbers are quickly computed: how long they last is the lab's affair."""
    import torch

    from potluck.graph import Model

    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        for _ in range(len(SPEEDS) - 2)
    ]
    network = torch.nn.Sequential(torch.nn.Linear(4, WIDTH), *blocks, torch.nn.Linear(WIDTH, 4))
    batch = (torch.randn(ROWS * N_MICRO_BATCHES, 4), torch.randint(0, 4, (ROWS * N_MICRO_BATCHES,)))
    loss = torch.nn.functional.cross_entropy
    return Model.from_torch(
        network, batch[0][:ROWS], loss=loss, example_targets=batch[1][:ROWS]
    ), batch


def _profile(home: "Home", model: Any, plan: Plan, load: float) -> "Profile":
    """A profile of these devices whose layers last so long that this is the load of the air."""
    from potluck.profile.measure import measurements_of
    from potluck.profile.profiles import Profile

    def of(busy_s: float) -> Profile:
        layer_s = [busy_s / (3 * plan.n_micro_batches * speed) for speed in SPEEDS]
        costs = tuple(LayerCost(rows=(ROWS,), forward_s=(s,), backward_s=(2 * s,)) for s in layer_s)
        return Profile(
            model=plan.model,
            signature=model.signature,
            network=home.network.records,
            devices=tuple(Device(name=name, memory_bytes=10**9) for name in plan.devices),
            training=measurements_of(model, True, dict.fromkeys(plan.devices, costs)),
        )

    problem = of(1.0).problem(Training(batch=plan.batch, micro_batch=plan.micro_batch))
    (air,) = problem.network.media
    return of(_air_bytes(problem, plan) / air.capacity_bytes_per_s / load)
