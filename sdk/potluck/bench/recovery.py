"""A device is killed while a home trains: seconds until the next step is done, against gathering,
planning anew and sending everything, and against a restart from a file.

Emulated homes of the library, each with a CNN and a transformer, on the fastest plan of two devices
or more. Which device is killed, and when within a step, is drawn by the seed. The killed agent is
started again between two kills, and the run goes back to its plan.
"""

import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result, elapsed_s
from potluck.errors import HomeError, UserError

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.records import Plan, Problem
    from potluck.run.run import Run
    from potluck.sessions.local_agents import LocalAgents

SETTINGS: Mapping[str, float] = {
    "kills": 20,
    "homes": 3,
    "models": 2,
    "steps_before": 3,
    "batch": 32,
    "time_scale": 8.0,
    "overhead_steps": 200,
    "seed": 0,
}
GOALS = {
    "prediction_error_median_frac": ("<=", 0.2),
    "ratio_heavy_to_ours": (">=", 14.0),
    "steps_lost": ("<=", 0.0),
    "protection_overhead_frac": ("<=", 0.03),
    "loss_difference": ("<=", 1e-3),
}
DEMO = "demo"  # of no homes: quick, for a look
HOMES = ("asteroid-a-100", "asteroid-a-1000", "smart-home-2")
TIMEOUT_S = 120.0
LEARNING_RATE = 1e-3
LEAST_LOSS_FRAC = 1e-3


@dataclass(slots=True)
class RecoveryTimes:
    """What all kills of a home have shown."""

    time_scale: float
    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    heavy_ratios: list[float] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)
    n_lost: int = 0
    difference: float = 0.0
    overhead_frac: float = 0.0


def run(settings: Mapping[str, float]) -> Result:
    """Every home with every model, then what protection costs on the first."""
    names = HOMES[: int(settings["homes"])] or (DEMO,)
    played = {name: _played(name, settings) for name in names}
    homes = [*played.values()]
    seconds = [*chain.from_iterable(home.seconds for home in homes)]
    again = [*chain.from_iterable(home.again for home in homes)]
    figures = {
        "recovery_s_median": median(seconds),
        "recovery_s_max": max(seconds),
        "prediction_error_median_frac": median(chain.from_iterable(home.errors for home in homes)),
        "ratio_heavy_to_ours": median(chain.from_iterable(home.heavy_ratios for home in homes)),
        "restart_from_file_s_median": median(
            chain.from_iterable(home.restarts_s for home in homes)
        ),
        "steps_lost": float(sum(home.n_lost for home in homes)),
        "steps_recomputed_median": float(median(again)),
        "steps_recomputed_max": float(max(again)),
        "protection_overhead_frac": homes[0].overhead_frac,
        "loss_difference": max(home.difference for home in homes),
    }
    for name, each in played.items():
        figures |= {
            f"{name}: recovery_s_median": median(each.seconds),
            f"{name}: prediction_error_median_frac": median(each.errors),
            f"{name}: ratio_heavy_to_ours": median(each.heavy_ratios),
            f"{name}: time_scale": each.time_scale,
        }
    return Result(name="recovery", figures=figures, settings=settings, goals=GOALS)


def _played(name: str, settings: Mapping[str, float]) -> RecoveryTimes:
    """The kills of one home: as many times slower as set, or as this machine needs."""
    time_scale = 1.0 if name == DEMO else settings["time_scale"]
    try:
        return _played_at(name, settings, time_scale)
    except UserError as error:
        needed = error.facts.get("time_scale")
        if not isinstance(needed, float | int) or needed <= time_scale:
            raise
        return _played_at(name, settings, float(needed))


def _played_at(name: str, settings: Mapping[str, float], time_scale: float) -> RecoveryTimes:
    from potluck.home import Home
    from potluck.lab.lab import Lab, open_lab

    lab = open_lab(name, time_scale=time_scale)
    if not isinstance(lab, Lab):
        raise HomeError(
            f"{name} is up already, and its devices are not this program's to kill.",
            next_step="potluck lab down",
        )
    found = RecoveryTimes(time_scale=time_scale)
    with Home.over(lab) as home:
        for kind in ("cnn", "transformer")[: int(settings["models"])]:
            case = RecoveryCase(home, lab.agents, kind, settings)
            case.kill(random.Random(f"{settings['seed']} {name} {kind}"), found)
            if kind == "cnn" and name in (HOMES[0], DEMO):
                found.overhead_frac = case.overhead_frac()
    return found


