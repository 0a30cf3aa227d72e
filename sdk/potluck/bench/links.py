"""The same home, models and plans over links of network namespaces and over links in user space: is
either as predicted, and do they measure the same? `potluck bench fidelity --set links=N`, of so
many homes; Linux and root only.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from potluck.bench.harness import Result
from potluck.bench.lab_plans import LabCase, of_home

if TYPE_CHECKING:
    from potluck.run.comparison import Comparison

GOALS = {"step_apart_max_frac": ("<=", 0.1)}  # as BENCHMARKS.md says
KINDS = ("namespaces", "relay")
# Each with a time scale at which two cores play it, and a model for its links: the first on a
# switch, the second on one radio channel, of 0.15 MB/s then.
HOMES: Mapping[str, tuple[float, str, tuple[str, str, str]]] = {
    "asteroid-b-100": (150.0, "wide", ("nx-1", "nx-2", "tx2-1")),
    "smart-home-2": (500.0, "narrow", ("laptop-1", "laptop-2", "xiaomi-1")),
}


def cases(home: str, model: str, devices: Sequence[str]) -> tuple[LabCase, ...]:
    """Training in a row, and with a shared stage; requests that follow each other."""
    a, b, c = devices
    return (
        LabCase(
            name=f"{home} train, pipeline of 3", home=home, model=model, stages=((a,), (b,), (c,))
        ),
        LabCase(
            name=f"{home} train, one, then shared", home=home, model=model, stages=((a,), (b, c))
        ),
        LabCase(
            name=f"{home} stream", home=home, model=model, stages=((a,), (b,), (c,)), at_once=3
        ),
    )


def run(settings: Mapping[str, float]) -> Result:
    """Every case over links of either kind."""
    from potluck.home import Home

    found: dict[str, dict[str, Comparison]] = {kind: {} for kind in KINDS}
    for name, (time_scale, model, devices) in list(HOMES.items())[: int(settings["links"])]:
        for kind in KINDS:
            with Home.lab(name, time_scale=time_scale, links=kind) as home:
                for case, several in of_home(home, cases(name, model, devices), settings).items():
                    found[kind][case] = sorted(several, key=_step_s)[len(several) // 2]
    figures: dict[str, float] = {}
    for kind, compared in found.items():
        figures |= _errors(kind, compared.values())
    namespaces, relay = (found[kind] for kind in KINDS)
    apart = {case: _apart(_step_s(namespaces[case]), _step_s(relay[case])) for case in namespaces}
    figures["step_apart_median_frac"] = median(apart.values())
    figures["step_apart_max_frac"] = max(apart.values())
    figures |= {f"{case}: step_apart_frac": value for case, value in apart.items()}
    return Result(name="fidelity", figures=figures, settings=settings, goals=GOALS)


def _step_s(compared: "Comparison") -> float:
    return compared.measured_step_s


def _errors(kind: str, compared: "Iterable[Comparison]") -> dict[str, float]:
    """What was measured over links of this kind against what was predicted."""
    errors = [one.error_frac for one in compared]
    return {
        f"{kind}: time_error_median_frac": median(errors),
        f"{kind}: time_error_max_frac": max(errors),
    }


def _apart(one: float, other: float) -> float:
    """By how much the larger exceeds the smaller."""
    return max(one, other) / min(one, other) - 1
