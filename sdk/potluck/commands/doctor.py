"""`potluck doctor`: what is well, what is not, and what to do about it.

Changes nothing on this computer.
"""

import argparse
import importlib.metadata
import importlib.util
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck.commands.options import wait_s
from potluck.discover.reaching import connect
from potluck_wire.addresses import VIRTUAL
from potluck_wire.install_hints import install
from potluck_wire.limits import PORT
from potluck_wire.processors import words

GOOD = "ok"
HINT = "note"
BAD = "PROBLEM"
OPTIONAL = {
    "torch": f'to train and to run torch models: {install("sdk")} (on a device, ".[torch]")',
    "onnxruntime": f"to run ONNX models: {install('onnx')}",
    "rich": f"to see progress in terminals: {install('sdk')}",
    "matplotlib": "to write PNG pictures: pip install matplotlib",
}
MDNS_GROUP, MDNS_PORT = "224.0.0.251", 5353
SLOW_CURVE = (27, 3)  # pyzmq below it brings a libsodium that encrypts 15 times slower


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """One thing looked at: how it is, what to do (empty where all is well), and a drawing."""

    level: str
    what: str
    remedy: str = ""
    drawing: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to listen."""
    parser.add_argument(
        "--wait",
        type=wait_s,
        default=3.0,
        metavar="S",
        help="listen so long for devices (default: 3)",
    )


def main(args: argparse.Namespace) -> int:
    """Print all findings as they come; 1 where there is a problem."""
    levels = set()
    for finding in examine(args.wait):
        levels.add(finding.level)
        print(show(finding), flush=True)
    return 1 if BAD in levels else 0


def examine(wait_s: float) -> Iterator[Checkup]:
    """Every check in turn."""
    yield from packages(_version)
    yield from keys()
    yield from interfaces()
    yield multicast()
    yield from devices(wait_s)
    yield network()


def show(finding: Checkup) -> str:
    """One finding as one or two lines, and its drawing."""
    from potluck.sanitized_text import harmless

    below = [*([finding.remedy] if finding.remedy else []), *finding.drawing.splitlines()]
    lines = "".join(f"\n{'':9}{harmless(line)}" for line in below)
    return f"{finding.level:<9}{harmless(finding.what)}{lines}"


def packages(version: Callable[[str], str | None]) -> Iterator[Checkup]:
    """Python, pyzmq with CURVE, and what is optional."""
    import zmq

    yield Checkup(level=GOOD, what=f"Python {sys.version.split()[0]}")
    found = version("pyzmq") or "0"
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if not zmq.has("curve"):
        yield Checkup(
            level=BAD,
            what=f"pyzmq {found} cannot encrypt",
            remedy="pip install --force-reinstall pyzmq",
        )
    elif numbers < SLOW_CURVE:
        yield Checkup(
            level=HINT,
            what=f"pyzmq {found} encrypts slowly",
            remedy="pip install --upgrade 'pyzmq>=27.3'",
        )
    else:
        yield Checkup(level=GOOD, what=f"pyzmq {found} with CURVE encryption")
    for name, use in OPTIONAL.items():
        has = version(name)
        yield Checkup(
            level=GOOD if has else HINT,
            what=f"{name} {has or 'is not installed'}",
            remedy="" if has else use,
        )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def keys() -> Iterator[Checkup]:
    """This computer's keys and the devices that it knows."""
    from potluck.discover.keyring import Keyring
    from potluck.errors import PotluckError

    ring = Keyring()
    try:
        known = ring.devices()
    except PotluckError as error:
        yield Checkup(level=BAD, what=str(error))
        return
    names = ", ".join(device.name for device in known) or "nobody yet"
    remedy = "" if known else "Run `potluck agent pair` on a device, then `potluck pair NAME` here."
    yield Checkup(
        level=GOOD if known else HINT, what=f"paired with {names} ({ring.directory})", remedy=remedy
    )


