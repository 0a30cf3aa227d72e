"""Schedules whose backwards come in two parts: bubbles against the least there are, a step against
`torch.distributed.pipelining`, and two parts against a whole.

*Bubbles* are counted on equal stages, F = I = W, for transfers that take no time, half of a forward
and twice one; `excess` is the makespan of the best policy by the lower bound, and in small cases by
what CP-SAT proves (where ortools is installed), at worst.

*A step*: the same networks, cuts in two stages a device, micro-batches, optimizer and machine, one
thread per device. Theirs are ScheduleInterleavedZeroBubble and ScheduleZBVZeroBubble over gloo, in
plain and without a notebook. The sides take turns; a ratio is the median over rounds of our time by
theirs.

*Two parts*: both parts of the backward of a network by its whole backward, in the interpreter, in
processor time.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench import harness
from potluck.bench.harness import Result
from potluck.bench.networks import NETWORKS
from potluck.bench.torch_ranks import LEARNING_RATE, ZERO_BUBBLE, Ranks, blocks_of, stages_of
from potluck.schedule import policies
from potluck.schedule.bubbles import bubble_frac, chain_of, lower_bound_s, makespan_s
from potluck.schedule.zero_bubble import ZERO_BUBBLE as POLICIES

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.records import Plan
    from potluck.run.run import Run

SETTINGS: Mapping[str, float] = {
    "rounds": 7,
    "steps": 3,
    "repeats": 15,
    "parts_rows": 32,
    "micro_batch": 8,
    "micro_batches": 8,
    "devices": 2,
    "exact": 1,
    "live": 1,
}
GOALS = {
    "ratio_step_time": ("<=", 1.0),
    "ratio_parts_to_whole": ("<=", 1.05),
    "loss_difference": ("<=", 0.0),
    "worst_excess_to_bound": ("<=", 1.10),
}
KINDS = ("transformer", "cnn")
TRANSFERS = {"free": 0.0, "half": 0.5, "slow": 2.0}  # of a forward
STRAIGHT = ("1f1b", "zb-h1", "zb-2p", "zb-compact")
N_STAGES, N_MICRO_BATCHES = 4, 12
SMALL = ((2, 3, 2, 0.0), (3, 4, 3, 0.0), (4, 6, 4, 0.0), (3, 4, 3, 1.0), (4, 8, 8, 2.0))


def run(settings: Mapping[str, float]) -> Result:
    """Count bubbles, then measure both networks."""
    figures = _bubbles()
    if settings["exact"]:
        figures |= _against_the_best()
    for kind in KINDS if settings["live"] else ():
        figures |= _parts(kind, settings) | _live(kind, settings)
    worst: dict[str, float] = {"worst_excess_to_bound": _worst(figures, "_excess")}
    if settings["live"]:
        worst |= {
            "ratio_step_time": _worst(figures, "_ratio"),
            "ratio_parts_to_whole": _worst(figures, "_parts"),
            "loss_difference": _worst(figures, "_loss_difference"),
        }
    return Result(name="zero_bubble", figures={**worst, **figures}, settings=settings, goals=GOALS)


def _worst(figures: Mapping[str, float], ending: str) -> float:
    return max(value for key, value in figures.items() if key.endswith(ending))


# --- counted --------------------------------------------------------------------------------------


def _bubbles() -> dict[str, float]:
    """Which part of four stages' time is idle, by policy, and how near the best is to the bound."""
    figures: dict[str, float] = {}
    for link, transfer_s in TRANSFERS.items():
        times = chain_of(N_STAGES, N_MICRO_BATCHES, transfer_s=transfer_s)
        least_s, spans = lower_bound_s(times, N_MICRO_BATCHES), list[float]()
        for name in STRAIGHT:
            schedule = (
                policies.one_f_one_b(N_STAGES, N_MICRO_BATCHES)
                if name == "1f1b"
                else POLICIES[name](times, N_MICRO_BATCHES)
            )
            figures[f"{link}_{name}_bubble"] = bubble_frac(schedule, times, N_MICRO_BATCHES)
            spans.append(makespan_s(schedule, times))
        work_s = N_MICRO_BATCHES * 3.0
        figures[f"{link}_least_bubble"] = 1 - work_s / least_s
        figures[f"{link}_excess"] = min(spans) / least_s
    for name, rows in (
        ("zb-v", tuple((r, 2 * N_STAGES - 1 - r) for r in range(N_STAGES))),
        ("zb-interleaved", tuple((r, r + N_STAGES) for r in range(N_STAGES))),
    ):
        times = chain_of(2 * N_STAGES, 2 * N_MICRO_BATCHES, times_s=(0.5,) * 3, rows=rows)
        schedule = POLICIES[name](times, N_MICRO_BATCHES)
        figures[f"free_{name}_bubble"] = bubble_frac(schedule, times, N_MICRO_BATCHES)
    return figures


def _against_the_best() -> dict[str, float]:
    """Small cases by what CP-SAT proves; nothing without ortools."""
    from potluck.contention.exact_schedule import best_schedule
    from potluck.errors import UserError

    ratios = dict.fromkeys(STRAIGHT[1:], 0.0)
    nearest = 0.0
    for n, m, kept, transfer_s in SMALL:
        times = chain_of(n, kept, transfer_s=transfer_s)
        try:
            best_s = best_schedule(times, m).bound_s
        except UserError:
            return {}
        found = {name: makespan_s(POLICIES[name](times, m), times) for name in ratios}
        ratios = {name: max(ratios[name], found[name] / best_s) for name in ratios}
        nearest = max(nearest, min(found.values()) / best_s)
    return {f"small_{name}_to_best": value for name, value in ratios.items()} | {
        "small_nearest_to_best": nearest
    }


