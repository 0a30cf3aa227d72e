"""`potluck watch`: the cockpit's page for a browser, of a home of one's own or of one that another
process has open.
"""

import argparse
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from potluck.commands.options import port, wait_s
from potluck.errors import HomeError, UserError

if TYPE_CHECKING:
    from potluck.home import Home


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to listen, what the page may do, and whom to ask."""
    parser.add_argument("--port", type=port, default=0, help="of the page (default: any)")
    parser.add_argument(
        "--address",
        default="",
        metavar="IP",
        help="of this machine: a phone on that network may look too (not encrypted)",
    )
    parser.add_argument("--act", action="store_true", help="let the page switch plans and pair")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    add_home(parser)


def add_home(parser: argparse.ArgumentParser) -> None:
    """Which home."""
    parser.add_argument("--wait", type=wait_s, default=3.0, metavar="S", help="listen so long (3)")
    parser.add_argument("--lab", metavar="HOME", help="an emulated home of the library instead")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="ask the process that has this home open for it: its trainings end and are saved",
    )
    parser.add_argument(
        "peers", nargs="*", metavar="ADDRESS", help="ask these instead of listening"
    )


def main(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C; returns the exit code."""
    if args.act and args.address:
        raise UserError("a page for other devices is only to look at: leave out --act.")
    with address(args, may_act=args.act, port=args.port, host=args.address) as (url, process):
        where = f" (to look at only, of process {process}, which has this home)" if process else ""
        print(f"{url}{where}", flush=True)
        if args.open:
            webbrowser.open(url)
        while not process:
            time.sleep(3600)
    return 0


@contextmanager
def address(
    args: argparse.Namespace, *, may_act: bool = False, port: int = 0, host: str = ""
) -> Iterator[tuple[str, int]]:
    """The page's address, and which other process serves it; 0: this one does."""
    from potluck.discover.keyring import state_dir
    from potluck.display.cockpit import watch, window
    from potluck.display.cockpit.server import HOST, PageServer

    try:
        home = _opened(args)
    except HomeError as error:
        if error.facts.get("holder") is None:
            raise
        url, process = window.through(state_dir())
        yield url, process
        return
    with home:
        watching = watch(home)
        server = PageServer(watching, may_act=may_act, port=port, host=host or HOST)
        try:
            yield server.url, 0
        finally:
            server.close()
            watching.close()


def _opened(args: argparse.Namespace) -> "Home":
    from potluck.home import Home

    if args.take_over:
        return Home.take_over(timeout_s=args.wait)
    if args.lab:
        return Home.lab(args.lab)
    return Home(peers=args.peers) if args.peers else Home.discover(args.wait)
