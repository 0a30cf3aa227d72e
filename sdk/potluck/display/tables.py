"""What each table says: records in, a `Table` of finished texts out.

`text` and `html` only draw it. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from potluck import units
from potluck.display import stage_sizes
from potluck.provenance import marked
from potluck.records import Device, Inference, Layer, LayerCost, Network, Plan, Problem, Trace
from potluck.sessions.power_reading import mark_of
from potluck.simulate.cost import budget_bytes
from potluck.simulate.time_spans import pace_s
from potluck_wire.fingerprint import fingerprint
from potluck_wire.processors import summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A cell that shows a fraction (of one) as a bar with a text; more than one is an overflow."""

    frac: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A cell shaded by `frac` from nothing to strongest."""

    frac: float
    text: str


Cell = str | Bar | Heat


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under headings; a heading beginning with `>` sets its column to the right.
    `total`: a row below all others, however they are sorted.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = field(default=())
    total: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        for row in (*self.rows, *([self.total] if self.total else [])):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r}: a row has {len(row)} cells, expected "
                    f"{len(self.columns)}"
                )


def devices(found: Iterable[Device], title: str = "Devices") -> Table:
    """Who takes part: memory it may use, power, backends."""
    rows = tuple(
        (
            device.name,
            device.kind or units.UNKNOWN,
            units.size(device.memory_bytes),
            units.power(device.idle_w),
            units.power(device.busy_w),
            units.power(device.radio_w),
            device.power_mark,
            ", ".join(device.backends),
        )
        for device in found
    )
    columns = ("device", "kind", ">memory", ">idle", ">busy", ">radio", "watts", "backends")
    return Table(title=title, columns=columns, rows=rows)


def members(found: Iterable[Any], title: str = "Devices") -> Table:
    """Devices found or known (`sessions.members.Member`): status, address, and what each says of
    itself.
    """
    rows: tuple[tuple[str, ...], ...] = tuple(
        (
            member.name,
            member.status,
            str(member.addresses[0]) if member.addresses else units.UNKNOWN,
            units.size(member.capability.get("memory_bytes")),
            power_of(member),
            summary(member.capability.get("processors", ())),
            _trouble(member),
        )
        for member in found
    )
    names = ("device", "status", "address", ">memory", ">power", "computes on", "trouble")
    # no trouble: no column of blanks
    shown = [i for i, name in enumerate(names) if i < 5 or any(row[i] for row in rows)]
    return Table(
        title=title,
        columns=tuple(names[i] for i in shown),
        rows=tuple(tuple(row[i] for i in shown) for row in rows),
    )


def watts(member: Any) -> float | None:
    """What a device takes by its meter, or by the watts that it was given.

    Of any other only a guess is known.
    """
    known = member.reading and (
        member.reading.source == "measured" or member.capability.get("power")
    )
    return member.reading.watts if known else None


def power_of(member: Any) -> str:
    """What a device takes, and whether its meter says so."""
    known = watts(member)
    return units.UNKNOWN if known is None else marked(units.power(known), mark_of(member.reading))


def _trouble(member: Any) -> str:
    """Why there is no session, or it takes nothing new, in a sentence; `potluck doctor` tells what
    to do.
    """
    if member.leaving:
        return str(member.leaving)
    if member.error is None or member.status in ("ready", "not paired"):
        return ""
    what = (
        str(member.error)
        .removeprefix(f"{member.error.device}: ")
        .removesuffix(member.error.next_step)
        .strip()
    )
    return what.partition(". ")[0].removesuffix(".")


def peers(known: Iterable[Any], own_key: str) -> Table:
    """Trusted devices (`discover.keyring.Known`) with fingerprints to compare with what they
    show.
    """
    rows = tuple(
        (
            device.name,
            fingerprint(device.key),
            ", ".join(map(str, device.addresses)) or units.UNKNOWN,
        )
        for device in known
    )
    note = f"this computer's own fingerprint: {fingerprint(own_key)}"
    return Table(
        title="Trusted devices",
        columns=("device", "fingerprint", "addresses"),
        rows=rows,
        notes=(note,),
    )


def links(network: Network) -> Table:
    """Bandwidth of one flow alone and latency of each path, and the media that it crosses."""
    rows = tuple(
        (
            f"{source} → {target}",
            units.rate(network.bandwidth(source, target)),
            units.duration(path.latency_s),
            ", ".join(name if times == 1 else f"{times} × {name}" for name, times in path.media),
        )
        for (source, target), path in sorted(network.paths.items())
    )
    return Table(title="Links", columns=("path", ">bandwidth", ">latency", "crosses"), rows=rows)


def costs(problem: Problem, rows: int | None = None) -> Table:
    """Time of each layer on each device (forward and backward) as a heat table, at the batch size
    nearest `rows`.
    """
    training = not isinstance(problem.workload, Inference)
    wanted = rows or getattr(problem.workload, "micro_batch", None) or problem.workload.batch
    columns = {
        device.name: [layer_s(cost, wanted) for cost in problem.costs[device.name]]
        for device in problem.devices
    }
    slowest_s = (
        max((seconds for column in columns.values() for seconds in column), default=0.0) or 1.0
    )
    body: list[tuple[Cell, ...]] = []
    for index, layer in enumerate(problem.layers):
        heats = (_heat(column[index], slowest_s) for column in columns.values())
        body.append((layer.name, units.size(layer.parameter_bytes), *heats))
    weights = units.size(sum(layer.parameter_bytes for layer in problem.layers))
    total = ("total", weights, *(units.duration(sum(column)) for column in columns.values()))
    estimated = sorted(
        name
        for name, column in problem.costs.items()
        if any(cost.source != "measured" for cost in column)
    )
    notes = [
        f"{'forward + backward' if training else 'forward'} at the tabulated batch size nearest "
        f"{wanted} rows"
    ]
    if 0 < len(estimated) < len(problem.costs):  # where all are, the profile says so
        notes.append(f"estimated, not measured: {', '.join(estimated)}")
    headings = ("layer", ">weights", *(f">{name}" for name in columns))
    return Table(
        title=f"Profile of {problem.model}",
        columns=headings,
        rows=tuple(body),
        notes=tuple(notes),
        total=total,
    )


def layer_s(cost: LayerCost, rows: int) -> float:
    """Seconds of a layer, forward and backward, at the tabulated batch size nearest `rows`."""
    at = min(range(len(cost.rows)), key=lambda index: abs(cost.rows[index] - rows))
    return cost.forward_s[at] + (cost.backward_s[at] if cost.backward_s else 0.0)


def _heat(seconds: float, slowest_s: float) -> Heat:
    return Heat(frac=seconds / slowest_s, text=units.duration(seconds))


def stages(plan: Plan, problem: Problem | None = None) -> Table:
    """Which layers where, in what shares; devices left out and why are notes."""
    from potluck.planning.plans import order_notes
    from potluck.planning.recomputation import recomputation_notes

    rows = tuple(
        (
            str(index),
            layer_range(stage.start, stage.stop, problem),
            ", ".join(stage.devices),
            " + ".join(str(share) for share in stage.shares),
            str(stage.warm_up),
        )
        for index, stage in enumerate(plan.stages)
    )
    kind = "training" if plan.training else "inference"
    notes = [
        f"{plan.n_micro_batches} × {plan.micro_batch} rows per "
        f"{'step' if plan.training else 'request'}"
    ]
    if plan.latency_s is not None:
        pace = (
            " from answer to answer"
            if problem and getattr(problem.workload, "streaming", False)
            else ""
        )
        notes[0] += f", predicted {units.duration(plan.latency_s)}{pace}, {energy_of(plan)}"
    notes += stage_sizes.notes(plan)
    notes += [f"schedule: {plan.schedule}"] if plan.schedule else []
    notes += [f"not used: {name} ({why})" for name, why in plan.unused.items()]
    notes += (*recomputation_notes(plan), *order_notes(plan.problem))
    return Table(
        title=f"Plan of {plan.planner} for {kind} of {plan.model}",
        columns=(">stage", "layers", "devices", ">rows", ">warm-up"),
        rows=rows,
        notes=tuple(notes),
    )


def energy_of(plan: Plan | None) -> str:
    """Its joules, and where the watts behind them come from."""
    if plan is None:
        return units.UNKNOWN
    return marked(units.energy(plan.energy_j), plan.energy_source)


def layer_range(start: int, stop: int, problem: Problem | None) -> str:
    """The layers of a stage by number, and by name where the problem is known."""
    text = f"{start}–{stop - 1}" if stop - start > 1 else f"{start}"
    if problem is None or stop > len(problem.layers):
        return text
    first, last = (problem.layers[i].name.removesuffix(" ...") for i in (start, stop - 1))
    return f"{text}: {first}" if first == last else f"{text}: {first} … {last}"


def available_bytes(problem: Problem | None) -> dict[str, int]:
    """What a plan may use on each device: what its owner gives, and the user's limits leave."""
    return (
        {device.name: budget_bytes(problem, device) for device in problem.devices}
        if problem
        else {}
    )


