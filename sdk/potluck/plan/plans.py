"""The answer to a problem: judged plans, the best first, and those that nothing else beats in everything."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from potluck.records import Plan, QoE


@dataclass(frozen=True, slots=True)
class Plans(Sequence[Plan]):
    """All plans that hold the limits, best first."""

    items: tuple[Plan, ...]

    @property
    def best(self) -> Plan:
        """The one to deploy."""
        return self.items[0]

    @property
    def pareto(self) -> tuple[Plan, ...]:
        """The plans that no other beats in latency, energy and highest peak memory at once; fastest first."""
        front: list[Plan] = []
        for plan in sorted(self.items, key=_measures):
            if not any(all(a <= b for a, b in zip(_measures(other), _measures(plan), strict=True)) for other in front):
                front.append(plan)
        return tuple(front)

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
        return f"<{len(self)} plans, best: {best.planner} on {', '.join(best.devices)}, {best.latency_s:.4g} s>"

    def _repr_html_(self) -> str:
        from potluck.display import html

        return html.plans(self.items, self.best)


def _measures(plan: Plan) -> tuple[float, float, float]:
    latency = plan.latency_s if plan.latency_s is not None else float("inf")
    energy = plan.energy_j if plan.energy_j is not None else float("inf")
    return latency, energy, max(plan.peak_bytes.values(), default=0)


def preference(plan: Plan, qoe: QoE) -> tuple[float, ...]:
    """Sorts the better plan first.

    With a latency limit: least energy + lambda x lateness, Dora eq. (2), where energy is known. Without: fastest first,
    then thriftiest. Of plans that are equal but for rounding, the one of the fewest stages.
    """
    latency, energy, peak = _measures(plan)
    rest = len(plan.stages), peak, len(plan.devices)
    if qoe.latency_s is not None and plan.energy_j is not None:
        late = energy + qoe.lambda_j_per_s * max(0.0, latency - qoe.latency_s)
        return rounded(late), rounded(latency), *rest
    return rounded(latency), rounded(energy), *rest


def rounded(value: float) -> float:
    """`value` to twelve digits: what differs beyond differs by the order of additions."""
    return float(f"{value:.12g}")
