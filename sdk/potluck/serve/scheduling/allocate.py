"""The task-categorized allocator: which operators a service gets, and with which settings.

EPARA, sections 3.1 and 4.1, eqs. (4) and (5). Batch sizes 2^0..2^9 and replication degrees 2^0..2^4
are looked up in what was profiled.

Where we differ. The paper takes the fastest batch, then the best replication degree. Here a batch
must also leave time for the one that is under way when a request arrives: twice its seconds are
within the limit, wherever that is possible at all. The frames that wait for their batch (MF) count
towards the same limit. And of settings that serve nearly the same per processor (`NEARLY` as much)
the one is taken whose parts suit the demand: two of them serve all of it. Smaller parts would be
slower one by one, larger ones would lie idle while other services wait for room.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log10

from potluck.errors import Infeasible, PlanError
from potluck.records import Plan
from potluck.serve.scheduling.records import (
    BATCHES,
    Allocation,
    BatchTimes,
    Category,
    Frequency,
    Latency,
    Processor,
    Server,
    ServiceSpec,
    Slo,
    Variant,
)

NEARLY = 0.8  # of the best rate per processor: smaller parts are worth the rest
ROUNDED = 1e-9  # what rounding may add to a number of frames
JUDGE = "Judge it first: potluck.judge(plan, profile)."


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """Which of the five operators may be used; EPARA uses all, its baselines some."""

    batching: bool = True
    multi_task: bool = True
    model_parallel: bool = True
    multi_frame: bool = True
    data_parallel: bool = True


EVERY = Operators()


def allocate(
    service: ServiceSpec,
    processor: Processor,
    operators: Operators = EVERY,
    *,
    max_processors: int | None = None,
    per_s: float = 0.0,
) -> Allocation:
    """The settings that serve the most per processor of this kind within the limit.

    One processor is preferred to several wherever it holds the limit (section 3.1).

    Parameters
    ----------
    service
        With its profile.
    processor
        Of which kind, and with how much memory.
    operators
        Which of the five may be used.
    max_processors
        Processors of this kind that the largest server has; splits that need more of them beside
        each other are left out.
    per_s
        Requests or frames per second that all ask for; 0: not known, so parts are small.

    Raises
    ------
    Infeasible
        If no setting holds the limit here; says the best possible.
    """
    variants = [
        variant
        for variant in service.variants
        if variant.kind == processor.kind
        and (variant.across or max_processors is None or variant.n_processors <= max_processors)
    ]
    if not operators.model_parallel:
        variants = [variant for variant in variants if variant.n_processors == 1]
    held = [
        found for variant in variants for found in _settings(service, variant, processor, operators)
    ]
    if not held:
        raise _impossible(service, processor, variants)
    preferred = min(_preferred(each, service.slo) for each in held)
    held = [each for each in held if _preferred(each, service.slo) == preferred]
    best_rate = max(_full_rate(each) for each in held)
    nearly = [each for each in held if _full_rate(each) >= NEARLY * best_rate - ROUNDED]
    wanted_frac = per_s / best_rate / 2 if per_s else 0.0
    return min(nearly, key=lambda each: _order(each, wanted_frac))


def allocate_all(
    services: Sequence[ServiceSpec],
    servers: Sequence[Server],
    operators: Operators = EVERY,
    demand: Mapping[tuple[str, str], float] | None = None,
) -> dict[tuple[str, str], Allocation]:
    """Per service and kind of processor its settings; what cannot run somewhere is left out.

    Parameters
    ----------
    services
        What is served.
    servers
        All there are; of each kind of processor the one with the least memory counts.
    operators
        Which of the five may be used.
    demand
        Requests or frames per second by service and server, if known.

    Raises
    ------
    Infeasible
        If a service can run nowhere; says the best possible on the kind that comes closest.
    """
    kinds: dict[str, Processor] = {}
    max_processors: dict[str, int] = {}
    for server in servers:
        counts = Counter(processor.kind for processor in server.processors)
        for each in server.processors:
            known = kinds.setdefault(each.kind, each)
            kinds[each.kind] = min(known, each, key=lambda one: one.memory_bytes)
            max_processors[each.kind] = max(max_processors.get(each.kind, 0), counts[each.kind])
    demand_per_s: dict[str, float] = {}
    for (name, _), per_s in (demand or {}).items():
        demand_per_s[name] = demand_per_s.get(name, 0.0) + per_s
    found: dict[tuple[str, str], Allocation] = {}
    for service in services:
        failures = []
        for kind, processor in kinds.items():
            try:
                found[service.name, kind] = allocate(
                    service,
                    processor,
                    operators,
                    max_processors=max_processors[kind],
                    per_s=demand_per_s.get(service.name, 0.0),
                )
            except Infeasible as failure:
                failures.append(failure)
        if len(failures) == len(kinds):
            raise min(failures, key=lambda one: float(str(one.facts["best_s"])))
    return found


def _preferred(found: Allocation, slo: Slo) -> tuple[bool, bool, int, bool]:
    """One processor before several, those of one server before those of many; few groups; time for
    the batch under way.
    """
    leaves_time = 2 * found.batch_s[found.batch] <= slo.tolerance_s
    return found.category.takes_several, found.variant.across, found.groups, not leaves_time


def _full_rate(found: Allocation) -> float:
    """Items per second and processor, were it full of this service."""
    return found.replicas * found.rate_per_s / found.variant.n_processors


def _order(found: Allocation, wanted_frac: float) -> tuple[float, ...]:
    """The largest parts that are no larger than wanted; then the most; then the soonest."""
    too_large = max(0.0, found.share_frac - wanted_frac)
    return (too_large, -found.share_frac, -_full_rate(found), found.batch_s[1])


def _settings(
    service: ServiceSpec, variant: Variant, processor: Processor, operators: Operators
) -> Iterator[Allocation]:
    """Every (BS, MT, MF, DP) of one variant that holds the limit."""
    limit_s = service.slo.tolerance_s
    for degree, times in sorted(variant.times.items()):
        if degree > 1 and not operators.multi_task:
            continue
        for batch in _batches(times, operators):
            nbytes = variant.memory_bytes + batch * variant.item_bytes
            if nbytes > processor.memory_bytes:
                break
            if times.at(batch) > limit_s or (batch > 1 and 2 * times.at(batch) > limit_s):
                break
            yield _setting(service, variant, degree, batch, nbytes, operators)


def _batches(times: BatchTimes, operators: Operators) -> list[int]:
    largest = times.largest if operators.batching else 1
    return [batch for batch in BATCHES if batch <= largest]


def _setting(
    service: ServiceSpec,
    variant: Variant,
    degree: int,
    batch: int,
    nbytes: int,
    operators: Operators,
) -> Allocation:
    times = variant.times[degree]
    batch_s = (0.0, *(times.at(n) for n in range(1, batch + 1)))
    multi_frame, groups = 1, 1
    several = variant.n_processors > 1
    if isinstance(service.slo, Frequency):
        if operators.multi_frame:
            multi_frame = frames_at_once(service.slo, batch, batch_s[batch])
        rate = multi_frame / batch_s[multi_frame]  # of one group for one stream
        groups = n_groups(service.slo.fps, rate) if operators.data_parallel else 1
        several = several or n_groups(service.slo.fps, rate * degree) > 1
    return Allocation(
        service=service.name,
        category=category(service.slo, several),
        variant=variant,
        batch=batch,
        replicas=degree,
        batch_s=batch_s,
        memory_bytes=nbytes,
        multi_frame=multi_frame,
        streams=batch // multi_frame,  # eq. (5)
        groups=groups,
        grain_per_s=grain_per_s(service.slo),
    )


def category(slo: Slo, several: bool) -> Category:
    """The category of a service (Table 1).

    >>> category(Latency(0.2), several=False).value
    'latency, one processor'
    """
    if isinstance(slo, Latency):
        return Category.LATENCY_SEVERAL if several else Category.LATENCY_ONE
    return Category.FREQUENCY_SEVERAL if several else Category.FREQUENCY_ONE


def grain_per_s(slo: Slo) -> float:
    """The least that demand changes by: one stream, or one request within the limit.

    >>> grain_per_s(Latency(0.2)), grain_per_s(Frequency(30))
    (5.0, 30)
    """
    return 1 / slo.limit_s if isinstance(slo, Latency) else slo.fps


def n_groups(fps: float, group_fps: float) -> int:
    """Groups that a stream's frames go to in turn: eq. (4).

    >>> n_groups(60, 24)
    3
    """
    return max(1, ceil(fps / group_fps - ROUNDED))


def frames_at_once(slo: Frequency, batch: int, batch_s: float) -> int:
    """Frames of one stream in a batch (MF): as many as the tolerance allows (section 4.1).

    The first of them waits for the others, then for a batch under way, then for its own:
    (MF - 1) / fps + 2 batch_s <= tolerance.

    Parameters
    ----------
    slo
        Of the stream.
    batch
        Most items of a batch.
    batch_s
        Seconds that a full one takes.

    Examples
    --------
    >>> frames_at_once(Frequency(fps=60, tolerance_s=0.1), batch=8, batch_s=0.02)
    4
    """
    spare_s = slo.tolerance_s - 2 * batch_s
    return max(1, min(batch, 1 + floor(spare_s * slo.fps + ROUNDED)))


def variant_of_plans(plans: Sequence[Plan], kind: str, *, across: bool) -> Variant:
    """A model-parallel variant as the planners of this project have split the model.

    Parameters
    ----------
    plans
        For inference, from `potluck.plan`: one per batch size, over the same number of devices.
    kind
        Of the processors.
    across
        Whether its devices are those of several servers.

    Raises
    ------
    PlanError
        If a plan was not judged, or the plans differ in their number of devices.
    """
    times, n_processors = {}, set()
    for plan in plans:
        if plan.latency_s is None or not plan.peak_bytes:
            raise PlanError("this plan says neither its latency nor its memory.", next_step=JUDGE)
        times[plan.micro_batch * plan.n_micro_batches] = plan.latency_s
        n_processors.add(len({device for stage in plan.stages for device in stage.devices}))
    if len(n_processors) != 1:
        raise PlanError(f"plans over {sorted(n_processors)} devices are not one variant.")
    if 1 not in times:  # a single item takes no longer than the fewest that were planned for
        times[1] = times[min(times)]
    sizes = tuple(sorted(times))
    return Variant(
        kind=kind,
        n_processors=n_processors.pop(),
        across=across,
        memory_bytes=max(nbytes for plan in plans for nbytes in plan.peak_bytes.values()),
        times={1: BatchTimes(items=sizes, seconds=tuple(times[size] for size in sizes))},
    )


def _rounded_up(seconds: float) -> str:
    """In four digits, and not less.

    >>> _rounded_up(0.0123449), _rounded_up(0.1), _rounded_up(99.991)
    ('0.01235', '0.1', '100')
    """
    if not 0 < seconds < inf:
        return f"{seconds:g}"
    unit = 10.0 ** (floor(log10(seconds)) - 3)
    return f"{ceil(seconds / unit - ROUNDED) * unit:.4g}"


def _impossible(
    service: ServiceSpec, processor: Processor, variants: Sequence[Variant]
) -> Infeasible:
    """Says what is needed and what is there, and the best that this kind could do."""
    limit_s = service.slo.tolerance_s
    batch_s = min((variant.times[1].at(1) for variant in variants), default=inf)
    best_s = min((variant.times[1].at(1) + variant.beyond_s for variant in variants), default=inf)
    needed = min((variant.memory_bytes + variant.item_bytes for variant in variants), default=0)
    if not variants:
        text = f"service {service.name} was not profiled on {processor.kind}."
        step = "Profile it there, or place it on another kind."
    elif needed > processor.memory_bytes:
        text = (
            f"service {service.name} needs {needed} bytes on each processor of kind "
            f"{processor.kind}, which has {processor.memory_bytes}."
        )
        step = "Split it over more processors."
    else:
        text = (
            f"service {service.name} takes {batch_s:.4g} s on {processor.kind} at best, "
            f"its limit is {limit_s:.4g} s."
        )
        held = ", which nearly all answers hold there" if best_s > batch_s else ""
        step = f"Allow {_rounded_up(best_s)} s{held}, or split it over more processors."
    return Infeasible(
        text,
        next_step=step,
        service=service.name,
        best_s=best_s,
        limit_s=limit_s,
        needed_bytes=needed,
        available_bytes=processor.memory_bytes,
    )
