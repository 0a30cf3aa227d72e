"""`potluck forget NAME`: this computer trusts that device no longer."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which device."""
    parser.add_argument("device", metavar="NAME", help="as `potluck peers` shows it")


def main(args: argparse.Namespace) -> None:
    """Forget it here, and say what is left to do there."""
    from potluck.discover.keyring import Keyring

    Keyring().forget(args.device)
    print(
        f"Forgot {args.device}. On the device, `potluck agent forget` ends its trust in this "
        "computer."
    )
