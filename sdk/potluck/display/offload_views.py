"""A shared request as pictures and tables: which rows of which operator run where, when, and what
requests have cost.

Pure: records in, a `Scene` or a `Table` out.
"""

from dataclasses import replace
from itertools import groupby, pairwise

from potluck import units
from potluck.display import axes, timeline
from potluck.display.axes import Scale
from potluck.display.scene import Dot, Item, Line, Rect, Scene, Text, legend
from potluck.display.tables import Bar, Table
from potluck.offload.explanation import RequestExplanation
from potluck.offload.plan.problem import DEVICE, Operator
from potluck.offload.stats import ALONE, Stats

LEFT = 120.0
TOP = 64.0
HEIGHT = 130.0
GAP = 16.0
SIDES, SEVERAL = ("blue", "orange", "green", "sky", "yellow"), "purple"
CHART_HEIGHT, MIDDLE = 210.0, 26.0


def picture(account: RequestExplanation) -> Scene:
    """Above, every operator as a column of its rows; below, the same in time."""
    return stacked(rows(account), timeline.gantt(account.predicted))


def rows(account: RequestExplanation) -> Scene:
    """Operators from left to right; the first rows are on top.

    What several compute is shown as such.
    """
    places = list(range(1, len(account.operators) - 1))
    x = Scale(low=0, high=max(len(places), 1), start=LEFT, stop=timeline.WIDTH - timeline.RIGHT)
    title = f"Which rows run where, at {units.rate(account.bytes_per_s)}"
    note = (
        f"{units.duration(account.latency_s)} expected; {account.device} alone "
        f"{units.duration(account.alone_s)}"
    )
    items: list[Item] = [
        Text(x=timeline.MARGIN, y=22, text=title, size=15, bold=True),
        Text(
            x=timeline.WIDTH - timeline.RIGHT, y=22, text=note, size=11, fill="muted", anchor="end"
        ),
        Text(x=LEFT - 10, y=TOP + 8, text="first row", size=10, fill="muted", anchor="end"),
        Text(x=LEFT - 10, y=TOP + HEIGHT - 8, text="last row", size=10, fill="muted", anchor="end"),
        Rect(x=LEFT, y=TOP, width=x.stop - LEFT, height=HEIGHT, fill="faint"),
    ]
    looks = [(_colour(account, (name,)), name) for name in account.names]
    looks.append(
        (
            SEVERAL,
            "both, rather than wait" if len(account.helpers) == 1 else "several, rather than wait",
        )
    )
    items += legend(looks, LEFT, 46)
    for column, place in enumerate(places):
        for names, span in _bands(account, place):
            items.append(_band(account, place, names, span, x(column), x(column + 1) - x(column)))
    items.append(Text(x=LEFT, y=TOP + HEIGHT + 14, text="input", size=10, fill="muted"))
    items.append(
        Text(x=x.stop, y=TOP + HEIGHT + 14, text="output", size=10, fill="muted", anchor="end")
    )
    return Scene(width=timeline.WIDTH, height=TOP + HEIGHT + 30, title=title, items=tuple(items))


def _bands(
    account: RequestExplanation, place: int
) -> list[tuple[tuple[str, ...], tuple[int, int]]]:
    """Runs of rows of an operator, and the devices that compute them."""
    rows = {name: account.rows.get(name, {}).get(place, (0, 0)) for name in account.names}
    found = []
    for start, stop in pairwise(sorted({end for ends in rows.values() for end in ends})):
        by = tuple(name for name, (a, b) in rows.items() if a <= start and stop <= b)
        if by:
            found.append((by, (start, stop)))
    return found


def _colour(account: RequestExplanation, names: tuple[str, ...]) -> str:
    return SIDES[account.names.index(names[0]) % len(SIDES)] if len(names) == 1 else SEVERAL


def _band(
    account: RequestExplanation,
    place: int,
    names: tuple[str, ...],
    span: tuple[int, int],
    x: float,
    width: float,
) -> Rect:
    operator = account.operators[place]
    y, height = (
        TOP + HEIGHT * span[0] / operator.count,
        HEIGHT * (span[1] - span[0]) / operator.count,
    )
    title = (
        f"{_called(operator)}: rows {span[0]} to {span[1]} of {operator.count} on "
        f"{' and '.join(names)}"
    )
    colour = _colour(account, names)
    return Rect(
        x=x,
        y=y,
        width=max(width - (0.6 if width > 3 else 0), 0.5),
        height=height,
        fill=colour,
        title=title,
    )


