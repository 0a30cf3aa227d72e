"""Score any planner's plan by simulating its very tasks on the shared network: one judge for
all.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise

from potluck.planning.check import check_plan
from potluck.provenance import worst
from potluck.records import (
    Layer,
    Plan,
    Problem,
    Segment,
    SharedPart,
    Stage,
    Tensor,
    Trace,
    Training,
)
from potluck.schedule.pipeline import compile_inference, compile_late_training, compile_training
from potluck.schedule.policies import policy
from potluck.schedule.program_builder import Compiled
from potluck.schedule.step_update import NormLimit, alike
from potluck.simulate import cost, direct_simulation, flows
from potluck.simulate import programs as simulation
from potluck.simulate.stage_times import stage_times
from potluck.simulate.time_spans import in_turn_s


def judge(
    problem: Problem,
    plan: Plan,
    table: cost.CostTable | None = None,
    simulator: direct_simulation.Direct | None = None,
) -> Plan:
    """`plan` with latency, energy and peak memory as the simulator predicts them.

    Streaming inference: latency is the time from one answer to the next, energy that of one
    request. A `simulator` of this problem that is used again knows the tasks of plans of the same
    shape.

    Parameters
    ----------
    problem
        What the plan is for, with its home.
    plan
        Any planner's.
    table
        Of this problem, if there is one already.
    simulator
        Of this problem, if there is one already.

    Raises
    ------
    PlanError
        The plan cannot be carried out for this problem.
    """
    check_plan(plan, problem)
    outcome = (simulator or direct_simulation.Direct(problem, table)).run(plan)
    energy = outcome.device_energy_j()
    return replace(
        plan,
        latency_s=outcome.latency_s,
        energy_j=sum(energy.values()) if len(energy) == len(plan.devices) else None,
        energy_source=worst(problem.device(name).power_mark for name in plan.devices),
        peak_bytes=outcome.peak_bytes(),
        device_energy_j=energy,
        home=problem.home,
        problem=problem,
    )


def predict(
    problem: Problem,
    plan: Plan,
    table: cost.CostTable | None = None,
    *,
    one_step_late: int | None = None,
) -> Trace:
    """The simulated trace of one step of `plan`, or of some requests in flight when they stream,
    whose `step_s` are from answer to answer.

    Parameters
    ----------
    problem
        What the plan is for, with its home.
    plan
        Any planner's.
    table
        Of this problem, if there is one already.
    one_step_late
        Of so many steps in a row whose updates come one step late, as `run.fit` takes them.

    Raises
    ------
    PlanError
        The plan's updates cannot come late.
    """
    compiled = compile_plan(problem, plan, one_step_late=one_step_late)
    streaming = not isinstance(problem.workload, Training) and problem.workload.streaming
    in_flight = direct_simulation.in_flight(plan) if streaming else 1
    steps = direct_simulation.Direct(problem, table).run(plan).n_steps if streaming else 1
    trace = simulation.ProgramSimulation(compiled, problem, steps, in_flight, table).trace()
    return replace(trace, step_s=in_turn_s(trace.spans)) if streaming else trace


def compile_plan(problem: Problem, plan: Plan, *, one_step_late: int | None = None) -> Compiled:
    """The programs of `plan` for segments that are known by their sizes alone.

    Parameters
    ----------
    problem
        What the plan is for.
    plan
        Any planner's.
    one_step_late
        Of so many steps in a row whose updates come one step late; None: of one step.

    Raises
    ------
    PlanError
        The plan does not fit the problem, or its updates cannot come late.
    """
    check_plan(plan, problem)
    if not plan.training:
        return compile_inference(plan, outline(problem, plan))
    times = partial(stage_times, cost.CostTable(problem))
    order = policy(plan.schedule, training=True, times=times)
    segments = outline(problem, plan)
    update = alike({}, len(segments))
    if cost.is_clipped(problem):
        update = replace(update, limit=_limit([segment.name for segment in segments]))
    if one_step_late is not None:
        rows = [plan.batch] * one_step_late
        judge = partial(judged_programs, problem, plan)
        return compile_late_training(plan, segments, update, rows, times=times, judge=judge)
    return compile_training(plan, segments, update, schedule=order(plan))


def _limit(stages: Sequence[str]) -> NormLimit:
    """Of as many norms per stage as the simulator takes there to be."""
    n_norms = direct_simulation.NORMS_BYTES // direct_simulation.ITEM_BYTES
    names = tuple(tuple(f"{stage}.{k}" for k in range(n_norms)) for stage in stages)
    return NormLimit(max_norm=1.0, order=2.0, parameters=names, sequence=tuple(chain(*names)))


def outline(problem: Problem, plan: Plan) -> tuple[Segment, ...]:
    """The segments of `plan` as the layers' sizes tell: of every output group one tensor with a
    gradient, one without.
    """
    table = cost.CostTable(problem)
    n_stages, handed = len(plan.stages), flows.output_groups(problem, plan.stages)
    learns = flows.learning(handed)
    made = [_tensors(p, given) for p, given in enumerate(handed)]
    segments = []
    for p, stage in enumerate(plan.stages):
        inside = problem.layers[stage.start : stage.stop]
        fed = flows.feed_bytes(problem, stage.start, stage.stop)
        feeds = [_tensor("input", fed)] if fed else []
        if plan.training and p == n_stages - 1 and problem.target_bytes:
            feeds.append(_tensor("target", problem.target_bytes))
        last = _tensor("loss", 4) if plan.training else _tensor("output", problem.result_bytes)
        taken = [
            (q, tensor)
            for q, tensors in enumerate(made)
            for tensor, takers in tensors
            if p in takers
        ]
        segments.append(
            Segment(
                name=f"stage{p}",
                start=stage.start,
                stop=stage.stop,
                feeds=tuple(feeds),
                inputs=tuple(tensor for _, tensor in taken),
                sources=tuple(plan.stages[q].stop - 1 for q, _ in taken),
                outputs=tuple(tensor for tensor, _ in made[p]) if p < n_stages - 1 else (last,),
                parameter_count=table.summed_bytes(stage.start, stage.stop) // 4
                if learns[p]
                else 0,
                buffer_count=sum(i.buffer_bytes - i.fixed_buffer_bytes for i in inside) // 4,
                shared=_shared_parts(problem.layers, stage) if learns[p] else (),
            )
        )
    return tuple(segments)


def _shared_parts(layers: Sequence[Layer], stage: Stage) -> tuple[SharedPart, ...]:
    """The weights of a stage that layers outside of it read, too, as the first of its vector."""
    inside = layers[stage.start : stage.stop]
    others = (*layers[: stage.start], *layers[stage.stop :])
    outside = {weight.name for layer in others for weight in layer.shared}
    weights = {w.name: w for layer in inside for w in layer.shared if w.name in outside}
    ends = accumulate((weight.summed_bytes // 4 for weight in weights.values()), initial=0)
    return tuple(
        SharedPart(name=name, start=start, stop=stop)
        for name, (start, stop) in zip(weights, pairwise(ends), strict=True)
    )


def _tensors(p: int, given: Sequence[flows.OutputGroup]) -> list[tuple[Tensor, tuple[int, ...]]]:
    """What stage p makes, and who takes each."""
    found = []
    for k, (to, output_bytes, gradient_bytes) in enumerate(given):
        for name, size, gradient in (
            ("y", gradient_bytes, True),
            ("z", output_bytes - gradient_bytes, False),
        ):
            if size:
                found.append((_tensor(f"{name}{p}.{k}", size, gradient), to))
    return found


def _tensor(name: str, row_bytes: int, gradient: bool = False) -> Tensor:
    return Tensor(name=name, dtype="float32", row_bytes=row_bytes, gradient=gradient)


def judged_programs(problem: Problem, plan: Plan, compiled: Compiled) -> tuple[int, float]:
    """By how much programs of a plan need more memory than there is, on all devices together; and
    the seconds that they take.

    Parameters
    ----------
    problem
        What the plan is for.
    plan
        Any planner's.
    compiled
        Programs of it.
    """
    trace = simulation.simulate(compiled, problem)
    excess = excess_bytes(problem, replace(plan, peak_bytes=trace.peak_bytes))
    return sum(excess.values()), sum(trace.step_s)


def excess_bytes(problem: Problem, plan: Plan) -> dict[str, int]:
    """Per device that needs more than it may use: by how much."""
    budgets = {device.name: cost.budget_bytes(problem, device) for device in problem.devices}
    return {
        name: peak - budgets[name] for name, peak in plan.peak_bytes.items() if peak > budgets[name]
    }
