"""`potluck pair NAME-or-ADDRESS`: asks for the code that the device shows, and trusts the device
from then on.

It opens no session, so that it may run beside an open notebook, which has these keys to itself.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from potluck.commands.options import wait_s
from potluck.errors import PairingError, UserError

if TYPE_CHECKING:
    from potluck.sessions.events import Address

WORTH_ANOTHER_TRY = "wrong-code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which device, and the code for scripts."""
    parser.add_argument(
        "device", metavar="NAME-or-ADDRESS", help="as `potluck devices` shows it, or HOST[:PORT]"
    )
    parser.add_argument("--code", help="the code or token; without it, you are asked for it")
    parser.add_argument(
        "--wait", type=wait_s, default=3.0, metavar="S", help="look so long for a name (default: 3)"
    )


def main(args: argparse.Namespace) -> int:
    """Pair; a mistyped code may be tried again as long as the device allows."""
    from potluck.discover.keyring import Keyring
    from potluck.discover.pairing import pair_and_remember

    ring, addresses = Keyring(), _addresses(args.device, args.wait)
    while True:
        try:
            known = pair_and_remember(ring, addresses, args.code or _ask(), device=args.device)
        except PairingError as error:
            again = (
                error.facts.get("code") == WORTH_ANOTHER_TRY
                and int(str(error.facts.get("tries_left", 0))) > 0
            )
            if args.code or not again:
                raise
            print(f"{error}", file=sys.stderr)
        else:
            print(f"Paired with {known.name}.")
            return 0


def _addresses(device: str, wait_s: float) -> "tuple[Address, ...]":
    """Where to ask: the address itself, or where a device of that name announces itself or was
    seen.
    """
    from potluck.discover.addresses import parse_address
    from potluck.discover.keyring import Keyring
    from potluck.discover.mdns import browse
    from potluck.sanitized_text import who_is_here

    if any(sign in device for sign in ".:[") or device == "localhost":
        return (parse_address(device),)
    found = browse(wait_s, enough=lambda seen: device in seen)
    if device in found:
        return found[device]
    known = Keyring().get(device)
    if known is not None and known.addresses:
        return known.addresses
    raise UserError(
        f"no device called {device!r} announced itself within {wait_s:g} s; "
        f"{who_is_here(sorted(found))}.",
        next_step="Give its address: potluck pair 192.168.1.7. `potluck doctor` looks closer.",
    )


def _ask() -> str:
    if not sys.stdin.isatty():
        raise UserError("there is nobody to ask for the code.", next_step="Give it with --code.")
    return input("Code shown by `potluck agent pair` on the device: ")
