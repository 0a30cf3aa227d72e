"""A Trace as a Gantt chart: per device a compute lane with labels such as `2F0`, and thin lanes for
sends and receives.

Pure: traces in, a `Scene` out. Several traces (predicted, measured) stand one above the other on
one time axis.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat
from statistics import median

from potluck import units
from potluck.display import axes
from potluck.display.axes import Scale
from potluck.display.palette import ON_COLOUR
from potluck.display.scene import Item, Line, Rect, Scene, Text, fitting, legend, text_width
from potluck.display.tables import one_of, step_s
from potluck.records import Event, Trace

WIDTH = 960.0
MARGIN = 16.0
RIGHT = 16.0
LANES = {"compute": 22.0, "send": 7.0, "receive": 7.0}  # heights in pixels
LANE_GAP, DEVICE_GAP = 2.0, 11.0
BODY = sum(LANES.values()) + LANE_GAP * (len(LANES) - 1)
ROW = BODY + DEVICE_GAP
# a browser draws that many rectangles at ease; beyond, only the middle steps are shown
MOST_EVENTS = 4000

# kind: (colour, words)
KINDS = {
    "forward": ("blue", "forward"),
    "backward": ("orange", "backward"),
    "input gradient": ("orange", "input gradient"),
    "weight gradient": ("vermilion", "weight gradient"),
    "step": ("green", "optimizer step"),
    "reduce": ("purple", "all-reduce and tensor work"),
    "send": ("sky", "send"),
    "receive": ("grey", "receive"),
}
_ACTION = re.compile(r"\d+([FBIW])\d*")
_LETTERS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
_OPS = {"run": "forward", "backward": "backward", "step": "step"}


def kind(event: Event) -> str:
    """Which of `KINDS` the event is, by its lane, its label (`2F0`) or its operation."""
    if event.lane in ("send", "receive"):
        return event.lane
    action = _ACTION.fullmatch(event.label)
    return _LETTERS[action[1]] if action else _OPS.get(event.op, "reduce")


def devices(*traces: Trace) -> tuple[str, ...]:
    """Every device of the traces, in the order in which they begin to compute.

    Who never does comes last.
    """
    events = [event for trace in traces for event in trace.events]
    begins = sorted(
        (event for event in events if event.lane == "compute"), key=lambda event: event.start_s
    )
    return tuple(dict.fromkeys(event.device for event in (*begins, *events)))


def window(trace: Trace, first: int, n_steps: int) -> Trace:
    """Only the events of steps [first, first + n_steps), their earliest at time 0."""
    kept = [event for event in trace.events if first <= event.step < first + n_steps]
    zero_s = min((event.start_s for event in kept), default=0.0)
    moved = (
        replace(event, start_s=event.start_s - zero_s, stop_s=event.stop_s - zero_s)
        for event in kept
    )
    return replace(trace, events=tuple(moved), step_s=trace.step_s[first : first + n_steps])


def typical(trace: Trace) -> Trace:
    """One step of the trace, the one nearest to the median time, from its first computing on.

    Its inputs may have been sent while the step before was still going on: what ended by then is
    left out.
    """
    middle_s = median(trace.step_s or (0.0,))
    nearest = min(
        range(len(trace.step_s)), key=lambda step: abs(trace.step_s[step] - middle_s), default=0
    )
    one = window(trace, nearest, 1)
    zero_s = min((event.start_s for event in one.events if event.lane == "compute"), default=0.0)
    kept = (event for event in one.events if event.stop_s > zero_s)
    moved = (
        replace(e, start_s=max(0.0, e.start_s - zero_s), stop_s=e.stop_s - zero_s) for e in kept
    )
    return replace(one, events=tuple(moved))


def excerpt(trace: Trace, max_events: int = MOST_EVENTS) -> Trace:
    """The trace, or as many steps from its middle as hold at most `max_events` events.

    At least one step.
    """
    steps = sorted({event.step for event in trace.events})
    if len(trace.events) <= max_events or len(steps) < 2:
        return trace
    n_steps = max(1, len(steps) * max_events // len(trace.events))
    first = (len(steps) - n_steps + 1) // 2
    return window(trace, steps[first], steps[first + n_steps - 1] - steps[first] + 1)


def gantt(
    *traces: Trace, title: str = "", headings: Sequence[str] = (), width: float = WIDTH
) -> Scene:
    """The traces one above the other, each under its heading.

    All on the same time axis in milliseconds.
    """
    shown = [excerpt(trace) for trace in traces]
    names = devices(*shown)
    left = MARGIN + min(170.0, max((text_width(name, 12) for name in names), default=0.0) + 14) + 40
    scale = Scale(
        low=0.0,
        high=max((trace.stop_s for trace in shown), default=0.0) or 1.0,
        start=left,
        stop=width - RIGHT,
    )
    items: list[Item] = []
    y = MARGIN
    if title:
        items.append(Text(x=MARGIN, y=y + 6, text=title, size=15, bold=True))
        y += 26
    kinds = {kind(event) for trace in shown for event in trace.events}
    items += legend([look for name, look in KINDS.items() if name in kinds], MARGIN, y + 4)
    y += 24
    values = axes.ticks(0.0, scale.high * 1e3, 12)
    for trace, heading in zip(shown, chain(headings, repeat("")), strict=False):
        if len(shown) > 1:
            line = f"{heading}: {_heading(trace)}" if heading else _heading(trace)
            items.append(Text(x=MARGIN, y=y + 6, text=line, size=12, bold=True, fill="muted"))
            y += 20
        bottom = y + len(names) * ROW
        items += [
            Line(points=((x, y), (x, bottom))) for x in (scale(value / 1e3) for value in values)
        ]
        for name in names:
            items += _device(trace, name, scale, y, width)
            y += ROW
        y += 6
    items += _time_words(scale, values, y)
    what = title or "Timeline, " + " and ".join(trace.source for trace in shown)
    return Scene(width=width, height=y + 28, title=what, items=tuple(items))


def _heading(trace: Trace) -> str:
    typical_s = step_s(trace)
    return (
        trace.source
        if typical_s is None
        else f"{trace.source}, {units.duration(typical_s)} per {one_of(trace)}"
    )


def _device(trace: Trace, name: str, scale: Scale, y: float, width: float) -> list[Item]:
    items: list[Item] = [
        Rect(
            x=scale.start,
            y=y,
            width=width - RIGHT - scale.start,
            height=BODY,
            fill="faint",
            radius=3,
        ),
        Text(x=MARGIN, y=y + 11, text=fitting(name, scale.start - MARGIN - 44, 12), size=12),
    ]
    for lane, lane_height in LANES.items():
        if lane != "compute":
            label = {"send": "out", "receive": "in"}[lane]
            items.append(
                Text(
                    x=scale.start - 8,
                    y=y + lane_height / 2,
                    text=label,
                    size=9,
                    fill="muted",
                    anchor="end",
                )
            )
        for event in trace.events:
            if event.device == name and event.lane == lane:
                items += _bar(event, scale, y, lane_height)
        y += lane_height + LANE_GAP
    return items


def _bar(event: Event, scale: Scale, y: float, height: float) -> list[Item]:
    start = scale(event.start_s)
    width = max(scale(event.stop_s) - start, 0.75)
    colour = KINDS[kind(event)][0]
    inner = max(width - 0.6, 0.75)  # a hair of paper between neighbours
    items: list[Item] = [
        Rect(
            x=start,
            y=y,
            width=inner,
            height=height,
            fill=colour,
            radius=min(2.5, inner / 3),
            title=_tooltip(event),
        )
    ]
    size = 10.0
    if height >= 16 and event.label and text_width(event.label, size) + 4 <= width:
        ink = ON_COLOUR.get(colour, "#ffffff")
        items.append(
            Text(
                x=start + inner / 2,
                y=y + height / 2,
                text=event.label,
                size=size,
                fill=ink,
                anchor="middle",
            )
        )
    return items


def _tooltip(event: Event) -> str:
    """What the pointer is told on this bar."""
    parts = [f"{event.label or event.op or event.lane} on {event.device}"]
    if event.peer:
        parts.append(f"{'to' if event.lane == 'send' else 'from'} {event.peer}")
    if event.nbytes:
        span_s = event.stop_s - event.start_s
        parts.append(
            units.size(event.nbytes)
            + (f" at {units.rate(event.nbytes / span_s)}" if span_s > 0 else "")
        )
    parts.append(
        f"{units.duration(event.stop_s - event.start_s)} from {units.duration(event.start_s)}, "
        f"step {event.step}"
    )
    return ", ".join(parts)


def _time_words(scale: Scale, values: Sequence[float], y: float) -> list[Item]:
    places = axes.decimals(tuple(values))
    items: list[Item] = [
        Text(x=scale.start - 8, y=y + 6, text="ms", size=10, fill="muted", anchor="end")
    ]
    for value in values:
        text = f"{value:.{places}f}"
        items.append(
            Text(x=scale(value / 1e3), y=y + 6, text=text, size=10, fill="muted", anchor="middle")
        )
    return items
