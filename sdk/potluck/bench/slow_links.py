"""Two regions of two devices over a slow link: one synchronous training against local steps, by the
time to a given loss on scikit-learn's digits.

The times are simulated: the synchronous plan is the best of our search over all schedules, on one
region or both. A round of local steps takes H steps of the best plan of a region, or what the link
takes for their batches. To it comes what the region's weights take to the notebook, which is in the
other one, and back. The training is real, in this process, with the library's own outer step: tests
show that runs on devices give the same. `seeds` draw weights and the order of the data: 0, 1, 2 ...

`sync_s_RATE`, `local_H_s_RATE`: median seconds to a mean loss of `target` over 360 training digits;
`speedup_H_RATE` the one by the other. `both_s_RATE`: of the best synchronous plan that trains in
both regions, as one has to where a model does not fit into one; `rounded_s_RATE`: the same with
layers that hand on bfloat16 (`Model.rounded`); `late_s_RATE`: with updates that come one step late
(`fit(one_step_late=8)`). `rounded_speedup_MODEL_RATE`, `late_speedup_MODEL_RATE`: of one step of
models of the library by plans over both regions, `late_speedup_RATE` of the small one; that late
steps are more of them is not in it. `steps_...`: of a region, until the loss; `accuracy_...`: of
the test digits after `most_steps`; `apart_H`: how far a region strayed from the mean, at the most.
"""

import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result
from potluck.errors import PlanError
from potluck.planning import make_plans, predict
from potluck.planning.registry import ask
from potluck.planning.scenario import only
from potluck.planning.search.schedules import ANY, names_of
from potluck.profile import estimate
from potluck.records import HOME, Plan, Problem, Training
from potluck.run.local_steps import OuterOptimizer, OuterStep, RegionRun

if TYPE_CHECKING:
    import torch

    from potluck.samples import Digits

SETTINGS: Mapping[str, float] = {
    "batch": 16,
    "channels": 32,
    "target": 0.2,
    "most_steps": 256,
    "seeds": 3,
    "rates": 4,
    "lr": 3e-3,  # of the inner AdamW, and of the synchronous one
}
GOALS: Mapping[str, tuple[str, float]] = {}
MBIT_PER_S = (10, 50, 100, 500)
LOCAL = (4, 16, 64)
LATE = 8  # steps in a row whose updates come one step late
SOONEST = 3  # plans of a planner that are looked at for it
CODE = "bfloat16"
MODELS = ("bert-small", "resnet101-cifar")
ROWS = 32  # of a step of these
MOST_LAYERS = 16
LOOKED_AT = 360  # training digits whose mean loss is looked at
LOOKS = 4  # steps of a synchronous training between two looks
BYTES_PER_S = 1e6 / 8  # of a Mbit/s
SITES = ("here", "there")

HOME_FILE = """
name = "two-regions"
title = "Two places of two Raspberry Pi 5"
source = "made up for this bench"
note = "The notebook runs on the first device."
home_at = "here-1"

[network]
topology = "sites"
capacity_bytes_per_s = {{ value = 1.25e8, {assumed} }}

[[network.links]]
sites = ["here", "there"]
there_bytes_per_s = {{ value = {rate}, {assumed} }}
back_bytes_per_s = {{ value = {rate}, {assumed} }}
latency_s = {{ value = 0.01, {assumed} }}
{devices}
[assume.raspberry-pi-5]
memory_bytes = {{ value = 8e9, {assumed} }}
"""
ASSUMED = 'basis = "estimate", source = "a setting", reason = "a setting of this bench"'
DEVICE = '\n[[devices]]\nname = "{site}-{n}"\nprofile = "raspberry-pi-5"\nsite = "{site}"\n'


