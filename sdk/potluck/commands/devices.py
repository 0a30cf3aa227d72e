"""`potluck devices`: everybody announced here and everybody paired, with what each says of
itself.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from potluck.commands.options import wait_s
from potluck.errors import HomeError
from potluck.sanitized_text import harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from potluck.sessions.members import Member


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to listen, and addresses to ask besides."""
    parser.add_argument(
        "--wait", type=wait_s, default=3.0, metavar="S", help="listen so long for mDNS (default: 3)"
    )
    parser.add_argument(
        "peers", nargs="*", metavar="ADDRESS", help="ask these addresses instead of listening"
    )


def main(args: argparse.Namespace) -> int:
    """Print the table; an address where nobody is is an error, and 1 the exit code."""
    from potluck.display import tables, text
    from potluck.home import Home

    title = "Devices"
    try:
        home = Home(peers=args.peers) if args.peers else Home.discover(args.wait)
    except HomeError as error:
        holder = error.facts.get("holder")
        if holder is None:
            raise
        members = _seen(args.peers, args.wait)
        title = f"Devices, as far as is seen while a home is open in process {holder}"
    else:
        with home:
            members = tuple(home.devices.values())
    present = [member for member in members if member.status != "not there"]
    if present or not members:
        print(text.render(tables.members(present, title)))
    for member in members:
        if member not in present:
            print(f"potluck: {harmless(str(member.error))}", file=sys.stderr)
    return int(len(present) < len(members))


def _seen(peers: "Sequence[str]", wait_s: float) -> "tuple[Member, ...]":
    """Who is known or announced; nobody is asked, as another program has the keys."""
    from potluck.discover.addresses import parse_addresses
    from potluck.discover.keyring import Keyring
    from potluck.discover.mdns import browse
    from potluck.discover.pairing import unreached
    from potluck.sessions.events import Address
    from potluck.sessions.members import Member

    known = Keyring().devices()
    some_known = bool(known)
    if peers:
        found: dict[str, tuple[Address, ...]] = {
            str(address): (address,) for address in parse_addresses(peers)
        }
        known = tuple(
            device
            for device in known
            if any(set(places) & set(device.addresses) for places in found.values())
        )
    else:
        found = browse(wait_s)
    met = {place for device in known for place in device.addresses}
    strangers = {name: places for name, places in found.items() if met.isdisjoint(places)}
    paired = [
        Member(name=each.name, key=each.key, addresses=each.addresses, in_use=True)
        for each in known
    ]
    others = [
        Member(
            name=name,
            addresses=places,
            error=unreached(places[0]) if peers else None,
            in_use=some_known,
        )
        for name, places in strangers.items()
    ]
    return (*paired, *others)
