"""The command line of the agent: what its owner may set, in words and units that people use.

Whoever asks for help waits for this file alone; so it loads little, and the records only where they
are made.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from potluck_agent.cli import relay_arguments
from potluck_wire.limits import PORT, is_device_name, is_key

if TYPE_CHECKING:
    from pathlib import Path

    from potluck_agent.cli.options import Power
    from potluck_agent.keys import TrustedPeer

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1024, "mi": 1024**2, "gi": 1024**3}

BACKENDS = ("torch", "onnxruntime")
DRAIN_S = 60.0  # a model of some GiB takes as long over WiFi
KEPT_BYTES = 4 * 1024**3  # some networks; the disk keeps 1 GiB free whatever this is
LEVELS = ("debug", "info", "warning", "error")  # of log_file.py, which takes longer to load
COMMANDS = ("start", "install", "status", "pair", "token", "peers", "forget", "replay", "relay")


def parser() -> argparse.ArgumentParser:
    """All commands; without one, `start`."""
    top = argparse.ArgumentParser(
        prog="potluck agent", description="Lets this device take part in a home."
    )
    commands = top.add_subparsers(
        dest="command", metavar="{" + ",".join(COMMANDS) + "}", required=True
    )
    start = commands.add_parser("start", help="run the agent (also without any command)")
    _add_start(start)
    install = commands.add_parser(
        "install", help="have the agent start by itself, with these options of start"
    )
    _add_install(install)
    pair = commands.add_parser(
        "pair", help="show a code and let one notebook pair with this device"
    )
    token = commands.add_parser(
        "token", help="print a one-shot token for pairing, for machines without a screen"
    )
    peers = commands.add_parser(
        "peers", help="list the notebooks that this device trusts, and its own fingerprint"
    )
    forget = commands.add_parser("forget", help="trust a notebook no longer; cuts its connection")
    forget.add_argument("who", metavar="NAME", help="as `potluck agent peers` shows it")
    replay = commands.add_parser(
        "replay", help="say what happened in a recording, and whether it happens again"
    )
    replay.add_argument(
        "file", type=_path, metavar="FILE", help="made by `potluck agent start --record FILE`"
    )
    status = commands.add_parser(
        "status", help="what the agent of this device does (exit code 3: none runs)"
    )
    status.add_argument("--json", dest="as_json", action="store_true", help="for programs")
    relay_arguments.add_to(commands)
    for command in (start, install, status, pair, token, peers, forget):
        command.add_argument(
            "--state",
            type=_path,
            default=None,
            metavar="DIR",
            help="where keys and peers are kept (default: ~/.config)",
        )
    return top


def _add_start(start: argparse.ArgumentParser) -> None:
    start.usage = "potluck agent start [options]"
    _add_device(start.add_argument_group("this device").add_argument)
    _add_rules(start.add_argument_group("when it takes part").add_argument)
    _add_emulation(start.add_argument_group("as another device").add_argument)
    _add_for_programs(start.add_argument_group("for programs that start agents").add_argument)


def _add_install(install: argparse.ArgumentParser) -> None:
    install.usage = "potluck agent install [--system] [--print] [--remove] [options of start]"
    add = install.add_argument_group("the service").add_argument
    add(
        "--system",
        action="store_true",
        help="start with the machine, also while nobody is logged in (needs root)",
    )
    add(
        "--print",
        dest="only_print",
        action="store_true",
        help="only say what would be written and run",
    )
    add("--remove", action="store_true", help="undo it; keys, peers and the log stay")
    _add_device(install.add_argument_group("as for start").add_argument)
    _add_rules(install.add_argument_group("when it takes part, as for start").add_argument)


def start_words(arguments: Sequence[str]) -> list[str]:
    """What `start` has to be told to get the options that `install` was given, each as one word;
    paths are absolute.
    """
    raw = argparse.ArgumentParser()
    kept = []

    def add(*names: str, **how: Any) -> None:
        kind = how.pop("type", None)
        how["default"] = argparse.SUPPRESS
        kept.append((raw.add_argument(*names, **how), kind))

    _add_device(add)
    _add_rules(add)
    given = vars(raw.parse_known_args(_joined(arguments))[0])
    words = []
    for action, kind in kept:
        if action.dest not in given:
            continue
        values = given[action.dest]
        if action.nargs == 0:
            words.append(action.option_strings[0])
            continue
        for value in values if isinstance(values, list) else [values]:
            argument = str(_path(value).absolute()) if kind is _path else value
            words.append(f"{action.option_strings[0]}={argument}")
    return words


def _add_device(add: Callable[..., object]) -> None:
    _add_network(add)
    _add_computing(add)
    _add_records(add)
    _add_trust(add)


def _add_network(add: Callable[..., object]) -> None:
    add("--name", default=None, help="what this device is called (default: the host's name)")
    add(
        "--bind",
        "--address",
        default="0.0.0.0",  # noqa: S104
        metavar="ADDRESS",
        help="where to listen (default: everywhere)",
    )
    add(
        "--port",
        type=int,
        default=PORT,
        help=f"the first of four ports in a row; 0: any (default: {PORT})",
    )
    add(
        "--no-mdns",
        dest="mdns",
        action="store_false",
        help="do not announce this device in the network",
    )


def _add_computing(add: Callable[..., object]) -> None:
    add(
        "--memory",
        type=_size,
        default=None,
        metavar="BYTES",
        help="for tensors, as in 2GiB (default: half of it all)",
    )
    add(
        "--keep",
        type=_kept_size,
        default=KEPT_BYTES,
        metavar="BYTES",
        help="of weights on its disk, so that they come once; 0: none (default: 4GiB)",
    )
    add(
        "--threads",
        type=_threads,
        default=None,
        metavar="N",
        help="to compute with (default: the fastest count, tried at the start)",
    )
    device = "cpu, or an accelerator, as cuda, xpu:0 or mps (default: the fastest that works)"
    add("--device", type=_compute_device, default=None, metavar="NAME", help=device)
    add(
        "--backends",
        type=_backends,
        default=(),
        metavar="NAMES",
        help="torch, onnxruntime (default: what is there)",
    )
    add(
        "--power",
        type=_power,
        default=None,
        metavar="IDLE,BUSY,RADIO",
        help="watts, where nothing can be measured",
    )


def _add_records(add: Callable[..., object]) -> None:
    record = (
        "keep all that happens for `potluck agent replay`: messages, no tensors, models or "
        "secrets (at most 64 MiB)"
    )
    add("--record", type=_path, default=None, metavar="FILE", help=record)
    log = "what has happened, 4 MiB at most (default: agent.log beside the keys)"
    add("--log-file", type=_path, default=None, metavar="FILE", help=log)
    add(
        "--log-level", choices=LEVELS, default="info", help="the least that is kept (default: info)"
    )


def _add_trust(add: Callable[..., object]) -> None:
    relay = (
        "be reached through this relay: an invitation, made there by `potluck agent relay invite`"
    )
    add("--relay", type=_path, default=None, metavar="FILE", help=relay)
    trust = "a notebook to trust from now on"
    add("--trust", action="append", default=[], type=_trusted, metavar="KEY:NAME", help=trust)
    hang = "a task that is silent for so long hangs (default: 30)"
    add("--hang", type=_seconds, default=30.0, metavar="S", help=hang)
    grace = "a silent notebook is gone after it (default: 30)"
    add("--grace", type=_seconds, default=30.0, metavar="S", help=grace)


def _add_rules(add: Callable[..., object]) -> None:
    add("--only-on-mains", action="store_true", help="not while it runs on its battery")
    add(
        "--min-battery",
        type=_charge,
        default=None,
        metavar="PERCENT",
        help="not with a battery below it, as in 30%%, also while it charges",
    )
    add(
        "--max-temp",
        type=_celsius,
        default=None,
        metavar="C",
        help="not while any of its sensors is hotter, in degrees Celsius, as in 80",
    )
    add(
        "--quiet-hours",
        type=_hours,
        default=None,
        metavar="FROM-TO",
        help="not at this time of the day, as in 22:00-07:00",
    )
    add(
        "--drain",
        type=_wait,
        default=DRAIN_S,
        metavar="S",
        help="when it has to leave, also by Ctrl-C, what is under way has so long to move elsewhere"
        f" (default: {DRAIN_S:g})",
    )


def _add_emulation(add: Callable[..., object]) -> None:
    add(
        "--slowdown",
        type=_slowdown,
        default=1.0,
        metavar="X",
        help="emulate a device that computes X times slower",
    )
    add(
        "--link-rate",
        type=_rate,
        default=0.0,
        metavar="BYTES_PER_S",
        help="emulate a link that sends no faster",
    )
    add("--emulated", action="store_true", help="emulate a device whose times the notebook knows")


def _add_for_programs(add: Callable[..., object]) -> None:
    add("--pair", action="store_true", help="open the pairing window at once and print the code")
    network = "wait so long for an address before listening (default: 0)"
    add("--await-network", type=_wait, default=0.0, metavar="S", help=network)
    add(
        "--json",
        dest="as_json",
        action="store_true",
        help="print one JSON line when ready, and nothing else",
    )
    add(
        "--ready-fd",
        type=int,
        default=None,
        metavar="FD",
        help="write that line to this file descriptor",
    )
    add(
        "--die-with-parent",
        action="store_true",
        help="end when the process that started this one is gone",
    )
    add("--parent-pid", type=int, default=None, metavar="PID", help="end when this process is gone")
    add(
        "--system-root",
        type=_path,
        default=None,
        metavar="DIR",
        help="read battery, mains and temperature below it, as DIR/sys/...",
    )
    add(
        "--fork-server",
        type=_path,
        default=None,
        metavar="SOCKET",
        help="let the fork server there start workers",
    )
    add(
        "--scratch",
        type=_path,
        default=None,
        metavar="DIR",
        help="remove this directory when that process was killed",
    )


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line, with `start` understood where no command is given."""
    first = next(
        (
            argument
            for argument in arguments
            if argument in COMMANDS or argument in ("-h", "--help")
        ),
        None,
    )
    if first is None and arguments and not arguments[0].startswith("-"):
        parser().error(f"there is no command {arguments[0]!r}; there are {', '.join(COMMANDS)}")
    return parser().parse_args(_joined(arguments if first else ["start", *arguments]))


