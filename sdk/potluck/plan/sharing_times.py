"""When each step of a shared request starts and ends: two sides that compute, and one link between them.

As the agents do it: a side carries out the most urgent of its pieces that has all it takes, one after the other; rows
that are sent go one after the other in each direction; both directions together share the link.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from .sharing import DEVICE, HELPER, Sharing
from .sharing_steps import Step

_UP, _DOWN = "up", "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Per step its start and end (a transfer's rows are there its latency later); seconds and bytes of each kind."""

    start_s: tuple[float, ...]
    stop_s: tuple[float, ...]
    latency_s: float
    busy_s: float  # the device computes
    radio_s: float  # something is on the link
    sent_bytes: int
    received_bytes: int


def times(sharing: Sharing, steps: Sequence[Step], bytes_per_s: float) -> Times | None:
    """How the steps take place at that bandwidth; None where something has to go over a link that carries nothing."""
    work, lanes = [], []
    for step in steps:
        lanes.append(step.side if not step.sends else _UP if step.side == DEVICE else _DOWN)
        if step.sends:
            ((place, rows),) = step.rows
            work.append(float(sharing.operators[place].row_bytes * (rows[1] - rows[0])))
        else:
            seconds = sum(sharing.seconds(step.side, p, r[1] - r[0]) for p, r in step.rows)
            work.append(seconds + sharing.piece_s if step.rows[0][0] < len(sharing.operators) - 1 else seconds)
    if bytes_per_s <= 0 and any(step.sends for step in steps):
        return None
    start, stop, radio_s = _run(steps, work, lanes, bytes_per_s, sharing.latency_s)
    return Times(
        start_s=tuple(start),
        stop_s=tuple(stop),
        latency_s=max((stop[i] for i in range(len(steps)) if lanes[i] == DEVICE), default=0.0),
        busy_s=sum(work[i] for i in range(len(steps)) if lanes[i] == DEVICE),
        radio_s=radio_s,
        sent_bytes=round(sum(work[i] for i in range(len(steps)) if lanes[i] == _UP)),
        received_bytes=round(sum(work[i] for i in range(len(steps)) if lanes[i] == _DOWN)),
    )


def _run(
    steps: Sequence[Step], work: Sequence[float], lanes: Sequence[str], bytes_per_s: float, latency_s: float
) -> tuple[list[float], list[float], float]:
    """Start and end of every step, and the seconds in which the link was in use."""
    missing = [len(step.after) for step in steps]
    users: list[list[int]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        for before in step.after:
            users[before].append(number)
    ready: dict[str, list[int]] = {lane: [] for lane in (DEVICE, HELPER, _UP, _DOWN)}
    for number, lane in enumerate(lanes):
        if not missing[number]:
            heapq.heappush(ready[lane], number)
    start, stop = [0.0] * len(steps), [0.0] * len(steps)
    left: dict[str, float] = {}
    running: dict[str, int] = {}
    arrivals: list[tuple[float, int]] = []
    now_s = radio_s = 0.0
    while True:
        for lane, waiting in ready.items():
            if waiting and lane not in running:
                number = running[lane] = heapq.heappop(waiting)
                left[lane], start[number] = work[number], now_s
        if not running and not arrivals:
            return start, stop, radio_s
        flows = (_UP in running) + (_DOWN in running)
        rate = {DEVICE: 1.0, HELPER: 1.0}
        if flows:
            rate[_UP] = rate[_DOWN] = bytes_per_s / flows
        ends = {lane: now_s + left[lane] / rate[lane] for lane in running}
        then_s = min([*ends.values(), *(t for t, _ in arrivals[:1])])
        radio_s += (then_s - now_s) if flows else 0.0
        done = [number for t, number in arrivals if t <= then_s]
        arrivals = [(t, number) for t, number in arrivals if t > then_s]
        for lane, number in list(running.items()):
            if ends[lane] <= then_s:
                stop[number] = then_s
                del running[lane]
                if lane in (_UP, _DOWN) and latency_s:
                    heapq.heappush(arrivals, (then_s + latency_s, number))
                else:
                    done.append(number)
            else:
                left[lane] -= (then_s - now_s) * rate[lane]
        now_s = then_s
        arrivals.sort()
        for before in done:
            for number in users[before]:
                missing[number] -= 1
                if not missing[number]:
                    heapq.heappush(ready[lanes[number]], number)
