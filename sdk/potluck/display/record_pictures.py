"""The picture that a record shows first: a plan, a profile, a home, a model, an explanation. Pure.

Each answers one question at a look; the numbers are in the tables of `tables.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import log10
from typing import Any

from potluck import units
from potluck.display import tables
from potluck.display.scene import Scene
from potluck.display.strips import Part, Strip, draw
from potluck.provenance import marked
from potluck.records import Device, Layer, Network, Plan, Problem
from potluck.sanitized_text import harmless

SLOWEST, FASTEST = 1e4, 1e10  # bytes per second at the ends of a medium's strip
OUTCOMES = (("blue", "in time"), ("orange", "late"), ("grey", "refused"), ("vermilion", "failed"))
MOST_LAYERS = 400  # of a strip; beyond, neighbours are drawn as one


def plan(plan: Plan, problem: Problem | None, available_bytes: Mapping[str, int]) -> Scene:
    """Who has which layers, and how full that makes them.

    Parameters
    ----------
    plan
        The plan.
    problem
        What it solves, for the names of layers.
    available_bytes
        Of each device; empty: nobody knows.
    """
    n_layers = max(1, plan.stages[-1].stop)
    rows = []
    for name in plan.devices:
        mine = [(i, stage) for i, stage in enumerate(plan.stages) if name in stage.devices]
        layers = [
            Part(
                start=stage.start / n_layers,
                stop=stage.stop / n_layers,
                fill="blue" if i % 2 == 0 else "sky",
                title=f"stage {i}: layers {tables.layer_range(stage.start, stage.stop, problem)}",
                text=str(i),
            )
            for i, stage in mine
        ]
        needed, available = plan.peak_bytes.get(name), available_bytes.get(name)
        label = ", ".join(f"layers {_span(stage.start, stage.stop)}" for _, stage in mine)
        memory: list[Part] = []
        if needed is not None and available:
            fits = needed <= available
            title = f"{units.size(needed)} of {units.size(available)}"
            fill = "purple" if fits else "vermilion"
            memory = [Part(start=0.0, stop=needed / available, fill=fill, title=title)]
            label += f"; {units.percent(needed / available)} of its memory"
        elif needed is not None:
            label += f"; {units.size(needed)}"
        strips = (layers, memory) if available_bytes else (layers,)
        rows.append(Strip(name=harmless(name), parts=strips, label=label))
    colours = [("blue", "layers, by stage")]
    colours += [("purple", "memory")] if available_bytes else []
    what = "step" if plan.training else "request"
    note = f"{units.duration(plan.latency_s)} a {what}, {tables.energy_of(plan)}"
    title = f"{harmless(plan.planner)} for {harmless(plan.model)}"
    return draw(f"Plan of {title}", rows, colours, note if plan.latency_s is not None else "")


def _span(start: int, stop: int) -> str:
    return f"{start}–{stop - 1}" if stop - start > 1 else str(start)


def profile(problem: Problem) -> Scene:
    """How long each device takes for the whole model, layer by layer.

    Parameters
    ----------
    problem
        Costs of each layer on each device.
    """
    wanted = getattr(problem.workload, "micro_batch", None) or problem.workload.batch
    columns = {
        device.name: [tables.layer_s(cost, wanted) for cost in problem.costs[device.name]]
        for device in problem.devices
    }
    longest_s = max((sum(column) for column in columns.values()), default=0.0) or 1.0
    names = [layer.name for layer in problem.layers]
    rows = [
        Strip(
            name=harmless(device),
            parts=(_stacked(names, column, longest_s, units.duration),),
            label=f"{units.duration(sum(column))} for {units.number(wanted, 'row')}",
        )
        for device, column in columns.items()
    ]
    return draw(f"Profile of {harmless(problem.model)}", rows, note="each part is a layer")


def _stacked(names: Sequence[str], values: Sequence[float], total: float, say: Any) -> list[Part]:
    """Parts one behind the other, neighbours told apart by colour."""
    ends = [0.0, *accumulate(values)]
    stride = -(-len(values) // MOST_LAYERS)
    spans = [(a, min(a + stride, len(values))) for a in range(0, len(values), stride)]
    return [
        Part(
            start=ends[a] / total,
            stop=ends[b] / total,
            fill=("blue", "sky")[i % 2],
            title=f"{harmless(names[a])}{' …' if b - a > 1 else ''}: {say(ends[b] - ends[a])}",
        )
        for i, (a, b) in enumerate(spans)
    ]


def layers(found: Sequence[Layer], title: str) -> Scene:
    """Where a model's weights are, and what crosses a cut behind each layer.

    Parameters
    ----------
    found
        The layers.
    title
        The heading.
    """
    names = [layer.name for layer in found]
    weights = [float(layer.parameter_bytes) for layer in found]
    outputs = [float(layer.output_bytes) for layer in found]
    rows = [
        Strip(
            name=name, parts=(_stacked(names, values, sum(values) or 1.0, units.size),), label=label
        )
        for name, values, label in (
            ("weights", weights, units.size(sum(weights))),
            ("outputs", outputs, f"{units.size(max(outputs, default=0.0))} a row at most"),
        )
        if any(values)
    ]
    return draw(title, rows, note=units.number(len(found), "layer"))


def members(found: Iterable[Any], title: str = "Devices") -> Scene:
    """Who is there, and how roomy each is.

    Parameters
    ----------
    found
        `sessions.members.Member`.
    title
        The heading.
    """
    known = list(found)
    rooms = {member.name: member.capability.get("memory_bytes") or 0 for member in known}
    largest = max(rooms.values(), default=0) or 1
    rows = []
    for member in known:
        is_here, room = member.status in ("ready", "leaving"), rooms[member.name]
        part = Part(
            start=0.0,
            stop=room / largest,
            fill="green" if is_here else "grey",
            title=f"{units.size(room)} of memory",
        )
        facts = [
            harmless(member.status),
            *([units.size(room)] if room else []),
            *([tables.power_of(member)] if tables.watts(member) is not None else []),
        ]
        rows.append(
            Strip(
                name=harmless(member.name), parts=([part] if room else [],), label=", ".join(facts)
            )
        )
    n_here = sum(member.status in ("ready", "leaving") for member in known)
    colours = [("green", "memory of those that are here"), ("grey", "of those that are not")]
    return draw(title, rows, colours, f"{n_here} of {len(known)} here")


def devices(found: Iterable[Device], title: str = "Devices") -> Scene:
    """How roomy each device of a plan is, and what it takes when it is busy.

    Parameters
    ----------
    found
        The devices.
    title
        The heading.
    """
    known = list(found)
    largest = max((device.memory_bytes or 0 for device in known), default=0) or 1
    rows = [
        Strip(
            name=harmless(device.name),
            parts=([Part(start=0.0, stop=(device.memory_bytes or 0) / largest, fill="green")],),
            label=", ".join(
                [units.size(device.memory_bytes)]
                + (
                    [f"{marked(units.power(device.busy_w), device.power_source)} busy"]
                    if device.busy_w is not None
                    else []
                )
            ),
        )
        for device in known
    ]
    return draw(title, rows, [("green", "memory")])


def media(rates: Mapping[str, tuple[float | None, str]], title: str = "Network") -> Scene:
    """How fast each medium is, on a scale on which each step is ten times as fast.

    Parameters
    ----------
    rates
        Bytes per second of each, and who shares it.
    title
        The heading.
    """
    rows = []
    for name, (rate, who) in rates.items():
        at = log10(max(rate, SLOWEST) / SLOWEST) / log10(FASTEST / SLOWEST) if rate else 0.0
        part = Part(start=0.0, stop=at, fill="orange", title=f"{units.rate(rate)}, {harmless(who)}")
        label = f"{units.rate(rate)}: {harmless(who)}"
        rows.append(Strip(name=harmless(name), parts=([part] if rate else [],), label=label))
    return draw(title, rows, [("orange", "rate, by powers of ten")])


def network(found: Network, title: str = "Links") -> Scene:
    """The media of a network, by their rates.

    Parameters
    ----------
    found
        The network.
    title
        The heading.
    """
    crossing: dict[str, dict[str, None]] = {medium.name: {} for medium in found.media}
    for (source, target), path in found.paths.items():
        for name, _ in path.media:
            crossing.setdefault(name, {}).update({source: None, target: None})
    return media(
        {m.name: (m.capacity_bytes_per_s, ", ".join(crossing[m.name])) for m in found.media}, title
    )


def explanation(found: Any) -> Scene:
    """Where each device's step goes: computing, transfers, waiting.

    Parameters
    ----------
    found
        A `planning.explain.Explanation`.
    """
    rows = []
    for part in found.parts:
        ends = [0.0, *accumulate((part.compute_frac, part.link_frac))]
        parts = [
            Part(start=ends[i], stop=ends[i + 1], fill=fill, title=f"{words} {units.percent(frac)}")
            for i, (fill, words, frac) in enumerate(
                (
                    ("blue", "computes", part.compute_frac),
                    ("orange", "sends or receives", part.link_frac),
                )
            )
            if frac > 0
        ]
        label = f"computes {units.percent(part.compute_frac)}"
        rows.append(Strip(name=harmless(part.device), parts=(parts,), label=label))
    what = "step" if found.plan.training else "request"
    title = f"Where the time goes: {units.duration(found.plan.latency_s)} a {what}"
    return draw(
        title,
        rows,
        [("blue", "computes"), ("orange", "only sends or receives"), ("grid", "waits")],
        f"bottleneck: {harmless(found.bottleneck)}",
    )


def services(found: Mapping[str, Any]) -> Scene:
    """What became of the requests of each service.

    Parameters
    ----------
    found
        `serve.runtime.service.Service` by name.
    """
    rows = []
    for name, service in found.items():
        stats = service.stats
        counts = (stats.n_in_time, stats.n_late, stats.n_refused, stats.n_failed)
        n_requests = sum(counts) or 1
        ends = [0, *accumulate(counts)]
        parts = [
            Part(
                start=ends[i] / n_requests,
                stop=ends[i + 1] / n_requests,
                fill=fill,
                title=f"{n} {words}",
            )
            for i, ((fill, words), n) in enumerate(zip(OUTCOMES, counts, strict=True))
            if n
        ]
        label = (
            f"{stats.n_in_time} of {stats.n_asked} in time" if stats.n_asked else "not asked yet"
        )
        rows.append(Strip(name=harmless(name), parts=(parts,), label=label))
    return draw("Services", rows, OUTCOMES)