def run(settings: Mapping[str, float]) -> Result:
    """Train by every seed and way, then time each at every rate."""
    from potluck.samples import Digits

    digits, batch = Digits.load(), int(settings["batch"])
    seeds = range(int(settings["seeds"]))
    curves = {h: [learned(digits, seed, h, settings) for seed in seeds] for h in (0, *LOCAL)}
    rounded = [learned(digits, seed, 0, settings, rounded=True) for seed in seeds]
    late = [learned(digits, seed, 0, settings, late=True) for seed in seeds]
    figures: dict[str, float] = {}
    named = {f"local_{n_steps}" if n_steps else "sync": each for n_steps, each in curves.items()}
    for name, each in {**named, "rounded": rounded, "late": late}.items():
        reached = [curve.steps for curve in each if isfinite(curve.steps)]
        figures[f"reached_frac_{name}"] = len(reached) / len(each)
        figures[f"accuracy_{name}"] = median(curve.accuracy for curve in each)
        if reached:
            figures[f"steps_{name}"] = median(reached)
    for n_steps in LOCAL:
        figures[f"apart_{n_steps}"] = max(curve.apart_frac for curve in curves[n_steps])
    for rate in MBIT_PER_S[: int(settings["rates"])]:
        timed = Timed(rate, batch, int(settings["channels"]))
        figures |= _at(rate, timed, curves)
        rounded_s = median(curve.steps for curve in rounded) * timed.rounded_s
        if isfinite(rounded_s):
            figures[f"rounded_s_{rate}"] = rounded_s
        late_s = median(curve.steps for curve in late) * timed.late_s
        if isfinite(late_s):
            figures[f"late_s_{rate}"] = late_s
        figures[f"late_speedup_{rate}"] = timed.both_s / timed.late_s
        figures |= {f"late_speedup_{name}_{rate}": _late_speedup(rate, name) for name in MODELS}
        figures |= {f"rounded_speedup_{name}_{rate}": _speedup(rate, name) for name in MODELS}
    return Result(
        name="slow_links", figures=figures, settings=dict(settings), goals=GOALS, notes=NOTES
    )


NOTES = (
    "seeds 0, 1, ...; AdamW, outer rate 0.7 and momentum 0.9; times are simulated, losses are not. "
    "Neither local nor late steps give the weights of one machine.",
)


def _at(rate: int, timed: "Timed", curves: "Mapping[int, Sequence[Curve]]") -> dict[str, float]:
    """Of one rate."""
    found = {f"sync_devices_{rate}": float(timed.n_sync), f"sync_step_s_{rate}": timed.sync_s}
    sync_s = median(curve.steps * timed.sync_s for curve in curves[0])
    if isfinite(sync_s):
        found[f"sync_s_{rate}"] = sync_s
        found[f"both_s_{rate}"] = sync_s / timed.sync_s * timed.both_s
    for n_steps in LOCAL:
        seconds = median(
            curve.steps * timed.local_s + curve.steps / n_steps * timed.exchange_s
            for curve in curves[n_steps]
        )
        if isfinite(seconds):
            found[f"local_{n_steps}_s_{rate}"] = seconds
            if isfinite(sync_s):
                found[f"speedup_{n_steps}_{rate}"] = sync_s / seconds
                found[f"speedup_{n_steps}_{rate}_to_both"] = found[f"both_s_{rate}"] / seconds
    return found


class Timed:
    """Seconds of a synchronous step, of a local one, and of an exchange, simulated.

    Parameters
    ----------
    rate_mbit_per_s
        Of the link between the regions.
    batch
        Rows of a region's step.
    channels
        Of the network.
    """

    def __init__(self, rate_mbit_per_s: int, batch: int, channels: int) -> None:
        both = _problem(rate_mbit_per_s, 2 * batch, channels)
        best = make_plans(both, schedules=names_of(ANY)).best
        self.sync_s, self.n_sync = best.latency_s or inf, len(best.devices)
        self.both_s = min(_of_both(both), default=inf)
        self.late_s = min(_late_of_both(both), default=inf)
        rounded = _problem(rate_mbit_per_s, 2 * batch, channels, CODE)
        self.rounded_s = min(_of_both(rounded), default=inf)
        own = _problem(rate_mbit_per_s, batch, channels)
        names = [device.name for device in own.devices]
        region = only(own, [name for name in names if name.startswith(SITES[0])])
        step_s = make_plans(region, schedules=names_of(ANY)).best.latency_s or inf
        far, fed_bytes = names[-1], batch * (own.input_bytes + own.target_bytes)
        self.local_s = max(step_s, fed_bytes / own.network.bandwidth(HOME, far))
        nbytes = sum(layer.parameter_bytes + layer.buffer_bytes for layer in own.layers)
        self.exchange_s = sum(
            nbytes / own.network.bandwidth(*pair) + own.network.latency(*pair)
            for pair in ((far, HOME), (HOME, far))
        )


