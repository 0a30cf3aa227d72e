"""Idle, busy and radio power of a device by its own meter, under a load that is known: nothing,
then the model's heaviest layer, then sending to the notebook.

Takes `3 * (SETTLE_S + STATE_S)` seconds, 15 in all; devices of different machines at once.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import fmean, linear_regression, pstdev
from typing import Any

from potluck.graph.backends import document_for, kind_on
from potluck.handle import Task
from potluck.profile.device_bench import MAX_REPEATS
from potluck.profile.network import is_itself
from potluck.profile.power_model import Watts
from potluck.provenance import MEASURED
from potluck.records import HOME, LayerCost
from potluck.sessions.events import RequestAll
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members
from potluck.sessions.power_reading import PowerReading
from potluck.sessions.readings import Stream
from potluck_wire.messages import Measure, Probe

STATE_S = 4.0  # fuel gauges of batteries tell a new mean about once a second
SETTLE_S = 1.0  # clocks of processors and fans follow a load
MOST_S = 30.0  # for one of the three; a device that tells nothing is given up then
RATE_HZ = 5.0
LEAST_READINGS = 4
LEAST_BUSY_FRAC = 0.1  # below, what computing takes is lost in what waiting takes
ONCE_S = 0.1  # of computing for one request: an agent tells what it computed when it is done
RADIO_BYTES, RADIO_REPEATS = 2 * 2**20, 16


class NotMeasured(Exception):
    """Why the power of a device could not be measured."""


@dataclass(frozen=True, slots=True)
class Mean:
    """Watts over some time, how far off, and the part of it that was computed."""

    watts: float
    error_w: float
    busy_frac: float


def has_meter(capability: Mapping[str, Any]) -> bool:
    """Whether the device says that a meter measures its power."""
    return is_itself(capability) and any(
        meter.get("source") == "measured" for meter in capability.get("meters") or ()
    )


def measure_watts(
    link: SessionLink,
    members: Members,
    task: Task,
    model: Any,
    device: str,
    costs: Mapping[bool, Sequence[LayerCost]],
) -> Watts:
    """The power of one device.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    task
        Can be cancelled between two looks at the meter.
    model, costs
        Whose heaviest layer is computed, and what its layers take on this device, by whether that
        is training.
    device
        Its name.

    Raises
    ------
    NotMeasured
        Its meter fell silent, or told what was estimated.
    """
    load_request = _load(members, model, device, costs)
    sends = Probe(task="watts", peer=HOME, nbytes=RADIO_BYTES, repeats=RADIO_REPEATS)
    with members.readings(RATE_HZ, [device]) as stream:

        def state(request: Any, *buffers: bytes) -> Mean:
            def load() -> None:
                task.check()
                link.ask(RequestAll(requests={device: (request, buffers)})).result()

            return mean_of(_observed(stream, task, load if request is not None else None))

        return watts_of(state(None), state(*load_request), state(sends))


def watts_of(idle: Mean, busy: Mean, radio: Mean) -> Watts:
    """Idle, busy and radio power by the mean power in these three states.

    >>> watts_of(Mean(2.0, 0.1, 0.0), Mean(6.0, 0.1, 0.5), Mean(2.5, 0.1, 0.0)).busy_w
    10.0

    Parameters
    ----------
    idle
        While nothing is computed.
    busy
        While it computes.
    radio
        While it sends and receives.

    Raises
    ------
    NotMeasured
        It hardly computed.
    """
    share = busy.busy_frac - idle.busy_frac
    if share < LEAST_BUSY_FRAC:
        raise NotMeasured(f"it computed {share:.0%} of the time that it was to compute")
    error_w = max(idle.error_w, hypot(idle.error_w, busy.error_w) / share)
    return Watts(
        idle_w=idle.watts,
        busy_w=max(idle.watts, idle.watts + (busy.watts - idle.watts) / share),
        radio_w=max(0.0, radio.watts - idle.watts),
        source=MEASURED,
        note=f"by its meter, in {3 * (SETTLE_S + STATE_S):g} s",
        error_w=max(error_w, hypot(idle.error_w, radio.error_w)),
    )


def mean_of(readings: Sequence[PowerReading]) -> Mean:
    """The mean of these readings of one state, first to last; its error is their spread, but for
    what computing more or less explains, and the meter's resolution.

    Raises
    ------
    NotMeasured
        They are too few, or not measured.
    """
    if len(readings) < LEAST_READINGS or readings[-1].at_s <= readings[0].at_s:
        raise NotMeasured(f"its meter told {len(readings)} readings in {MOST_S:g} s")
    if any(reading.source != MEASURED for reading in readings):
        raise NotMeasured("its meter fell silent or jumped, and its readings are estimated")
    span_s = readings[-1].at_s - readings[0].at_s
    watts = [reading.watts for reading in readings[1:]]
    busy = [reading.busy_frac for reading in readings[1:]]
    slope_w = linear_regression(busy, watts).slope if len(set(busy)) > 1 else 0.0
    spread_w = pstdev(w - slope_w * frac for w, frac in zip(watts, busy, strict=True))
    return Mean(
        watts=(readings[-1].joules - readings[0].joules) / span_s,
        error_w=hypot(spread_w, max(reading.resolution_w for reading in readings)),
        busy_frac=fmean(busy),
    )


def shared(watts: Watts, n_devices: int) -> Watts:
    """The power of one of several devices of a machine that its meter measures as a whole: each has
    a part of what it takes at rest.
    """
    if n_devices == 1 or watts.idle_w is None or watts.busy_w is None:
        return watts
    idle_w = watts.idle_w / n_devices
    return replace(
        watts,
        idle_w=idle_w,
        busy_w=idle_w + watts.busy_w - watts.idle_w,
        note=f"{watts.note}; {n_devices} devices share the machine",
    )


def _observed(
    stream: Stream, task: Task, load: Callable[[], None] | None
) -> tuple[PowerReading, ...]:
    """The readings of STATE_S seconds under a load, once it has settled."""
    readings: list[PowerReading] = []
    limit_s = time.monotonic() + MOST_S
    while stream.take(0.0) is not None:
        pass  # of the state before
    while time.monotonic() < limit_s:
        task.check()
        if load is not None:
            load()
        while (reading := stream.take(0.0 if load is not None else 1 / RATE_HZ)) is not None:
            readings.append(reading)
            if reading.at_s - readings[0].at_s >= SETTLE_S + STATE_S:
                begun_s = readings[0].at_s + SETTLE_S
                return tuple(each for each in readings if each.at_s >= begun_s)
    return ()


def _load(
    members: Members, model: Any, device: str, costs: Mapping[bool, Sequence[LayerCost]]
) -> tuple[Measure, bytes]:
    """What to ask of it so that it computes: its heaviest layer, as often as pays the asking."""
    train = True in costs
    seconds = [
        cost.forward_s[-1] + (cost.backward_s[-1] if train else 0.0) for cost in costs[train]
    ]
    index = max(range(len(seconds)), key=seconds.__getitem__)
    repeats = min(MAX_REPEATS, max(1, int(ONCE_S / max(seconds[index], 1e-9))))
    kind = kind_on(model, device, members[device].capability.get("backends", ()), train=train)
    order = Measure(
        task="watts", kind=kind, train=train, rows=(costs[train][index].rows[-1],), repeats=repeats
    )
    return order, document_for(model, device, kind, index, index + 1, train=train)
