"""The `potluck` command: finds the module of a subcommand, runs it, and turns errors into one line
and an exit code.

Exit codes: 0 well, 1 an error that is explained in one line, 2 wrong usage, 130 interrupted. Each
subcommand is a module of `potluck.commands` with `add_arguments(parser)` and `main(args) -> int |
None`, imported only when asked for.
"""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from potluck.errors import PotluckError
from potluck.optional_packages import missing

COMMANDS = {
    "agent": "run the agent on this device, so that a home can use it",
    "pair": "pair with a device: type the code that it shows",
    "devices": "list the devices found and paired",
    "peers": "list the devices that this computer trusts",
    "forget": "end the trust in a device",
    "doctor": "find out why devices or meters are missing",
    "coordinate": "have trainings go on while the notebook is closed",
    "plan": "plan for a home and a model of the library: what would run where, how fast; what if",
    "demo": "train and run real models on a home of four devices emulated here",
    "lab": "play a home of the library on this machine",
    "watch": "the home and its run live on a page of this computer: for a browser without Jupyter",
    "top": "the same in a terminal",
    "serve": "answer requests to models of files over HTTP; `serve top` watches",
    "bench": "measure the figures of the README again",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `potluck ARGV...`; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # one that has no letter for a line of a table: `?`
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return _run(arguments)
    except PotluckError as error:
        print(f"potluck: {one_line(error)}", file=sys.stderr)
        return 1
    except ImportError as error:
        missing_package = missing(error)
        if missing_package is None:
            raise
        print(f"potluck: {one_line(missing_package)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("potluck: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left (`potluck devices | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(
            f"potluck: {error.filename}: {error.strerror}. Is it this user's own?", file=sys.stderr
        )
        return 1


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        return _command(arguments[0], arguments[1:])
    parser = _parser()
    parser.parse_args(arguments)  # --help, --version and unknown commands end here
    parser.print_help()
    return 2


def _command(name: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"potluck.commands.{name}")
    if name == "agent":  # it has a parser of its own, in its own package
        return int(module.main(arguments))
    parser = argparse.ArgumentParser(
        prog=f"potluck {name}", description=COMMANDS[name].capitalize() + "."
    )
    module.add_arguments(parser)
    return int(module.main(parser.parse_args(_with_values(arguments))) or 0)


def _with_values(arguments: list[str]) -> list[str]:
    """The arguments with a value such as `-1s`, or a key, tied to its option: alone it would be
    taken for an option.
    """
    found: list[str] = []
    for argument in arguments:
        is_value = (
            re.match(r"-([0-9.]|.{39}$)", argument)
            and found
            and found[-1].startswith("--")
            and "=" not in found[-1]
        )
        if is_value:
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return found


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {does}" for name, does in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="potluck",
        description="The devices of one home as one machine that trains and runs neural networks.",
        epilog=f"commands:\n{listing}\n\n`potluck COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="potluck [--help] [--version] COMMAND ...",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument(
        "command", choices=COMMANDS, metavar="COMMAND", nargs="?", help=argparse.SUPPRESS
    )
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from potluck_wire import __version__

        print(f"potluck {__version__}")
        parser.exit()


def one_line(error: PotluckError) -> str:
    """An error as the terminal shows it."""
    from potluck.sanitized_text import harmless

    return harmless(" ".join(str(error).split()))


if __name__ == "__main__":
    sys.exit(main())
