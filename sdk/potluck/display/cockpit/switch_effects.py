"""What a switch did: the steps before and after it, and what it cost, each predicted beside
measured. Pure.
"""

from dataclasses import dataclass, replace
from typing import Any

from potluck import units
from potluck.display.cockpit.observation import RunObservation
from potluck.records import Plan
from potluck.sanitized_text import harmless
from potluck.simulate.time_spans import usual_s

SETTLES = 2  # steps after a switch that are not yet the new plan's usual ones
LOOKED_AT = 5  # steps that tell what is usual
KEPT = 5  # switches that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _Switch:
    plan: Plan
    begun: int  # steps by then
    before_s: float | None
    costs_s: float | None
    crossed: int | None = None


class SwitchEffects:
    """Of the switches of one run, the latest last."""

    def __init__(self) -> None:
        self._open: _Switch | None = None
        self.shown: list[dict[str, Any]] = []

    def begin(self, run: RunObservation, plan: Plan, costs_s: float | None) -> None:
        """A switch has begun."""
        usual = [*run.step_s[-LOOKED_AT:]]
        before_s = usual_s(usual, trains=plan.training) if usual else None
        self._open = _Switch(
            plan=plan, begun=len(run.history.step_s), before_s=before_s, costs_s=costs_s
        )

    def failed(self) -> None:
        """It came to nothing."""
        self._open = None

    def crossed(self, n_done: int) -> None:
        """The new plan is in force."""
        if self._open is not None:
            self._open = replace(self._open, crossed=n_done)

    def look(self, run: RunObservation) -> list[str]:
        """The effect in words, once enough steps have shown it."""
        its = self._open
        if its is None or its.crossed is None:
            return []
        steps = run.history.step_s
        n_before = run.n_done - len(steps)  # of a run that was resumed
        first = its.crossed - n_before
        after = steps[first + SETTLES :]
        if len(after) < LOOKED_AT:
            return []
        self._open = None
        measured_s = usual_s(after[: 2 * LOOKED_AT], trains=its.plan.training)
        during = steps[its.begun : first + SETTLES]
        shown: dict[str, Any] = {
            "to": harmless(its.plan.planner),
            "devices": [harmless(name) for name in its.plan.devices],
            "step": its.crossed,
            "after_s": measured_s,
        }
        if its.plan.latency_s is not None:
            shown["predicted_s"] = its.plan.latency_s
        if its.before_s is not None:
            shown["before_s"] = its.before_s
            cost_s = sum(during) - len(during) * its.before_s
            shown["cost_s"] = max(0.0, cost_s)
        if its.costs_s is not None:
            shown["predicted_cost_s"] = its.costs_s
        self.shown = [*self.shown, shown][-KEPT:]
        return [_words(shown)]


def _words(shown: dict[str, Any]) -> str:
    summary = f"after the switch a step takes {units.duration(shown['after_s'])}"
    if "predicted_s" in shown:
        summary += f", predicted {units.duration(shown['predicted_s'])}"
    if "before_s" in shown:
        summary += f"; before, {units.duration(shown['before_s'])}"
    if "cost_s" in shown and "predicted_cost_s" in shown:
        summary += (
            f". The switch cost {units.duration(shown['cost_s'])} of training, "
            f"predicted {units.duration(shown['predicted_cost_s'])}"
        )
    return summary + "."
