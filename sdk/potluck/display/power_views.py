"""The power of the devices of a home: the latest readings as a table, and over time. Pure."""

from collections.abc import Mapping, Sequence

from potluck import units
from potluck.display.axes import Scale
from potluck.display.chart import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, WIDTH, frame
from potluck.display.scene import Line, Scene, legend
from potluck.display.tables import Table
from potluck.provenance import marked
from potluck.sessions.power_reading import PowerReading

SHOWN_S = 300.0  # before the latest reading

History = Mapping[str, Sequence[PowerReading]]


def table(history: History, faults: Mapping[str, str]) -> Table:
    """The latest reading of each device, and what was left out."""
    rows = tuple(
        (
            device,
            marked(units.power(latest.watts), latest.source),
            units.power(latest.resolution_w) if latest.resolution_w else units.UNKNOWN,
            marked(units.energy(latest.joules), latest.source),
            units.percent(latest.busy_frac),
            units.UNKNOWN if latest.battery_frac is None else units.percent(latest.battery_frac),
            latest.meter,
        )
        for device, latest in ((device, kept[-1]) for device, kept in history.items() if kept)
    )
    columns = (
        "device",
        ">power",
        ">resolution",
        ">energy so far",
        ">computes",
        ">battery",
        "meter",
    )
    notes = tuple(f"left out: {device} told {fault}" for device, fault in faults.items())
    return Table(title="Power", columns=columns, rows=rows, notes=notes)


def chart(history: History) -> Scene:
    """Watts of each device over the last minutes."""
    stop_s = max((kept[-1].at_s for kept in history.values() if kept), default=0.0)
    curves = {
        device: [
            (reading.at_s - stop_s, reading.watts)
            for reading in kept
            if reading.at_s >= stop_s - SHOWN_S
        ]
        for device, kept in history.items()
    }
    points = [point for curve in curves.values() for point in curve]
    first_s = min((seconds for seconds, _ in points), default=0.0)
    x = Scale(low=min(first_s, -1.0), high=0.0, start=LEFT, stop=WIDTH - RIGHT)
    most_w = max([1.0, *(watts for _, watts in points)])
    y = Scale(low=0.0, high=most_w, start=HEIGHT - BOTTOM, stop=64)
    items = frame("Power", "", x, y, "s before the latest reading", "W")
    colours = {device: COLOURS[i % len(COLOURS)] for i, device in enumerate(curves)}
    for device, curve in curves.items():
        line = tuple((x(seconds), y(watts)) for seconds, watts in curve)
        items.append(Line(points=line, stroke=colours[device], width=2.0))
    named = [
        (colours[device], marked(device, kept[-1].source) if kept else device)
        for device, kept in history.items()
    ]
    items += legend(named, LEFT, 46)
    return Scene(width=WIDTH, height=HEIGHT, title="Power", items=tuple(items))
