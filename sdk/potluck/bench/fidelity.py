"""Predictions against what the lab measures: homes, models, plans and schedules; training, requests and streams.

Every case runs a few steps, or requests, on emulated devices, and compares them with the simulator's word on the very
same programs: `Run.compare`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.frame import Result
from potluck.lab.specs import DEMO, Spec
from potluck.records import Plan, Stage
from potluck.units import parse_rate

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.run.comparison import Comparison

SETTINGS: Mapping[str, float] = {
    "batch": 64,
    "micro_batch": 16,
    "steps": 6,
    "requests": 8,
    "repeats": 2,
    "every": 1,
    "links": 0,
}
GOALS = {
    "time_error_median_frac": ("<=", 0.05),
    "time_error_max_frac": ("<=", 0.15),
    "peak_memory_violations": ("<=", 0.0),
}
# Slow enough that a few milliseconds which somebody else has the processor stay a small part of every task.
SLOWER = 3.0
# Uplinks so slow that a wide model waits for them, and several flows at a time share each.
CONGESTED = (
    Spec(name="a", slowdown=24, link_rate="10 Mbit/s", power=(5.0, 20.0, 1.0)),
    Spec(name="b", slowdown=36, link_rate="8 Mbit/s", power=(4.0, 15.0, 1.0)),
    Spec(name="c", slowdown=48, link_rate="5 Mbit/s", power=(2.0, 8.0, 1.0)),
)
WIDTHS = {"wide": 512, "narrow": 128}  # of models of linear layers
HOMES: Mapping[str, tuple[Spec, ...]] = {
    "demo": tuple(
        replace(spec, slowdown=SLOWER * spec.slowdown, link_rate=parse_rate(spec.link_rate or 0) / SLOWER)
        for spec in DEMO
    ),
    "congested": CONGESTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Stages of devices with their cut after these parts of the layers; rows are shared evenly.

    `at_once` 0: training; else so many requests under way.
    """

    name: str
    home: str
    model: str
    stages: tuple[tuple[str, ...], ...]
    schedule: str = "1f1b"
    at_once: int = 0

    def plan(self, model_name: str, n_layers: int, batch: int, micro_batch: int) -> Plan:
        """The plan, with stages of as many layers as can be."""
        n = len(self.stages)
        rows = micro_batch if n > 1 and not self.at_once else batch
        cuts = [round(i * n_layers / n) for i in range(n + 1)]
        n_micro_batches = batch // rows
        depths = [min(2 * (n - p) - 1, n_micro_batches) for p in range(n)]
        stages = (
            Stage(start=a, stop=b, devices=names, shares=_even(rows, len(names)), warm_up=depth)
            for a, b, names, depth in zip(cuts, cuts[1:], self.stages, depths, strict=False)
        )
        return Plan(
            planner="bench", model=model_name, stages=tuple(stages), micro_batch=rows,
            n_micro_batches=n_micro_batches, training=not self.at_once,
        )  # fmt: skip


