"""`potluck devices`: everybody announced here and everybody paired, with what each says of itself."""

import argparse


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

    with Home(peers=args.peers) if args.peers else Home.discover(args.wait) as home:
        print(text.render(tables.members(home.devices.values())))
        strangers = [member for member in home.devices.values() if args.peers and not member.key]
    for member in strangers:
        if not any(is_there(place) for place in member.addresses):
            raise unreachable(member.name, str(member.addresses[0]))
