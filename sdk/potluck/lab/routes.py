"""Any network of shared media as routes through one hub: which commands of `ip` and `tc` build it.
Pure.

Every device sends everything to the hub. There each medium is a virtual cable with a shaper at its
entrance. Packets are routed from medium to medium as their paths say, by rules on who sent them,
who gets them, and where they come from. A second crossing of one medium (WiFi: up to the access
point and down again) takes a second entrance to its shaper, so that it costs the medium twice.
Multicast (mDNS) and what crosses no medium are bridged past the shapers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.errors import UserError
from potluck.records import HOME, Medium, Network
from potluck_wire.limits import PORT, PULSE_OFFSET

# What a frame carries beside payload (TCP, IP, Ethernet: 1,514 bytes for 1,448), and its
# acknowledgements: a medium's capacity is what it carries of ours.
FRAMING = 1.05
# a full queue delays a heartbeat by so long; longer at slow media, which need some frames of room
QUEUE_S = 0.05
MIN_QUEUE_BYTES = 32 * 1024
MIN_BURST_BYTES, BURST_S = 4 * 1024, 0.001
SMALL_BYTES = 128  # a power of two; an acknowledgement is smaller, every message of an agent larger
# each device has a network of its own, and its agent the usual ports
PULSE_PORT = PORT + PULSE_OFFSET
QUANTUM_BYTES = 1514  # a frame at a time from each queue
MAX_HOSTS = 200
BRIDGE = "air"  # the hub's own end, where all devices are plugged in
# last number of the addresses
_GATEWAY = 254
_HOME = 1
_FIRST = 10
_FIRST_TABLE = 100
_URGENT, _FIRST_CLASS = 15, 16
_CHANCES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One crossing of a medium: in at `entrance`, out at `exit`, reached by routing table
    `table`.
    """

    medium: str
    entrance: str
    exit: str
    table: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Names and numbers of everything in one lab.

    `subnet` is the first three numbers of its addresses.
    """

    network: Network
    devices: tuple[str, ...]
    subnet: str
    hops: tuple[Hop, ...]

    def address(self, name: str) -> str:
        """The address of a device, or of the notebook (`home`)."""
        return f"{self.subnet}.{_HOME if name == HOME else _FIRST + self.devices.index(name)}"

    @property
    def gateway(self) -> str:
        """The hub's address."""
        return f"{self.subnet}.{_GATEWAY}"

    def port(self, name: str) -> str:
        """The hub's end of a device's cable."""
        return f"p-{'home' if name == HOME else self.devices.index(name)}"

    @property
    def crossed(self) -> tuple[Medium, ...]:
        """The media that some path crosses."""
        names = {hop.medium for hop in self.hops}
        return tuple(medium for medium in self.network.media if medium.name in names)

    def crossings(self, medium: str) -> tuple[tuple[str, str, Hop], ...]:
        """Who sends to whom over this medium: each crossing of each pair."""
        return tuple(
            (*pair, hop)
            for pair in self.network.paths
            for hop in self.route(*pair)
            if hop.medium == medium
        )

    def entrance(self, medium: str) -> str:
        """Where the shaper of a medium sits."""
        return next(hop.entrance for hop in self.hops if hop.medium == medium)

    def route(self, source: str, target: str) -> tuple[Hop, ...]:
        """The crossings from one device to another, in order."""
        found = []
        for medium, times in self.network.path(source, target).media:
            found += [hop for hop in self.hops if hop.medium == medium][:times]
        return tuple(found)


def layout(network: Network, devices: Sequence[str], subnet: str) -> Layout:
    """Where everything is."""
    if len(devices) > MAX_HOSTS:
        raise UserError(f"a lab of {len(devices)} devices is not possible; {MAX_HOSTS} are.")
    crossings = {medium.name: 0 for medium in network.media}
    for path in network.paths.values():
        for name, times in path.media:
            crossings[name] = max(crossings[name], times)
    hops: list[Hop] = []
    for index, (name, times) in enumerate(crossings.items()):
        for nth in range(times):
            ends = f"m{index}-{nth}"
            hops.append(
                Hop(
                    medium=name,
                    entrance=f"{ends}i",
                    exit=f"{ends}o",
                    table=_FIRST_TABLE + len(hops),
                )
            )
    return Layout(network=network, devices=tuple(devices), subnet=subnet, hops=tuple(hops))


def hub_links(plan: Layout) -> list[str]:
    """`ip -batch` lines, in the hub, where the notebook's cable already ends: the bridge and the
    media.
    """
    lines = [
        "link set lo up",
        f"link add {BRIDGE} type bridge mcast_snooping 0",
        f"addr add {plan.gateway}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        *_on_bridge(plan, HOME),
    ]
    for hop in plan.hops:
        first = plan.entrance(hop.medium)
        if hop.entrance == first:
            lines.append(
                f"link add {hop.entrance} address {_mac(hop, 1)} type veth peer name {hop.exit}"
            )
            lines.append(f"link set {hop.exit} address {_mac(hop, 2)}")
        else:  # a second entrance and exit of the same cable
            first_exit = next(other.exit for other in plan.hops if other.entrance == first)
            lines.append(
                f"link add link {first} name {hop.entrance} address {_mac(hop, 1)} type macvlan "
                "mode private"
            )
            lines.append(
                f"link add link {first_exit} name {hop.exit} address {_mac(hop, 2)} type macvlan "
                "mode private"
            )
        lines += [f"link set {hop.entrance} up", f"link set {hop.exit} up"]
    return lines


