"""`potluck coordinate`: has trainings go on while the notebook that began them is closed."""

import argparse
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.commands.options import port

if TYPE_CHECKING:
    from potluck.coordinator.coordinator import Coordinator

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
        "--port",
        type=port,
        default=0,
        metavar="N",
        help="listen at this port (default: a free one)",
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="KEY",
        help="the public key of a notebook that may hand over and attach (`home.key`); repeatable",
    )
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="read files of arrays in this folder, and in no other, for who hands over a training "
        "on them (potluck.ArrayFiles; default: none)",
    )
    parser.add_argument(
        "--join",
        metavar="ADDRESS",
        help="keep a copy of all that this coordinator trains, and go on with it where that ends",
    )
    parser.add_argument("--key", metavar="KEY", help="of the one that is joined, as it prints it")
    parser.add_argument("--until-idle", action="store_true", help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    """Train what is handed over until it is interrupted."""
    from potluck.coordinator.coordinator import Coordinator
    from potluck.coordinator.coordinator_group import Seat
    from potluck.coordinator.endpoint import Endpoint
    from potluck.coordinator.group_joining import GroupFollower
    from potluck.coordinator.hand_over import elsewhere
    from potluck.coordinator.local_coordinator import LOCK, folder_of, write_place
    from potluck.coordinator.server import CoordinatorServer
    from potluck.coordinator.shared_job import CoordinatorCall
    from potluck.discover.key_claim import claim
    from potluck.discover.keyring import Keyring
    from potluck.home import Home
    from potluck.sessions.connections import Keys
    from potluck_wire.descriptors import allow_connections

    _check(args)
    reads = Path(args.data).absolute() if args.data else None
    state = Path(args.state) if args.state else Keyring().directory
    public, secret = Keyring(state).identity()
    folder = folder_of(state)
    mine = claim(folder, LOCK, otherwise="")
    allow_connections()
    keys = Keys(public=public, secret=secret)

    def reach(seat: Seat) -> CoordinatorCall:
        return Endpoint(host=seat.host, port=seat.port, key=seat.key, keys=keys).ask

    joined = elsewhere(args.join, args.key or "", keys) if args.join else None
    known = frozenset({public, *args.trust})
    coordinator = Coordinator(folder, lambda: Home.discover(state=state), reach, reads=reads)
    coordinator.trusted = known
    server = CoordinatorServer(coordinator, keys, known, host=args.address, port=args.port)
    goes_on = _until_told(coordinator, args.until_idle)
    coordinator.seat = Seat(key=public, host=args.address, port=server.port)
    write_place(folder, args.address, server.port)
    print(f"Coordinating at {args.address}:{server.port}, key '{public}'", flush=True)
    coordinator.go_on()
    joining = None
    if joined is not None:
        joining = GroupFollower(coordinator, joined.ask, lambda text: print(text, flush=True))
        joining.start()
    try:
        server.serve(goes_on)
    finally:
        if joining is not None:
            joining.close()
        server.close()
        coordinator.close()
        mine.close()
    return 0


def _until_told(coordinator: "Coordinator", until_idle: bool) -> Callable[[float], bool]:
    """Whether to go on, asked with the seconds since somebody was heard: until a signal, or until
    nothing is trained here.
    """
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())

    def goes_on(silent_s: float) -> bool:
        is_busy = coordinator.under_way or coordinator.followed
        is_idle = until_idle and silent_s > IDLE_S and not is_busy
        return not ending.is_set() and not is_idle

    return goes_on


def _check(args: argparse.Namespace) -> None:
    from potluck.errors import UserError
    from potluck_wire.limits import is_key

    odd = [key for key in args.trust if not is_key(key)]
    if odd:
        raise UserError(f"--trust {odd[0]!r} is not a key: 40 characters of Z85 are expected.")
    if args.key and not args.join:
        raise UserError("--key is of the coordinator that is joined.", next_step="Give its --join.")
    if args.data and not Path(args.data).is_dir():
        raise UserError(f"--data {args.data!r} is no folder.")
