"""A step of training in a pipeline of agents against `torch.distributed.pipelining`, and of one
agent against none.

The same networks, cuts, micro-batches, optimizer and machine, one thread per stage; each side goes
through the same batch again and again. Ours sends batches from the notebook over encrypted links,
theirs holds them where they are needed, and talks in plain over gloo. Each has the warm-ups of its
own 1F1B: ours 2(P - p) - 1, which keeps more activations and hides what a transfer takes, theirs P
- p; `same_depth=1` gives ours as few. The sides take turns; every ratio is a median over rounds.
`cpu_ms` is processor time of a step by kind of process, ours and under their 1F1B.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result
from potluck.bench.networks import NETWORKS
from potluck.bench.processor_time import ProcessorTime
from potluck.bench.torch_ranks import LEARNING_RATE, SCHEDULES, Ranks, blocks_of
from potluck.errors import UserError

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.records import Plan
    from potluck.run.run import Run

SETTINGS: Mapping[str, float] = {
    "rounds": 5,
    "alone_rounds": 15,
    "steps": 3,
    "small_steps": 30,
    "micro_batch": 8,
    "micro_batches": 8,
    "large": 1,
    "most_stages": 4,
    "same_depth": 0,
}
GOALS = {"ratio_step_time": ("<=", 1.0), "overhead_frac": ("<=", 0.05)}
STAGES = (2, 4)
# kinds of processes
OURS, THEIRS = ("workers", "agents", "agents_io", "notebook"), ("ranks", "ranks_io")


def run(settings: Mapping[str, float]) -> Result:
    """Measure every network on one agent, and in pipelines of two and four."""
    import torch

    from potluck.home import Home

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    kinds = [kind for kind in NETWORKS if settings["large"] or kind == "small"]
    stages = [n for n in STAGES if n <= settings["most_stages"]]
    if not stages:
        raise UserError(f"most_stages is one of {STAGES}, got {settings['most_stages']:g}.")
    try:
        with Home.local(1) as home:
            for kind in kinds:
                figures |= _against_none(home, kind, settings)
        for n in stages:
            with Home.local(n) as home:
                for kind in kinds:
                    figures |= _against_ranks(home, kind, n, settings)
    finally:
        torch.set_num_threads(before)
    ratios = {kind: max(figures[f"{kind}_{n}_ratio_1f1b"] for n in stages) for kind in kinds}
    totals = {
        "ratio_step_time": max(ratios.values()),
        **{f"{kind}_ratio_step_time": worst for kind, worst in ratios.items()},
        "overhead_frac": max(figures[f"{kind}_overhead_frac"] for kind in kinds),
        "loss_difference": max(
            value for key, value in figures.items() if key.endswith("loss_difference")
        ),
    }
    return Result(name="pipeline", figures={**totals, **figures}, settings=settings, goals=GOALS)


class _PotluckPipeline:
    """A network deployed on the first `n` devices of a home."""

    def __init__(self, home: "Home", kind: str, n: int, settings: Mapping[str, float]) -> None:
        import torch

        import potluck

        micro_batch, n_micro_batches = int(settings["micro_batch"]), int(settings["micro_batches"])
        network, self._x, self._y = NETWORKS[kind](micro_batch * n_micro_batches)
        example = self._x[:micro_batch], self._y[:micro_batch]
        loss = torch.nn.functional.cross_entropy
        model = potluck.Model.from_torch(network, example[0], loss=loss, example_targets=example[1])
        plan = _plan(model, tuple(home.devices)[:n], len(network), micro_batch, n_micro_batches)
        if settings["same_depth"]:
            stages = [
                replace(stage, warm_up=min(n - p, n_micro_batches))
                for p, stage in enumerate(plan.stages)
            ]
            plan = replace(plan, stages=tuple(stages))
        self.run: Run = home.deploy(plan, model, optimizer=potluck.AdamW(LEARNING_RATE)).wait()

    def steps(self, _: str, n_steps: int) -> tuple[float, float]:
        """Seconds of so many steps, and the loss of the last one."""
        batches = [(self._x, self._y)] * n_steps
        start_s = time.perf_counter()
        history = self.run.fit(batches).wait()
        return time.perf_counter() - start_s, history.losses[-1]


class _None:
    """A network in this process: the same micro-batches, plain torch."""

    def __init__(self, kind: str, settings: Mapping[str, float]) -> None:
        import torch

        self._n = int(settings["micro_batches"])
        network, self._x, self._y = NETWORKS[kind](self._n * int(settings["micro_batch"]))
        self._network = network.train()
        self._optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE)

    def steps(self, _: str, n_steps: int) -> tuple[float, float]:
        """Seconds of so many steps, and the loss of the last one."""
        from torch.nn.functional import cross_entropy

        start_s, total = time.perf_counter(), 0.0
        for _step in range(n_steps):
            self._optimizer.zero_grad()
            total = 0.0
            for x, y in zip(self._x.chunk(self._n), self._y.chunk(self._n), strict=True):
                loss = cross_entropy(self._network(x), y) / self._n
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
            self._optimizer.step()
        return time.perf_counter() - start_s, total


def _plan(
    model: Any, devices: tuple[str, ...], n_blocks: int, micro_batch: int, n_micro_batches: int
) -> "Plan":
    """Blocks shared over the devices as the ranks share them; 1F1B as our planners make it."""
    from potluck.records import Plan, Stage
    from potluck.schedule.policies import warm_up_depth

    n, n_layers = len(devices), len(model.layers(True))
    firsts = [blocks_of(stage, n, n_blocks).start for stage in range(n)]
    bounds = [first_layer(model, n_layers, f"{block}.") if block else 0 for block in firsts] + [
        n_layers
    ]
    stages = tuple(
        Stage(
            start=bounds[p],
            stop=bounds[p + 1],
            devices=(devices[p],),
            shares=(micro_batch,),
            warm_up=warm_up_depth(p, n, n_micro_batches),
        )
        for p in range(n)
    )
    return Plan(
        planner="by hand",
        model="bench",
        stages=stages,
        micro_batch=micro_batch,
        n_micro_batches=n_micro_batches,
    )


def first_layer(model: Any, n_layers: int, prefix: str) -> int:
    """Where the block whose weights begin with `prefix` begins."""
    names = (model.state_names(layer, layer + 1, train=True) for layer in range(n_layers))
    return next(
        layer for layer, held in enumerate(names) if any(name.startswith(prefix) for name in held)
    )


def _against_none(home: "Home", kind: str, settings: Mapping[str, float]) -> dict[str, float]:
    ours, alone = _PotluckPipeline(home, kind, 1, settings), _None(kind, settings)
    turns = _take_turns(
        {"ours": ours, "alone": alone}, kind, settings, int(settings["alone_rounds"])
    )
    ours.run.close()
    return {
        f"{kind}_alone_step_ms": 1e3 * median(turns.seconds["alone"]),
        f"{kind}_overhead_frac": turns.ratio("alone") - 1,
        f"{kind}_1_loss_difference": turns.difference,
    }


def _against_ranks(
    home: "Home", kind: str, n: int, settings: Mapping[str, float]
) -> dict[str, float]:
    with ExitStack() as stack:
        m, rows = int(settings["micro_batches"]), int(settings["micro_batch"])
        ranks = stack.enter_context(Ranks(kind, n, n_micro_batches=m, micro_batch=rows))
        ours = _PotluckPipeline(home, kind, n, settings)
        stack.callback(ours.run.close)
        turns = _take_turns(
            {"ours": ours, **dict.fromkeys(SCHEDULES, ranks)},
            kind,
            settings,
            int(settings["rounds"]),
        )
    ours_ms, theirs_ms = turns.cpu_ms["ours"], turns.cpu_ms["1f1b"]
    spent_ms = {what: ours_ms[what] for what in OURS} | {what: theirs_ms[what] for what in THEIRS}
    return {
        f"{kind}_{n}_step_ms": 1e3 * median(turns.seconds["ours"]),
        **{f"{kind}_{n}_ratio_{name}": turns.ratio(name) for name in SCHEDULES},
        **{f"{kind}_{n}_cpu_ms_{what}": value for what, value in spent_ms.items()},
        f"{kind}_{n}_loss_difference": turns.difference,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """Seconds of a step by side in each round, processor time of one, and how far apart the losses
    were at most.
    """

    seconds: Mapping[str, list[float]]
    cpu_ms: Mapping[str, Mapping[str, float]]
    difference: float

    def ratio(self, theirs: str) -> float:
        """Median over the rounds of our time by theirs."""
        return median(
            a / b for a, b in zip(self.seconds["ours"], self.seconds[theirs], strict=True)
        )


def _take_turns(
    sides: Mapping[str, Any], kind: str, settings: Mapping[str, float], rounds: int
) -> _Turns:
    """So many rounds; one more is warm-up."""
    n_steps = int(settings["small_steps" if kind == "small" else "steps"])
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu_ms = {name: dict.fromkeys((*OURS, *THEIRS), 0.0) for name in sides}
    difference, processors = 0.0, ProcessorTime()
    for index in range(1 + rounds):
        losses = []
        for name, side in sides.items():
            before_s = processors.spent_s()
            elapsed_s, loss = side.steps(name, n_steps)
            losses.append(loss)
            if index:
                seconds[name].append(elapsed_s / n_steps)
                for what, spent_s in processors.spent_s().items():
                    cpu_ms[name][what] += 1e3 * (spent_s - before_s[what]) / (rounds * n_steps)
        difference = max(difference, max(losses) - min(losses))
    return _Turns(seconds=seconds, cpu_ms=cpu_ms, difference=difference)
