"""How a home is connected: what the devices say of their links, or what was measured between them.
Pure.
"""

from collections.abc import Mapping
from typing import Any

from potluck.profile.links import LinkLine
from potluck.records import HOME, Medium, Network, Path

# inside one machine, where nothing was measured: loopback with encryption moves about as much
FAST_BYTES_PER_S = 1e9


def network_of(
    capabilities: Mapping[str, Mapping[str, Any]],
    lines: Mapping[tuple[str, str], LinkLine],
    home_host: str = "",
    between: Network | None = None,
) -> Network:
    """The network of these devices and home, which is the machine `home_host`.

    A device that paces its link says its rate: that uplink is a medium of its own, which everything
    that it sends shares. What goes from one machine to another crosses what was found between
    them. Between all others each ordered pair is a medium, with what was measured on it; inside one
    machine, that is work for its processor.

    Parameters
    ----------
    capabilities
        Per device, its capability statement.
    lines
        What was measured between two devices, by their names.
    home_host
        The notebook's machine, as agents there call it.
    between
        The media between machines, and the paths from one to another, by the names that `machines`
        gives them.
    """
    hosts = {
        name: str(capability.get("host") or "")
        for name, capability in capabilities.items()
        if is_itself(capability)
    }
    hosts[HOME] = home_host
    speakers = {
        name: speaker
        for speaker, names in machines(capabilities, home_host).items()
        for name in names
    }
    media = {medium.name: medium for medium in (between.media if between else ())}
    paths: dict[tuple[str, str], Path] = {}
    names = (*capabilities, HOME)
    for source in names:
        rate = stated_rate(capabilities.get(source, {}))
        for target in names:
            if source == target:
                continue
            line = lines.get((source, target))
            latency_s = line.latency_s if line else 0.0
            ends = speakers.get(source, source), speakers.get(target, target)
            if between is not None and ends in between.paths:
                paths[source, target] = between.path(*ends)
                continue
            name = f"{source} up" if rate else f"{source} to {target}"
            capacity = rate or (line.bytes_per_s if line else FAST_BYTES_PER_S)
            media.setdefault(name, Medium(name=name, capacity_bytes_per_s=capacity))
            host = hosts.get(source, "")
            inside = host if not rate and host == hosts.get(target) else ""
            paths[source, target] = Path(media=((name, 1),), latency_s=latency_s, host=inside)
    return Network(media=tuple(media.values()), paths=paths)


def machines(
    capabilities: Mapping[str, Mapping[str, Any]], home_host: str = ""
) -> dict[str, list[str]]:
    """Per machine, all that are on it, by the name of the first: home, or a device. Devices that
    pace their uplink are left out.

    Parameters
    ----------
    capabilities
        Per device, its capability statement.
    home_host
        The notebook's machine, as agents there call it.
    """
    found: dict[str, list[str]] = {home_host: [HOME]}
    for name, capability in capabilities.items():
        if stated_rate(capability) is None:
            found.setdefault(str(capability.get("host") or f"of {name}"), []).append(name)
    return {names[0]: names for names in found.values()}


def stated_rate(capability: Mapping[str, Any]) -> float | None:
    """Bytes per second of an uplink that a device paces; None where it does not."""
    rate = (capability.get("emulated") or {}).get("link_bytes_per_s")
    return float(rate) if rate else None


def is_itself(capability: Mapping[str, Any]) -> bool:
    """Whether a device computes as fast as it can.

    One that plays a slower device leaves others of its host room.
    """
    return float((capability.get("emulated") or {}).get("slowdown") or 1.0) == 1.0
