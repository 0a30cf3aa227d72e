"""`potluck lab up|down|list`: homes of the library on this machine, for other programs and
notebooks to use.
"""

import argparse
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potluck.lab.registry import RunningLab
    from potluck.lab.runner import Happened

WAIT_S = 15.0
ONE_DAY_S = 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, and with which home."""
    actions = parser.add_subparsers(dest="action", metavar="{up,down,list}", required=True)
    up = actions.add_parser("up", help="play a home until Ctrl-C or `potluck lab down`")
    up.add_argument("name", metavar="NAME", help="a home of profiles/homes, or a TOML file")
    up.add_argument(
        "--time-scale",
        type=float,
        default=1.0,
        metavar="X",
        help="all takes X times longer (default: 1)",
    )
    up.add_argument(
        "--script", type=Path, metavar="FILE", help="what happens when: a TOML file of [[events]]"
    )
    up.add_argument(
        "--links",
        choices=("namespaces", "relay"),
        default="",
        help="how links are made (default: the best)",
    )
    down = actions.add_parser("down", help="end a lab that is up")
    down.add_argument(
        "name", metavar="NAME", nargs="?", help="as `potluck lab list` shows it (default: all)"
    )
    actions.add_parser("list", help="show the labs that are up")


def main(args: argparse.Namespace) -> None:
    """Do it."""
    {"up": _up, "down": _down, "list": _list}[args.action](args)


def _up(args: argparse.Namespace) -> None:
    from potluck.lab import registry
    from potluck.lab.lab import Lab
    from potluck_wire.process_identity import identity

    name = Path(args.name).stem
    _refuse_second(name)
    # either ends it, at whatever it is just then
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    lab = Lab(
        args.name,
        time_scale=args.time_scale,
        script=args.script,
        tell=_print_event,
        links=args.links,
        announce=True,
        extra=["--pair"],
    )
    home = args.name if name == args.name else str(Path(args.name).resolve())
    entry = registry.RunningLab(
        name=name,
        home=home,
        time_scale=args.time_scale,
        pid=os.getpid(),
        identity=identity(os.getpid()),
        public=lab.keys.public,
        secret=lab.keys.secret,
        agents=lab.started,
    )
    try:
        registry.add(entry)
        _show(entry)
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(ONE_DAY_S)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # it ends already
        registry.remove(entry)
        lab.close()


def _print_event(happened: "Happened") -> None:
    with suppress(BrokenPipeError):  # nobody reads any more; the home is played all the same
        print(f"{happened.passed_s:.1f} s after the start: {happened}", flush=True)


def _show(entry: "RunningLab") -> None:
    for agent in entry.agents:
        print(f"{agent.name}  {agent.address}  pairing code {agent.code}")
    print(
        f"{entry.name} is up. In a notebook: Home.lab({entry.name!r}). Ctrl-C ends it.", flush=True
    )


def _refuse_second(name: str) -> None:
    from potluck.errors import UserError
    from potluck.lab import registry

    if registry.find(name) is not None:
        raise UserError(f"the lab {name!r} is up already.", next_step=f"potluck lab down {name}")


def _down(args: argparse.Namespace) -> None:
    import psutil

    from potluck.errors import UserError
    from potluck.lab import registry

    chosen = [entry for entry in registry.entries() if args.name in (None, entry.name)]
    if args.name is not None and not chosen:
        raise UserError(
            f"no lab called {args.name!r} is up.",
            next_step="`potluck lab list` shows those that are.",
        )
    if not chosen:
        print("no lab is up.")
    for entry in chosen:
        with suppress(psutil.NoSuchProcess):  # it ended by itself just now
            process = psutil.Process(entry.pid)
            process.terminate()
            if psutil.wait_procs([process], WAIT_S)[1]:
                process.kill()
        registry.remove(entry)
        print(f"{entry.name} is down.")


def _list(args: argparse.Namespace) -> None:
    from potluck.lab import registry

    found = registry.entries()
    for entry in found:
        slower = f", {entry.time_scale:g} times slower" if entry.time_scale != 1 else ""
        print(
            f"{entry.name}: {', '.join(agent.name for agent in entry.agents)}{slower} (process "
            f"{entry.pid})"
        )
    if not found:
        print("no lab is up.")