def interfaces() -> Iterator[Checkup]:
    """Addresses of this computer in its networks; tunnels and containers mislead discovery."""
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    places = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
        if name in up
    }
    real = {
        name: found for name, found in places.items() if found and not found[0].startswith("127.")
    }
    inside = sorted(name for name in real if name.startswith(VIRTUAL))
    shown = ", ".join(f"{name} {found[0]}" for name, found in real.items() if name not in inside)
    if shown:
        yield Checkup(level=GOOD, what=f"networks: {shown}")
    else:
        yield Checkup(
            level=HINT,
            what="no network but this computer itself",
            remedy="Home.local() works all the same.",
        )
    if inside:
        remedy = (
            "Devices may be looked for there; give addresses with Home(peers=[...]) if none "
            "are found."
        )
        yield Checkup(level=HINT, what=f"tunnels or containers: {', '.join(inside)}", remedy=remedy)


def multicast() -> Checkup:
    """Whether this process may send and hear multicast, which mDNS is."""
    ours = b"potluck doctor " + socket.gethostname().encode()[:40]
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", 0))  # a port of our own: nobody else need hear this
            group = socket.inet_aton(MDNS_GROUP) + socket.inet_aton("0.0.0.0")  # noqa: S104 - any interface
            listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            listener.settimeout(1.0)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(ours, (MDNS_GROUP, listener.getsockname()[1]))
            while listener.recv(256) != ours:
                pass
    except OSError as error:
        remedy = (
            "Allow local network access (macOS: System Settings, Privacy; a firewall elsewhere), "
            "or add a route for 224.0.0.0/4. Until then, give addresses: potluck devices ADDRESS."
        )
        return Checkup(
            level=HINT, what=f"multicast does not work here ({error or 'timeout'})", remedy=remedy
        )
    return Checkup(level=GOOD, what="multicast works on this computer")


def devices(wait_s: float) -> Iterator[Checkup]:
    """Everybody who is found or known, and whether its ports can be reached."""
    from potluck.discover.keyring import Keyring
    from potluck.discover.mdns import browse
    from potluck.errors import FileError
    from potluck.sessions.events import Address

    try:
        known = {device.name: device.addresses for device in Keyring().devices()}
    except FileError:
        known = {}  # `keys` has said so
    found: dict[str, tuple[Address, ...]] = browse(wait_s)
    if not found:
        remedy = (
            "Is `potluck agent` running on the devices, in this same network? Access points often "
            "keep guests apart. Addresses always work: potluck devices ADDRESS."
        )
        yield Checkup(
            level=HINT, what=f"nobody announced itself within {wait_s:g} s", remedy=remedy
        )
    for name, addresses in sorted({**known, **found}.items()):
        yield reach(
            name, tuple((place.host, place.port) for place in addresses), announced=name in found
        )
    paired = [
        str((*found.get(name, ()), *addresses)[0]) for name, addresses in known.items() if addresses
    ]
    yield from sessions(paired)


def sessions(places: Sequence[str]) -> Iterator[Checkup]:
    """What the paired devices at these addresses say of themselves: whether they can compute, and
    measure power.
    """
    from potluck.errors import HomeError
    from potluck.home import Home

    if not places:
        return
    try:
        home = Home(peers=places)
    except HomeError as error:
        yield Checkup(
            level=HINT, what="the devices were not asked what they can do", remedy=str(error)
        )
        return
    with home:
        for member in home.devices.values():
            if member.capability:
                yield from computing(member.name, member.capability)
                yield metered(member.name, member.capability)
                yield bounded(member.name, member.capability)
                yield from available(member.name, member.capability)
            elif member.status == "computes nothing" and member.error is not None:
                yield Checkup(
                    level=BAD,
                    what=str(member.error).partition(". ")[0],
                    remedy=member.error.next_step,
                )


