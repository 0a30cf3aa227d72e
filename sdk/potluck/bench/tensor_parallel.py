"""Transformer blocks divided by tensor over agents: a step and an answer against torch's DTensor
over gloo, predictions against measurements, and what a token takes by link.

*Live*: the same blocks, shares, batch, optimizer and machine, one thread per device. Ours go over
encrypted links and get each batch from the notebook; theirs have it on every rank. The sides take
turns; a ratio is the median over rounds of our time by theirs. `off_frac`: how far the simulator's
word was, of the profile that was measured just before.

`kept_frac`: what a device keeps for the backward where the sequence is divided, too, by what it
keeps otherwise; with `sequence` 1 the live figures are of such a division.

*Lab*: a smaller block on two emulated devices behind shaped links, and there texts of a small
language model (`divided_tokens`); `prediction_error` is the worst of the steps, answers and tokens.

*Simulated*: tokens of larger language models on two like devices, alone and divided.
"""

import time
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.divided_tokens import lab_tokens, simulated_tokens
from potluck.bench.harness import Result
from potluck.bench.llama import SHAPES
from potluck.bench.tensor_ranks import ANSWER, TRAIN, TensorRanks, batch_of, blocks_of
from potluck.bench.torch_ranks import LEARNING_RATE

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.records import Plan

SETTINGS: Mapping[str, float] = {
    "rounds": 5,
    "steps": 5,
    "blocks": 1,
    "width": 512,
    "rows": 8,
    "length": 64,
    "most_devices": 4,
    "sequence": 0,
    "live": 1,
    "lab": 1,
    "billion": 1,
}
GOALS = {"ratio_step_time": ("<=", 1.0), "prediction_error": ("<=", 0.10)}
DEVICES = (2, 4)
KEPT_BLOCKS = 4  # of the model whose activations are counted
# Emulated devices are so much slower than this machine, that a few milliseconds which somebody else
# has its processor stay a small part of every task.
SLOWER = 240.0
LAB_ROWS, LAB_SIZES = 4, (16, 256)  # positions, width
LAB_RATES = ("20 Mbit/s", "4 Mbit/s")


def run(settings: Mapping[str, float]) -> Result:
    """Measure on two and four agents, then simulate tokens."""
    import torch

    from potluck.home import Home

    before, figures = torch.get_num_threads(), dict[str, float]()
    numbers = [n for n in DEVICES if n <= settings["most_devices"]]
    torch.set_num_threads(1)
    try:
        for n in numbers if settings["live"] else ():
            with Home.local(n) as home:
                figures |= _live(home, n, settings)
        for rate in LAB_RATES if settings["lab"] else ():
            figures |= _lab(rate, settings) | lab_tokens(rate)
    finally:
        torch.set_num_threads(before)
    figures |= {f"sequence_{n}_kept_frac": _kept_frac(n, settings) for n in numbers}
    for name, shape in SHAPES.items():
        if name != "1b" or settings["billion"]:
            figures |= simulated_tokens(name, shape)
    worst = {
        goal: max(value for key, value in figures.items() if key.endswith(f"_{goal}"))
        for goal in GOALS
        if any(key.endswith(f"_{goal}") for key in figures)
    }
    return Result(
        name="tensor_parallel", figures={**worst, **figures}, settings=settings, goals=GOALS
    )


def _kept_frac(n: int, settings: Mapping[str, float]) -> float:
    """Activations of the device that keeps most, with the sequence divided by those without."""
    import potluck

    x, y = batch_of(int(settings["rows"]), int(settings["length"]), int(settings["width"]))
    blocks = blocks_of(KEPT_BLOCKS, int(settings["width"]))
    model = potluck.Model.from_torch(blocks, x, loss=_loss(), example_targets=y)
    kept = []
    for sequence in (True, False):
        layers = model.divided((1,) * n, sequence=sequence).layers(train=True)
        kept.append(
            max(
                sum(layer.activation_bytes for layer in layers if layer.lane == lane)
                for lane in range(n)
            )
        )
    return kept[0] / kept[1]


# --- live -----------------------------------------------------------------------------------------


