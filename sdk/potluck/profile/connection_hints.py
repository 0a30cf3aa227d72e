"""What devices say of their own connection, as a prior for which links share: measurements that are
clear overrule it. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck.profile.access_tree import AIR, BUS, PORT, Block, Site, sites

WIRED, WIFI = "wired", "wifi"
UNLIKELY = 4.0  # of the score of a tree, for each thing in it that nobody said

Channel = tuple[str, int | None]  # the gateway, and MHz where they are known


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """By cable or by WiFi, and for WiFi the channel."""

    kind: str
    channel: Channel | None = None


def hints_of(
    capabilities: Mapping[str, Mapping[str, Any]], machines: Mapping[str, Sequence[str]]
) -> dict[str, Hint]:
    """Per machine, what the first of its devices that says anything says.

    Parameters
    ----------
    capabilities
        Per device, its capability statement.
    machines
        Per machine, the devices on it.
    """
    found: dict[str, Hint] = {}
    for machine, names in machines.items():
        for name in names:
            statement = capabilities.get(name, {}).get("connection") or {}
            if statement.get("kind") in (WIRED, WIFI):
                found.setdefault(machine, Hint(kind=statement["kind"], channel=_channel(statement)))
    return found


def likely_tree(names: Sequence[str], hints: Mapping[str, Hint]) -> Site:
    """Stations of one channel share an air; everybody else has a port.

    Parameters
    ----------
    names
        The devices.
    hints
        What is said of some of them.
    """
    airs = [group for group in _channels(names, hints).values() if len(group) > 1]
    on_air = {name for group in airs for name in group}
    blocks = [Block(AIR, tuple(group)) for group in airs]
    blocks += [Block(PORT, (name,)) for name in names if name not in on_air]
    return Site(tuple(sorted(blocks, key=lambda it: sorted(it.key))))


def unlikeliness(tree: Site, hints: Mapping[str, Hint]) -> float:
    """How much worse a tree is for what contradicts the hints.

    Parameters
    ----------
    tree
        How devices hang together.
    hints
        What is said of some of them.
    """
    if not hints:
        return 0.0
    n_wrong = 0
    for site in sites(tree):
        airs_of: dict[Channel, int] = {}
        for block in site.blocks:
            plain = [node for node in block.nodes if isinstance(node, str) and node in hints]
            unfit = {AIR: WIRED, BUS: WIFI, PORT: WIFI}[block.kind]
            n_wrong += sum(hints[node].kind == unfit for node in plain)
            channels = _channels(plain, hints)
            n_wrong += max(0, len(channels) - 1)  # several channels in one medium
            for channel in channels:
                airs_of[channel] = airs_of.get(channel, 0) + 1
        n_wrong += sum(n - 1 for n in airs_of.values())  # one channel in several media
    return UNLIKELY * n_wrong


def _channels(names: Sequence[str], hints: Mapping[str, Hint]) -> dict[Channel, list[str]]:
    found: dict[Channel, list[str]] = {}
    for name in names:
        hint = hints.get(name)
        if hint is not None and hint.kind == WIFI and hint.channel is not None:
            found.setdefault(hint.channel, []).append(name)
    return found


def _channel(statement: Mapping[str, Any]) -> Channel | None:
    gateway, hertz = statement.get("gateway"), statement.get("frequency_hz")
    return (str(gateway), None if hertz is None else round(hertz / 1e6)) if gateway else None
