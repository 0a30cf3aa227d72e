"""Compile a plan: what its segments, its micro-batches and a schedule decide of a step, taken down
as instructions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from potluck.records import HOME, Plan, Segment, Tensor
from potluck.schedule import policies
from potluck.schedule.all_reduce import vector_elements
from potluck.schedule.instructions import StepInstructions
from potluck.schedule.ir import Schedule
from potluck.schedule.late_instructions import (
    LateInstructions,
    check_late,
    one_after_the_other,
    steps_of,
)
from potluck.schedule.late_order import Judge, late_orders
from potluck.schedule.late_walk import walk_late
from potluck.schedule.micro_batches import Division, as_divided, divide
from potluck.schedule.program_builder import Compiled, ProgramBuilder
from potluck.schedule.shared_weights import holders_of
from potluck.schedule.stage_graph import wire
from potluck.schedule.standby import COPY, Standby
from potluck.schedule.step import StageOutput, StepSpec, walk
from potluck.schedule.step_update import StepUpdate, alike
from potluck.schedule.validate import check, check_one_step_late


def compile_training(
    plan: Plan,
    segments: tuple[Segment, ...],
    optimizer: Mapping[str, Any] | StepUpdate,
    *,
    home: str = HOME,
    schedule: Schedule | None = None,
    division: Division | None = None,
    standbys: Sequence[Standby] = (),
    to: str = "",
    fed_whole: bool = False,
) -> Compiled:
    """The program `train` of every device of `plan`: one step on one batch. Default schedule: 1F1B.

    `division`: the micro-batches, as many as the schedule has; default: those of the plan. The
    losses of each share come home; their mean weighted by rows is the batch's loss. What `standbys`
    need to stay in step is posted to their program `to` = "EPOCH/PROGRAM". `fed_whole`: what home
    feeds a stage of one device, and is small, comes once per step, and every micro-batch takes its
    rows of it.

    Parameters
    ----------
    plan
        Which layers run where, in what shares.
    segments
        One per stage, in order.
    optimizer
        As `to_json` of an optimizer gives it; or what each stage's step is told.
    home
        What the notebook is called as a peer.
    schedule
        Per stage (or device), its actions in order; default: 1F1B with the plan's warm-ups.
    division
        The micro-batches, as many as the schedule has; default: the plan's.
    standbys
        Standbys that follow these stages.
    to
        Their program, as "EPOCH/PROGRAM".
    fed_whole
        Small inputs of a stage of one device come once per step.

    Raises
    ------
    PlanError
        The segments are not the plan's stages, or the schedule is not legal.
    """
    if schedule is None:
        schedule = policies.POLICIES["1f1b"](plan)
    division = division or divide(plan, segments, plan.batch)
    step_update = (
        optimizer if isinstance(optimizer, StepUpdate) else alike(optimizer, len(segments))
    )
    spec = replace(
        _spec(plan, segments, division, schedule, standbys, training=True),
        limited=step_update.limit is not None,
        scaled=step_update.scaled,
    )
    sink = StepInstructions(
        ProgramBuilder("train", plan.devices, home),
        plan,
        segments,
        division,
        spec,
        step_update=step_update,
        standbys=standbys,
        to=to,
        fed_whole=fed_whole,
    )
    walk(spec, sink)
    return sink.programs.finish()


def compile_late_training(
    plan: Plan,
    segments: tuple[Segment, ...],
    update: StepUpdate,
    rows: Sequence[int],
    *,
    home: str = HOME,
    order: policies.Policy | None = None,
    times: policies.Times | None = None,
    judge: Judge | None = None,
    fed_whole: bool = False,
) -> Compiled:
    """The program `train` of every device of `plan`: several steps, one after the other without
    emptying the pipeline, whose gradients change the weights one step late (`late_walk`).

    Their batches come as one, in this order. The losses of each step come home.

    Parameters
    ----------
    plan
        Which layers run where, in what shares.
    segments
        One per stage, in order.
    update
        What each stage's step is told.
    rows
        Of each step's batch.
    home
        What the notebook is called as a peer.
    order
        The schedule of the plan with the micro-batches of all steps; default: the soonest of some
        (`late_orders`).
    times
        What the plan's stages take, as far as a profile says.
    judge
        What programs need and take, the best first; default: as `times` say.
    fed_whole
        As for `compile_training`.

    Raises
    ------
    PlanError
        The segments are not the plan's stages, or the schedule is not legal; or something would
        have to be known of all stages, or replicas, before a step is taken.
    """
    check_late(plan, segments, update)
    divisions = [divide(plan, segments, n) for n in rows]
    division, steps = one_after_the_other(divisions), steps_of(divisions)
    plans = [as_divided(plan, each) for each in (*divisions, division)]

    def compiled(schedule: Schedule) -> Compiled:
        spec = _spec(plan, segments, division, schedule, training=True)
        check_one_step_late(schedule, steps)
        sink = LateInstructions(
            ProgramBuilder("train", plan.devices, home),
            plan,
            segments,
            divisions,
            spec,
            step_update=update,
            fed_whole=fed_whole,
        )
        walk_late(spec, sink, steps, len(rows))
        return sink.programs.finish()

    if order is not None:
        return compiled(order(plans[-1]))
    before = wire(plan, segments, training=True).before
    known = late_orders(plans, before, steps, times)
    return compiled(known[0]) if judge is None else min(map(compiled, known), key=judge)


def compile_inference(
    plan: Plan, segments: tuple[Segment, ...], *, home: str = HOME, schedule: Schedule | None = None
) -> Compiled:
    """The program `infer` of every device of `plan`: one request of `plan.batch` rows.

    The outputs come home.

    Parameters
    ----------
    plan
        Which layers run where, in what shares.
    segments
        One per stage, in order.
    home
        What the notebook is called as a peer.
    schedule
        Per stage, its actions in order; default: forward only.

    Raises
    ------
    PlanError
        The segments are not the plan's stages, or the schedule is not legal.
    """
    if schedule is None:
        schedule = policies.POLICIES["forward-only"](plan)
    division = divide(plan, segments, plan.batch)
    spec = _spec(plan, segments, division, schedule, training=False)
    programs = ProgramBuilder("infer", plan.devices, home)
    walk(spec, StepInstructions(programs, plan, segments, division, spec))
    return programs.finish()


def _spec(
    plan: Plan,
    segments: Sequence[Segment],
    division: Division,
    schedule: Schedule,
    standbys: Sequence[Standby] = (),
    *,
    training: bool,
) -> StepSpec[Tensor]:
    graph = wire(plan, segments, training=training)
    order = check(schedule, [*map(len, division)], before=graph.before, training=training)
    number = [{tensor.name: k for k, tensor in enumerate(s.outputs)} for s in segments]
    copied = {standby.stage for standby in standbys if standby.way == COPY}
    return StepSpec(
        order=order,
        training=training,
        devices=[stage.devices for stage in plan.stages],
        division=division,
        outputs=[
            [
                StageOutput(t, takers.get(t.name, ()), t.gradient, t.multiple > 0)
                for t in segment.outputs
            ]
            for segment, takers in zip(segments, graph.takers, strict=True)
        ],
        inputs=[
            [(p, number[p][t.name]) for t, p in zip(segment.inputs, suppliers, strict=True)]
            for segment, suppliers in zip(segments, graph.suppliers, strict=True)
        ],
        learns=graph.learns,
        n_elements=[
            vector_elements(segment, learns)
            for segment, learns in zip(segments, graph.learns, strict=True)
        ],
        followed=[p in copied for p in range(len(segments))],
        shared=[holders for _, holders in holders_of(segments)] if training else (),
    )
