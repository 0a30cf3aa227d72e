"""Standbys: devices that will take over a stage hold a copy of it and stay in step while others
train it.

A standby gets the stage's state as it was after some step, late and slowly, and then catches up.
Either it replays every step since on the same inputs and gradients (REPLAY: few bytes over the
network, and computing). Or it takes the optimizer's step with the same gradient vector (COPY: as
many bytes as there are parameters). Both give the very same numbers, so nothing has to be moved
when the standby becomes the owner. Compare Dora 4.3, which prefetches immutable weights only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from potluck.records import HOME, Plan, Segment, Stage, Tensor
from potluck.schedule.all_reduce import STILL, vector_bytes, vector_elements
from potluck.schedule.micro_batches import Division, MicroBatch, divide
from potluck.schedule.program_builder import (
    LATE,
    Annotation,
    Compiled,
    InputBinding,
    ProgramBuilder,
)
from potluck.schedule.shared_weights import holders_of
from potluck.schedule.stage_graph import StageGraph, wire
from potluck.schedule.step_update import RATE_BYTES, RATES, StepUpdate, alike
from potluck_wire.program import STEP_INPUTS

FOLLOW = "follow"
REPLAY, COPY = "replay", "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """`devices` follow `stage` in that `way`."""

    stage: int
    devices: tuple[str, ...]
    way: str


def refined(plan: Plan, other: Plan) -> Plan:
    """`plan`, cut wherever `other` is cut too, on the same devices."""
    cuts = sorted({stage.start for stage in (*plan.stages, *other.stages)} | {plan.stages[-1].stop})
    stages: list[Stage] = []
    for start, stop in pairwise(cuts):
        covering = next(stage for stage in plan.stages if stage.start <= start < stage.stop)
        stages.append(replace(covering, start=start, stop=stop))
    return replace(plan, stages=tuple(stages))


def standbys(plan: Plan, segments: Sequence[Segment], new: Plan) -> tuple[Standby, ...]:
    """Who of `new` lacks a stage of `plan` (which is cut wherever `new` is) and how it best stays
    in step with it.

    A stage that several devices share is normalised and summed by shares, which nobody else can
    repeat: COPY. So is one that holds a weight which others hold, too: its step needs their part.

    Parameters
    ----------
    plan
        In force.
    segments
        One per stage of `plan`.
    new
        The plan that takes over.
    """
    found, graph = [], wire(plan, segments, training=True)
    holding = {p for _, holders in holders_of(segments) for p in holders}
    for p, stage in enumerate(plan.stages):
        owners = next(s.devices for s in new.stages if s.start <= stage.start < s.stop)
        lacking = tuple(device for device in owners if device not in stage.devices)
        if lacking:
            cheaper = replayed_bytes(plan, segments[p], graph, p) < vector_bytes(
                segments[p], graph.learns[p]
            )
            alone = len(stage.devices) == 1 and p not in holding
            way = REPLAY if cheaper and alone else COPY
            found.append(Standby(stage=p, devices=lacking, way=way))
    return tuple(found)


def followed_bytes(plan: Plan, segments: Sequence[Segment], standbys: Sequence[Standby]) -> int:
    """What the busiest standby receives per step, from home too.

    Parameters
    ----------
    plan
        In force.
    segments
        One per stage of `plan`.
    standbys
        The standbys, from `standbys`.
    """
    per_device: dict[str, int] = {}
    graph = wire(plan, segments, training=True)
    for standby in standbys:
        p, segment = standby.stage, segments[standby.stage]
        nbytes = vector_bytes(segment, graph.learns[p])
        if nbytes and standby.way == REPLAY:
            nbytes = replayed_bytes(plan, segment, graph, p)
        for device in standby.devices:
            per_device[device] = per_device.get(device, 0) + nbytes
    return max(per_device.values(), default=0)


def replayed_bytes(plan: Plan, segment: Segment, graph: StageGraph, p: int) -> int:
    """Bytes per step that a REPLAY of stage p takes.

    Parameters
    ----------
    plan
        In force.
    segment
        Of stage p.
    graph
        The graph of stages.
    p
        The stage.
    """
    returned = _returned(segment, graph, p)
    return plan.batch * sum(
        tensor.row_bytes for tensor in (*segment.feeds, *segment.inputs, *returned)
    )


def compile_follow(
    name: str,
    plan: Plan,
    segments: Sequence[Segment],
    optimizer: Mapping[str, Any] | StepUpdate,
    standbys: Sequence[Standby],
    *,
    division: Division | None = None,
    home: str = HOME,
) -> Compiled:
    """The program `name` of every standby: the step of its stages, with what the program `train` of
    `plan` posts.

    `division`: the micro-batches of that program; default: those of the plan.

    Parameters
    ----------
    name
        Of the program.
    plan
        In force.
    segments
        One per stage of `plan`.
    optimizer
        As for `compile_training`.
    standbys
        The standbys, from `standbys`.
    division
        The micro-batches of the step; default: the plan's.
    home
        What the notebook is called as a peer.
    """
    division = division or divide(plan, segments, plan.batch)
    update = optimizer if isinstance(optimizer, StepUpdate) else alike(optimizer, len(segments))
    devices = tuple(dict.fromkeys(device for standby in standbys for device in standby.devices))
    programs, graph = ProgramBuilder(name, devices, home), wire(plan, segments, training=True)
    rated = set[str]()  # devices that have this step's settings
    for standby in standbys:
        segment, learns = segments[standby.stage], graph.learns[standby.stage]
        if not vector_elements(segment, learns):
            continue
        for device in standby.devices:
            gradients: list[str] = []
            if standby.way == REPLAY:
                _replay(
                    programs, plan, division[standby.stage], segment, graph, standby.stage, device
                )
            else:
                gradients = [_copy(programs, plan, segment, graph, standby.stage, device)]
            if not learns and not gradients:  # its forwards have moved the statistics
                continue
            scales = _scale(programs, plan, segment, standby.stage, device, update, learns)
            rates = [RATES] if update.n_rates and learns else []
            if rates and device not in rated:
                rated.add(device)
                feed_rates(programs, update, device, LATE)
            note = Annotation(
                label=f"{standby.stage} step",
                start=segment.start,
                stop=segment.stop,
                nbytes=segment.parameter_count * segment.vector_item_bytes,
            )
            programs.compute(
                device,
                "step",
                [*gradients, *scales, *rates],
                {},
                note=note,
                priority=LATE,
                segment=segment.name,
                **step_attributes(update, standby.stage, learns, gradients, scales, rates),
            )
    return programs.finish()


def step_attributes(
    update: StepUpdate,
    p: int,
    learns: bool,
    gradients: Sequence[str],
    scales: Sequence[str],
    rates: Sequence[str],
) -> dict[str, Any]:
    """The attributes of the `step` of stage p, beside its segment.

    Parameters
    ----------
    update
        What the steps of all stages are told.
    p
        The stage.
    learns
        Whether a gradient comes back to it.
    gradients, scales, rates
        Its inputs, as far as there are any.
    """
    found: dict[str, Any] = dict(update.attributes[p]) if learns else {"optimizer": dict(STILL)}
    if scales or rates:
        inputs = zip(STEP_INPUTS, (gradients, scales, rates), strict=True)
        found["given"] = [name for name, values in inputs if values]
    return found


def feed_rates(
    programs: ProgramBuilder, update: StepUpdate, device: str, priority: int, name: str = RATES
) -> None:
    """Home tells a device the settings of this step.

    Parameters
    ----------
    programs
        Where it is written down.
    update
        What the steps are told.
    device
        Its name.
    priority
        Smaller goes first.
    name
        What they are called.
    """
    feed = InputBinding(
        device=device,
        value=name,
        tensor=name,
        whole=True,
        nbytes=update.n_rates * RATE_BYTES,
        priority=priority,
    )
    programs.feed(feed, label=f"{programs.home}>rates")


def _scale(
    programs: ProgramBuilder,
    plan: Plan,
    segment: Segment,
    p: int,
    device: str,
    update: StepUpdate,
    learns: bool,
) -> list[str]:
    """Receive what gradients are multiplied by, where their norm is limited."""
    if update.limit is None or not learns:
        return []
    giver, name = plan.stages[p].devices[0], scale_value(p)
    nbytes = segment.vector_item_bytes
    return [programs.receive(device, name, nbytes, giver, label=f"{p} scale", priority=LATE)]


def _copy(
    programs: ProgramBuilder, plan: Plan, segment: Segment, graph: StageGraph, p: int, device: str
) -> str:
    """Receive the gradients; returns their name."""
    giver, nbytes = plan.stages[p].devices[0], vector_bytes(segment, graph.learns[p])
    return programs.receive(
        device, gradient_value(p), nbytes, giver, label=f"{p} gradients", priority=LATE
    )


def _replay(
    programs: ProgramBuilder,
    plan: Plan,
    parts: Sequence[MicroBatch],
    segment: Segment,
    graph: StageGraph,
    p: int,
    device: str,
) -> None:
    """Forward and backward of every micro-batch in turn, so that the memory for one is enough.

    Where no gradient comes back, forward alone: it moves the statistics.
    """
    (giver,) = plan.stages[p].devices
    last, returned = p == len(plan.stages) - 1, _returned(segment, graph, p)
    for m, part in enumerate(parts):
        rows = part.rows
        if not rows:
            continue
        note = Annotation(label=f"{p}F{m}", start=segment.start, stop=segment.stop, rows=rows)
        inputs = [_feed(programs, part, p, m, tensor, device) for tensor in segment.feeds]
        inputs += [
            _receive(programs, rows, p, "x", tensor, m, giver, device) for tensor in segment.inputs
        ]
        outputs = {
            f"y{p}.{i}.{m}": tensor.row_bytes * rows for i, tensor in enumerate(segment.outputs)
        }
        programs.compute(
            device,
            "run",
            inputs,
            outputs,
            note=note,
            priority=LATE,
            segment=segment.name,
            key=f"{p}.{m}",
            train=True,
            rows=[0, rows, rows],
            micro_batch=m,
        )
        if not graph.learns[p]:
            continue
        gradients = [
            _receive(programs, rows, p, "dy", tensor, m, giver, device) for tensor in returned
        ]
        back = {
            f"dx{p}.{i}.{m}": t.row_bytes * rows
            for i, t in enumerate(t for t in segment.inputs if t.gradient)
        }
        programs.compute(
            device,
            "backward",
            gradients,
            back,
            note=replace(note, label=f"{p}B{m}"),
            priority=LATE,
            segment=segment.name,
            key=f"{p}.{m}",
            scale=loss_scale(segment, last, rows, parts[-1].stop),
        )


def loss_scale(segment: Segment, last: bool, rows: int, batch: int) -> float:
    """What the backward of a segment begins with: the part that rows have in the loss of a batch.

    Parameters
    ----------
    segment
        Of which the last one makes the loss.
    last
        Whether this is it.
    rows
        That it has of the batch.
    batch
        All rows.
    """
    return rows / batch if last and not segment.sums_rows else 1.0


def _feed(
    programs: ProgramBuilder, part: MicroBatch, p: int, m: int, tensor: Tensor, device: str
) -> str:
    feed = InputBinding(
        device=device,
        value=f"in{p}.{tensor.name}.{m}",
        tensor=tensor.name,
        micro_batch=m,
        start=part.start * tensor.multiple,
        stop=part.stop * tensor.multiple,
        whole=tensor.multiple == 0,
        nbytes=tensor.row_bytes * part.rows,
        priority=LATE,
    )
    return programs.feed(feed, label=f"{programs.home}>{p}F{m}")


def _receive(
    programs: ProgramBuilder,
    rows: int,
    p: int,
    kind: str,
    tensor: Tensor,
    m: int,
    giver: str,
    device: str,
) -> str:
    name = standby_value(p, kind, tensor, m)
    return programs.receive(
        device, name, tensor.row_bytes * rows, giver, label=f"{giver}>{name}", priority=LATE
    )


def _returned(segment: Segment, graph: StageGraph, p: int) -> tuple[Tensor, ...]:
    """The outputs of stage p whose gradient comes back."""
    return tuple(tensor for tensor in segment.outputs if graph.returning(p, tensor))


def standby_value(p: int, kind: str, tensor: Tensor, m: int) -> str:
    """The name of what a standby of stage p replays: an input `x`, or the gradient `dy` of an
    output.

    Parameters
    ----------
    p
        The stage that is followed.
    kind
        "x" or "dy".
    tensor
        Which input or output.
    m
        The micro-batch.
    """
    return f"standby{p}.{kind}.{tensor.name}.{m}"


def scale_value(p: int) -> str:
    """The name of what the gradients of stage p are multiplied by, as its standby gets it."""
    return f"standby{p}.scale"


def gradient_value(p: int) -> str:
    """The name of the gradient vector that a standby of stage p takes."""
    return f"standby{p}.gradients"