def memory(plan: Plan, available_bytes: Mapping[str, int]) -> Table:
    """Needed against available memory per device of the plan.

    Only needed, where nobody says what is available.
    """
    if not available_bytes:
        needs = tuple((name, units.size(plan.peak_bytes.get(name))) for name in plan.devices)
        return Table(title="Memory", columns=("device", ">needed"), rows=needs)
    rows = []
    for name in plan.devices:
        needed, available = plan.peak_bytes.get(name), available_bytes.get(name)
        if needed is None or not available:
            bar: Cell = units.UNKNOWN
        else:
            full = needed > available
            bar = Bar(
                frac=needed / available,
                text="does not fit" if full else units.percent(needed / available),
            )
        rows.append((name, units.size(needed), units.size(available), bar))
    return Table(
        title="Memory", columns=("device", ">needed", ">available", "used"), rows=tuple(rows)
    )


def _maker(plan: Plan) -> str:
    """Its planner, and its schedule where that is not the usual."""
    return f"{plan.planner}, {plan.schedule}" if plan.schedule else plan.planner


def plans(
    candidates: Sequence[Plan], best: Plan | None = None, max_rows: int | None = None
) -> Table:
    """Plans side by side, the chosen one marked: of every way to divide the devices into stages the
    first, and at most `max_rows` of them; the others are counted."""
    from potluck.planning.plans import order_notes

    ways: dict[Any, tuple[int, Plan]] = {}
    for index, plan in enumerate(candidates):
        ways.setdefault(
            (_maker(plan), tuple(frozenset(stage.devices) for stage in plan.stages)), (index, plan)
        )
    shown = [*ways.values()][:max_rows]
    rows = tuple(
        (
            f"{'→ ' if plan == best else ''}{index}",
            _maker(plan),
            " | ".join(", ".join(stage.devices) for stage in plan.stages),
            stage_sizes.counted(plan),
            units.duration(plan.latency_s),
            energy_of(plan),
            units.size(max(plan.peak_bytes.values(), default=None)),
        )
        for index, plan in shown
    )
    variants, more = len(candidates) - len(ways), len(ways) - len(shown)
    notes = [f"and {more} more"] if more else []
    if variants:
        notes.append(
            f"{variants} not listed differ from one that is only in cuts, shares or micro-batches"
        )
    notes += order_notes(best.problem if best else None)
    columns = (">", "planner", "stages", ">micro-batches", ">time", ">energy", ">peak memory")
    return Table(title="Plans", columns=columns, rows=rows, notes=tuple(notes))


