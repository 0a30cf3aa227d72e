"""Addresses of hosts as text. Pure: no name is ever looked up here."""

import ipaddress

MAX_CHARS = 80  # 39 of an address; systems call interfaces by 15, Windows by numbers
# Interfaces of containers and tunnels, by how their names begin: other devices of the home are
# mostly not behind them.
VIRTUAL = (
    *("docker", "br-", "veth", "virbr", "vmnet", "lxc", "cni", "podman"),
    *("tun", "tap", "wg", "utun", "tailscale", "zt"),
)


def is_address(host: str) -> bool:
    """Whether one host may have this address: IPv4 or IPv6, of one interface or not, but no group
    and not "any". Any name of an interface is an address to Python: a long one, or one that a
    terminal would obey, is none here.

    >>> [is_address(host) for host in ("192.168.1.7", "fe80::1%eth0", "jetson.local", "::")]
    [True, True, False, False]
    >>> is_address("fe80::1%\\x1b[2J"), is_address("fe80::1%" + "x" * 100)
    (False, False)
    """
    if len(host) > MAX_CHARS or not host.isprintable():
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_unspecified)
