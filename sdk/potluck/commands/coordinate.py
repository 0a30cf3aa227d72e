"""`potluck coordinate`: has trainings go on while the notebook that began them is closed."""

import argparse
import signal
import sys
import threading
from pathlib import Path

IDLE_S = 600.0  # then one that a notebook has started ends, where nothing is trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where it keeps its keys, where it listens, and to whom."""
    parser.add_argument(
        "--state",
        metavar="FOLDER",
        help="its keys and jobs (default: $POTLUCK_HOME or the configuration directory)",
    )
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        metavar="IP",
        help="listen here, for notebooks on other computers (default: this computer alone)",
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="listen at this port (default: a free one)"
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="KEY",
        help="the public key of a notebook that may hand over and attach (`home.key`); repeatable",
    )
    parser.add_argument("--until-idle", action="store_true", help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    """Train what is handed over until it is interrupted."""
    from potluck.coordinate.coordinator import Coordinator
    from potluck.coordinate.local import LOCK, folder_of, write_place
    from potluck.coordinate.server import Server
    from potluck.discover.claim import claim
    from potluck.discover.keyring import Keyring
    from potluck.errors import UserError
    from potluck.home import Home
    from potluck.sessions.connections import Keys
    from potluck_wire.limits import is_key

    odd = [key for key in args.trust if not is_key(key)]
    if odd:
        raise UserError(f"--trust {odd[0]!r} is not a key: 40 characters of Z85 are expected.")
    state = Path(args.state) if args.state else Keyring().directory
    public, secret = Keyring(state).identity()
    folder = folder_of(state)
    mine = claim(folder, LOCK, otherwise="")
    _allow_connections()
    coordinator = Coordinator(folder, lambda: Home.discover(state=state))
    keys = Keys(public=public, secret=secret)
    known = frozenset({public, *args.trust})
    server = Server(coordinator, keys, known, host=args.address, port=args.port)
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    write_place(folder, args.address, server.port)
    print(f"Coordinating at {args.address}:{server.port}, key '{public}'", flush=True)
    coordinator.go_on()

    def goes_on(silent_s: float) -> bool:
        is_idle = args.until_idle and silent_s > IDLE_S and not coordinator.under_way
        return not ending.is_set() and not is_idle

    try:
        server.serve(goes_on)
    finally:
        server.close()
        coordinator.close()
        mine.close()
    return 0


def _allow_connections() -> None:
    """As many open descriptors as the system lets us have: strangers must not use them up."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
