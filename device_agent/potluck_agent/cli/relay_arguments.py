"""What `potluck agent relay` may be told."""

import argparse
from typing import Any

from potluck_wire.limits import RELAY_PORT

BYTES_PER_S = 12.5e6  # 100 Mbit/s: a rented server's owner may pay for what passes


def add_to(commands: Any) -> None:
    """Add the command with its own commands."""
    relay = commands.add_parser(
        "relay", help="on a machine with a public address: pass connections on to devices without"
    )
    own = relay.add_subparsers(
        dest="relay_command", metavar="{start,invite,devices,remove}", required=True
    )
    start = own.add_parser("start", help="run the relay until it is told to stop")
    start.add_argument(
        "--bind",
        default="0.0.0.0",  # noqa: S104
        metavar="ADDRESS",
        help="where to listen (default: everywhere)",
    )
    start.add_argument(
        "--port",
        type=_port,
        default=RELAY_PORT,
        help=f"the first of its ports; invitations name it (default: {RELAY_PORT})",
    )
    start.add_argument(
        "--rate",
        type=_rate,
        default=BYTES_PER_S,
        metavar="BYTES_PER_S",
        help=f"what may pass each second, all devices together (default: {BYTES_PER_S:g})",
    )
    invite = own.add_parser("invite", help="let a device in: writes the file that it needs")
    invite.add_argument("name", metavar="NAME", help="what to call the device")
    invite.add_argument(
        "relay", metavar="HOST[:PORT]", help=f"where others reach this relay (port: {RELAY_PORT})"
    )
    invite.add_argument(
        "--to", default=None, metavar="FILE", help="where to write it (default: NAME.relay.json)"
    )
    devices = own.add_parser("devices", help="list the devices that are invited, with their ports")
    devices.add_argument("--port", type=_port, default=RELAY_PORT, help=argparse.SUPPRESS)
    remove = own.add_parser("remove", help="let a device in no longer; cuts its connections")
    remove.add_argument("name", metavar="NAME", help="as `potluck agent relay devices` shows it")
    for command in (start, invite, devices, remove):
        command.add_argument(
            "--state",
            default=None,
            metavar="DIR",
            help="where its key and its devices are kept (default: ~/.config)",
        )


def _port(text: str) -> int:
    from potluck_wire.limits import RELAY_DEVICES, RELAY_DEVICES_OFFSET

    highest = 65535 - RELAY_DEVICES_OFFSET - 4 * RELAY_DEVICES
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= highest):
        raise argparse.ArgumentTypeError(f"{text!r}: a port from 1 to {highest} is expected")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = float("nan")
    if not 1000 <= rate <= 1e12:
        raise argparse.ArgumentTypeError(f"{text!r}: at least 1000 bytes/s are expected")
    return rate
