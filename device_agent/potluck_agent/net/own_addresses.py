"""Under which addresses this device can be reached."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from potluck_wire.addresses import VIRTUAL

ANYWHERE = ("0.0.0.0", "::", "*")  # noqa: S104


def addresses(host: str) -> list[str]:
    """The one that the agent listens on, or all of this machine (IPv4)."""
    if host not in ANYWHERE:
        return [socket.gethostbyname(host)]
    found = [address for _, address in _of_interfaces()]
    routed = [address for address in found if not address.startswith("127.")]
    return routed or found or ["127.0.0.1"]


def lan_addresses(host: str) -> list[str]:
    """Those that other devices of the home may know: of containers, of tunnels and of this machine
    alone only where there are no others.
    """
    if host not in ANYWHERE:
        return [host]
    return chosen(_of_interfaces()) or ["127.0.0.1"]


def has_network() -> bool:
    """Whether there is an address by which others may know this machine."""
    return any(_rank(name, address) < 2 for name, address in _of_interfaces())


def chosen(found: Sequence[tuple[str, str]]) -> list[str]:
    """The best kind that is there, of pairs (interface, address).

    >>> chosen([("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("eth0", "192.168.1.7")])
    ['192.168.1.7']
    >>> chosen([("lo", "127.0.0.1"), ("docker0", "172.17.0.1")])
    ['172.17.0.1']
    """
    return next(
        (
            kind
            for rank in range(4)
            if (kind := [address for name, address in found if _rank(name, address) == rank])
        ),
        [],
    )


def _rank(name: str, address: str) -> int:
    if address.startswith("127."):
        return 3
    if address.startswith("169.254."):  # nobody gave it one
        return 2
    return 1 if name.startswith(VIRTUAL) else 0


def _of_interfaces() -> list[tuple[str, str]]:
    """(interface, IPv4 address) of those that are up."""
    import psutil

    entries: Mapping[str, Sequence[Any]] = psutil.net_if_addrs()
    state = psutil.net_if_stats()
    return [
        (name, entry.address)
        for name, found in entries.items()
        for entry in found
        if entry.family == socket.AF_INET and (name not in state or state[name].isup)
    ]
