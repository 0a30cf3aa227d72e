"""Adapting in a lab: real agents train over air that changes between steps, by four ways.

A home of three like devices on WiFi, emulated. An evening is drawn by a seed: in its first stretch
the air is as profiled. In each later one it carries 40 to 60 % less (as in DeepCEE, section 5), 80
to 90 % less (a microwave oven), or as profiled. One is as likely as another. All ways train on the
same batches from the same weights, and the air changes at the same steps. The plan that stays and
our adapter are told nothing. Planning anew and the oracle go over when the air changes, the oracle
by what the simulator says of all evening.

Within a stretch nothing changes for minutes, and only our adapter does anything there: it alone
plays all of it. Of the others the beginning of a stretch is played, with its switch, and the rest
goes on as their last steps did."""

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.adapt.conditions import MEDIUM, Conditions
from potluck.bench import fluctuations
from potluck.errors import UserError
from potluck.lab.scenario import Bandwidth
from potluck.planning import make_plans
from potluck.records import Plan, Problem, Training

if TYPE_CHECKING:
    from potluck.graph import Model
    from potluck.home import Home
    from potluck.profile.profiles import Profile

AIR = "air"
AIR_BYTES_PER_S = 1.2e8
BATCH = 128
CHANNELS, DEPTH = 32, 7
LOSSES = ((0.0, 0.0), (0.4, 0.6), (0.8, 0.9))  # of what the air carries
LEARNING_RATE = 1e-3
LAST = 8  # steps of the beginning of a stretch by which the rest of it goes
ASSUMED = 'basis = "estimate", source = "a setting", reason = "a setting of this bench"'
HOME_FILE = f"""
name = "three-devices"
title = "Three Raspberry Pi 5 on WiFi"
source = "made up for this bench"
note = "The notebook runs on the first device."
home_at = "pi-1"

[network]
topology = "wifi"
capacity_bytes_per_s = {{ value = {AIR_BYTES_PER_S:g}, {ASSUMED} }}

[assume.raspberry-pi-5]
memory_bytes = {{ value = 8e9, {ASSUMED} }}
""" + "".join(
    f'\n[[devices]]\nname = "pi-{number}"\nprofile = "raspberry-pi-5"\n' for number in (1, 2, 3)
)

Choice = Callable[[int], Plan]  # the plan of a stretch