def comparison(predicted: Trace, measured: Trace) -> Table:
    """Predicted against measured: usual time of a step or request, then energy of one and peak
    memory of each device.

    The energy of either side carries where its number comes from: measured, estimated or simulated.
    """
    both, one = (predicted, measured), one_of(predicted)
    rows = _times(predicted, measured)
    for name in dict.fromkeys([*predicted.busy_s, *measured.busy_s]):
        pair = [_per_step(trace, trace.busy_s.get(name)) for trace in both]
        rows.append(_compared(f"busy per {one}", name, pair, units.duration))
    for name in dict.fromkeys([*predicted.energy_j, *measured.energy_j]):
        pair = [_per_step(trace, trace.energy_j.get(name)) for trace in both]
        sources = [trace.energy_source.get(name, "") for trace in both]
        rows.append(_compared(f"energy per {one}", name, pair, units.energy, sources))
    for name in dict.fromkeys([*predicted.peak_bytes, *measured.peak_bytes]):
        rows.append(_held(name, [trace.peak_bytes.get(name) for trace in both]))
    columns = ("what", "device", ">predicted", ">measured", ">difference")
    return Table(title="Predicted against measured", columns=columns, rows=tuple(rows))


def _times(predicted: Trace, measured: Trace) -> list[tuple[Cell, ...]]:
    """Of steps, and of requests one at a time, their time.

    Of a stream its rate, and the time of a request in it.
    """
    one, whole_s = (
        one_of(predicted),
        [median(trace.whole_s or (0.0,)) for trace in (predicted, measured)],
    )
    per_one_s = [step_s(trace) for trace in (predicted, measured)]
    if one == "step" or whole_s[1] <= (per_one_s[1] or 0.0):
        return [_compared(f"time per {one}", "all", per_one_s, units.duration)]
    return [
        _compared("time from answer to answer", "all", per_one_s, units.duration),
        _compared("time of one request, of several at once", "all", whole_s, units.duration),
    ]


