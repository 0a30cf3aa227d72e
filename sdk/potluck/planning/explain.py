"""Why a plan is as it is: where each device's time goes, what holds the step up, what would help.
Pure.

Times come from the simulated trace of the plan; what would help is planned again on the home as it
would then be.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from potluck.display_hooks import Tabular
from potluck.errors import Infeasible, PlanError
from potluck.planning import scenario
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import build
from potluck.planning.evaluate import judge, predict
from potluck.planning.feasibility import breaches
from potluck.planning.planner import make_plans
from potluck.planning.plans import preference
from potluck.records import HOME, Event, Network, Plan, Problem, Trace, Training
from potluck.simulate import cost
from potluck.simulate.time_spans import union_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """How a device of the plan spends the step: computing, only sending or receiving, waiting.

    They add up to 1.
    """

    device: str
    compute_frac: float
    link_frac: float
    wait_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A change of the home, and the best plan there would be then.

    None where that could not hold the limits.
    """

    change: str
    plan: Plan | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Tabular):
    """Where the time goes, per device and per medium (the part of the step that it carries data),
    and what would help.

    `bottleneck` names the device or medium that is busy the longest, `bottleneck_frac` of the step.
    `alone`: the best plan of each device by itself that holds the limits. `unused`: why each other
    device is left out.
    """

    plan: Plan
    parts: tuple[DeviceTime, ...]
    media_frac: Mapping[str, float]
    bottleneck: str
    bottleneck_frac: float
    alone: Mapping[str, Plan]
    unused: Mapping[str, str]
    improvements: tuple[Improvement, ...]


def explain(plan: Plan, *, improvements: bool = True) -> Explanation:
    """Explain a judged plan. Without `improvements` nothing is planned again, and it takes some
    milliseconds.

    Raises
    ------
    PlanError
        The plan was never judged, so it knows no home.
    """
    problem = plan.problem
    if problem is None:
        raise PlanError(
            "the plan does not know its home: it was never judged for one.",
            next_step="potluck.judge(plan, profile) first; its result can explain itself.",
        )
    trace = predict(problem, plan)
    parts = tuple(_part(trace, name) for name in plan.devices)
    media = media_frac(problem.network, trace)
    busiest = {part.device: part.compute_frac for part in parts} | media
    bottleneck = max(busiest, key=lambda name: busiest[name])
    changes = _changes(problem, parts, media) if improvements else ()
    return Explanation(
        plan=plan,
        parts=parts,
        media_frac=media,
        bottleneck=bottleneck,
        bottleneck_frac=busiest[bottleneck],
        alone=_alone(problem),
        unused=plan.unused,
        improvements=tuple(
            Improvement(change=words, plan=_best(changed, plan)) for words, changed in changes
        ),
    )


def _part(trace: Trace, device: str) -> DeviceTime:
    def taken(lanes: Iterable[str]) -> float:
        return union_s(
            [(e.start_s, e.stop_s) for e in trace.events if e.device == device and e.lane in lanes]
        )

    whole_s = trace.stop_s or 1.0
    compute_s, busy_s = taken(("compute",)), taken(("compute", "send", "receive"))
    return DeviceTime(
        device=device,
        compute_frac=compute_s / whole_s,
        link_frac=(busy_s - compute_s) / whole_s,
        wait_frac=1 - busy_s / whole_s,
    )


def media_frac(network: Network, trace: Trace) -> dict[str, float]:
    """The part of the trace's time for which each medium is needed at its full rate.

    Media that carry nothing are out.

    WiFi through an access point takes its air twice as long as the bytes alone would.
    """
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in network.media}
    seconds: dict[str, float] = {}
    for event in trace.events:
        for name, times in _crossed(network, event):
            seconds[name] = seconds.get(name, 0.0) + event.nbytes * times / capacity[name]
    return {name: busy_s / trace.stop_s for name, busy_s in seconds.items() if trace.stop_s}


def _crossed(network: Network, event: Event) -> Iterator[tuple[str, int]]:
    pair = event.device, event.peer
    if event.lane == "send" and (HOME not in pair or pair in network.paths):
        yield from network.path(*pair).media


def _changes(
    problem: Problem, parts: tuple[DeviceTime, ...], media: Mapping[str, float]
) -> Iterator[tuple[str, Problem]]:
    """What one would try first: the busiest medium twice as fast, and another device like the
    busiest.
    """
    if media:
        name = max(media, key=lambda item: media[item])
        rate = next(
            item.capacity_bytes_per_s for item in problem.network.media if item.name == name
        )
        yield f"{name} twice as fast", scenario.with_medium(problem, name, 2 * rate)
    busiest = max(parts, key=lambda part: part.compute_frac).device
    if len(problem.devices) > 1:
        yield f"another device like {busiest}", scenario.with_twin(problem, busiest)
    if isinstance(problem.workload, Training) and problem.workload.micro_batch is not None:
        yield (
            "any micro-batch",
            replace(problem, workload=replace(problem.workload, micro_batch=None)),
        )


def _best(problem: Problem, plan: Plan) -> Plan | None:
    """The best plan of a changed home; the present plan is one that it still has."""
    kept = judge(problem, replace(plan, home=""))
    found = [] if breaches(problem, kept) else [kept]
    with suppress(Infeasible):
        found.append(make_plans(problem).best)
    return min(found, key=lambda item: preference(item, problem), default=None)


def _alone(problem: Problem) -> dict[str, Plan]:
    """The best plan of each device by itself.

    In small micro-batches it starts before all of the batch is there.
    """
    table, found = cost.CostTable(problem), dict[str, Plan]()
    for device in problem.devices:
        made = (
            build(table, "single", (0, len(problem.layers)), ((device.name,),), rows, depths=(1,))
            for rows in candidates.micro_batches(problem)
        )
        judged = [judge(problem, plan, table) for plan in made if plan is not None]
        holding = [plan for plan in judged if not breaches(problem, plan)]
        if holding:
            found[device.name] = min(holding, key=_seconds)
    return found


def _seconds(plan: Plan) -> float:
    return plan.latency_s if plan.latency_s is not None else float("inf")
