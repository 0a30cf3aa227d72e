"""`potluck top`: who is at work, what it takes and what happened, in a terminal."""

import argparse
import time

from potluck.commands.watch import add_home, address
from potluck.optional_packages import needed

REDRAW_S = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How often, and which home."""
    parser.add_argument("--once", action="store_true", help="print it once, and end")
    add_home(parser)


def main(args: argparse.Namespace) -> int:
    """Draw until Ctrl-C; returns the exit code."""
    with needed():
        from rich.console import Console
        from rich.live import Live

        from potluck.display.cockpit.terminal import follow, screen
    with address(args) as (url, _):
        if args.once:
            console = Console()
            console.print(screen(next(follow(url)), console.width))
            return 0
        drawn_s = 0.0
        with Live(screen=True, auto_refresh=False) as live:
            for reader in follow(url):
                if time.monotonic() >= drawn_s + REDRAW_S:
                    drawn_s = time.monotonic()
                    live.update(screen(reader, live.console.width), refresh=True)
    return 0