def compared(found: Any) -> Table:
    """A `run.comparison.Comparison`: time per step or request and its terms, then each device and
    each way of two.
    """
    one = one_of(found.predicted)
    rows = _times(found.predicted, found.measured)
    rows += [
        _compared(f"of it {term}", "all", pair, units.duration)
        for term, pair in found.terms.items()
    ]
    rows += [
        _compared(f"busy per {one}", name, pair, units.duration)
        for name, pair in found.busy_s.items()
    ]
    for way in found.transfers:
        what = f"{way.n} transfer{'s' if way.n != 1 else ''}, {units.size(way.nbytes)}, each"
        rows.append(_compared(what, f"{way.source} → {way.target}", way.seconds, units.duration))
    for name, pair in found.energy_j.items():
        sources = [trace.energy_source.get(name, "") for trace in (found.predicted, found.measured)]
        rows.append(_compared(f"energy per {one}", name, pair, units.energy, sources))
    rows += [_held(name, pair) for name, pair in found.peak_bytes.items()]
    expected, measured = found.terms.get(found.cause, (0.0, 0.0))
    late = measured > expected
    seconds = units.duration(abs(measured - expected))
    note = (
        f"what differs most: {found.cause}, {seconds} {'more' if late else 'less'} than predicted"
    )
    columns = ("what", "where", ">predicted", ">measured", ">difference")
    notes = (note,) if found.cause and measured != expected else ()
    return Table(title="Predicted against measured", columns=columns, rows=tuple(rows), notes=notes)


def history(
    losses: Sequence[float], step_s: Sequence[float] = (), notes: Sequence[str] = ()
) -> Table:
    """Training in one row."""
    first, last = (
        (f"{losses[0]:.4g}", f"{losses[-1]:.4g}") if losses else (units.UNKNOWN, units.UNKNOWN)
    )
    row = (str(len(losses)), first, last, units.duration(median(step_s) if step_s else None))
    columns = (">steps", ">first loss", ">last loss", ">median step")
    return Table(title="Training", columns=columns, rows=(row,), notes=tuple(notes))


def layers(found: Sequence[Layer], title: str) -> Table:
    """What a model is made of: sizes of weights, and of what crosses a cut behind each layer."""
    rows = tuple(
        (
            str(index),
            layer.name,
            units.size(layer.parameter_bytes),
            units.size(layer.output_bytes),
            units.count(layer.forward_flop),
        )
        for index, layer in enumerate(found)
    )
    columns = (">", "layer", ">weights", ">output per row", ">flop per row")
    return Table(title=title, columns=columns, rows=rows)


def _compared(
    what: str,
    device: str,
    pair: Sequence[float | None],
    show: Callable[[float | None], str],
    sources: Sequence[str] = ("", ""),
) -> tuple[Cell, ...]:
    predicted, measured = pair
    shown = [marked(show(value), source) for value, source in zip(pair, sources, strict=True)]
    difference = (predicted - measured) / measured if predicted is not None and measured else None
    return (what, device, *shown, units.change(difference))


def _held(device: str, pair: Sequence[int | None]) -> tuple[Cell, ...]:
    """Memory is promised, not predicted: what counts is that the peak stays within."""
    predicted, measured = pair
    row = _compared("peak memory", device, pair, units.size)
    return (
        (*row[:-1], "within")
        if predicted is not None and measured is not None and measured <= predicted
        else row
    )


def one_of(trace: Trace) -> str:
    """What the trace is made of: steps of training, or requests."""
    return "step" if trace.trains else "request"


def step_s(trace: Trace) -> float | None:
    """The usual step."""
    return pace_s(trace) if trace.step_s else None


def _per_step(trace: Trace, total: float | None) -> float | None:
    return None if total is None else total / max(1, len(trace.step_s))


def trace(trace: Trace, title: str = "") -> Table:
    """One row per device: how busy, how much sent and received, energy with its source, peak
    memory.
    """
    names = dict.fromkeys([*trace.busy_s, *(event.device for event in trace.events)])
    span_s = sum(trace.step_s) or trace.stop_s
    rows = tuple(_trace_row(trace, name, span_s) for name in names)
    n_steps, each = len(trace.step_s), units.duration(step_s(trace))
    note = f"{n_steps} {one_of(trace)}{'s' * (n_steps != 1)}, "
    note += f"median {each}" if trace.trains else f"{each} each"
    columns = ("device", "busy", ">sent", ">received", ">energy", "source", ">peak memory")
    return Table(
        title=title or f"Trace ({trace.source})", columns=columns, rows=rows, notes=(note,)
    )


def _trace_row(trace: Trace, name: str, span_s: float) -> tuple[Cell, ...]:
    def moved(lane: str) -> int:
        return sum(
            event.nbytes for event in trace.events if event.device == name and event.lane == lane
        )

    busy_s = trace.busy_s.get(name)
    busy_frac = busy_s / span_s if busy_s is not None and span_s else None
    return (
        name,
        units.UNKNOWN if busy_frac is None else Bar(frac=busy_frac, text=units.percent(busy_frac)),
        units.size(moved("send")),
        units.size(moved("receive")),
        units.energy(trace.energy_j.get(name)),
        trace.energy_source.get(name, units.UNKNOWN),
        units.size(trace.peak_bytes.get(name)),
    )