def figures(settings: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the four ways through every evening.

    Parameters
    ----------
    settings
        "lab_evenings", "lab_stretches" of one, "lab_steps" of a stretch, "lab_played_steps" of
        these where the plan stays within a stretch, "lab_time_scale", "seed".
    """
    try:
        return _played(settings, settings["lab_time_scale"])
    except UserError as error:  # this machine is too slow for that
        needed = error.facts.get("time_scale")
        if not isinstance(needed, float):
            raise
        return _played(settings, needed)


def _played(settings: Mapping[str, float], time_scale: float) -> dict[str, float]:
    from potluck.home import Home

    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "three-devices.toml"
        path.write_text(HOME_FILE)
        with Home.lab(path, time_scale=time_scale) as home:
            played = AdaptedHome(home)
            for number in range(int(settings["lab_evenings"])):
                evening = played.evening(int(settings["seed"]) + number, settings)
                n_played = int(settings["lab_played_steps"])
                for name, value in played.by_all_ways(evening, n_played).items():
                    found.setdefault(name, []).append(value)
    totals = {f"lab_{name}": sum(values) for name, values in found.items()}
    for name in ("ours", "static", "anew"):
        seconds = totals[f"lab_{name}_s"]
        totals[f"lab_regret_{name}_frac"] = seconds / totals["lab_oracle_s"] - 1
    return {"lab_times": time_scale, **totals}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Seconds of all steps, and how often the run went over to another plan."""

    seconds: float
    n_switches: int


class AdaptedHome:
    """One home, its model and what was profiled of it, with the air as it is at first.

    Parameters
    ----------
    home
        A lab of `HOME_FILE`.
    """

    def __init__(self, home: "Home") -> None:
        self._home = home
        self._model, self._batch = _model()
        self._profile: Profile = home.profile(self._model).wait()
        workload = Training(batch=BATCH, optimizer_copies=2)
        rows = make_plans(self._profile.problem(workload)).best.micro_batch
        self._problem: Problem = self._profile.problem(replace(workload, micro_batch=rows))

    def evening(self, seed: int, settings: Mapping[str, float]) -> fluctuations.Evening:
        """The evening of this seed.

        Parameters
        ----------
        seed
            Of what the air carries.
        settings
            "lab_stretches", "lab_steps".
        """
        rng, n = random.Random(f"lab {seed}"), int(settings["lab_stretches"])
        losses = [0.0, *(rng.uniform(*rng.choice(LOSSES)) for _ in range(n - 1))]
        return fluctuations.Evening(
            problem=self._problem,
            stretches=tuple(Conditions(factors={(MEDIUM, AIR): 1 / (1 - x)}) for x in losses),
            away=("",) * n,
            n_steps=int(settings["lab_steps"]),
            rng=rng,
            noise=0.0,
        )

    def by_all_ways(self, evening: fluctuations.Evening, n_played: int) -> dict[str, float]:
        """Seconds and switches of each way.

        Parameters
        ----------
        evening
            What the air does.
        n_played
            Steps of a stretch that are played where the plan stays within it.
        """
        path = fluctuations.oracle(evening).plans
        ways: dict[str, Choice | None] = {
            "static": None,
            "ours": None,
            "anew": lambda number: evening.plans(number)[0],
            "oracle": path.__getitem__,
        }
        found: dict[str, float] = {}
        for name, choice in ways.items():
            adapt = name == "ours"
            n = evening.n_steps if adapt else min(n_played, evening.n_steps)
            trained = self._train(evening, choice, n, adapt=adapt)
            found[f"{name}_s"] = trained.seconds
            found[f"switches_{name}"] = float(trained.n_switches)
        return found

    def _train(
        self, evening: fluctuations.Evening, choice: Choice | None, n_played: int, *, adapt: bool
    ) -> Trained:
        """From the beginning; `choice` says what to go over to where the air changes. So many steps
        of each stretch are played.
        """
        from potluck.run.optimizers import AdamW

        self._air(1.0)
        first = evening.plans(0)[0] if choice is None else choice(0)
        run = self._home.deploy(
            first, self._model, optimizer=AdamW(LEARNING_RATE), profile=self._profile
        ).wait()
        used = [first.stages]

        def on_step(step: int, loss: float) -> None:
            number, since = divmod(step, n_played)
            if since or number >= len(evening.stretches):
                return
            self._air(evening.stretches[number].of((MEDIUM, AIR)))
            if choice is not None and choice(number).stages != used[-1]:
                used.append(choice(number).stages)
                run.switch(choice(number))

        n_steps = n_played * len(evening.stretches)
        history = run.fit([self._batch] * n_steps, adapt=adapt, on_step=on_step).wait()
        run.close()
        n_own = sum(each.action == "switch" for each in history.decisions)
        stretches = [history.step_s[i : i + n_played] for i in range(0, n_steps, n_played)]
        n_left = evening.n_steps - n_played
        seconds = sum(sum(each) + n_left * median(each[-LAST:]) for each in stretches)
        return Trained(seconds=seconds, n_switches=n_own + len(used) - 1)

    def _air(self, factor: float) -> None:
        rate = AIR_BYTES_PER_S / factor
        self._home.play([Bandwidth(at_s=0.0, medium=AIR, rate=rate)])


def _model() -> "tuple[Model, Sequence[Any]]":
    """Convolutions, with much to compute for the weights that they have, and a batch."""
    import torch
    from torch import nn

    from potluck.graph import Model

    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(1, CHANNELS, 3, padding=1), nn.ReLU()]
    for _ in range(DEPTH):
        layers += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4 * CHANNELS, 10))
    x, y = torch.randn(BATCH, 1, 8, 8), torch.randint(10, (BATCH,))
    loss = nn.functional.cross_entropy
    return Model.from_torch(net, x, loss=loss, example_targets=y, name="convolutions"), (x, y)
