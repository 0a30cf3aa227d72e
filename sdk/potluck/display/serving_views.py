"""What services do, as a table; and their answers over time, as a picture. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from potluck import units
from potluck.display.axes import Scale
from potluck.display.chart import COLOURS, HEIGHT, LEFT, RIGHT, WIDTH, frame
from potluck.display.scene import Dot, Item, Line, Scene, legend
from potluck.display.tables import Table
from potluck.serve.scheduling.records import Frequency, Slo

BOTTOM, TOP = 44.0, 64.0
HEADROOM = 1.05  # of the longest answer
NOBODY = "grey"  # the colour of what was refused
COLUMNS = (
    "service",
    "limit",
    "on (rows at once)",
    ">asked",
    ">in time",
    ">late",
    ">refused",
    ">failed",
    ">asked again",
    ">typical",
    ">p99",
)


def table(services: Mapping[str, Any]) -> Table:
    """Each service: its limit, who has it, and what became of its requests.

    Parameters
    ----------
    services
        `serve.runtime.service.Service` by name.
    """
    return Table(
        title="Services",
        columns=COLUMNS,
        rows=tuple(_row(name, each) for name, each in services.items()),
        notes=tuple(_reasons(name, each) for name, each in services.items() if each.is_open),
    )


def _row(name: str, service: Any) -> tuple[str, ...]:
    stats = service.stats
    devices = service.devices if service.is_open else {}
    return (
        name,
        limit(service.slo),
        ", ".join(f"{device} ({rows})" for device, rows in devices.items()) or "no device",
        str(stats.n_asked),
        str(stats.n_in_time),
        str(stats.n_late),
        str(stats.n_refused),
        str(stats.n_failed),
        str(stats.n_again),
        units.duration(stats.quantile_s(0.5) or None),
        units.duration(stats.quantile_s(0.99) or None),
    )


def _reasons(name: str, service: Any) -> str:
    stats = service.stats
    by = ", ".join(f"{device} {rows}" for device, rows in stats.by_device.items())
    refused = ", ".join(f"{n} {reason}" for reason, n in stats.refused.items())
    computed = f"{name}: rows by {by}" if by else f"{name}: nothing computed yet"
    return f"{computed}; refused: {refused}" if refused else computed


def limit(slo: Slo) -> str:
    """A limit in words.

    >>> from potluck.serve.scheduling.records import Latency
    >>> limit(Latency(0.2)), limit(Frequency(30, 0.1))
    ('200 ms', '30 per second, each in 100 ms')
    """
    if isinstance(slo, Frequency):
        return f"{slo.fps:g} per second, each in {units.duration(slo.tolerance_s)}"
    return units.duration(slo.limit_s)


def over_time(requests: Sequence[Any], title: str = "Answers") -> Scene:
    """Each request by when it was asked and how long its answer took, in the colour of who computed
    it; those that were refused lie on the axis. Across: the limits.

    Parameters
    ----------
    requests
        What `Service.request` gave; those that are not over yet are left out.
    title
        The heading.
    """
    over = [each for each in requests if each.is_over]
    begun_s = min((each.arrived_s for each in over), default=0.0)
    took_s = [each.answered_s - each.arrived_s for each in over]
    names = sorted({_by(each) for each in over})
    colours = dict(zip([name for name in names if name], COLOURS * len(names), strict=False))
    last_s = max((each.arrived_s - begun_s for each in over), default=1.0)
    x = Scale(low=0.0, high=last_s or 1.0, start=LEFT, stop=WIDTH - RIGHT)
    high = HEADROOM * max(took_s, default=1.0) or 1.0
    y = Scale(low=0.0, high=high, start=HEIGHT - BOTTOM, stop=TOP)
    items: list[Item] = frame(title, _summary(over), x, y, "seconds", "s")
    items += [
        Line(points=((x.start, y(limit_s)), (x.stop, y(limit_s))), stroke="muted", dashed=True)
        for limit_s in {each.limit_s for each in over}
        if limit_s <= high
    ]
    for each, seconds in zip(over, took_s, strict=True):
        name = _by(each)
        items.append(
            Dot(
                x=x(each.arrived_s - begun_s),
                y=y(seconds if name else 0.0),
                radius=3.0,
                fill=colours.get(name, NOBODY),
                title=f"{each.service}: {name or 'refused'}, {units.duration(seconds)}",
            )
        )
    entries = [(colour, name) for name, colour in colours.items()]
    entries += [(NOBODY, "refused")] if "" in names else []
    items += legend(entries, LEFT, 46)
    return Scene(width=WIDTH, height=HEIGHT, title=title, items=tuple(items))


def _by(pending: Any) -> str:
    """Who computed most of it; nobody where it was refused."""
    refused = not pending.future.done() or pending.future.exception() is not None
    if refused or not pending.devices:
        return ""
    return str(Counter(pending.devices).most_common(1)[0][0])


def _summary(over: Sequence[Any]) -> str:
    n_answered = sum(bool(_by(each)) for each in over)
    n_late = sum(bool(_by(each)) and each.is_late for each in over)
    return f"{n_answered} of {len(over)} answered, {n_late} of them late"
