"""From "how the home is wired" to shared media and the paths over them. Pure.

wifi: one radio channel for all, or for each site, crossed up to the access point and down again.
switch: every port has its own media, one each way. ring: a cable between neighbours, one medium
each way, the shorter way round. sites: a switch per site and links between sites (a WAN uplink is
a link).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from potluck.errors import UserError
from potluck.records import HOME, Medium, Network, Path

TOPOLOGIES = ("wifi", "switch", "ring", "sites")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Where a device hangs: behind `port` (devices of one machine share it), at `site`, by cable or
    by radio.
    """

    name: str
    port: str
    site: str = ""
    wired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """A line between two sites: bytes per second there and back, seconds one way."""

    sites: tuple[str, str]
    there_bytes_per_s: float
    back_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeWiring:
    """What a network file says. `capacity_bytes_per_s` is the air's, a port's or a cable's, each
    way.

    `cable_bytes_per_s`: ports of devices that are wired to a wifi's access point.
    `bus_bytes_per_s`: between devices behind one port. `latency_s` of one crossing.
    """

    topology: str
    capacity_bytes_per_s: float
    cable_bytes_per_s: float | None = None
    bus_bytes_per_s: float | None = None
    latency_s: float = 0.0
    links: tuple[Cable, ...] = field(default=())


Route = tuple[list[tuple[str, int]], float]  # media and how often, latency


def build(wiring: HomeWiring, members: Sequence[Attachment], home_at: str) -> Network:
    """The network of `members`; the notebook runs on `home_at` and shares that device's paths.

    Parameters
    ----------
    wiring
        The kind of network, and its rates.
    members
        Who is attached where.
    home_at
        The device that the notebook runs on.

    Raises
    ------
    UserError
        Two devices cannot reach each other, or a capacity that a path needs is unknown.
    """
    capacities: dict[str, float] = {}
    route = {"wifi": _wifi, "switch": _switch, "ring": _ring, "sites": _sites}[wiring.topology](
        wiring, members, capacities
    )
    paths: dict[tuple[str, str], Path] = {}
    for source in members:
        for target in members:
            if source is target:
                continue
            together = source.port == target.port
            crossed, latency_s = (
                _bus(wiring, source, capacities) if together else route(source, target)
            )
            paths[source.name, target.name] = Path(media=tuple(crossed), latency_s=latency_s)
    for member in members:
        if member.name == home_at:
            paths[HOME, home_at] = paths[home_at, HOME] = Path(media=())
        else:
            paths[HOME, member.name] = paths[home_at, member.name]
            paths[member.name, HOME] = paths[member.name, home_at]
    media = tuple(
        Medium(name=name, capacity_bytes_per_s=value) for name, value in capacities.items()
    )
    return Network(media=media, paths=paths)


def _bus(wiring: HomeWiring, member: Attachment, capacities: dict[str, float]) -> Route:
    if wiring.bus_bytes_per_s is None:
        raise UserError(
            f"several devices share port {member.port!r}, but the network does not say how fast "
            "they reach each other.",
            next_step="Give the network a bus_bytes_per_s.",
        )
    capacities[f"{member.port} bus"] = wiring.bus_bytes_per_s
    return [(f"{member.port} bus", 1)], 0.0


def _wifi(
    wiring: HomeWiring, members: Sequence[Attachment], capacities: dict[str, float]
) -> Callable[..., Route]:
    airs = {member.name: f"{member.site} air".strip() for member in members}
    for member in members:
        if not member.wired:
            capacities[airs[member.name]] = wiring.capacity_bytes_per_s
    if wiring.cable_bytes_per_s is not None:
        for member in members:
            if member.wired:
                capacities[f"{member.port} up"] = capacities[f"{member.port} down"] = (
                    wiring.cable_bytes_per_s
                )

    def route(source: Attachment, target: Attachment) -> Route:
        crossings = (not source.wired) + (not target.wired)
        media = [(f"{source.port} up", 1)] if f"{source.port} up" in capacities else []
        on_air = [airs[member.name] for member in (source, target) if not member.wired]
        media += [(air, on_air.count(air)) for air in dict.fromkeys(on_air)]
        media += [(f"{target.port} down", 1)] if f"{target.port} down" in capacities else []
        if not media:
            raise UserError(
                f"{source.name} and {target.name} are both wired, but the network does not say "
                "how fast.",
                next_step="Give the network a cable_bytes_per_s.",
            )
        return media, wiring.latency_s * max(crossings, 1)

    return route


def _ports(
    members: Sequence[Attachment], capacity_bytes_per_s: float, capacities: dict[str, float]
) -> None:
    for member in members:
        capacities[f"{member.port} up"] = capacities[f"{member.port} down"] = capacity_bytes_per_s


def _switch(
    wiring: HomeWiring, members: Sequence[Attachment], capacities: dict[str, float]
) -> Callable[..., Route]:
    _ports(members, wiring.capacity_bytes_per_s, capacities)
    return lambda source, target: (
        [(f"{source.port} up", 1), (f"{target.port} down", 1)],
        wiring.latency_s,
    )


def _ring(
    wiring: HomeWiring, members: Sequence[Attachment], capacities: dict[str, float]
) -> Callable[..., Route]:
    ports = list(dict.fromkeys(member.port for member in members))
    for port, next_port in pairwise([*ports, ports[0]] if len(ports) > 2 else ports):
        capacities[f"{port} > {next_port}"] = capacities[f"{next_port} > {port}"] = (
            wiring.capacity_bytes_per_s
        )

    def route(source: Attachment, target: Attachment) -> Route:
        start, n = ports.index(source.port), len(ports)
        distance = (ports.index(target.port) - start) % n
        # a tie goes forward
        step, hops = (1, distance) if distance <= n - distance else (-1, n - distance)
        stops = [ports[(start + step * hop) % n] for hop in range(hops + 1)]
        return [
            (f"{port} > {next_port}", 1) for port, next_port in pairwise(stops)
        ], wiring.latency_s * hops

    return route


def _sites(
    wiring: HomeWiring, members: Sequence[Attachment], capacities: dict[str, float]
) -> Callable[..., Route]:
    _ports(members, wiring.capacity_bytes_per_s, capacities)
    latency: dict[tuple[str, str], float] = {}
    for link in wiring.links:
        for (first, second), rate in (
            (link.sites, link.there_bytes_per_s),
            (link.sites[::-1], link.back_bytes_per_s),
        ):
            capacities[f"{first} > {second}"] = rate
            latency[first, second] = link.latency_s

    def route(source: Attachment, target: Attachment) -> Route:
        media = [(f"{source.port} up", 1), (f"{target.port} down", 1)]
        if source.site == target.site:
            return media, wiring.latency_s
        if (source.site, target.site) not in latency:
            raise UserError(
                f"no link joins site {source.site!r} ({source.name}) and site {target.site!r} "
                f"({target.name}).",
                next_step="Add a [[links]] entry for the two sites.",
            )
        media.insert(1, (f"{source.site} > {target.site}", 1))
        return media, 2 * wiring.latency_s + latency[source.site, target.site]

    return route
