"""What all benches share: a Result, its table and JSON, and fair timing (sides interleaved,
medians).
"""

import gc
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from potluck import units
from potluck.bench import BENCHES
from potluck.display import text as texts
from potluck.display.tables import Table
from potluck.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Figures by key; `goals` says, for some of them, what is aimed at: ("<=", 100.0).

    `notes`: how to read them.
    """

    name: str
    figures: Mapping[str, float]
    settings: Mapping[str, float | str]
    goals: Mapping[str, tuple[str, float]]
    notes: tuple[str, ...] = ()


def run(name: str, changes: Mapping[str, float]) -> Result:
    """Run bench `name` with some settings changed.

    Raises
    ------
    UserError
        If there is no such bench or setting.
    """
    if name not in BENCHES:
        raise UserError(
            f"no bench is called {name!r}.", next_step=f"There are {', '.join(BENCHES)}."
        )
    module = importlib.import_module(f"potluck.bench.{name}")
    defaults: Mapping[str, float] = module.SETTINGS
    for key in changes:
        if key not in defaults:
            raise UserError(
                f"bench {name} has no setting {key!r}.", next_step=f"It has {', '.join(defaults)}."
            )
    result: Result = module.run({**defaults, **changes})
    return result


def parse_setting(text: str) -> tuple[str, float]:
    """`repeats=3` as ("repeats", 3)."""
    key, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        raise UserError(
            f"cannot read the setting {text!r}: expected KEY=NUMBER, such as repeats=3."
        ) from None
    return key, int(number) if number == int(number) else number


def interleaved(
    sides: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, tuple[float, ...]]:
    """Seconds of every run of each side, measured A B A B so that a slow moment of the machine hits
    all alike.

    One untimed run of each comes first. Garbage is collected before each run, not during; what was
    there before is not looked through each time.
    """
    for side in sides.values():
        side()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    gc.collect()
    gc.freeze()  # torch's own objects alone take 0.2 s to look through
    try:
        for _ in range(repeats):
            for name, side in sides.items():
                seconds[name].append(_timed_s(side))
    finally:
        gc.unfreeze()
    return {name: tuple(values) for name, values in seconds.items()}


def elapsed_s(work: Callable[[], object]) -> float:
    """Seconds that some work takes."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def _timed_s(side: Callable[[], object]) -> float:
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        return elapsed_s(side)
    finally:
        if was_on:
            gc.enable()


def ratio(seconds: Mapping[str, tuple[float, ...]], ours: str, theirs: str) -> float:
    """Median over the rounds of our time by theirs; each round compares neighbours in time."""
    return median(a / b for a, b in zip(seconds[ours], seconds[theirs], strict=True))


def document(result: Result) -> dict[str, object]:
    """The result as JSON data."""
    notes: dict[str, object] = {"notes": list(result.notes)} if result.notes else {}
    return {
        "name": result.name,
        "figures": dict(result.figures),
        "settings": dict(result.settings),
        **notes,
    }


def text(result: Result) -> str:
    """The result as a table, goals beside what was measured."""
    rows = []
    for key, value in result.figures.items():
        sign, goal = result.goals.get(key, ("", 0.0))
        met = {"<=": value <= goal, ">=": value >= goal}.get(sign)
        verdict = "" if met is None else "met" if met else "missed"
        rows.append((key, units.three_digits(value), f"{sign} {goal:g}" if sign else "", verdict))
    notes = (*result.notes, ", ".join(f"{key} {value}" for key, value in result.settings.items()))
    columns = ("figure", ">measured", ">goal", "")
    return texts.render(
        Table(title=f"bench {result.name}", columns=columns, rows=tuple(rows), notes=notes)
    )
