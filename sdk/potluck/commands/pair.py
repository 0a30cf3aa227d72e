"""`potluck pair NAME-or-ADDRESS`: asks for the code that the device shows, and trusts the device from then on."""

import argparse
import sys

from potluck.errors import PairingError, UserError

WORTH_ANOTHER_TRY = "wrong-code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which device, and the code for scripts."""
    parser.add_argument("device", metavar="NAME-or-ADDRESS", help="as `potluck devices` shows it, or HOST[:PORT]")
    parser.add_argument("--code", help="the code or token; without it, you are asked for it")
    parser.add_argument("--wait", type=float, default=3.0, metavar="S", help="look so long for a name (default: 3)")


def main(args: argparse.Namespace) -> int:
    """Pair; a mistyped code may be tried again as long as the device allows."""
    from potluck.home import Home

    with Home() if _is_address(args.device) else Home.discover(args.wait) as home:
        while True:
            try:
                member = home.pair(args.device, args.code or _ask())
            except PairingError as error:
                again = error.facts.get("code") == WORTH_ANOTHER_TRY and int(str(error.facts.get("tries_left", 0))) > 0
                if args.code or not again:
                    raise
                print(f"{error}", file=sys.stderr)
            else:
                print(f"Paired with {member.name}.")
                return 0


def _is_address(device: str) -> bool:
    return any(sign in device for sign in ".:[") or device == "localhost"


def _ask() -> str:
    if not sys.stdin.isatty():
        raise UserError("there is nobody to ask for the code.", next_step="Give it with --code.")
    return input("Code shown by `potluck agent pair` on the device: ")