def hub_routes(plan: Layout) -> list[str]:
    """`ip -batch` lines, in the hub, once all devices are plugged in: each path, medium by
    medium.
    """
    lines = []
    for hop in plan.hops:
        beyond = f"169.254.{hop.table // 250}.{hop.table % 250 + 1}"
        lines.append(
            f"neigh replace {beyond} lladdr {_mac(hop, 2)} dev {hop.entrance} nud permanent"
        )
        lines.append(f"route add default via {beyond} dev {hop.entrance} onlink table {hop.table}")
    for source, target in plan.network.paths:
        between = f"from {plan.address(source)} to {plan.address(target)}"
        came_in_by = BRIDGE
        for hop in plan.route(source, target):
            lines.append(f"rule add {between} iif {came_in_by} lookup {hop.table}")
            came_in_by = hop.exit
    return lines


def plug(plan: Layout, name: str, interface: str, pid: int) -> list[str]:
    """`ip -batch` lines, in the hub: a cable from the bridge to `interface` in the network
    namespace of `pid`.
    """
    return [
        f"link add {plan.port(name)} type veth peer name {interface} netns {pid}",
        *_on_bridge(plan, name),
    ]


def _on_bridge(plan: Layout, name: str) -> list[str]:
    return [f"link set {plan.port(name)} master {BRIDGE}", f"link set {plan.port(name)} up"]


def device_links(plan: Layout, name: str, interface: str) -> list[str]:
    """`ip -batch` lines, at a device's (or the notebook's) end of its cable: its address, and
    everything via the hub.

    Its address is all that is on its link, so that even its neighbours are reached through the hub.
    Packets leave as frames: a shaper lets a packet of many go at once, and an idle link seemed
    twice as fast for 16 KiB.
    """
    return [
        f"addr add {plan.address(name)}/32 dev {interface}",
        f"link set {interface} up gso_max_segs 1",
        f"route add {plan.gateway}/32 dev {interface}",
        f"route add {plan.subnet}.0/24 via {plan.gateway} dev {interface} src {plan.address(name)} "
        "congctl cubic",
        *([] if name == HOME else ["link set lo up", f"route add 224.0.0.0/4 dev {interface}"]),
    ]


def shapers(plan: Layout) -> list[str]:
    """`tc -batch` lines, in the hub: every medium a shaper with a queue for each crossing of each
    pair.

    The queues are served in turn, so that flows share a medium evenly: who crosses it twice goes
    over as fast as who crosses it once, and costs it twice as much. In one queue for both
    crossings, what comes up pushed out what was on its way down. Acknowledgements and heartbeats
    have a queue of their own. Behind the bytes of the other direction the first came so late that
    two flows against each other got 0.4 of their share beside a third; behind 32 KiB of slow air
    the second came too late.
    """
    lines = []
    for medium in plan.crossed:
        device = plan.entrance(medium.name)
        lines.append(f"qdisc add dev {device} root handle 1: htb default 1")
        lines += rates(plan, medium.name, medium.capacity_bytes_per_s, "add")
        for urgent in (
            f"u16 0 {0x10000 - SMALL_BYTES:#x} at 2",
            f"ip sport {PULSE_PORT} 0xffff",
            f"ip dport {PULSE_PORT} 0xffff",
        ):
            lines.append(
                f"filter add dev {device} parent 1: protocol ip prio 1 u32 match {urgent} flowid "
                f"1:{_URGENT:x}"
            )
        for number, (source, target, hop) in enumerate(plan.crossings(medium.name), _FIRST_CLASS):
            match = f"match ip src {plan.address(source)} match ip dst {plan.address(target)}"
            nth = f"match ether dst {_mac(hop, 2)}"
            lines.append(
                f"filter add dev {device} parent 1: protocol ip prio 2 u32 {match} {nth} flowid "
                f"1:{number:x}"
            )
    return lines


def rates(plan: Layout, medium: str, bytes_per_s: float, verb: str = "replace") -> list[str]:
    """`tc -batch` lines, in the hub: let this medium carry so many bytes of ours per second."""
    device, n_queues = plan.entrance(medium), len(plan.crossings(medium))
    rate = bytes_per_s * FRAMING
    burst = (
        f"burst {max(MIN_BURST_BYTES, rate * BURST_S):.0f} cburst "
        f"{max(MIN_BURST_BYTES, rate * BURST_S):.0f}"
    )
    share = (
        f"rate {max(rate * 8 / n_queues, 8):.0f}bit ceil {rate * 8:.0f}bit {burst} quantum "
        f"{QUANTUM_BYTES}"
    )
    lines = [f"class {verb} dev {device} parent 1: classid 1:1 htb rate {rate * 8:.0f}bit {burst}"]
    for number in range(_URGENT, _FIRST_CLASS + n_queues):
        lines.append(f"class {verb} dev {device} parent 1:1 classid 1:{number:x} htb {share}")
        queue = max(MIN_QUEUE_BYTES, rate * QUEUE_S)
        lines.append(f"qdisc {verb} dev {device} parent 1:{number:x} bfifo limit {queue:.0f}")
    return lines


def losses(plan: Layout, loss: Mapping[str, float]) -> list[str]:
    """Lines for `nft -f`, in the hub: media that lose this part of their packets, one chance each
    crossing.
    """
    lines = ["table netdev loss", "delete table netdev loss"]
    lossy = [hop for hop in plan.hops if loss.get(hop.medium, 0.0) > 0.0]
    if lossy:
        lines.append("table netdev loss {")
        for hop in lossy:
            limit = round(loss[hop.medium] * _CHANCES)
            hook = f'type filter hook ingress device "{hop.exit}" priority 0;'
            lines.append(
                f"chain {hop.exit} {{ {hook} numgen random mod {_CHANCES} < {limit} drop; }}"
            )
        lines.append("}")
    return lines


def _mac(hop: Hop, end: int) -> str:
    return f"02:70:6c:{hop.table >> 8:02x}:{hop.table & 255:02x}:{end:02x}"