def _of_both(problem: Problem) -> Iterator[float]:
    """Seconds of a step of plans that train in both regions."""
    for plans in _plans_of_both(problem):
        for plan in plans:
            yield plan.latency_s or inf


def _late_of_both(problem: Problem) -> Iterator[float]:
    """The same of steps in a row whose updates come late, of the soonest plans of each planner."""
    for plans in _plans_of_both(problem):
        for plan in sorted(plans, key=lambda plan: plan.latency_s or inf)[:SOONEST]:
            with suppress(PlanError):
                yield predict(problem, plan, one_step_late=LATE).step_s[0] / LATE


def _plans_of_both(problem: Problem) -> Iterator[list[Plan]]:
    """By who has such."""
    for name in ("data parallel", "deepcee", "asteroid", "gpipe"):
        yield [
            plan
            for plan in ask(problem, name)
            if len({device.partition("-")[0] for device in plan.devices}) > 1
        ]


def _late_speedup(rate_mbit_per_s: int, model: str) -> float:
    """How many times as fast a step is over both regions, where updates come one step late."""
    with _home(rate_mbit_per_s) as home:
        profile = estimate.estimate(home, model, max_layers=MOST_LAYERS)
    problem = profile.problem(Training(batch=ROWS))
    return min(_of_both(problem)) / min(_late_of_both(problem), default=inf)


def _speedup(rate_mbit_per_s: int, model: str) -> float:
    """How many times as fast a step is over both regions, where layers hand on half the bytes."""
    seconds = []
    with _home(rate_mbit_per_s) as home:
        for name in (model, f"{model}:{CODE}-links"):
            profile = estimate.estimate(home, name, max_layers=MOST_LAYERS)
            seconds.append(min(_of_both(profile.problem(Training(batch=ROWS)))))
    return seconds[0] / seconds[1]


@contextmanager
def _home(rate_mbit_per_s: int) -> Iterator[Path]:
    """The file of the two regions."""
    devices = "".join(DEVICE.format(site=site, n=n) for site in SITES for n in (1, 2))
    text = HOME_FILE.format(rate=rate_mbit_per_s * BYTES_PER_S, devices=devices, assumed=ASSUMED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "two-regions.toml"
        path.write_text(text)
        yield path


def _problem(rate_mbit_per_s: int, batch: int, channels: int, code: str = "") -> Problem:
    import torch

    import potluck

    images, labels = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)
    model = potluck.Model.from_torch(
        network(channels, 0),
        images,
        loss=torch.nn.CrossEntropyLoss(),
        example_targets=labels,
        name="digits",
    )
    model = model.rounded(code) if code else model
    with _home(rate_mbit_per_s) as home:
        return estimate.estimate(home, model).problem(Training(batch=batch))


def network(channels: int, seed: int) -> "torch.nn.Module":
    """A small CNN: much to compute for the weights that it has.

    Parameters
    ----------
    channels
        Of its convolutions.
    seed
        Of its weights.
    """
    from torch import manual_seed, nn

    manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4 * channels, 10))


@dataclass(frozen=True, slots=True)
class Curve:
    """A training: a region's steps until the loss was reached, infinite if never; accuracy on the
    test digits at its end; how far apart regions were, at the most.
    """

    steps: float
    accuracy: float
    apart_frac: float = 0.0


def handing_on(net: "torch.nn.Module") -> "torch.nn.Module":
    """The network with what its layers do that hand on bfloat16, before each layer but the
    first.

    Parameters
    ----------
    net
        Of `network`.
    """
    import torch

    class Rounded(torch.nn.Module):
        def forward(self, x: "torch.Tensor") -> "torch.Tensor":
            return x.to(torch.bfloat16).to(torch.float32)

    parts: list[torch.nn.Module] = []
    for part in net.children():
        parts += [Rounded()] if parts and any(True for _ in part.parameters()) else []
        parts.append(part)
    return torch.nn.Sequential(*parts)


