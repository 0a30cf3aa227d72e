"""When each step of a shared request starts and ends: sides that compute, and what joins them.

As the agents do it: a side carries out the most urgent of its pieces that has all it takes, one after the other; rows
that it sends go one after the other, to whomever; media are shared by all that is on them.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from potluck.offload.plan.problem import DEVICE, OffloadProblem
from potluck.offload.plan.steps import Step
from potluck.simulate.fairness import max_min_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Per step its start and end (a transfer's rows are there its latency later); seconds and bytes of each kind."""

    start_s: tuple[float, ...]
    stop_s: tuple[float, ...]
    latency_s: float
    busy_s: float  # the device computes
    radio_s: float  # it sends or receives
    sent_bytes: int
    received_bytes: int


def times(sharing: OffloadProblem, steps: Sequence[Step], bytes_per_s: float) -> Times | None:
    """How the steps take place at that bandwidth; None where something has to go over a link that carries nothing.

    Parameters
    ----------
    sharing
        The problem.
    steps
        In order.
    bytes_per_s
        Of the link.
    """
    n_sides, work, lanes = len(sharing.sides), [], []
    for step in steps:
        lanes.append(step.side if step.to is None else n_sides + step.side)
        if step.to is not None:
            ((place, rows),) = step.rows
            work.append(float(sharing.operators[place].row_bytes * (rows[1] - rows[0])))
        else:
            seconds = sum(sharing.seconds(step.side, p, r[1] - r[0]) for p, r in step.rows)
            work.append(seconds + sharing.piece_s if step.rows[0][0] < len(sharing.operators) - 1 else seconds)
    if bytes_per_s <= 0 and any(step.sends for step in steps):
        return None
    start, stop, radio_s = _run(sharing, steps, work, lanes, bytes_per_s)
    return Times(
        start_s=tuple(start),
        stop_s=tuple(stop),
        latency_s=max((stop[i] for i in range(len(steps)) if lanes[i] == DEVICE), default=0.0),
        busy_s=sum(work[i] for i in range(len(steps)) if lanes[i] == DEVICE),
        radio_s=radio_s,
        sent_bytes=round(sum(work[i] for i in range(len(steps)) if lanes[i] == n_sides + DEVICE)),
        received_bytes=round(sum(work[i] for i, step in enumerate(steps) if step.to == DEVICE)),
    )


def _run(
    sharing: OffloadProblem, steps: Sequence[Step], work: Sequence[float], lanes: Sequence[int], bytes_per_s: float
) -> tuple[list[float], list[float], float]:
    """Start and end of every step, and the seconds in which the device sent or received."""
    n_sides, capacity = len(sharing.sides), (bytes_per_s, *sharing.media_bytes_per_s)
    lines = {(step.side, step.to): sharing.line(step.side, step.to) for step in steps if step.to is not None}

    @cache
    def rates(pairs: tuple[tuple[int, int], ...]) -> dict[int, float]:
        """By lane, where these transfers are under way."""
        found = max_min_rates({a: lines[a, b].media for a, b in pairs}, capacity)
        return {n_sides + source: rate for source, rate in found.items()}

    missing = [len(step.after) for step in steps]
    users: list[list[int]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        for before in step.after:
            users[before].append(number)
    ready: list[list[int]] = [[] for _ in range(2 * n_sides)]
    for number, lane in enumerate(lanes):
        if not missing[number]:
            heapq.heappush(ready[lane], number)
    start, stop = [0.0] * len(steps), [0.0] * len(steps)
    left: dict[int, float] = {}
    running: dict[int, int] = {}
    arrivals: list[tuple[float, int]] = []
    now_s = radio_s = 0.0
    while True:
        for lane, waiting in enumerate(ready):
            if waiting and lane not in running:
                number = running[lane] = heapq.heappop(waiting)
                left[lane], start[number] = work[number], now_s
        if not running and not arrivals:
            return start, stop, radio_s
        pairs = tuple((lane - n_sides, to) for lane, number in running.items() if (to := steps[number].to) is not None)
        rate = rates(pairs) if pairs else {}
        ends = {lane: now_s + left[lane] / rate.get(lane, 1.0) for lane in running}
        then_s = min([*ends.values(), *(t for t, _ in arrivals[:1])])
        radio_s += (then_s - now_s) if any(DEVICE in pair for pair in pairs) else 0.0
        done = [number for t, number in arrivals if t <= then_s]
        arrivals = [(t, number) for t, number in arrivals if t > then_s]
        for lane, number in list(running.items()):
            if ends[lane] <= then_s:
                stop[number] = then_s
                del running[lane]
                to = steps[number].to
                latency_s = lines[steps[number].side, to].latency_s if to is not None else 0.0
                if latency_s:
                    arrivals.append((then_s + latency_s, number))
                else:
                    done.append(number)
            else:
                left[lane] -= (then_s - now_s) * rate.get(lane, 1.0)
        now_s = then_s
        arrivals.sort()
        for before in done:
            for number in users[before]:
                missing[number] -= 1
                if not missing[number]:
                    heapq.heappush(ready[lanes[number]], number)
