"""Watts that learn from a run: what a device's meter counted. Pure.

The rule: the joules that the meter counted over the run are compared with those that the device's
watts give for its busy, radio and whole time in that run. All its watts go half of the way there,
as layers do (`correction_factors.half_way`). Where no meter counted, or nobody knows watts, nothing
is learned; and what was assumed is still assumed, though nearer.
"""

from collections.abc import Iterable
from dataclasses import replace

from potluck.profile.correction_factors import half_way
from potluck.provenance import MEASURED
from potluck.records import Device, Trace
from potluck.simulate.equations import energy_j
from potluck.simulate.time_spans import union_s

LEARNED = "learned from runs"


def learned_power(devices: Iterable[Device], measured: Trace) -> tuple[Device, ...]:
    """The devices after a run.

    Parameters
    ----------
    devices
        Before it.
    measured
        What the run did.
    """
    return tuple(_learned(device, measured) for device in devices)


def _learned(device: Device, measured: Trace) -> Device:
    name = device.name
    counted_j = measured.energy_j.get(name, 0.0)
    if measured.energy_source.get(name) != MEASURED or counted_j <= 0:
        return device
    radio_s = union_s(
        [(e.start_s, e.stop_s) for e in measured.events if e.device == name and e.lane != "compute"]
    )
    elapsed_s = sum(measured.step_s) or measured.stop_s
    expected_j = energy_j(device, elapsed_s, measured.busy_s.get(name, 0.0), radio_s)
    if not expected_j or device.idle_w is None or device.busy_w is None:
        return device
    factor = half_way({name: [counted_j / expected_j]})[name]
    note = device.power_note.removesuffix(LEARNED).removesuffix("; ")
    return replace(
        device,
        idle_w=device.idle_w * factor,
        busy_w=device.busy_w * factor,
        radio_w=None if device.radio_w is None else device.radio_w * factor,
        power_note=f"{note}; {LEARNED}" if note else LEARNED,
    )