def stacked(top: Scene, bottom: Scene) -> Scene:
    """One picture below the other."""
    moved = [_moved(item, top.height + GAP) for item in bottom.items]
    return Scene(
        width=max(top.width, bottom.width),
        height=top.height + GAP + bottom.height,
        title=top.title,
        items=(*top.items, *moved),
    )


def _moved(item: Item, down: float) -> Item:
    if isinstance(item, Line):
        return replace(item, points=tuple((x, y + down) for x, y in item.points))
    return replace(item, y=item.y + down)


def divided(account: RequestExplanation) -> Table:
    """The operators in runs that are divided alike: what the device and its helpers compute of
    them.
    """
    found: list[tuple[str | Bar, ...]] = []
    shares = [(place, _shares(account, place)) for place in range(1, len(account.operators) - 1)]
    for parts, run in groupby(shares, key=lambda row: tuple(round(part, 2) for part in row[1])):
        places = [place for place, *_ in run]
        names = [_called(account.operators[place]) for place in (places[0], places[-1])]
        words = names[0] if len(places) == 1 else f"{names[0]} … {names[1]}"
        numbers = str(places[0]) if len(places) == 1 else f"{places[0]}–{places[-1]}"
        found.append(
            (numbers, words, *(Bar(frac=part, text=units.percent(part)) for part in parts))
        )
    sends = [event for event in account.predicted.events if event.lane == "send"]
    sent = sum(
        event.nbytes
        for event in sends
        if event.device == account.device and event.peer in account.helpers
    )
    back = sum(
        event.nbytes
        for event in sends
        if event.device in account.helpers and event.peer == account.device
    )
    among = sum(
        event.nbytes for event in sends if {event.device, event.peer} <= set(account.helpers)
    )
    between = f", {units.size(among)} between helpers" if among else ""
    notes = (
        f"{units.duration(account.latency_s)} expected, {account.device} alone "
        f"{units.duration(account.alone_s)}; "
        f"{units.size(sent)} go over and {units.size(back)} come back{between}",
        *account.notes,
    )
    title = (
        f"One request on {account.device} with {' and '.join(account.helpers)}, at "
        f"{units.rate(account.bytes_per_s)}"
    )
    return Table(
        title=title, columns=("operators", "", *account.names), rows=tuple(found), notes=notes
    )


def _called(operator: Operator) -> str:
    """`conv2d` for `aten.conv2d.default`."""
    return operator.name.removeprefix("aten.").split(".")[0]


def _shares(account: RequestExplanation, place: int) -> tuple[float, ...]:
    spans = (account.rows.get(name, {}).get(place, (0, 0)) for name in account.names)
    return tuple((stop - start) / account.operators[place].count for start, stop in spans)


def at_work(account: RequestExplanation, found: Stats, state: str = "") -> Table:
    """What an accelerated model does now, in a sentence; how much sooner that is.

    What it has done.
    """
    times = account.alone_s / account.latency_s if account.latency_s else 1.0
    sooner = f", {times:.1f} times as long" if times >= 1.05 else ""
    latency = (
        f"{units.duration(account.latency_s)} predicted; {account.device} alone "
        f"{units.duration(account.alone_s)}"
    )
    done = units.number(found.requests, "request")
    if found.requests:
        done += f", typically {units.duration(found.latency_s)}"
    if found.fallbacks:
        done += (
            f"; {units.number(found.fallbacks, 'time')} the device had to answer alone after all"
        )
    return Table(
        title=f"Accelerated: {account.device} with {' and '.join(account.helpers)}",
        columns=("", ""),
        rows=(
            ("bandwidth", f"{units.rate(account.bytes_per_s)}, as transfers have shown"),
            ("now", _sentence(account)),
            ("a request", latency + sooner),
            ("so far", done),
        ),
        notes=tuple(filter(None, (state, found.searched.note if found.searched else ""))),
    )


def _sentence(account: RequestExplanation) -> str:
    """Who does how much of the work, counted as what it takes the device."""
    total_s = sum(operator.seconds(DEVICE) for operator in account.operators)
    parts = []
    for name in account.names:
        rows = account.rows.get(name, {})
        operators = (
            (account.operators[place], stop - start) for place, (start, stop) in rows.items()
        )
        work_s = sum(operator.seconds(DEVICE) * n / operator.count for operator, n in operators)
        parts.append((name, work_s / total_s if total_s else 0.0))
    if all(not part for _, part in parts[1:]):
        return f"{account.device} answers alone"
    shares = ", ".join(f"{name} computes {units.percent(part)}" for name, part in parts)
    both = (
        " (rows that several need are computed by each)"
        if sum(part for _, part in parts) > 1.005
        else ""
    )
    return f"{shares} of the work{both}"