# --- two parts by a whole -------------------------------------------------------------------------


def _parts(kind: str, settings: Mapping[str, float]) -> dict[str, float]:
    """The backward of a network in two parts by its whole backward."""
    import torch
    from torch.nn.functional import cross_entropy

    from potluck.graph.trace import trace
    from potluck_agent.worker.training import TrainingSegment

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    network, x, y = NETWORKS[kind](int(settings["parts_rows"]))
    names = ("x", "y")
    traced = trace(network, (x,), input_names=names, loss=cross_entropy, targets=(y,))
    segment = TrainingSegment(traced.graph, seed=None)
    for name, tensor in traced.tensors.items():
        segment.write(name, tensor.detach())
    inputs = (x, y, *traced.reductions((x, y)))
    spent: dict[str, list[float]] = {"whole": [], "parts": [], "weights": []}
    for index in range(2 * int(settings["repeats"]) + 2):
        split = bool(index % 2)
        segment.forward(inputs, key="0", train=True, split=split)
        start_s = time.thread_time()
        segment.backward_input("0")
        middle_s = time.thread_time()
        segment.backward_weight("0")
        stop_s = time.thread_time()
        if index > 1:
            spent["parts" if split else "whole"].append(stop_s - start_s)
            spent["weights"] += [(stop_s - middle_s) / (stop_s - start_s)] if split else []
    torch.set_num_threads(before)
    pairs = {name: tuple(values) for name, values in spent.items()}
    return {
        f"{kind}_parts": harness.ratio(pairs, "parts", "whole"),
        f"{kind}_weight_frac": median(spent["weights"]),
    }


# --- a step ---------------------------------------------------------------------------------------


class _PotluckSchedule:
    """A network on `n` devices of a home, two stages each."""

    def __init__(
        self, home: "Home", kind: str, schedule: str, settings: Mapping[str, float]
    ) -> None:
        import torch

        import potluck

        micro_batch, m = int(settings["micro_batch"]), int(settings["micro_batches"])
        network, self._x, self._y = NETWORKS[kind](micro_batch * m)
        example = self._x[:micro_batch], self._y[:micro_batch]
        loss = torch.nn.functional.cross_entropy
        model = potluck.Model.from_torch(network, example[0], loss=loss, example_targets=example[1])
        plan = _plan(model, tuple(home.devices), len(network), schedule, micro_batch, m)
        profile = home.profile(model, rows=(micro_batch,), repeats=3).wait()
        self.run: Run = home.deploy(
            replace(plan, model=profile.model), model, optimizer=potluck.AdamW(LEARNING_RATE)
        ).wait()

    def steps(self, n_steps: int) -> tuple[float, float]:
        """Seconds of so many steps, and the loss of the last one."""
        batches = [(self._x, self._y)] * n_steps
        start_s = time.perf_counter()
        history = self.run.fit(batches).wait()
        return time.perf_counter() - start_s, history.losses[-1]


def _plan(
    model: Any, devices: tuple[str, ...], n_blocks: int, schedule: str, micro_batch: int, m: int
) -> "Plan":
    """Blocks shared over the stages as the ranks share them."""
    from potluck.bench.pipeline import first_layer
    from potluck.records import Plan, Stage

    n, n_layers = len(devices), len(model.layers(True))
    owner = {
        stage: device for r, device in enumerate(devices) for stage in stages_of(schedule, r, n)
    }
    firsts = [blocks_of(stage, len(owner), n_blocks).start for stage in range(len(owner))]
    bounds = [first_layer(model, n_layers, f"{block}.") if block else 0 for block in firsts]
    return Plan(
        planner="by hand",
        model="bench",
        stages=tuple(
            Stage(start=start, stop=stop, devices=(owner[p],), shares=(micro_batch,), warm_up=m)
            for p, (start, stop) in enumerate(zip(bounds, [*bounds[1:], n_layers], strict=True))
        ),
        micro_batch=micro_batch,
        n_micro_batches=m,
        schedule=schedule,
    )


def _live(kind: str, settings: Mapping[str, float]) -> dict[str, float]:
    """Our step by theirs, schedule by schedule."""
    from potluck.home import Home

    figures: dict[str, float] = {}
    n = int(settings["devices"])
    for schedule in ZERO_BUBBLE:
        with ExitStack() as stack:
            m, rows = int(settings["micro_batches"]), int(settings["micro_batch"])
            ranks = stack.enter_context(
                Ranks(kind, n, n_micro_batches=m, micro_batch=rows, schedules=(schedule,))
            )
            home = stack.enter_context(Home.local(n))
            ours = _PotluckSchedule(home, kind, schedule, settings)
            stack.callback(ours.run.close)
            figures |= _compared(f"{kind}_{schedule}", ours, ranks, schedule, settings)
    return figures


def _compared(
    key: str, ours: _PotluckSchedule, ranks: Ranks, schedule: str, settings: Mapping[str, float]
) -> dict[str, float]:
    n_steps = int(settings["steps"])
    ratios = list[float]()
    steps_ms = list[float]()
    difference = 0.0
    for index in range(1 + int(settings["rounds"])):
        ours_s, our_loss = ours.steps(n_steps)
        theirs_s, their_loss = ranks.steps(schedule, n_steps)
        difference = max(difference, abs(our_loss - their_loss))
        if index:
            ratios.append(ours_s / theirs_s)
            steps_ms.append(1e3 * ours_s / n_steps)
    return {
        f"{key}_ratio": median(ratios),
        f"{key}_step_ms": median(steps_ms),
        f"{key}_loss_difference": difference,
    }
