"""From the document of a network to its tree with rates, and back. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median, quantiles

from potluck.profile import access_tree
from potluck.profile.access_tree import (
    BOTH,
    DOWN,
    PORT,
    UP,
    Attachment,
    Block,
    Flow,
    Key,
    Node,
    Site,
    crossings,
    key_of,
    sites,
)
from potluck.profile.home_network import (
    AIR,
    BUS,
    MEASURED,
    SHARED,
    SWITCH,
    UPLINK,
    Figure,
    HomeNetwork,
    SharedMedium,
)
from potluck.profile.links import MAX_BYTES_PER_S
from potluck.records import Network

SWEEPS = 100  # over the latencies of all media
LEAST_SHARE = 1e-3  # of a sum of squares: what keeps latencies that nothing tells apart alike
KIND_OF = {AIR: access_tree.AIR, BUS: access_tree.BUS}

Place = Key | Attachment  # a medium of the tree
Crossed = tuple[str, int]  # the name of a medium, and how often a flow crosses it


def tree_of(document: HomeNetwork) -> Site:
    """How its devices hang together.

    Parameters
    ----------
    document
        The rows.
    """
    return _site(document.devices, document.media)


def rates_of(document: HomeNetwork) -> dict[Attachment, Figure]:
    """The rate of every attachment that the document names one for.

    Parameters
    ----------
    document
        The rows.
    """
    found: dict[Attachment, Figure] = {}
    for row in document.media:
        up, down = row.up_bytes_per_s, row.down_bytes_per_s
        for key, way in attachments_of(row, document.media):
            rate = down if way == DOWN else row.stations.get(next(iter(key)), up)
            if rate is not None:
                found[key, way] = rate
    return found


def attachments_of(row: SharedMedium, rows: Sequence[SharedMedium]) -> list[Attachment]:
    """What has its rate from this row.

    Parameters
    ----------
    row
        One of them.
    rows
        All of the document.
    """
    if row.kind in SHARED:
        stations = [up for up in rows if up.kind == UPLINK and set(up.devices) < set(row.devices)]
        behind = {name for station in stations for name in station.devices}
        return [(_one(name), BOTH) for name in row.devices if name not in behind]
    keys = [frozenset(row.devices)] if row.kind == UPLINK else [*map(_one, row.devices)]
    is_half = _is_half(row) or any(
        row.kind == UPLINK and air.kind in SHARED and set(row.devices) < set(air.devices)
        for air in rows
    )
    return [(key, way) for key in keys for way in ((BOTH,) if is_half else (UP, DOWN))]


def network(document: HomeNetwork, names: Sequence[str]) -> Network:
    """The document as media and paths; a medium without a rate is never full.

    Parameters
    ----------
    document
        The rows.
    names
        Of the devices whose paths are wanted, `home` among them.
    """
    tree, known = tree_of(document), rates_of(document)
    rates = {
        one: known[one].value if one in known else MAX_BYTES_PER_S
        for one in access_tree.attachments(tree)
    }
    rows = {place: row for row in document.media for place in _places(row, document.media)}
    latency_s = {
        (a, b): sum(
            len(used) * row.latency_s.value
            for place, used in crossings(tree, (a, b))
            if (row := rows.get(place)) is not None and row.latency_s is not None
        )
        for a in names
        for b in names
        if a != b
    }
    titles = {place: _title(row, place) for place, row in rows.items()}
    return access_tree.network(tree, rates, latency_s, names, titles)


def media_of(document: HomeNetwork) -> dict[str, dict[str, str]]:
    """Per row, what planners call its media, by the way that they lead: up, down or both. A row of
    several ports has one for each, and is told by none.

    Parameters
    ----------
    document
        The rows.
    """
    return {
        row.name: {
            place[1] if isinstance(place, tuple) else BOTH: _title(row, place)
            for place in _places(row, document.media)
            if row.kind != SWITCH or len(row.devices) == 1
        }
        for row in document.media
    }


def _title(row: SharedMedium, place: Place) -> str:
    devices = frozenset(row.devices)
    return row.name if place in (devices, (devices, BOTH)) else access_tree.name_of(place)


def document_of(
    tree: Site, rates: Mapping[Attachment, Figure], waits_s: Mapping[Flow, Sequence[float]]
) -> HomeNetwork:
    """What was found, as a document.

    Parameters
    ----------
    tree
        How the devices hang together.
    rates
        Of every attachment.
    waits_s
        Per ordered pair, what small messages took.
    """
    rows = list[SharedMedium]()
    for site in sites(tree):
        for block in site.blocks:
            if block.kind != PORT and len(block.nodes) > 1:
                rows.append(_shared_row(block, rates))
            for node in block.nodes:
                if isinstance(node, Site) or block.kind == PORT or len(block.nodes) == 1:
                    rows.append(_own_row(block, node, rates))
    return timed(HomeNetwork(media=tuple(rows)), waits_s)


def timed(document: HomeNetwork, waits_s: Mapping[Flow, Sequence[float]]) -> HomeNetwork:
    """The document with the latency and the jitter of every medium that was crossed.

    Parameters
    ----------
    document
        The rows.
    waits_s
        Per ordered pair, what small messages took.
    """
    tree = tree_of(document)
    names = {place: row.name for row in document.media for place in _places(row, document.media)}
    ways = {
        flow: [(names[place], len(used)) for place, used in crossings(tree, flow) if place in names]
        for flow in waits_s
    }
    latency_s, jitter_s = _latencies_s(ways, waits_s), _jitters_s(ways, waits_s)
    rows = (
        replace(
            row,
            latency_s=Figure(value=latency_s[row.name], source=MEASURED),
            jitter_s=jitter_s[row.name],
        )
        if row.name in latency_s
        else row
        for row in document.media
    )
    return replace(document, media=tuple(rows))


def _site(devices: Sequence[str], rows: Sequence[SharedMedium]) -> Site:
    """What joins these devices, by the rows that are all about some of them."""
    uplinks = [row for row in rows if row.kind == UPLINK]
    outer = [
        row
        for row in uplinks
        if not any(set(row.devices) < set(other.devices) for other in uplinks)
    ]
    behind = {name: row for row in outer for name in row.devices}
    within = {row.name: _site(row.devices, [*_inside(row, rows)]) for row in outer}
    direct = [
        row
        for row in rows
        if row.kind != UPLINK and not any(set(row.devices) <= set(up.devices) for up in outer)
    ]
    blocks, joined = list[Block](), set[str]()
    for row in direct:
        if row.kind == SWITCH:
            kind = access_tree.AIR if _is_half(row) else PORT
            blocks += [Block(kind, (name,)) for name in row.devices]
        else:
            inside = {behind[name].name: behind[name] for name in row.devices if name in behind}
            plain = tuple(name for name in row.devices if name not in behind)
            blocks.append(
                Block(KIND_OF[row.kind], _sorted((*plain, *(within[name] for name in inside))))
            )
        joined |= set(row.devices)
    for row in outer:
        if not set(row.devices) <= joined:
            kind = access_tree.AIR if _is_half(row) else PORT
            blocks.append(Block(kind, (within[row.name],)))
            joined |= set(row.devices)
    blocks += [Block(PORT, (name,)) for name in devices if name not in joined]
    return Site(tuple(sorted(blocks, key=lambda it: sorted(it.key))))


def _inside(uplink: SharedMedium, rows: Sequence[SharedMedium]) -> Iterator[SharedMedium]:
    return (row for row in rows if row is not uplink and set(row.devices) <= set(uplink.devices))


def _is_half(row: SharedMedium) -> bool:
    return row.up_bytes_per_s is not None and row.down_bytes_per_s is None


def _sorted(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=lambda node: sorted(key_of(node))))


def _one(name: str) -> Key:
    return frozenset((name,))


def _places(row: SharedMedium, rows: Sequence[SharedMedium]) -> list[Place]:
    """The media of the tree that a row is about; an uplink that is a station has none."""
    if row.kind in SHARED:
        return [frozenset(row.devices)]
    own = attachments_of(row, rows)
    is_station = row.kind == UPLINK and any(
        air.kind in SHARED and set(row.devices) < set(air.devices) for air in rows
    )
    return [] if is_station else [*own]


def _shared_row(block: Block, rates: Mapping[Attachment, Figure]) -> SharedMedium:
    stations = {node: rates[_one(node), BOTH] for node in block.nodes if isinstance(node, str)}
    quickest = max(
        (rates[key_of(node), BOTH] for node in block.nodes), key=lambda figure: figure.value
    )
    kind = AIR if block.kind == access_tree.AIR else BUS
    devices = tuple(sorted(block.key))
    return SharedMedium(
        name=f"{kind} of {_few(devices)}",
        kind=kind,
        devices=devices,
        up_bytes_per_s=quickest,
        stations={name: figure for name, figure in stations.items() if figure != quickest},
    )


def _own_row(block: Block, node: Node, rates: Mapping[Attachment, Figure]) -> SharedMedium:
    key, devices = key_of(node), tuple(sorted(key_of(node)))
    is_uplink = isinstance(node, Site)
    return SharedMedium(
        name=f"{'uplink' if is_uplink else 'port'} of {_few(devices)}",
        kind=UPLINK if is_uplink else SWITCH,
        devices=devices,
        up_bytes_per_s=rates[key, UP if block.kind == PORT else BOTH],
        down_bytes_per_s=rates[key, DOWN] if block.kind == PORT else None,
    )


def _few(devices: Sequence[str]) -> str:
    """Some names; a row of many is told by the first of them."""
    more = f" and {len(devices) - 3} more" if len(devices) > 4 else ""
    return ", ".join(devices[:3] if more else devices) + more


def _latencies_s(
    ways: Mapping[Flow, Sequence[Crossed]], waits_s: Mapping[Flow, Sequence[float]]
) -> dict[str, float]:
    """Of one crossing of each medium, none below zero, so that they add up to what flows wait: a
    least squares by coordinates.
    """
    media = dict.fromkeys(name for way in ways.values() for name, _ in way)
    rows = [
        ([sum(n for name, n in ways[flow] if name == one) for one in media], median(seconds))
        for flow, seconds in waits_s.items()
    ]
    found = [0.0] * len(media)
    for _ in range(SWEEPS):
        for i in range(len(found)):
            squares = sum(row[i] ** 2 for row, _ in rows) * (1 + LEAST_SHARE)
            pull = sum(
                row[i]
                * (wait_s - sum(n * s for n, s in zip(row, found, strict=True)) + row[i] * found[i])
                for row, wait_s in rows
                if row[i]
            )
            found[i] = max(0.0, pull / squares)
    return dict(zip(media, found, strict=True))


def _jitters_s(
    ways: Mapping[Flow, Sequence[Crossed]], waits_s: Mapping[Flow, Sequence[float]]
) -> dict[str, float]:
    """Per medium, the median over the flows that cross it of how far the middle half of their waits
    lie apart.
    """
    spreads: dict[str, list[float]] = {}
    for flow, seconds in waits_s.items():
        low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else [0.0] * 3
        for name, _ in ways[flow]:
            spreads.setdefault(name, []).append(high - low)
    return {name: median(found) for name, found in spreads.items()}
