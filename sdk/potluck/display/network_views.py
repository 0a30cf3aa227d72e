"""The network of a home: a table of its media, and a drawing in text of who shares which. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from potluck import units
from potluck.display import record_pictures
from potluck.display.scene import Scene
from potluck.display.tables import Table
from potluck.profile.home_network import SHARED, Figure, HomeNetwork, SharedMedium
from potluck.records import Network

COLUMNS = ("medium", "kind", "devices", ">up", ">down", ">latency", ">jitter", "from")
MOST_ERROR_FRAC = 1.0  # what is further off is an order of magnitude


def table(document: HomeNetwork) -> Table:
    """A row for each medium; of a network without rows, such as one that is played, its media."""
    rows = tuple(_row(row) for row in document.media)
    if not rows and document.beside is not None:
        rows = tuple(_played(document.beside))
    notes = ("declared by the owner: profiles keep to these media",) * document.is_declared
    if not rows:
        notes += ("nothing is known yet: home.profile(model) measures it",)
    return Table(title="Network", columns=COLUMNS, rows=rows, notes=notes)


def picture(document: HomeNetwork) -> Scene:
    """How fast each medium is."""
    if not document.media and document.beside is not None:
        return record_pictures.network(document.beside, "Network")
    rates = {}
    for row in document.media:
        slowest = min(row.stations.values(), key=lambda rate: rate.value, default=None)
        figure = row.up_bytes_per_s or slowest
        rates[row.name] = figure.value if figure else None, ", ".join(row.devices)
    return record_pictures.media(rates)


def drawing(document: HomeNetwork) -> str:
    """A tree: below each medium, who shares it."""
    top = "the switch of this home" + ", as its owner declared it" * document.is_declared
    return "\n".join([top, *_branches(document.devices, document.media)])


def _branches(devices: Sequence[str], rows: Sequence[SharedMedium]) -> Iterator[str]:
    """The lines below a set of devices: the widest rows about some of them, and those in no row."""
    outer = [row for row in rows if not any(_is_behind(row, other) for other in rows)]
    in_rows = {name for row in outer for name in row.devices}
    items = [(_headline(row), _within(row, rows)) for row in outer]
    items += [(name, ((), ())) for name in devices if name not in in_rows]
    for i, (head, (names, inner)) in enumerate(items):
        is_last = i == len(items) - 1
        yield f"{'└─' if is_last else '├─'} {head}"
        for line in _branches(names, inner):
            yield f"{'   ' if is_last else '│  '}{line}"


def _is_behind(row: SharedMedium, other: SharedMedium) -> bool:
    """Whether a row is drawn below another one: it has fewer devices, or the same and the other is
    an uplink.
    """
    mine, theirs = set(row.devices), set(other.devices)
    return mine < theirs or (mine == theirs and other.kind == "uplink" and row.kind != "uplink")


def _within(
    row: SharedMedium, rows: Sequence[SharedMedium]
) -> tuple[Sequence[str], Sequence[SharedMedium]]:
    """The names and the rows that are drawn below a row; a port of one device is one line."""
    inner = [other for other in rows if other is not row and _is_behind(other, row)]
    alone = row.kind == "switch" and len(row.devices) == 1
    return (() if alone else row.devices), inner


def _headline(row: SharedMedium) -> str:
    up, down = row.up_bytes_per_s, row.down_bytes_per_s
    if up is None:
        rates = "rate unknown"
    elif down is None:
        rates = f"{_rate(up)} both ways together"
    else:
        rates = f"up {_rate(up)}, down {_rate(down)}"
    slower = [f"{name} {_rate(rate)}" for name, rate in sorted(row.stations.items())]
    parts = [rates, *([f"of its stations {', '.join(slower)}"] if slower else [])]
    if row.latency_s is not None:
        parts.append(units.duration(row.latency_s.value))
    return f"{row.name} ({row.kind}): {'; '.join(parts)} ({_sources(row)})"


def _row(row: SharedMedium) -> tuple[str, ...]:
    both = row.kind in SHARED or row.down_bytes_per_s is None
    return (
        row.name,
        row.kind,
        ", ".join(row.devices),
        _slowest(row),
        "the same medium" if both else _rate(row.down_bytes_per_s),
        units.UNKNOWN if row.latency_s is None else units.duration(row.latency_s.value),
        units.UNKNOWN if row.jitter_s is None else units.duration(row.jitter_s),
        _sources(row),
    )


def _slowest(row: SharedMedium) -> str:
    slower = min(row.stations.values(), key=lambda rate: rate.value, default=None)
    if slower is None or row.up_bytes_per_s is None:
        return _rate(row.up_bytes_per_s or slower)
    return f"{units.rate(slower.value)} to {_rate(row.up_bytes_per_s)}"


def _rate(figure: Figure | None) -> str:
    if figure is None:
        return units.UNKNOWN
    if figure.error_frac == inf:
        return f"{units.rate(figure.value)} or more"
    if figure.error_frac is not None and figure.error_frac > MOST_ERROR_FRAC:
        return f"about {units.rate(figure.value)}"
    error = "" if figure.error_frac is None else f" ± {units.percent(figure.error_frac)}"
    return f"{units.rate(figure.value)}{error}"


def _sources(row: SharedMedium) -> str:
    return ", ".join(sorted({figure.source for figure in row.rates.values()})) or units.UNKNOWN


def _played(network: Network) -> Iterator[tuple[str, ...]]:
    """The media of a network that has no rows, and who crosses each."""
    crossing: Mapping[str, dict[str, None]] = {medium.name: {} for medium in network.media}
    for (source, target), path in network.paths.items():
        for name, _ in path.media:
            crossing[name].update({source: None, target: None})
    for medium in network.media:
        rate = units.rate(medium.capacity_bytes_per_s)
        names = ", ".join(crossing[medium.name])
        unknown = (units.UNKNOWN,) * 3
        yield medium.name, units.UNKNOWN, names, rate, *unknown, "declared"