def stats(found: Stats) -> Table:
    """The ways that were taken: how often, how fast, how thrifty."""
    by_way: dict[str, list[float]] = {}
    joules: dict[str, list[float]] = {}
    for answer in found.answers:
        by_way.setdefault(answer.way, []).append(answer.latency_s)
        joules.setdefault(answer.way, []).extend(
            [answer.joules] if answer.joules is not None else []
        )
    by = {answer.way: ", ".join(answer.by) for answer in found.answers}
    table_rows = tuple(
        (
            way,
            by[way],
            str(len(times)),
            units.duration(sorted(times)[len(times) // 2]),
            units.energy(_mean(joules[way])),
        )
        for way, times in by_way.items()
    )
    notes = [f"{found.fallbacks} fell back on the device"] if found.fallbacks else []
    if found.source:
        notes.append(f"energy of the device, {found.source}: {units.energy(found.joules)} in all")
    notes += [found.searched.note] if found.searched else []
    errors = [
        f"of {n} {kind}, {units.percent(frac)}"
        for kind, (n, frac) in found.prediction_error_fracs.items()
    ]
    left_out = ", without those that fell back" if found.fallbacks else ""
    notes += (
        [f"predicted times were off by (median): {'; '.join(errors)}{left_out}"] if errors else []
    )
    return Table(
        title=units.number(found.requests, "request"),
        rows=table_rows,
        notes=tuple(notes),
        columns=("way", "by", ">requests", ">typical time", ">energy of one"),
    )


def _axes(x: Scale, y: Scale) -> list[Item]:
    """Seconds along, milliseconds upwards, with a line at each of these."""

    def label(x_px: float, y_px: float, text: str, anchor: str = "end") -> Text:
        return Text(x=x_px, y=y_px, text=text, size=10, fill="muted", anchor=anchor)

    items: list[Item] = []
    for value in axes.ticks(0.0, y.high, 6):
        items.append(Line(points=((x.start, y(value)), (x.stop, y(value)))))
        items.append(label(x.start - 8, y(value), f"{value:g}"))
    for value in axes.ticks(0.0, x.high, 10):
        items.append(label(x(value), y.start + 14, f"{value:g}", "middle"))
    return [*items, label(x.start - 8, y.stop - 10, "ms"), label(x.stop, y.start + 28, "seconds")]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def over_time(found: Stats, lines: dict[str, list[tuple[float, float]]] | None = None) -> Scene:
    """Each request by when it was asked and how long it took.

    `lines`: what others would have taken, in seconds.
    """
    zero_s = min((answer.at_s for answer in found.answers), default=0.0)
    times = [(answer.at_s - zero_s, answer.latency_s) for answer in found.answers]
    curves = lines or {}
    points = [*times, *(point for curve in curves.values() for point in curve)]
    x = Scale(
        low=0.0,
        high=max((t for t, _ in points), default=1.0) or 1.0,
        start=64.0,
        stop=timeline.WIDTH - 20,
    )
    y = Scale(
        low=0.0,
        high=1.05e3 * max((s for _, s in points), default=1.0),
        start=CHART_HEIGHT,
        stop=58.0,
    )
    items: list[Item] = [
        Text(x=timeline.MARGIN, y=20, text="Time of each request", size=15, bold=True),
        *_axes(x, y),
    ]
    colours = ("grey", "orange", "purple", "sky")  # none of those of the dots
    for colour, curve in zip(colours, curves.values(), strict=False):
        items.append(
            Line(points=tuple((x(t), y(1e3 * s)) for t, s in curve), stroke=colour, width=2.0)
        )
    for answer, (at_s, seconds) in zip(found.answers, times, strict=True):
        colour = "vermilion" if answer.fallback else "green" if answer.way == ALONE else "blue"
        label = f"{answer.way}, {units.duration(seconds)} at {units.rate(answer.bytes_per_s)}"
        items.append(Dot(x=x(at_s), y=y(1e3 * seconds), radius=4, fill=colour, title=label))
    looks = [("blue", "shared"), ("green", "the device alone")]
    looks += [("vermilion", "fell back")] if found.fallbacks else []
    items += legend([*looks, *zip(colours, curves, strict=False)], 64.0, 42)
    return Scene(
        width=timeline.WIDTH,
        height=CHART_HEIGHT + 40,
        title="Time of each request",
        items=tuple(items),
    )
