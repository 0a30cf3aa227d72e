"""What the tables of an explanation say: where a plan's time goes, and what would help. Pure."""

from potluck import units
from potluck.display.tables import Bar, Table, energy_of
from potluck.planning.explain import Explanation
from potluck.planning.plans import order_notes, power_notes
from potluck.planning.recomputation import recomputation_notes
from potluck.records import Plan

MOST_MEDIA = 3  # of a switch, every port is two
CLOSE = 0.005  # a smaller change of time is none


def time_spent(explanation: Explanation) -> Table:
    """Each device's step in three bars; what holds it up, what one device alone would take, and who
    is left out.
    """
    plan = explanation.plan
    rows = tuple(
        (
            part.device,
            _layers(plan, part.device),
            _bar(part.compute_frac),
            _bar(part.link_frac),
            _bar(part.wait_frac),
            units.size(plan.peak_bytes.get(part.device)),
        )
        for part in explanation.parts
    )
    columns = ("device", "layers", "computes", "only sends or receives", "waits", ">peak memory")
    return Table(
        title=f"Where the time goes: {_step(plan)}",
        columns=columns,
        rows=rows,
        notes=_notes(explanation),
    )


def improvements(explanation: Explanation) -> Table:
    """What would help, planned again: time and energy as they would then be."""
    now_s, now_j = explanation.plan.latency_s, explanation.plan.energy_j
    rows = tuple(
        (
            improvement.change,
            units.duration(improvement.plan.latency_s)
            if improvement.plan
            else "no plan holds the limits",
            _change(improvement.plan.latency_s if improvement.plan else None, now_s),
            energy_of(improvement.plan),
            _change(improvement.plan.energy_j if improvement.plan else None, now_j),
            ", ".join(improvement.plan.devices) if improvement.plan else units.UNKNOWN,
        )
        for improvement in explanation.improvements
    )
    columns = ("change", ">time", ">", ">energy", ">", "devices")
    return Table(title="What would help", columns=columns, rows=rows)


def _notes(explanation: Explanation) -> tuple[str, ...]:
    plan, name = explanation.plan, explanation.bottleneck
    does = "computes" if name in plan.devices else "carries data"
    notes = [f"bottleneck: {name} {does} {units.percent(explanation.bottleneck_frac)} of the time"]
    notes += [
        f"{medium} carries data {units.percent(frac)} of the time"
        for medium, frac in sorted(explanation.media_frac.items(), key=lambda item: -item[1])[
            :MOST_MEDIA
        ]
        if medium != name
    ]
    notes += [
        f"{device} alone: {units.duration(alone.latency_s)} "
        f"({_change(alone.latency_s, plan.latency_s)}), {energy_of(alone)}"
        for device, alone in explanation.alone.items()
        if (device,) != plan.devices
    ]
    notes += [f"not used: {device} ({why})" for device, why in explanation.unused.items()]
    notes += (*recomputation_notes(plan), *order_notes(plan.problem), *power_notes(plan.problem))
    if plan.gap_frac is not None:
        notes.append(
            f"certified: {_certified(plan)} is more than {units.percent(plan.gap_frac)} faster"
        )
    if plan.energy_gap_frac is not None:
        notes.append(
            f"certified: no plan on time takes more than {units.percent(plan.energy_gap_frac)} "
            "fewer joules"
        )
    return tuple(notes)


def _certified(plan: Plan) -> str:
    """Of which plans the gap is told."""
    is_complete = plan.problem is not None and plan.problem.branches
    stages = [] if is_complete else ["at most one stage per device"]
    if not plan.training:
        return f"no plan with {stages[0]}" if stages else "no plan at all"
    kinds = ", ".join([*stages, "micro-batches of one size"])
    return f"no plan with {kinds} and whole backwards"


def _step(plan: Plan) -> str:
    return f"{units.duration(plan.latency_s)} per {'step' if plan.training else 'request'}"


def _layers(plan: Plan, device: str) -> str:
    found = [stage for stage in plan.stages if device in stage.devices]
    return ", ".join(
        f"{stage.start}–{stage.stop - 1} × {stage.shares[stage.devices.index(device)]} rows"
        for stage in found
    )


def _bar(frac: float) -> Bar:
    return Bar(frac=frac, text=units.percent(frac))


def _change(then: float | None, now: float | None) -> str:
    if then is None or not now:
        return ""
    frac = then / now - 1
    return "the same" if abs(frac) < CLOSE else units.change(frac)
