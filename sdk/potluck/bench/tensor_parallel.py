"""Transformer blocks divided by tensor over agents: a step and an answer against torch's DTensor
over gloo, predictions against measurements, and what a token takes by link.

*Live*: the same blocks, shares, batch, optimizer and machine, one thread per device. Ours go over
encrypted links and get each batch from the notebook; theirs have it on every rank. The sides take
turns; a ratio is the median over rounds of our time by theirs. `off_frac`: how far the simulator's
word was, of the profile that was measured just before.

`kept_frac`: what a device keeps for the backward where the sequence is divided, too, by what it
keeps otherwise; with `sequence` 1 the live figures are of such a division.

*Lab*: a smaller block on two emulated devices behind shaped links; `prediction_error` is the worst
of `Run.compare`.

*Simulated*: the forward of one new token: a request of one row and one position, no text before it.
Models have 135 million and a billion parameters in float32, on two like devices, alone and divided.
Weights make the time, so data sheets tell it. A model of many blocks is told from one of one and
one of two: each more adds the same.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result
from potluck.bench.tensor_ranks import ANSWER, TRAIN, TensorRanks, batch_of, blocks_of
from potluck.bench.torch_ranks import LEARNING_RATE

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.records import Network, Plan

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
COMPUTERS = {"pi": "raspberry-pi-5", "jetson": "jetson-orin-nano"}
# Emulated devices are so much slower than this machine, that a few milliseconds which somebody else
# has its processor stay a small part of every task.
SLOWER = 240.0
LAB_ROWS, LAB_SIZES = 4, (16, 256)  # positions, width
LAB_RATES = ("20 Mbit/s", "4 Mbit/s")
# bytes per second of the medium, how often a path crosses it, seconds before the first byte
LINKS = {"wired_1000": (125e6, 1, 2e-4), "wifi_300": (37.5e6, 2, 2e-3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A language model of Llama's kind."""

    width: int
    heads: int
    groups: int
    hidden: int
    blocks: int
    words: int


SHAPES = {
    "135m": _Shape(width=576, heads=9, groups=3, hidden=1536, blocks=30, words=49152),
    "1b": _Shape(width=2048, heads=32, groups=8, hidden=8192, blocks=16, words=128256),
}


def run(settings: Mapping[str, float]) -> Result:
    """Measure on two and four agents, then simulate tokens."""
    import torch

    from potluck.home import Home

    before, figures = torch.get_num_threads(), dict[str, float]()
    torch.set_num_threads(1)
    try:
        for n in (n for n in DEVICES if settings["live"] and n <= settings["most_devices"]):
            with Home.local(n) as home:
                figures |= _live(home, n, settings)
        for rate in LAB_RATES if settings["lab"] else ():
            figures |= _lab(rate, settings)
    finally:
        torch.set_num_threads(before)
    figures |= {f"sequence_{n}_kept_frac": _kept_frac(n, settings) for n in DEVICES}
    for name, shape in SHAPES.items():
        if name != "1b" or settings["billion"]:
            figures |= _tokens(name, shape)
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


# --- simulated ------------------------------------------------------------------------------------


def _tokens(name: str, shape: _Shape) -> dict[str, float]:
    """Milliseconds of a token on one computer, and on two by each link."""
    one, two = _token_s(shape, 1), _token_s(shape, 2)
    return {
        f"{name}_{where}_token_ms": 1e3
        * (one[where] + (shape.blocks - 1) * (two[where] - one[where]))
        for where in one
    }


def _token_s(shape: _Shape, n_blocks: int) -> dict[str, float]:
    """Seconds of a token through so many blocks."""
    import torch

    import potluck
    from potluck.planning.baselines.single_device import plan_single
    from potluck.planning.evaluate import judge
    from potluck.planning.tensor_parallel import plan_of
    from potluck.profile.library import HomeSpec, load_device
    from potluck.records import Device

    model = potluck.Model.from_torch(
        language_model(shape, n_blocks), torch.zeros(2, 1, dtype=torch.int64)
    )
    divided = model.divided((1, 1), tolerance_frac=0.5)
    names, work = ("one", "two"), potluck.Inference()
    found = dict[str, float]()
    plan = plan_of(divided.name, divided.layers(), names, 1, training=False)
    for computer, kind in COMPUTERS.items():
        spec = load_device(kind)
        for link, (rate, times, latency_s) in LINKS.items():
            home = HomeSpec(
                name="",
                title="",
                source="",
                devices=tuple(Device(name=name, memory_bytes=2**34) for name in names),
                network=_network(names, rate, times, latency_s),
                specs=dict.fromkeys(names, spec),
                home_at="one",
                file="",
            )
            problem = potluck.estimate(home, divided).problem(work)
            found[f"{computer}_{link}"] = judge(problem, plan).latency_s or 0.0
        alone = potluck.estimate(home, model).problem(work)
        found[f"{computer}_alone"] = judge(alone, next(plan_single(alone))).latency_s or 0.0
    return found


def _network(names: tuple[str, ...], rate: float, times: int, latency_s: float) -> "Network":
    """A medium for each direction of a wire, or one air that every path crosses twice."""
    from potluck.records import Medium, Network, Path

    if times > 1:
        media: tuple[Medium, ...] = (Medium(name="air", capacity_bytes_per_s=rate),)
        paths = {
            (a, b): Path(media=(("air", times),), latency_s=latency_s)
            for a in names
            for b in names
            if a != b
        }
    else:
        media = tuple(Medium(name=f"from {name}", capacity_bytes_per_s=rate) for name in names)
        paths = {
            (a, b): Path(media=((f"from {a}", 1),), latency_s=latency_s)
            for a in names
            for b in names
            if a != b
        }
    return Network(media=media, paths=paths)


def language_model(shape: _Shape, n_blocks: int) -> Any:
    """A model of that shape with so many blocks: RMS norm, heads in groups, a gated product.

    Parameters
    ----------
    shape
        Its sizes.
    n_blocks
        How many blocks.
    """
    from torch import nn
    from torch.nn import functional

    width, size = shape.width, shape.width // shape.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.second_norm = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q = nn.Linear(width, width, bias=False)
            self.k = nn.Linear(width, shape.groups * size, bias=False)
            self.v = nn.Linear(width, shape.groups * size, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate = nn.Linear(width, shape.hidden, bias=False)
            self.up = nn.Linear(width, shape.hidden, bias=False)
            self.down = nn.Linear(shape.hidden, width, bias=False)

        def forward(self, x: Any) -> Any:
            rows, length, _ = x.shape
            normed = self.norm(x)
            q, k, v = (
                each(normed).view(rows, length, heads, size).transpose(1, 2)
                for each, heads in (
                    (self.q, shape.heads),
                    (self.k, shape.groups),
                    (self.v, shape.groups),
                )
            )
            mixed = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
            normed = self.second_norm(x)
            return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(shape.words, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(n_blocks)))
            self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, shape.words, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens: Any) -> Any:
            return self.head(self.norm(self.blocks(self.table(tokens))))

    return Language()