def _even(rows: int, n: int) -> tuple[int, ...]:
    return tuple((i + 1) * rows // n - i * rows // n for i in range(n))


def cases() -> Iterator[Case]:
    """All combinations that are tried."""
    fast, old, jetson, phone = (spec.name for spec in DEMO)
    trained = {
        "alone": ((fast,),),
        "pipeline of 2": ((fast,), (old,)),
        "pipeline of 3": ((fast,), (old,), (jetson,)),
        "shared by 2": ((fast, old),),
        "shared, then one": ((fast, old), (jetson,)),
    }
    for name, stages in trained.items():
        yield Case(name=f"demo cnn train, {name}", home="demo", model="cnn", stages=stages)
    fill = trained["pipeline of 3"]
    yield Case(name="demo cnn train, fill-drain", home="demo", model="cnn", stages=fill, schedule="fill-drain")
    yield Case(name="demo cnn requests", home="demo", model="cnn", stages=((fast,), (phone,)), at_once=1)
    yield Case(name="demo cnn stream", home="demo", model="cnn", stages=((fast,), (old,), (jetson,)), at_once=4)
    chain = (("a",), ("b",), ("c",))
    for name, stages, schedule, at_once in (
        ("train, pipeline of 3", chain, "1f1b", 0),
        ("train, fill-drain", chain, "fill-drain", 0),
        ("train, shared by 3", (("a", "b", "c"),), "1f1b", 0),
        ("train, one, then shared", (("a",), ("b", "c")), "1f1b", 0),
        ("requests", chain, "", 1),
        ("stream", chain, "", 4),
    ):
        yield Case(
            name=f"congested wide {name}", home="congested", model="wide", stages=stages, schedule=schedule,
            at_once=at_once,
        )  # fmt: skip


def run(settings: Mapping[str, float]) -> Result:
    """Every case, several times; the median of a case's errors counts. `links` above 0: on homes of `links` instead."""
    from potluck.bench import links
    from potluck.home import Home

    if settings["links"]:
        return links.run(settings)
    figures: dict[str, float] = {}
    found: dict[str, list[Comparison]] = {}
    tried = list(cases())[:: int(settings["every"])]
    for name, specs in HOMES.items():
        with Home.lab(specs) as home:
            found |= of_home(home, [case for case in tried if case.home == name], settings)
    errors = {name: median(one.error_frac for one in several) for name, several in found.items()}
    energies = [median(map(energy_error_frac, several)) for several in found.values()]
    figures["time_error_median_frac"] = median(errors.values())
    figures["time_error_max_frac"] = max(errors.values())
    figures["energy_error_median_frac"] = median(energies)
    figures["peak_memory_violations"] = sum(
        used > expected for several in found.values() for one in several for expected, used in one.peak_bytes.values()
    )
    for name, error in errors.items():
        figures[f"{name}: error_frac"] = error
    return Result(name="fidelity", figures=figures, settings=settings, goals=GOALS)


def energy_error_frac(compared: "Comparison") -> float:
    """|predicted - measured| / measured of the joules of all devices."""
    expected = sum(pair[0] for pair in compared.energy_j.values())
    measured = sum(pair[1] for pair in compared.energy_j.values())
    return abs(expected - measured) / measured if measured else 0.0


def of_home(home: "Home", some: Sequence[Case], settings: Mapping[str, float]) -> "dict[str, list[Comparison]]":
    """Each of these cases on this home, as often as the settings say."""
    batch, micro_batch = int(settings["batch"]), int(settings["micro_batch"])
    found: dict[str, list[Comparison]] = {case.name: [] for case in some}
    models = {case.model: _model(case.model, batch) for case in some}
    for model, _, _ in models.values():
        home.profile(model, rows=(micro_batch // 4, micro_batch, batch)).wait()
    for _ in range(int(settings["repeats"])):
        for case in some:
            model, images, labels = models[case.model]
            plan = case.plan(model.name, len(model.layers(not case.at_once)), batch, micro_batch)
            found[case.name].append(_tried(home, case, plan, model, images, labels, settings))
    return found


def _tried(
    home: "Home", case: Case, plan: Plan, model: Any, images: Any, labels: Any, settings: Mapping[str, float]
) -> "Comparison":
    from potluck.run.optimizers import AdamW

    optimizer = None if case.at_once else AdamW(1e-3)
    schedule = None if case.at_once else case.schedule
    run = home.deploy(plan, model, optimizer=optimizer, schedule=schedule).wait()
    try:
        if case.at_once == 0:
            run.fit([(images, labels)] * int(settings["steps"])).wait()
        elif case.at_once == 1:
            for _ in range(int(settings["requests"])):
                run(images)
        else:
            run(images.repeat(int(settings["requests"]) + case.at_once, 1, 1, 1))
        return run.compare()
    finally:
        run.close()


def _model(kind: str, batch: int) -> tuple[Any, Any, Any]:
    """The model, and a batch of it."""
    import torch

    from potluck.graph import Model
    from potluck.samples import Digits, digits_network

    images, labels = next(iter(Digits.load().batches(batch, 1)))
    torch.manual_seed(0)
    network = digits_network() if kind == "cnn" else _linear(WIDTHS[kind])
    made = Model.from_torch(network, images, loss=torch.nn.functional.cross_entropy, example_targets=labels)
    return made, images, labels


def _linear(n: int) -> Any:
    """A network of linear layers, `n` wide."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 10))
