"""Where a device may be and what it is called: addresses from text, of paired devices, of those
that were found.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.sessions.events import Address
from potluck_wire.limits import PORT

if TYPE_CHECKING:
    from potluck.discover.keyring import KnownDevice

MAX_CANDIDATES = 8  # the first is waited for, 5 s, and the others are asked at once


def parse_addresses(peers: Iterable[str]) -> list[Address]:
    """The addresses of a list of texts, see `parse_address`.

    UserError for a text that is no list.
    """
    if isinstance(peers, str):
        raise UserError(
            f"peers is a list of addresses, got {peers!r}.", next_step=f"Home(peers=[{peers!r}])"
        )
    return [parse_address(peer) for peer in peers]


def parse_address(text: str) -> Address:
    """An address from "host", "host:port", "[v6]:port" or "v6".

    Raises
    ------
    UserError
        Where the port is none, or there is no host.
    """
    host, port = text.strip(), str(PORT)
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif host.count(":") == 1:
        host, port = host.split(":")
    if not host or not (len(port) <= 5 and port.isdecimal() and 1 <= int(port) <= 65532):
        raise UserError(
            f"{text!r} is not an address.",
            next_step="Write HOST or HOST:PORT, such as 192.168.1.7:47600.",
        )
    return Address(host=host, port=int(port))


def candidates(
    known: "KnownDevice", found: "Mapping[str, tuple[Address, ...]]"
) -> tuple[Address, ...]:
    """Where a paired device may be: as it is announced, where it was, and as devices of a like name
    are announced; not more than `MAX_CANDIDATES`, since anybody may announce anything.

    Of two that are both called `phone`, whoever comes second announces itself as `phone-2`. Keys
    decide.
    """
    like = [
        addresses
        for name, addresses in found.items()
        if _unnumbered(name) == _unnumbered(known.name)
    ]
    announced = found.get(known.name, ())
    places = (
        *announced[:1],
        *known.addresses,
        *announced[1:],
        *(place for places in like for place in places),
    )
    return tuple(dict.fromkeys(places))[:MAX_CANDIDATES]


def _unnumbered(name: str) -> str:
    base, hyphen, number = name.rpartition("-")
    return base if hyphen and number.isdecimal() else name


def as_name(device: str) -> str:
    """A name that a device may have, from what the user called it."""
    kept = "".join(
        letter if letter.isascii() and letter.isalnum() else "-" for letter in device.lower()
    )
    return kept.strip("-")[:40] or "device"