def learned(
    digits: "Digits",
    seed: int,
    n_steps: int,
    settings: Mapping[str, float],
    *,
    rounded: bool = False,
    late: bool = False,
) -> Curve:
    """Of two regions with local steps, or of one machine on both regions' rows.

    Parameters
    ----------
    digits
        Data.
    seed
        Of the weights and of the order of rows.
    n_steps
        Local steps; 0: synchronous.
    settings
        Of the bench.
    rounded
        Layers hand on bfloat16.
    late
        Of one machine whose updates come one step late.
    """
    batch, max_steps = int(settings["batch"]), int(settings["most_steps"])
    lr = settings["lr"]
    net = network(int(settings["channels"]), seed)
    net = handing_on(net) if rounded else net
    turns = _batches(digits, seed, batch, 2 * max_steps)
    if not n_steps:
        regions, n_steps = [_HeldBack(net, lr) if late else _Stand(net, lr)], 1
        rounds = [[_both(*pair)] for pair in zip(turns[::2], turns[1::2], strict=True)]
    else:
        regions = [_Stand(copy.deepcopy(net), lr) for _ in SITES]
        rounds = [turns[i : i + 2 * n_steps] for i in range(0, len(turns), 2 * n_steps)]
    together = OuterOptimizer(regions, OuterStep()) if len(regions) > 1 else None
    if together is not None:
        together.begin()
    steps, apart = inf, 0.0
    for number, part in enumerate(rounds, start=1):
        if together is None:
            regions[0].fit(part)
        else:
            done, _ = together.round(part)
            apart = max(apart, done.apart_frac if done else 0.0)
        looks = together is not None or number % (LATE if late else LOOKS) == 0
        if looks and steps == inf and regions[0].loss(digits) <= settings["target"]:
            steps = float(number * n_steps)
    return Curve(steps, digits.accuracy(regions[0].net), apart)


def _batches(digits: "Digits", seed: int, batch: int, n: int) -> list[tuple[Any, Any]]:
    import torch

    rng, found = torch.Generator().manual_seed(seed), list[tuple[Any, Any]]()
    while len(found) < n:
        order = torch.randperm(len(digits.train_labels), generator=rng)
        batches = order[: len(order) // batch * batch].view(-1, batch)
        found += [(digits.train_images[rows], digits.train_labels[rows]) for rows in batches]
    return found[:n]


def _both(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    import torch

    return torch.cat([left[0], right[0]]), torch.cat([left[1], right[1]])


class _Stand(RegionRun):
    """A region that is a network in this process."""

    def __init__(self, net: "torch.nn.Module", lr: float) -> None:
        import torch

        self.net, self.n_steps = net, 0
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
        self.loss_of = torch.nn.CrossEntropyLoss()

    def rows(self, batch: Any) -> int:
        """Of a batch."""
        return len(batch[0])

    def fit(self, batches: Sequence[Any]) -> Any:
        """Steps of its own."""
        self.net.train()
        losses = []
        for images, labels in batches:
            self.optimizer.zero_grad()
            loss = self.loss_of(self.net(images), labels)
            loss.backward()
            self.n_steps += 1
            self._learn()
            losses.append(loss.item())
        done = SimpleNamespace(losses=losses)
        return SimpleNamespace(wait=lambda: done)

    def _learn(self) -> None:
        self.optimizer.step()

    def loss(self, digits: "Digits") -> float:
        """The mean over all training digits."""
        import torch

        with torch.no_grad():
            return float(
                self.loss_of(
                    self.net(digits.train_images[:LOOKED_AT]), digits.train_labels[:LOOKED_AT]
                )
            )

    @property
    def step(self) -> int:
        """Steps so far."""
        return self.n_steps

    @property
    def trained(self) -> frozenset[str]:
        """All."""
        return frozenset(name for name, _ in self.net.named_parameters())

    def weights(self) -> "dict[str, torch.Tensor]":
        """A copy."""
        return {name: tensor.clone() for name, tensor in self.net.state_dict().items()}

    def put(self, weights: "Mapping[str, torch.Tensor]") -> None:
        """Into the network."""
        self.net.load_state_dict(weights)


class _HeldBack(_Stand):
    """Whose gradients change the weights one step late, and all of them at the end of a row."""

    def __init__(self, net: "torch.nn.Module", lr: float) -> None:
        super().__init__(net, lr)
        self._pending: list[list[torch.Tensor]] = []

    def _learn(self) -> None:
        self._pending.append([p.grad.clone() for p in self.net.parameters() if p.grad is not None])
        most = 0 if self.n_steps % LATE == 0 else 1  # the next step lacks the last of them
        while len(self._pending) > most:
            for parameter, gradient in zip(
                self.net.parameters(), self._pending.pop(0), strict=True
            ):
                parameter.grad = gradient
            self.optimizer.step()
