"""Predictions against what the lab measures: homes, models, plans and schedules.

Training, requests and streams; plans by hand and as the planner makes them.

Every case runs a few steps, or requests, on emulated devices, and compares them with the
simulator's word on the very same programs: `Run.compare`. Where this machine may (Linux, root),
`measured` homes in network namespaces are planned by what was measured of their links.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from potluck.bench.harness import Result
from potluck.bench.lab_plans import LabCase, of_home
from potluck.lab.namespaces import missing
from potluck.sessions.agent_specs import DEMO, Spec
from potluck.units import parse_rate

if TYPE_CHECKING:
    from potluck.run.comparison import Comparison

SETTINGS: Mapping[str, float] = {
    "batch": 64,
    "micro_batch": 16,
    "steps": 6,
    "requests": 16,
    "repeats": 2,
    "every": 1,
    "measured": 4,
    "links": 0,
}
GOALS = {
    "time_error_median_frac": ("<=", 0.05),
    "time_error_max_frac": ("<=", 0.15),
    "peak_memory_violations": ("<=", 0.0),
}
# Slow enough that a few milliseconds which somebody else has the processor stay a small part of
# every task.
SLOWER = 3.0
# Uplinks so slow that a wide model waits for them, and several flows at a time share each.
CONGESTED = (
    Spec(name="a", slowdown=24, link_rate="10 Mbit/s", power=(5.0, 20.0, 1.0)),
    Spec(name="b", slowdown=36, link_rate="8 Mbit/s", power=(4.0, 15.0, 1.0)),
    Spec(name="c", slowdown=48, link_rate="5 Mbit/s", power=(2.0, 8.0, 1.0)),
)
TOWERS = (3, 5)  # where the second tower of layers begins, and what judges both
HOMES: Mapping[str, tuple[Spec, ...]] = {
    "demo": tuple(
        replace(
            spec,
            slowdown=SLOWER * spec.slowdown,
            link_rate=parse_rate(spec.link_rate or 0) / SLOWER,
        )
        for spec in DEMO
    ),
    "congested": CONGESTED,
}


def cases() -> Iterator[LabCase]:
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
        yield LabCase(name=f"demo cnn train, {name}", home="demo", model="cnn", stages=stages)
    fill = trained["pipeline of 3"]
    yield LabCase(
        name="demo cnn train, fill-drain",
        home="demo",
        model="cnn",
        stages=fill,
        schedule="fill-drain",
    )
    yield LabCase(
        name="demo cnn train, recomputing",
        home="demo",
        model="cnn",
        stages=trained["shared, then one"],
        recompute=True,
    )
    yield LabCase(
        name="demo cnn train, interleaved",
        home="demo",
        model="cnn",
        stages=((fast,), (old,), (fast,), (old,)),
        schedule="interleaved",
    )
    yield LabCase(name="demo cnn train, as planned", home="demo", model="cnn")
    yield LabCase(name="demo cnn stream, as planned", home="demo", model="cnn", at_once=4)
    yield LabCase(
        name="demo cnn requests", home="demo", model="cnn", stages=((fast,), (phone,)), at_once=1
    )
    yield LabCase(
        name="demo cnn stream",
        home="demo",
        model="cnn",
        stages=((fast,), (old,), (jetson,)),
        at_once=4,
    )
    chain = (("a",), ("b",), ("c",))
    for name, stages, at_once in (
        ("train", chain, 0),
        ("train, as planned", (), 0),
        ("requests", chain, 1),
    ):
        yield LabCase(
            name=f"congested branched {name}",
            home="congested",
            model="branched",
            stages=stages,
            cuts=TOWERS,
            at_once=at_once,
        )
    for name, stages, schedule, at_once in (
        ("train, pipeline of 3", chain, "1f1b", 0),
        ("train, fill-drain", chain, "fill-drain", 0),
        ("train, shared by 3", (("a", "b", "c"),), "1f1b", 0),
        ("train, one, then shared", (("a",), ("b", "c")), "1f1b", 0),
        ("requests", chain, "", 1),
        ("stream", chain, "", 4),
    ):
        yield LabCase(
            name=f"congested wide {name}",
            home="congested",
            model="wide",
            stages=stages,
            schedule=schedule,
            at_once=at_once,
        )


def run(settings: Mapping[str, float]) -> Result:
    """Every case, several times; the median of a case's errors counts.

    `links` above 0: on homes of `links` instead.
    """
    from potluck.bench import links, measured_homes
    from potluck.home import Home

    if settings["links"]:
        return links.run(settings)
    figures: dict[str, float] = {}
    found: dict[str, list[Comparison]] = {}
    tried = list(cases())[:: int(settings["every"])]
    for name, specs in HOMES.items():
        with Home.lab(specs) as home:
            found |= of_home(home, [case for case in tried if case.home == name], settings)
    n_measured, reason = int(settings["measured"]), missing()
    notes = (f"no homes in namespaces: {reason}",) if reason and n_measured else ()
    found |= measured_homes.comparisons(0 if reason else n_measured, settings)
    errors = {name: median(one.error_frac for one in several) for name, several in found.items()}
    energies = [median(map(energy_error_frac, several)) for several in found.values()]
    figures["time_error_median_frac"] = median(errors.values())
    figures["time_error_max_frac"] = max(errors.values())
    figures["energy_error_median_frac"] = median(energies)
    figures["peak_memory_violations"] = sum(
        used > expected
        for several in found.values()
        for one in several
        for expected, used in one.peak_bytes.values()
    )
    for name, error in errors.items():
        figures[f"{name}: error_frac"] = error
    return Result(name="fidelity", figures=figures, settings=settings, goals=GOALS, notes=notes)


def energy_error_frac(compared: "Comparison") -> float:
    """|predicted - measured| / measured of the joules of all devices."""
    expected = sum(pair[0] for pair in compared.energy_j.values())
    measured = sum(pair[1] for pair in compared.energy_j.values())
    return abs(expected - measured) / measured if measured else 0.0
