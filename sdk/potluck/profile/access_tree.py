"""How devices hang together, as a tree: at its root a switch that is never full, below it whatever
is shared. Pure.

A `Block` joins nodes to the switch above them. A port is one node's own, with a lane each way. All
nodes of an air share one medium, which a flow between two of them crosses twice (up to the access
point and down again). On a bus it crosses it once. A `Site` is a node that has nodes of its own:
what stays within it does not cross its attachment. A slow uplink, a second switch behind WiFi, or a
phone tethered to a laptop are sites.

Each attachment has a rate. An air is full when the time that its attachments are sending adds up to
all of the time. So a slow station costs the others more than a quick one (M. Heusse et al.,
"Performance anomaly of 802.11b", INFOCOM 2003).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from potluck.records import Medium, Network, Path

Flow = tuple[str, str]  # who sends, who receives
Key = frozenset[str]  # of a node: all devices below it

PORT = "port"
AIR = "air"
BUS = "bus"
UP = "up"
DOWN = "down"
BOTH = "both"
Attachment = tuple[Key, str]  # of which node; one way, or both over one medium
# what a flow needs of a medium per byte: the sum, or the largest, of the times of its attachments
Crossing = tuple[Key | Attachment, tuple[Attachment, ...]]
MOST_TIMES = 10  # crossings of an air are told as whole numbers, in units of its quickest station


@dataclass(frozen=True)
class Block:
    """Nodes that share a way to the switch above."""

    kind: str
    nodes: tuple["Node", ...]

    @cached_property
    def key(self) -> Key:
        """All devices below it."""
        return frozenset().union(*(key_of(node) for node in self.nodes))

    @property
    def medium(self) -> "Key | Attachment":
        """What its nodes share: of one node, which may be a site whose devices share another one,
        its attachment.
        """
        return self.key if len(self.nodes) > 1 else (self.key, BOTH)


@dataclass(frozen=True)
class Site:
    """A switch, and what is joined to it."""

    blocks: tuple[Block, ...]

    @cached_property
    def key(self) -> Key:
        """All devices below it."""
        return frozenset().union(*(block.key for block in self.blocks))

    @cached_property
    def joined(self) -> "dict[str, tuple[Block, Node]]":
        """Per device below it, the block and the node through which it is joined."""
        return {
            name: (block, node)
            for block in self.blocks
            for node in block.nodes
            for name in key_of(node)
        }


Node = str | Site


def key_of(node: Node) -> Key:
    """All devices below a node."""
    return frozenset((node,)) if isinstance(node, str) else node.key


def ports(names: Iterable[str]) -> Site:
    """Everybody at a port of one switch."""
    return Site(tuple(Block(PORT, (name,)) for name in names))


def sites(tree: Site) -> Iterator[Site]:
    """The tree and all sites within it, outer ones first."""
    yield tree
    for block in tree.blocks:
        for node in block.nodes:
            if isinstance(node, Site):
                yield from sites(node)


def attachments(tree: Site) -> list[Attachment]:
    """Everything that has a rate."""
    found: list[Attachment] = []
    for site in sites(tree):
        for block in site.blocks:
            ways = (UP, DOWN) if block.kind == PORT else (BOTH,)
            found += [(key_of(node), way) for node in block.nodes for way in ways]
    return found


def crossings(tree: Site, flow: Flow) -> tuple[Crossing, ...]:
    """The media on the way of a flow, each with the attachments whose times it takes there."""
    source, target = flow
    site = tree
    while True:  # down to the switch that both hang below, each by an attachment of its own
        (block, a), (other, b) = site.joined[source], site.joined[target]
        if a is b and isinstance(a, Site):
            site = a
            continue
        break
    found: list[Crossing] = []
    if block is other and block.kind != PORT:
        found.append((block.medium, ((key_of(a), BOTH), (key_of(b), BOTH))))
    else:
        found += [_crossed(block, a, UP), _crossed(other, b, DOWN)]
    for node, name, way in ((a, source, UP), (b, target, DOWN)):
        while isinstance(node, Site):
            block, inner = node.joined[name]
            found.append(_crossed(block, inner, way))
            node = inner
    return tuple(found)


def seconds_per_byte(
    crossing: Crossing, rates: Mapping[Attachment, float], buses: frozenset[Key | Attachment]
) -> float:
    """The time of a medium that one byte takes.

    Parameters
    ----------
    crossing
        The medium, and the attachments whose times it takes there.
    rates
        Bytes per second of every attachment.
    buses
        The media of which the slowest attachment counts, instead of all.
    """
    medium, used = crossing
    first = 1 / rates[used[0]]
    if len(used) == 1:
        return first
    second = 1 / rates[used[1]]
    return max(first, second) if medium in buses else first + second


def bus_keys(tree: Site) -> frozenset[Key | Attachment]:
    """The media of all buses."""
    return frozenset(
        block.medium for site in sites(tree) for block in site.blocks if block.kind == BUS
    )


def network(
    tree: Site,
    rates: Mapping[Attachment, float],
    latency_s: Mapping[Flow, float],
    names: Sequence[str],
    titles: Mapping[Key | Attachment, str] | None = None,
) -> Network:
    """The tree as media and paths.

    Parameters
    ----------
    tree
        How the devices hang together.
    rates
        Bytes per second of every attachment.
    latency_s
        One way, per ordered pair; 0 where it is not known.
    names
        The devices, `home` among them.
    titles
        What media are called; else by who shares them.
    """
    buses = bus_keys(tree)
    quickest: dict[Key | Attachment, float] = {}
    ways = {(a, b): crossings(tree, (a, b)) for a in names for b in names if a != b}
    for medium, used in (crossing for way in ways.values() for crossing in way):
        quickest[medium] = max(quickest.get(medium, 0.0), *(rates[one] for one in used))
    units = {
        medium: _units(
            rate / rates[one]
            for way in ways.values()
            for crossed, used in way
            if crossed == medium
            for one in used
        )
        for medium, rate in quickest.items()
    }
    media = {
        medium: Medium(
            name=(titles or {}).get(medium) or name_of(medium),
            capacity_bytes_per_s=rate * units[medium],
        )
        for medium, rate in quickest.items()
    }
    paths = {
        flow: Path(
            media=tuple(
                (
                    media[crossing[0]].name,
                    max(
                        1,
                        round(
                            media[crossing[0]].capacity_bytes_per_s
                            * seconds_per_byte(crossing, rates, buses)
                        ),
                    ),
                )
                for crossing in way
            ),
            latency_s=latency_s.get(flow, 0.0),
        )
        for flow, way in ways.items()
    }
    return Network(media=tuple(media.values()), paths=paths)


def described(tree: Site) -> list[str]:
    """What devices share, in words."""
    found = []
    for site in sites(tree):
        if site is not tree:
            found.append(f"{', '.join(sorted(site.key))} share the way to all others")
        found += [
            f"{', '.join(sorted(block.key))} share one medium"
            for block in site.blocks
            if block.kind != PORT and len(block.key) > 1
        ]
    return found


def _crossed(block: Block, node: Node, way: str) -> Crossing:
    if block.kind == PORT:
        attachment = key_of(node), way
        return attachment, (attachment,)
    return block.medium, ((key_of(node), BOTH),)


def _units(ratios: Iterable[float]) -> int:
    """In how many parts a crossing is told, so that whole numbers of them come near all ratios."""
    found = list(ratios)
    return min(
        range(1, MOST_TIMES + 1),
        key=lambda n: (max(abs(round(n * r) / (n * r) - 1) for r in found) > 0.05, n),
    )


def name_of(medium: Key | Attachment) -> str:
    """What a medium is called that nobody gave a name: by who shares it.

    Parameters
    ----------
    medium
        All devices of a shared one; or an attachment, and which way.
    """
    if isinstance(medium, tuple):
        key, way = medium
        return f"{' and '.join(sorted(key))} {'both ways' if way == BOTH else way}"
    return f"shared by {', '.join(sorted(medium))}"