def _joined(arguments: Sequence[str]) -> list[str]:
    """With `--trust KEY:NAME` as one word each: one of 85 keys begins like an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--trust":
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _path(text: str) -> "Path":
    from pathlib import Path

    return Path(text)


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(|[kmg]i?)b?", text.lower())
    nbytes = int(float(match[1]) * _SIZES[match[2]]) if match else 0
    if not 1024**2 <= nbytes <= 2**50:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no amount of memory, 1 MiB or more, such as 500MB or 2GiB"
        )
    return nbytes


def _kept_size(text: str) -> int:
    return 0 if text == "0" else _size(text)


def _rate(text: str) -> float:
    rate = _number(text)
    if rate < 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: a link sends at least 1000 bytes/s")
    return rate


def _slowdown(text: str) -> float:
    slowdown = _number(text)
    if not 1 <= slowdown <= 1e4:
        raise argparse.ArgumentTypeError(f"{text!r}: a slowdown is 1 to 10000")
    return slowdown


def _seconds(text: str) -> float:
    seconds = _number(text)
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r}: 0.1 to 86400 seconds are possible")
    return seconds


def _wait(text: str) -> float:
    return 0.0 if text == "0" else _seconds(text)


def _charge(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *%?", text)
    percent = float(match[1]) if match else 0.0
    if not 1 <= percent <= 100:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the charge of a battery is expected, 1% to 100%, as in 30%"
        )
    return percent / 100


def _celsius(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(?:°?C)?", text)
    celsius = float(match[1]) if match else 0.0
    if not 30 <= celsius <= 120:
        raise argparse.ArgumentTypeError(
            f"{text!r}: degrees Celsius are expected, 30 to 120, as in 80"
        )
    return celsius


def _hours(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})", text, re.ASCII)
    times = [(int(found[i]), int(found[i + 1])) for i in (1, 3)] if found else []
    if not times or any(hour > 23 or minute > 59 for hour, minute in times):
        raise argparse.ArgumentTypeError(
            f"{text!r}: two times of the day are expected, 00:00 to 23:59, as in 22:00-07:00"
        )
    start, stop = (60 * hour + minute for hour, minute in times)
    if start == stop:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all, or the whole day")
    return start, stop


def _threads(text: str) -> int:
    n_threads = _number(text)
    if n_threads not in range(1, 257):
        raise argparse.ArgumentTypeError(f"{text!r}: 1 to 256 threads are possible")
    return int(n_threads)


def _compute_device(text: str) -> str:
    from potluck_wire.processors import CPU, PROVIDERS, TORCH_KINDS

    kind, colon, index = text.partition(":")
    is_one = kind in TORCH_KINDS and index.isascii() and index.isdecimal()
    if text not in (CPU, *PROVIDERS, *TORCH_KINDS) and not (colon and is_one):
        known = ", ".join(dict.fromkeys((CPU, *TORCH_KINDS, *PROVIDERS)))
        raise argparse.ArgumentTypeError(
            f"{text!r}: known are {known}, and as cuda:0 one of several"
        )
    return text


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(BACKENDS):
        raise argparse.ArgumentTypeError(
            f"{text!r}: {' or '.join(BACKENDS)} is expected, or both with a comma"
        )
    return names


def _power(text: str) -> "Power":
    from potluck_agent.cli.options import Power

    watts = [_number(part) for part in text.split(",")]
    if len(watts) != 3 or not 0 <= watts[0] <= watts[1] <= 1e5 or not 0 <= watts[2] <= 1e5:
        raise argparse.ArgumentTypeError(
            f"{text!r}: IDLE,BUSY,RADIO in watts are expected, as in 2,8,1"
        )
    return Power(idle_w=watts[0], busy_w=watts[1], radio_w=watts[2])


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) <= 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number


def _trusted(text: str) -> "TrustedPeer":
    from potluck_agent.keys import OWNER, TrustedPeer

    key, name = text[:40], text[41:]
    if not is_key(key) or text[40:41] != ":" or not is_device_name(name):
        raise argparse.ArgumentTypeError(
            "KEY:NAME is expected: 40 characters of a CURVE key, a colon, a name"
        )
    return TrustedPeer(name=name, key=key, role=OWNER)