def network() -> Checkup:
    """How the devices are connected, as the latest profile left it beside the keys."""
    from potluck.discover.keyring import Keyring
    from potluck.display.network_views import drawing
    from potluck.errors import FileError
    from potluck.profile.network_file import FILE, kept_network

    try:
        kept = kept_network(Keyring().directory)
    except FileError as error:
        return Checkup(level=BAD, what=str(error))
    if kept is None:
        return Checkup(
            level=HINT,
            what="how the devices are connected is not known yet",
            remedy="home.profile(model) measures it",
        )
    return Checkup(
        level=GOOD, what=f"how the devices are connected ({FILE})", drawing=drawing(kept)
    )


def computing(name: str, capability: Mapping[str, Any]) -> Iterator[Checkup]:
    """What a device computes on, and what it has left out and why; an older agent says nothing."""
    lines = list(words(capability.get("processors", ()), capability.get("cores")))
    if lines:
        yield Checkup(
            level=GOOD, what=f"{name} computes on {lines[0]}", drawing="\n".join(lines[1:])
        )


def metered(name: str, capability: Mapping[str, Any]) -> Checkup:
    """How a device knows its power, from its own statement; where nothing measures it, why."""
    rows: Sequence[Mapping[str, str]] = capability.get("meters", ())
    measuring = [row["name"] for row in rows if row.get("source") == "measured"]
    if measuring:
        return Checkup(level=GOOD, what=f"{name} measures its power: {', '.join(measuring)}")
    reasons = [f"{row['name']}: {row['reason']}{_help(row)}" for row in rows if row.get("reason")]
    if capability.get("power"):
        what = f"{name} has no power meter, its energy is modelled from the watts that it was given"
    else:
        what = f"{name} has no power meter, so plans do not know its energy"
        reasons.append("or give its watts: potluck agent start --power IDLE,BUSY,RADIO")
    return Checkup(level=HINT, what=what, remedy="; ".join(reasons))


def bounded(name: str, capability: Mapping[str, Any]) -> Checkup:
    """What keeps a device's worker in its bounds, in its own words; a note where a bound is
    missing.
    """
    bounds: Mapping[str, str] = capability.get("bounds", {})
    missing = [f"{bound} {state}" for bound, state in bounds.items() if state.startswith("not ")]
    if not bounds or missing:
        what = f"{name} computes with fewer bounds: {'; '.join(missing) or 'it names none'}"
        return Checkup(
            level=HINT,
            what=what,
            remedy="a newer Linux has them; bugs of libraries can do more here",
        )
    bounds_text = "; ".join(f"{bound} {state}" for bound, state in bounds.items())
    return Checkup(level=GOOD, what=f"{name} computes within bounds: {bounds_text}")


def available(name: str, capability: Mapping[str, Any]) -> Iterator[Checkup]:
    """When a device takes part by its owner's rules, and whether it does not now."""
    rules = ", ".join(capability.get("rules", ()))
    if why := capability.get("leaving"):
        yield Checkup(
            level=HINT,
            what=f"{name} takes nothing new: {why}",
            remedy=f"its agent was started with rules ({rules})" if rules else "",
        )
    elif rules:
        yield Checkup(level=GOOD, what=f"{name} takes part by its owner's rules: {rules}")


def _help(row: Mapping[str, str]) -> str:
    return f" (to mend it, {row['remedy']})" if row.get("remedy") else ""


def reach(name: str, places: tuple[tuple[str, int], ...], *, announced: bool) -> Checkup:
    """Whether any address of this device takes a connection."""
    seen = "announces itself" if announced else "was paired, is not announced now"
    reason, ports = (
        "no address is known",
        f"its ports ({PORT} to {PORT + 3}, if it was not given others)",
    )
    for host, port in places:
        try:
            with connect(host, port, 1.0):
                return Checkup(level=GOOD, what=f"{name} {seen}; {host}:{port} answers")
        except OSError as error:
            reason, ports = (
                f"{host}:{port} does not answer ({error.strerror or error})",
                f"ports {port} to {port + 3}",
            )
    remedy = f"Is its agent running, and does its firewall let {ports} through?"
    return Checkup(level=BAD if announced else HINT, what=f"{name} {seen}; {reason}", remedy=remedy)
