"""The section of the run, and the rows of its task stream. Pure."""

from collections.abc import Iterator
from typing import Any

from potluck.display.cockpit.observation import RunObservation
from potluck.display.cockpit.state import Row, Words
from potluck.display.timeline import KINDS, kind
from potluck.records import Trace
from potluck.sanitized_text import harmless
from potluck.simulate.time_spans import pace_s, usual_s

KIND_NUMBERS = {name: number for number, name in enumerate(KINDS)}
USUAL = 16  # steps that tell the usual one
MOST_ROWS = 1500  # of one step: what is beyond is left out, and said


def run(seen: RunObservation) -> dict[str, Any]:
    """What it is, how fast, and how far."""
    plan, steps = seen.plan, [s for s in seen.step_s[-USUAL:] if s > 0]
    found: dict[str, Any] = {
        "model": harmless(plan.model),
        "planner": harmless(plan.planner),
        "training": plan.training,
        "noun": "step" if plan.training else "request",
        "n_done": seen.n_done,
        "batch": plan.batch,
        "micro_batch": plan.micro_batch,
        "n_layers": plan.stages[-1].stop,
        "state": _state(seen),
        "stages": [[s.start, s.stop, [harmless(name) for name in s.devices]] for s in plan.stages],
    }
    if seen.ended:
        found["ended"] = harmless(seen.ended)[:300]
    if steps:
        found["step_s"] = _three(usual_s(steps, trains=plan.training))
    if seen.predicted is not None and seen.predicted.step_s:
        found["predicted_s"] = _three(pace_s(seen.predicted))
    if seen.problem is not None:
        found["layer_names"] = [harmless(layer.name)[:80] for layer in seen.problem.layers]
    return found


def _state(seen: RunObservation) -> str:
    if seen.is_imagined:
        return "imagined"
    return "ended" if seen.ended else "training" if seen.is_training else "idle"


def rows(trace: Trace, step: int, words: Words) -> Iterator[Row]:
    """One step as rows of the task stream; time 0 is when its first device began to compute."""
    zero_s = min((e.start_s for e in trace.events if e.lane == "compute"), default=0.0)
    for event in sorted(trace.events, key=lambda event: event.start_s)[:MOST_ROWS]:
        if event.stop_s <= zero_s and event.lane != "compute":
            continue  # its inputs travelled while the step before went on
        yield (
            float(step),
            float(words.number(event.device)),
            float(KIND_NUMBERS[kind(event)]),
            max(0.0, event.start_s - zero_s),
            event.stop_s - zero_s,
            float(event.nbytes),
            float(event.instruction),
            float(words.number(event.peer)),
            float(words.number(event.label or event.op)),
        )


def _three(value: float) -> float:
    return float(f"{value:.3g}")
