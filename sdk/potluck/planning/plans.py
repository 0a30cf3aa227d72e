"""The answer to a problem: judged plans, the best first, and those that nothing else beats in
everything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from potluck.display_hooks import Shown
from potluck.provenance import MEASURED, UNKNOWN
from potluck.records import Plan, Problem


@dataclass(frozen=True, slots=True)
class Plans(Shown, Sequence[Plan]):
    """All plans that hold the limits, best first. `remarks`: what else was looked at, in words."""

    items: tuple[Plan, ...]
    remarks: tuple[str, ...] = ()

    @property
    def best(self) -> Plan:
        """The one to deploy."""
        return self.items[0]

    @property
    def pareto(self) -> tuple[Plan, ...]:
        """The plans that no other beats in latency, energy (where that of all is known) and highest
        peak memory at once; fastest first.
        """
        thrifty = all(plan.energy_j is not None for plan in self.items)
        front: dict[tuple[float, ...], Plan] = {}
        for plan in sorted(self.items, key=_measures):
            latency, energy, peak = _measures(plan)
            measures = (latency, energy, peak) if thrifty else (latency, peak)
            if not any(
                all(a <= b for a, b in zip(other, measures, strict=True)) for other in front
            ):
                front[measures] = plan
        return tuple(front.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What one should know about their order."""
        return (*order_notes(self.best.problem), *self.remarks)

    @property
    def watts(self) -> tuple[str, ...]:
        """Where the watts behind their energies come from, and how sure they are."""
        return power_notes(self.best.problem)

    @overload
    def __getitem__(self, index: int) -> Plan: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Plan, ...]: ...

    def __getitem__(self, index: int | slice) -> Plan | tuple[Plan, ...]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.items)

    def __repr__(self) -> str:
        best = self.best
        headline = (
            f"<{len(self)} plans, best: {best.planner} on {', '.join(best.devices)}, "
            f"{best.latency_s:.4g} s>"
        )
        return "\n".join((headline, *self.notes))


def _measures(plan: Plan) -> tuple[float, float, float]:
    latency = plan.latency_s if plan.latency_s is not None else float("inf")
    energy = plan.energy_j if plan.energy_j is not None else float("inf")
    return latency, energy, max(plan.peak_bytes.values(), default=0)


def unknown_power(problem: Problem) -> tuple[str, ...]:
    """The devices whose idle or busy power nobody knows."""
    return tuple(
        device.name for device in problem.devices if device.idle_w is None or device.busy_w is None
    )


def is_thrifty(problem: Problem) -> bool:
    """Whether joules decide: a latency is asked for, and every device's power is known."""
    return problem.qoe.latency_s is not None and not unknown_power(problem)


def order_notes(problem: Problem | None) -> tuple[str, ...]:
    """Says so where plans of the least energy were asked for and cannot be told."""
    if problem is None or problem.qoe.latency_s is None or is_thrifty(problem):
        return ()
    names = ", ".join(unknown_power(problem))
    return (
        f"the fastest plan comes first, not the one of the least energy: the power of {names} is "
        "not known (state it there: potluck agent start --power IDLE,BUSY,RADIO)",
    )


def power_notes(problem: Problem | None) -> tuple[str, ...]:
    """Where the watts of each device come from, alike ones together, and how sure they are."""
    found: dict[str, list[str]] = {}
    for device in problem.devices if problem else ():
        origin = device.power_mark
        if origin == MEASURED and device.power_error_w is not None:
            origin += f", known to ±{device.power_error_w:.2g} W"
        if origin != UNKNOWN and device.power_note:
            origin += f": {device.power_note}"
        if origin != UNKNOWN and device.radio_w is None:
            origin += "; its radio is taken to add 0 W, for nobody knows its power"
        found.setdefault(origin, []).append(device.name)
    return tuple(f"watts of {', '.join(names)}: {origin}" for origin, names in found.items())


def preference(plan: Plan, problem: Problem) -> tuple[float, ...]:
    """Sorts the better plan first.

    Where joules decide: least energy + lambda x lateness, Dora eq. (2), and after all of these
    those of unknown energy, by time. Else: fastest first, then thriftiest. Of plans that are equal
    but for rounding, the one of the fewest stages.
    """
    qoe, (latency, energy, peak) = problem.qoe, _measures(plan)
    unknown = plan.energy_j is None
    rest = len(plan.stages), peak, len(plan.devices)
    if is_thrifty(problem) and not unknown:
        late = energy + qoe.lambda_j_per_s * max(0.0, latency - (qoe.latency_s or 0.0))
        return False, rounded(late), rounded(latency), *rest
    if is_thrifty(problem):
        return True, rounded(latency), 0.0, *rest
    return rounded(latency), unknown, 0.0 if unknown else rounded(energy), *rest


def rounded(value: float) -> float:
    """`value` to twelve digits: what differs beyond differs by the order of additions."""
    return float(f"{value:.12g}")
