"""Small charts as a `Scene`: lines over steps (loss, split against one machine) and plans by time
and energy. Pure.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

from potluck import units
from potluck.display import axes
from potluck.display.axes import Scale
from potluck.display.scene import Dot, Item, Line, Scene, Text, legend
from potluck.display.tables import energy_of
from potluck.provenance import UNKNOWN, worst
from potluck.records import Plan

WIDTH, HEIGHT = 640.0, 320.0
LEFT = 64.0
RIGHT = 20.0
BOTTOM = 44.0
MOST_NUMBERED = 8  # beyond, only plans that nothing beats carry their number
FAR = 2.5
SAME = 1e-6  # of a value: what differs by less is drawn at one place
COLOURS = ("blue", "vermilion", "green", "purple", "sky", "orange")


def loss(curves: Mapping[str, Sequence[float]], title: str = "Loss") -> Scene:
    """Loss by step, one line per name; where lines coincide, the later ones are dashed so that both
    show.

    The heading tells the largest difference between the first two.
    """
    longest = max((len(curve) for curve in curves.values()), default=0)
    values = [value for curve in curves.values() for value in curve if isfinite(value)]
    high = max(values, default=1.0)
    x = Scale(low=0, high=max(1, longest - 1), start=LEFT, stop=WIDTH - RIGHT)
    y = Scale(
        low=min(0.0, *values) if values else 0.0, high=high or 1.0, start=HEIGHT - BOTTOM, stop=64
    )
    items = frame(title, _difference(list(curves.values())), x, y, "step", "")
    for index, curve in enumerate(curves.values()):
        points = tuple((x(step), y(value)) for step, value in enumerate(curve) if isfinite(value))
        items.append(
            Line(points=points, stroke=COLOURS[index % len(COLOURS)], width=2.0, dashed=index > 0)
        )
    if len(curves) > 1:
        items += legend(
            [(COLOURS[i % len(COLOURS)], name) for i, name in enumerate(curves)], LEFT, 46
        )
    return Scene(
        width=WIDTH, height=HEIGHT, title=f"{title}: {', '.join(curves)}", items=tuple(items)
    )


def _difference(curves: Sequence[Sequence[float]]) -> str:
    if len(curves) < 2 or not curves[0] or not curves[1]:
        return ""
    largest = max(abs(a - b) for a, b in zip(curves[0], curves[1], strict=False))
    return (
        "the curves are equal bit for bit" if largest == 0 else f"largest difference {largest:.1e}"
    )


def pareto(plans: Sequence[Plan], best: Plan | None = None, title: str = "Plans") -> Scene:
    """Plans by predicted time and energy.

    The line joins those that no other beats in both, a ring marks `best`.

    Plans far off the best time or energy would press the good ones into a corner: they are left out
    and counted.
    """
    known = [(i, plan, plan.latency_s, plan.energy_j) for i, plan in enumerate(plans)]
    points = [(i, plan, s * 1e3, j) for i, plan, s, j in known if s is not None and j is not None]
    front = frontier([(ms, j) for _, _, ms, j in points])
    near = [
        point
        for point in points
        if point[2:] in front or point[1] == best or _is_near(point[2:], front)
    ]
    x = _padded([ms for _, _, ms, _ in near], LEFT, WIDTH - RIGHT)
    y = _padded([j for _, _, _, j in near], HEIGHT - BOTTOM, 56)
    n_far = len(points) - len(near)
    mark = worst(plan.energy_source for _, plan, _, _ in points if plan.energy_source)
    of_joules = f"; joules {mark}" if mark != UNKNOWN else ""
    note = f"lower left is better{of_joules}" + (f"; {n_far} far off, not shown" if n_far else "")
    items = frame(title, note, x, y, "ms", "J")
    items.append(
        Line(points=tuple((x(ms), y(j)) for ms, j in front), stroke="blue", width=1.5, opacity=0.5)
    )
    numbers: list[Text] = []
    # the front on top
    for index, plan, ms, joules in sorted(near, key=lambda point: point[2:] in front):
        on_front = (ms, joules) in front
        label = f"{index}: {plan.planner}, {units.duration(ms / 1e3)}, {energy_of(plan)}"
        items.append(
            Dot(x=x(ms), y=y(joules), radius=5, fill="blue" if on_front else "grey", title=label)
        )
        if plan == best:
            items.append(Dot(x=x(ms), y=y(joules), radius=9, fill="vermilion", ring=True))
        if on_front or plan == best or len(near) <= MOST_NUMBERED:
            numbers.append(
                Text(x=x(ms) + 12, y=y(joules) - 8, text=str(index), size=11, fill="muted")
            )
    items += _apart(numbers)
    return Scene(
        width=WIDTH, height=HEIGHT, title=f"{title} by time and energy", items=tuple(items)
    )


def _apart(numbers: Sequence[Text]) -> list[Text]:
    """Those that can be read: the lowest number first, without the ones that it would cover."""
    kept: list[Text] = []
    for text in sorted(numbers, key=lambda item: int(item.text)):
        if all(abs(text.x - other.x) > 14 or abs(text.y - other.y) > 11 for other in kept):
            kept.append(text)
    return kept


def _is_near(point: tuple[float, float], front: Sequence[tuple[float, float]]) -> bool:
    """Within FAR times the fastest and the thriftiest."""
    return point[0] <= FAR * front[0][0] and point[1] <= FAR * front[-1][1]


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other point beats in one coordinate without losing in the other.

    >>> frontier([(1, 5), (2, 2), (3, 3), (4, 1)])
    [(1, 5), (2, 2), (4, 1)]
    """
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _padded(values: Sequence[float], start: float, stop: float) -> Scale:
    low, high = min(values, default=0.0), max(values, default=1.0)
    spread = high - low if high - low > SAME * abs(high) else 0.0
    pad = 0.12 * spread or 0.1 * abs(high) or 1.0
    return Scale(low=max(0.0, low - pad), high=high + pad, start=start, stop=stop)


def frame(title: str, note: str, x: Scale, y: Scale, x_unit: str, y_unit: str) -> list[Item]:
    """The heading, both axes with their numbers and units, and the lines across."""
    items: list[Item] = [Text(x=16, y=22, text=title, size=15, bold=True)]
    if note:
        items.append(Text(x=WIDTH - RIGHT, y=22, text=note, size=11, fill="muted", anchor="end"))
    across, up = axes.ticks(x.low, x.high, 9), axes.ticks(y.low, y.high, 6)
    for value, text in zip(up, axes.labels(up), strict=True):
        items.append(Line(points=((x.start, y(value)), (x.stop, y(value)))))
        items.append(
            Text(x=x.start - 8, y=y(value), text=text, size=10, fill="muted", anchor="end")
        )
    for value, text in zip(across, axes.labels(across), strict=True):
        items.append(
            Text(x=x(value), y=y.start + 14, text=text, size=10, fill="muted", anchor="middle")
        )
    items.append(Text(x=x.stop, y=y.start + 30, text=x_unit, size=10, fill="muted", anchor="end"))
    if y_unit:
        items.append(
            Text(x=x.start - 8, y=y.stop - 6, text=y_unit, size=10, fill="muted", anchor="end")
        )
    return items
