"""`potluck peers`: the devices that this computer trusts, with the fingerprints of their keys."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def main(args: argparse.Namespace) -> None:
    """Print the table; asks nobody."""
    from potluck.discover.keyring import Keyring
    from potluck.display import tables, text

    ring = Keyring()
    print(text.render(tables.peers(ring.devices(), ring.identity()[0])))
