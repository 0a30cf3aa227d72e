"""`potluck devices`: everybody announced here and everybody paired, with what each says of itself."""

import argparse
from typing import TYPE_CHECKING

from potluck.errors import HomeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from potluck.sessions.members import Member


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to listen, and addresses to ask besides."""
    parser.add_argument("--wait", type=float, default=3.0, metavar="S", help="listen so long for mDNS (default: 3)")
    parser.add_argument("peers", nargs="*", metavar="ADDRESS", help="ask these addresses instead of listening")


def main(args: argparse.Namespace) -> None:
    """Print the table; an address where nobody is is an error."""
    from potluck.discover.pairing import is_there
    from potluck.display import tables, text
    from potluck.home import Home
    from potluck.sessions.failures import unreachable

    try:
        home = Home(peers=args.peers) if args.peers else Home.discover(args.wait)
    except HomeError as error:
        holder = error.facts.get("holder")
        if holder is None:
            raise
        members = _seen(args.peers, args.wait)
        title = f"Devices, as far as is seen while a home is open in process {holder}"
        print(text.render(tables.members(members, title)))
    else:
        with home:
            members = tuple(home.devices.values())
            print(text.render(tables.members(members)))
    for member in members:
        stranger = bool(args.peers) and not member.key
        if stranger and not any(is_there(place) for place in member.addresses):
            raise unreachable(member.name, str(member.addresses[0]))


def _seen(peers: "Sequence[str]", wait_s: float) -> "tuple[Member, ...]":
    """Who is known or announced; nobody is asked, as another program has the keys."""
    from potluck.discover.addresses import parse_addresses
    from potluck.discover.keyring import Keyring
    from potluck.discover.mdns import browse
    from potluck.sessions.events import Address
    from potluck.sessions.members import Member

    known = Keyring().devices()
    if peers:
        found: dict[str, tuple[Address, ...]] = {str(address): (address,) for address in parse_addresses(peers)}
        known = tuple(
            device for device in known if any(set(places) & set(device.addresses) for places in found.values())
        )
    else:
        found = browse(wait_s)
    met = {place for device in known for place in device.addresses}
    strangers = {name: places for name, places in found.items() if met.isdisjoint(places)}
    paired = [Member(name=each.name, key=each.key, addresses=each.addresses, in_use=True) for each in known]
    return (*paired, *(Member(name=name, addresses=places) for name, places in strangers.items()))