class _PotluckBlocks:
    """The blocks divided among the devices of a home, for training and for answers."""

    def __init__(self, home: "Home", n: int, settings: Mapping[str, float]) -> None:
        import potluck
        from potluck.planning.tensor_parallel import plan_of

        rows, width = int(settings["rows"]), int(settings["width"])
        self._x, self._y = batch_of(rows, int(settings["length"]), width)
        model = potluck.Model.from_torch(
            blocks_of(int(settings["blocks"]), width),
            self._x,
            loss=_loss(),
            example_targets=self._y,
        ).divided((1,) * n, sequence=bool(settings["sequence"]))
        profile = home.profile(model, rows=(rows,)).wait()
        self.predicted_s: dict[str, float] = {}
        self._runs: dict[str, Any] = {}
        for mode, training in ((TRAIN, True), (ANSWER, False)):
            plan: Plan = plan_of(
                model.name, model.layers(training), [*home.devices][:n], rows, training=training
            )
            self.predicted_s[mode] = potluck.judge(plan, profile).latency_s or 0.0
            optimizer = potluck.AdamW(LEARNING_RATE) if training else None
            self._runs[mode] = home.deploy(plan, model, optimizer=optimizer).wait()

    def steps(self, mode: str, n_steps: int) -> tuple[float, float]:
        """Seconds of so many steps or answers, and the loss of the last step."""
        start_s = time.perf_counter()
        if mode == TRAIN:
            history = self._runs[TRAIN].fit([(self._x, self._y)] * n_steps).wait()
            return time.perf_counter() - start_s, history.losses[-1]
        for _ in range(n_steps):
            self._runs[ANSWER](self._x)
        return time.perf_counter() - start_s, 0.0

    def close(self) -> None:
        """End both runs."""
        for each in self._runs.values():
            each.close()


def _loss() -> Any:
    from torch.nn.functional import mse_loss

    return mse_loss


def _live(home: "Home", n: int, settings: Mapping[str, float]) -> dict[str, float]:
    """Our steps and answers by theirs, turn by turn."""
    sizes = {key: int(settings[key]) for key in ("blocks", "width", "rows", "length")}
    figures, n_steps = dict[str, float](), int(settings["steps"])
    ours = _PotluckBlocks(home, n, settings)
    with TensorRanks(n, **sizes) as ranks:
        for mode in (TRAIN, ANSWER):
            ratios, mine_s = list[float](), list[float]()
            difference = 0.0
            for index in range(1 + int(settings["rounds"])):
                ours_s, our_loss = ours.steps(mode, n_steps)
                theirs_s, their_loss = ranks.steps(mode, n_steps)
                if mode == TRAIN:
                    difference = max(difference, abs(our_loss - their_loss))
                if index:
                    ratios.append(ours_s / theirs_s)
                    mine_s.append(ours_s / n_steps)
            step_s, predicted_s = median(mine_s), ours.predicted_s[mode]
            word = "step" if mode == TRAIN else "answer"
            figures |= {
                f"{n}_{word}_ms": 1e3 * step_s,
                f"{n}_ratio_{word}_time": median(ratios),
                f"{n}_{word}_predicted_ms": 1e3 * predicted_s,
                f"{n}_{word}_off_frac": abs(predicted_s / step_s - 1),
            }
            if mode == TRAIN:
                figures[f"{n}_loss_difference"] = difference
    ours.close()
    return figures


# --- in a lab -------------------------------------------------------------------------------------


def _lab(rate: str, settings: Mapping[str, float]) -> dict[str, float]:
    """Steps and answers of a block on two emulated devices, by what was predicted."""
    import potluck
    from potluck.home import Home
    from potluck.planning.tensor_parallel import plan_of
    from potluck.sessions.agent_specs import Spec

    specs = [Spec(name=name, slowdown=SLOWER, link_rate=rate) for name in ("a", "b")]
    x, y = batch_of(LAB_ROWS, *LAB_SIZES)
    model = potluck.Model.from_torch(
        blocks_of(1, LAB_SIZES[1]), x, loss=_loss(), example_targets=y
    ).divided((1, 1))
    figures, n_steps = dict[str, float](), int(settings["steps"])
    with Home.lab(specs) as home:
        home.profile(model, rows=(LAB_ROWS,)).wait()
        for word, training in (("step", True), ("answer", False)):
            plan = plan_of(
                model.name, model.layers(training), [*home.devices], LAB_ROWS, training=training
            )
            optimizer = potluck.AdamW(LEARNING_RATE) if training else None
            run = home.deploy(plan, model, optimizer=optimizer).wait()
            if training:
                run.fit([(x, y)] * n_steps).wait()
            else:
                for _ in range(n_steps):
                    run(x)
            compared = run.compare()
            run.close()
            key = f"lab_{rate.split()[0]}_{word}"
            figures |= {
                f"{key}_ms": 1e3 * compared.measured_step_s,
                f"{key}_prediction_error": compared.error_frac,
            }
    return figures