class RecoveryCase:
    """One model on one home."""

    def __init__(
        self, home: "Home", agents: "LocalAgents", kind: str, settings: Mapping[str, float]
    ) -> None:
        from potluck.graph import Model
        from potluck.planning import make_plans
        from potluck.records import Training

        self.home = home
        self.agents = agents
        self.settings = settings
        self.network, self.batch, self.loss = _network(kind, int(settings["batch"]))
        x, y = self.batch
        self.model = Model.from_torch(self.network, x, loss=self.loss, example_targets=y, name=kind)
        profile = home.profile(self.model).wait()
        self.problem: Problem = profile.problem(Training(batch=len(x)))
        self.plan: Plan = next(p for p in make_plans(self.problem) if len(set(p.devices)) > 1)

    def deploy(self, plan: "Plan", **options: Any) -> "Run":
        """With AdamW."""
        from potluck.run.optimizers import AdamW

        optimizer = None if "resume" in options else AdamW(LEARNING_RATE)
        return self.home.deploy(plan, self.model, optimizer=optimizer, **options).wait()

    def kill(self, rng: random.Random, found: RecoveryTimes) -> None:
        """Kill, again and again, while one training goes on; then look what was learned."""
        running = self.deploy(self.plan)
        ends = StepMoments()
        given = 0

        def endless() -> Iterator[Any]:
            nonlocal given
            while not stopping.is_set():
                given += 1
                yield self.batch

        stopping = threading.Event()
        fitting = running.fit(endless(), on_step=ends.took)
        for number in range(int(self.settings["kills"])):
            usual_s = ends.more(int(self.settings["steps_before"]))
            device = rng.choice(sorted(set(self.plan.devices)))
            time.sleep(rng.uniform(0.0, usual_s))
            begun_s = time.perf_counter()
            self.agents.kill(device)
            while len(running.history.recoveries) <= number:
                time.sleep(0.001)
            record = running.history.recoveries[number]
            seconds = ends.at(record.step + 1) - begun_s
            found.seconds.append(seconds)
            found.again.append(record.n_again)
            if record.predicted_s is not None:
                found.errors.append(abs(record.predicted_s - seconds) / seconds)
            self.agents.restart(device)
            _await(lambda device=device: device in self.home.devices.ready)
            running.switch(self.plan).wait()
        stopping.set()
        history = fitting.wait()
        found.n_lost += given - len(history.losses)
        found.difference = max(found.difference, self._difference(history.losses))
        self._without_us(running, found)

    def _difference(self, losses: Any) -> float:
        """From the losses of one machine, at most, as a part of these; below a thousandth of the
        first loss, of that: training goes on upon one batch until rounding is all that is left.
        """
        import copy

        import torch

        alone = copy.deepcopy(self.network)
        optimizer = torch.optim.AdamW(alone.parameters(), lr=LEARNING_RATE)
        x, y = self.batch
        largest = least = 0.0
        for loss in losses:
            wanted = self.loss(alone(x), y)
            optimizer.zero_grad()
            wanted.backward()
            optimizer.step()
            least = least or LEAST_LOSS_FRAC * wanted.item()
            largest = max(largest, abs(loss - wanted.item()) / max(wanted.item(), least))
        return largest

    def _without_us(self, running: "Run", found: RecoveryTimes) -> None:
        """The heavy way and the restart, both on the devices that one loss would leave. Finding out
        about the loss is not counted; steps since the latest snapshot or file are, as many as ours
        computed again.
        """
        from potluck.planning import make_plans
        from potluck.planning.scenario import only

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.safetensors"
            gathered_s = elapsed_s(lambda: running.save(path))
            running.close()
            names = [device.name for device in self.problem.devices]
            survivors = [name for name in names if name != self.plan.devices[-1]]
            begun_s = time.perf_counter()
            plan = make_plans(only(self.problem, survivors)).best
            planned_s = time.perf_counter() - begun_s
            begun_s = time.perf_counter()
            again = self.deploy(plan, resume=path)
            again.fit([self.batch]).wait()
            sent_s = time.perf_counter() - begun_s
            step_s = median(again.fit([self.batch] * 4).wait().step_s)
            again.close()
        n_kills = int(self.settings["kills"])
        own_s, n_again = median(found.seconds[-n_kills:]), median(found.again[-n_kills:])
        found.restarts_s.append(planned_s + sent_s + n_again * step_s)
        found.heavy_ratios.append((gathered_s + found.restarts_s[-1]) / own_s)

    def _train(self, run: "Run", n_steps: int) -> None:
        run.fit([self.batch] * n_steps).wait()

    def overhead_frac(self) -> float:
        """StepMoments with protection against steps without, side by side."""
        n, seconds = int(self.settings["overhead_steps"]), {True: 0.0, False: 0.0}
        for protect in (True, False, False, True):
            running = self.deploy(self.plan, protect=protect)
            running.fit([self.batch] * 2).wait()
            seconds[protect] += elapsed_s(partial(self._train, running, n))
            running.close()
        return seconds[True] / seconds[False] - 1


class StepMoments:
    """When which step was done."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []
        self._news = threading.Condition()

    def took(self, step: int, loss: float) -> None:
        """One was done."""
        with self._news:
            self._ends_s.append(time.perf_counter())
            self._news.notify_all()

    def at(self, step: int) -> float:
        """When this step was done; waits for it."""
        with self._news:
            if not self._news.wait_for(lambda: len(self._ends_s) >= step, TIMEOUT_S):
                raise TimeoutError(f"step {step} does not come")
            return self._ends_s[step - 1]

    def more(self, n: int) -> float:
        """Wait for `n` more: seconds of one."""
        with self._news:
            first = len(self._ends_s)
        return (self.at(first + n) - self.at(first + 1)) / max(1, n - 1)


def _network(kind: str, batch: int) -> tuple[Any, tuple[Any, Any], Any]:
    """The network, a batch, and the loss."""
    import torch
    from torch import nn

    from potluck.samples import Digits, digits_network

    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = next(iter(Digits.load().batches(batch, 1)))
    if kind == "cnn":
        return digits_network(), (images, labels), nn.functional.cross_entropy
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    network = nn.Sequential(
        nn.Flatten(2),
        nn.Linear(8, 64),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    )
    return network, (images.reshape(batch, 8, 8, 1), labels), nn.functional.cross_entropy


def _await(holds: Any) -> None:
    until_s = time.perf_counter() + TIMEOUT_S
    while not holds():
        if time.perf_counter() > until_s:
            raise TimeoutError("a device does not come back")
        time.sleep(0.01)
