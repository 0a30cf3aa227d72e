"""When each step of a shared request starts and ends: sides that compute, and what joins them.

As the agents do it: a side carries out the most urgent of its pieces that has all it takes, one
after the other. Rows that it sends go one after the other, to whomever; media are shared by all
that is on them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from potluck.offload.plan.problem import DEVICE, OffloadProblem
from potluck.offload.plan.steps import OffloadStep
from potluck.simulate import engine


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Per step its start and end (a transfer's rows are there its latency later).

    Seconds and bytes of each kind.
    """

    start_s: tuple[float, ...]
    stop_s: tuple[float, ...]
    latency_s: float
    busy_s: float  # the device computes
    radio_s: float  # it sends or receives
    sent_bytes: int
    received_bytes: int


def times(
    sharing: OffloadProblem, steps: Sequence[OffloadStep], bytes_per_s: float
) -> StepTimes | None:
    """How the steps take place at that bandwidth.

    None where something has to go over a link that carries nothing.

    Parameters
    ----------
    sharing
        The problem.
    steps
        In order.
    bytes_per_s
        Of the link.
    """
    n_sides = len(sharing.sides)
    work = []
    resources = []
    for step in steps:
        resources.append(step.side if step.to is None else n_sides + step.side)
        if step.to is not None:
            ((place, rows),) = step.rows
            work.append(float(sharing.operators[place].row_bytes * (rows[1] - rows[0])))
        else:
            seconds = sum(sharing.seconds(step.side, p, r[1] - r[0]) for p, r in step.rows)
            work.append(
                seconds + sharing.piece_s
                if step.rows[0][0] < len(sharing.operators) - 1
                else seconds
            )
    if bytes_per_s <= 0 and any(step.sends for step in steps):
        return None
    start, stop, radio_s = _run(sharing, steps, work, resources, bytes_per_s)
    return StepTimes(
        start_s=tuple(start),
        stop_s=tuple(stop),
        latency_s=max((stop[i] for i in range(len(steps)) if resources[i] == DEVICE), default=0.0),
        busy_s=sum(work[i] for i in range(len(steps)) if resources[i] == DEVICE),
        radio_s=radio_s,
        sent_bytes=round(
            sum(work[i] for i in range(len(steps)) if resources[i] == n_sides + DEVICE)
        ),
        received_bytes=round(sum(work[i] for i, step in enumerate(steps) if step.to == DEVICE)),
    )


def _run(
    sharing: OffloadProblem,
    steps: Sequence[OffloadStep],
    work: list[float],
    resources: list[int],
    bytes_per_s: float,
) -> tuple[list[float], list[float], float]:
    """Start and end of every step, and the seconds in which the device sent or received."""
    graph = engine.TaskGraph(capacity=[bytes_per_s, *sharing.media_bytes_per_s], chunk_bytes=inf)
    routes: dict[tuple[int, int], int] = {}
    for number, step in enumerate(steps):
        route = engine.COMPUTE
        if step.to is not None:
            pair = step.side, step.to
            if pair not in routes:
                line = sharing.line(*pair)
                routes[pair] = graph.add_route(line.media, line.latency_s)
            route = routes[pair]
        graph.add(resources[number], work[number], priority=number, route=route)
    for number, step in enumerate(steps):  # some wait for steps that come later in the list
        for before in step.after:
            graph.wait(number, before)
    found = engine.run(graph)
    radio = [
        (found.start_s[i], found.free_s[i])
        for i, step in enumerate(steps)
        if step.to is not None and DEVICE in (step.side, step.to)
    ]
    return found.start_s, found.free_s, covered_s(radio)


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of these spans is under way."""
    total_s = until_s = 0.0
    for start_s, stop_s in sorted(spans):
        total_s += max(0.0, stop_s - max(start_s, until_s))
        until_s = max(until_s, stop_s)
    return total_s
