"""Whether a helper pays, by bandwidth: a chart of latencies, ours and those of the others, and a
table. Pure.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from potluck import units
from potluck.display.axes import Scale
from potluck.display.chart import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, frame
from potluck.display.scene import Dot, Item, Line, Scene, Text, legend
from potluck.display.tables import Table

if TYPE_CHECKING:
    from potluck.offload.plan.split import Split
    from potluck.offload.what_if import OffloadWhatIf

COLOURS = {"device": "grey", "helper": "orange", "layer cut": "vermilion"}
HEADROOM = 1.15  # times the device alone; what takes longer leaves the chart at the top

Points = list[tuple[float, float]]


def chart(found: "OffloadWhatIf") -> Scene:
    """Milliseconds of a request over megabytes per second."""
    names = _names(found)
    curves = {name: _curve(found, name) for name in names}
    ours = [(point.bytes_per_s / 1e6, point.split.latency_s * 1e3) for point in found.points]
    highest = HEADROOM * max(ms for _, ms in curves["device"])
    x = Scale(low=0.0, high=ours[-1][0], start=LEFT, stop=WIDTH - RIGHT)
    y = Scale(low=0.0, high=highest, start=HEIGHT - BOTTOM, stop=64)
    title = f"One request of {found.model} on {found.device}"
    saving, at = max(
        (_saving(point.split, point.others), point.bytes_per_s) for point in found.points
    )
    note = (
        f"at most {units.percent(saving)} sooner, at {at / 1e6:g} MB/s"
        if saving > 0.005
        else "a helper does not pay"
    )
    items: list[Item] = frame(title, note, x, y, "MB/s", "ms")
    for name in names:
        points = tuple((x(mb), y(ms)) for mb, ms in _under(curves[name], highest))
        items.append(
            Line(points=points, stroke=COLOURS[name], width=2.0, dashed=name == "layer cut")
        )
    items.append(Line(points=tuple((x(mb), y(ms)) for mb, ms in ours), stroke="blue", width=2.5))
    for point, (mb, ms) in zip(found.points, ours, strict=True):
        label = f"{units.duration(point.split.latency_s)} at {point.bytes_per_s / 1e6:g} MB/s"
        items.append(Dot(x=x(mb), y=y(ms), radius=3.5, fill="blue", title=label))
    items += legend(
        [("blue", "shared"), *((COLOURS[name], names[name]) for name in names)], LEFT, 46
    )
    items.append(Text(x=16, y=HEIGHT - 6, text="estimated from data sheets", size=10, fill="muted"))
    return Scene(width=WIDTH, height=HEIGHT, title=title, items=tuple(items))


def table(found: "OffloadWhatIf") -> Table:
    """A row for each bandwidth: seconds of each way, and what sharing saves."""
    names = _names(found)
    rows = tuple(
        (
            f"{point.bytes_per_s / 1e6:g} MB/s",
            *(units.duration(point.others[name].latency_s) for name in names),
            units.duration(point.split.latency_s),
            units.percent(_saving(point.split, point.others)),
            units.energy(point.split.energy_j),
            units.size(point.split.sent_bytes + point.split.received_bytes),
        )
        for point in found.points
    )
    columns = (
        ">bandwidth",
        *(f">{names[name]}" for name in names),
        ">shared",
        ">sooner",
        ">energy",
        ">sent",
    )
    return Table(
        title=f"One request of {found.model} on {found.device}, helped by "
        f"{' and '.join(found.helpers)}",
        columns=columns,
        rows=rows,
        notes=(
            f"sooner: than the better of {found.device} and a helper alone; energy: of "
            f"{found.device}, shared",
            "estimated from data sheets, not measured",
        ),
    )


def _names(found: "OffloadWhatIf") -> dict[str, str]:
    return {
        "device": f"{found.device} alone",
        "helper": f"all on {found.helpers[0]}",
        "layer cut": "best layer cut",
    }


def _saving(split: "Split", others: "Mapping[str, Split]") -> float:
    """By how much it is sooner than the better of the two alone, as a fraction."""
    return 1 - split.latency_s / min(others[name].latency_s for name in ("device", "helper"))


def _curve(found: "OffloadWhatIf", name: str) -> Points:
    return [(point.bytes_per_s / 1e6, point.others[name].latency_s * 1e3) for point in found.points]


def _under(points: Points, limit: float) -> Points:
    """The part of a falling curve below `limit`, from where it comes in."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 > limit >= y1:
            entry = (x0 + (x1 - x0) * (y0 - limit) / (y0 - y1), limit)
            return [entry, *((x, y) for x, y in points if y <= limit)]
    return [point for point in points if point[1] <= limit]
