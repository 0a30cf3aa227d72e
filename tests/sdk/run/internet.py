"""An internet in network namespaces: public machines, and homes behind routers that translate
addresses and let nobody in (Linux, root, nftables).

As in the lab, each namespace is held by a process, and is gone with it.
"""

import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tests.timeouts import TIMEOUT_S

from potluck.lab import namespaces

PUBLIC = "203.0.113"  # set aside for documentation
LAN = "192.168.7"  # the same in every home: so it is in most
NET = "the internet"
_NAT = """
table ip nat {
  chain post {
    type nat hook postrouting priority 100;
    oifname "wan" masquerade
  }
}
table ip guard {
  chain forward {
    type filter hook forward priority 0; policy drop;
    ct state established,related accept
    iifname "lan" accept
  }
  chain input {
    type filter hook input priority 0; policy accept;
    iifname "wan" ct state new drop
  }
}
"""


def missing() -> str:
    """Why there can be none here; empty where there can."""
    if reason := namespaces.missing():
        return reason
    if shutil.which("nft") is None:
        return "nftables is not installed"
    tried = subprocess.run(
        ["unshare", "--net", "nft", "-f", "-"], input=_NAT.encode(), capture_output=True
    )
    return "" if tried.returncode == 0 else "this system translates no addresses"


class Internet:
    """Machines by name; `public` and `behind_nat` add one and return its address."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._pids: dict[str, int] = {}
        self._n_links = 0
        self._hold(NET)
        self._run(NET, "ip link add br0 type bridge", "ip link set br0 up")

    def __enter__(self) -> "Internet":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def public(self, name: str, number: int) -> str:
        """A machine that everybody can reach."""
        self._hold(name)
        self._plug(name, f"{PUBLIC}.{number}")
        return f"{PUBLIC}.{number}"

    def behind_nat(self, name: str, number: int) -> str:
        """A machine in a home of its own; its router has the public address of this number."""
        router = f"{name}'s router"
        self._hold(router)
        self._hold(name)
        self._plug(router, f"{PUBLIC}.{number}")
        self._run(
            router,
            f"ip link add lan type veth peer name eth0 netns {self._pids[name]}",
            f"ip addr add {LAN}.1/24 dev lan",
            "ip link set lan up",
            "sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'",
        )
        self._nft(router, _NAT)
        self._run(
            name,
            f"ip addr add {LAN}.2/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {LAN}.1",
        )
        return f"{LAN}.2"

    def renumber(self, name: str, before: int, after: int) -> None:
        """The router of this machine gets another public address, as at night from many
        providers: whatever was connected through it is not told.
        """
        self._run(
            f"{name}'s router",
            f"ip addr del {PUBLIC}.{before}/24 dev wan",
            f"ip addr add {PUBLIC}.{after}/24 dev wan",
        )

    def tunnel(self, one: str, other: str, addresses: tuple[str, str], interface: str) -> None:
        """Routed addresses of two machines, as a virtual private network gives them."""
        ends = [f"{interface} netns {self._pids[name]}" for name in (one, other)]
        self._run(NET, f"ip link add {ends[0]} type veth peer name {ends[1]}")
        for name, own, theirs in ((one, *addresses), (other, *reversed(addresses))):
            self._run(
                name,
                f"ip addr add {own}/32 dev {interface}",
                f"ip link set {interface} mtu 1420",
                f"ip link set {interface} up",
                f"ip route add {theirs}/32 dev {interface} src {own}",
            )

    def command(self, name: str) -> list[str]:
        """What makes a command run there, put in front of it."""
        return ["nsenter", f"--net=/proc/{self._pids[name]}/ns/net", "--"]

    def start(self, name: str, line: Sequence[str], **how: Any) -> "subprocess.Popen[str]":
        """A process there; it is killed at the end."""
        process = subprocess.Popen(
            [*self.command(name), *line], stdout=subprocess.PIPE, text=True, **how
        )
        self._stack.callback(_end, process)
        return process

    def _hold(self, name: str) -> None:
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up; echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(_end, holder)
        assert holder.stdout is not None
        assert holder.stdout.readline()
        self._pids[name] = holder.pid

    def _plug(self, name: str, address: str) -> None:
        self._n_links += 1
        port = f"port{self._n_links}"
        self._run(
            NET,
            f"ip link add {port} type veth peer name wan netns {self._pids[name]}",
            f"ip link set {port} master br0 up",
        )
        self._run(name, f"ip addr add {address}/24 dev wan", "ip link set wan up")

    def _run(self, name: str, *lines: str) -> None:
        for line in lines:
            done = subprocess.run([*self.command(name), "sh", "-c", line], capture_output=True)
            assert done.returncode == 0, (line, done.stderr)

    def _nft(self, name: str, rules: str) -> None:
        done = subprocess.run(
            [*self.command(name), "nft", "-f", "-"], input=rules.encode(), capture_output=True
        )
        assert done.returncode == 0, done.stderr


def _end(process: "subprocess.Popen[Any]") -> None:
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
