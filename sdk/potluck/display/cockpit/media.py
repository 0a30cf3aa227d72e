"""Which media of a network are shared by several devices, and which are one device's own port; and
how full a step of a run fills them. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from potluck.records import HOME, Event, Network


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaWiring:
    """`shared`: per medium, the devices on it. `ports`: per medium that is one device's own, that
    device, and whether it is its way "up", "down", or "both".
    """

    shared: Mapping[str, tuple[str, ...]]
    ports: Mapping[str, tuple[str, str]]


def wiring(network: Network) -> MediaWiring:
    """Sort the media of this network."""
    host = next((b for (a, b), path in network.paths.items() if a == HOME and not path.media), HOME)
    crossed: dict[str, dict[tuple[str, str], None]] = {}
    for (a, b), path in network.paths.items():
        pair = (host if a == HOME else a, host if b == HOME else b)
        for name, _ in path.media:
            crossed.setdefault(name, {})[pair] = None
    shared: dict[str, tuple[str, ...]] = {}
    ports: dict[str, tuple[str, str]] = {}
    for medium, pairs in crossed.items():
        owner = _owner(medium, [*pairs])
        if owner is not None:
            ports[medium] = owner
        else:
            names = dict.fromkeys(name for pair in pairs for name in pair)
            shared[medium] = tuple(name for name in names if name != HOME)
    return MediaWiring(shared=shared, ports=ports)


def _owner(medium: str, pairs: list[tuple[str, str]]) -> tuple[str, str] | None:
    """Whose own port it is, and which way; None where it is shared."""
    sources, targets = {a for a, _ in pairs}, {b for _, b in pairs}
    if len(pairs) == 1:  # of two devices, the name tells
        for name, way in ((pairs[0][0], "up"), (pairs[0][1], "down")):
            if medium.startswith(f"{name} "):
                return name, way
        return None
    if len(sources) == 1:
        return next(iter(sources)), "up"
    if len(targets) == 1:
        return next(iter(targets)), "down"
    common = set.intersection(*({a, b} for a, b in pairs))
    return (next(iter(common)), "both") if len(common) == 1 else None


def loads(events: Iterable[Event], network: Network, seconds: float) -> dict[str, float]:
    """The part of its capacity that each medium carried while these events happened."""
    if seconds <= 0:
        return {}
    carried: dict[str, float] = {}
    for event in events:
        if event.lane == "receive":
            pair = (event.peer, event.device)
        elif event.lane == "send" and event.peer == HOME:  # nobody notes what comes home
            pair = (event.device, HOME)
        else:
            continue
        path = network.paths.get(pair)
        for name, times in path.media if path is not None else ():
            carried[name] = carried.get(name, 0.0) + times * event.nbytes
    return {
        medium.name: min(1.0, carried.get(medium.name, 0.0) / seconds / medium.capacity_bytes_per_s)
        for medium in network.media
    }
