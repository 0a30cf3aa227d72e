"""Network namespaces joined by shaped links (Linux, root): made by `ip`, `tc` and `nft`, and gone
when we are.

Each namespace is held by a process that waits for the end of a pipe from us, and by the agent in
it. So nothing has to be removed: when this process ends, however it ends, the pipes close, the
agents end, and the kernel takes back the namespaces with all their links.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from potluck.errors import HomeError
from potluck.lab import cross_traffic, routes
from potluck.records import HOME, Network

PREFIX = "potluck"  # of our own interface in this namespace; a number follows
# set aside for tests of network devices (RFC 2544): no home and no company uses it
SUBNETS = "198.18"
HUB = "the hub"  # no device can be called so
INTERFACE = "eth0"  # what a device calls its own
COMMAND_S = 20.0
_TOOLS = ("ip", "tc", "unshare", "nsenter", "sh", "cat")
_CONFS = ("all", "default")
_SYSCTLS = (
    ("net/ipv4/ip_forward", 1),
    *(
        (f"net/ipv4/conf/{conf}/{setting}", 0)
        for conf in _CONFS
        for setting in ("rp_filter", "send_redirects")
    ),
)

_TRIAL = (
    "ip link add x type veth; tc qdisc add dev x root handle 1: htb; echo 1 > "
    "/proc/sys/net/ipv4/ip_forward"
)


def missing() -> str:
    """Why there can be no namespaces here; empty where there can."""
    if not sys.platform.startswith("linux"):
        return "only Linux has network namespaces"
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} is not installed (packages iproute2 and util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "sh", "-ec", _TRIAL], capture_output=True, timeout=COMMAND_S
    )
    return (
        f"this system permits none: {tried.stderr.decode(errors='replace').strip()}"
        if tried.returncode
        else ""
    )


class Namespaces:
    """A network of namespaces, one per device, and this one's own way in (`home`).

    Raises
    ------
    HomeError
        Where the system refuses; nothing is left behind.
    """

    def __init__(self, network: Network, devices: Sequence[str]) -> None:
        reason = missing()
        if reason:
            raise HomeError(f"links cannot be emulated by namespaces: {reason}.")
        self._pid = os.getpid()
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._loss: dict[str, float] = {}
        self._flows: list[subprocess.Popen[bytes]] = []
        self.interface = ""
        try:
            for name in (HUB, *devices):
                self._holders[name] = _hold()
            self._build(network, devices)
        except BaseException:
            self.close()
            raise

    def _build(self, network: Network, devices: Sequence[str]) -> None:
        self._inside(
            HUB,
            ["sh", "-c", " && ".join(f"echo {value} > /proc/sys/{key}" for key, value in _SYSCTLS)],
        )
        self.interface, self.layout = self._way_in(network, devices)
        lines = routes.hub_links(self.layout)
        for name in devices:
            lines += routes.plug(self.layout, name, INTERFACE, self._holders[name].pid)
        self._batch(HUB, "ip", [*lines, *routes.hub_routes(self.layout)])
        self._batch(HUB, "tc", routes.shapers(self.layout))
        for name in devices:
            self._batch(name, "ip", routes.device_links(self.layout, name, INTERFACE))
        _run(["ip", "-batch", "-"], routes.device_links(self.layout, HOME, self.interface))

    def _way_in(self, network: Network, devices: Sequence[str]) -> tuple[str, routes.Layout]:
        """Our interface and the subnet of its number: the first that no lab of this machine has."""
        hub = str(self._holders[HUB].pid)
        for number in range(256):
            layout, name = (
                routes.layout(network, devices, f"{SUBNETS}.{number}"),
                f"{PREFIX}{number}",
            )
            if os.path.exists(f"/sys/class/net/{name}"):
                continue
            with suppress(_Exists):
                _run(
                    [
                        "ip",
                        "link",
                        "add",
                        name,
                        "type",
                        "veth",
                        "peer",
                        "name",
                        layout.port(HOME),
                        "netns",
                        hub,
                    ]
                )
                return name, layout
        raise HomeError("256 labs are up already.", next_step="`potluck lab list` shows them.")

    def shape(self, medium: str, bytes_per_s: float) -> None:
        """Let this medium carry so much from now on."""
        self._batch(HUB, "tc", routes.rates(self.layout, medium, bytes_per_s))

    def lose(self, medium: str, loss_frac: float) -> None:
        """Let this medium lose such a part of its packets, at random."""
        self.need_loss()
        self._loss[medium] = loss_frac
        self._inside(HUB, ["nft", "-f", "-"], routes.losses(self.layout, self._loss))

    @staticmethod
    def need_loss() -> None:
        """HomeError where packets cannot be lost here."""
        if shutil.which("nft") is None:
            raise HomeError(
                "loss needs nftables.", next_step='apt-get install nftables, or links="relay".'
            )

    def flow(self, source: str, target: str, lasts_s: float) -> None:
        """Let somebody else send from one device to another, as much as gets through."""
        address, program = self.address(target), [sys.executable, str(Path(cross_traffic.__file__))]
        taker = subprocess.Popen(
            [*self.command(target), *program, "take", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._flows.append(taker)
        assert taker.stdout is not None
        with taker.stdout as output:
            port = output.readline().decode().strip()
        if not port:
            raise HomeError("somebody else's traffic has nobody who takes it.", device=target)
        command = [*self.command(source), *program, "give", address, port, str(lasts_s)]
        self._flows.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))

    @property
    def flows(self) -> tuple[subprocess.Popen[bytes], ...]:
        """The processes of what somebody else sends, who takes it before who sends it."""
        return tuple(self._flows)

    def calm(self) -> None:
        """End what somebody else sends."""
        for process in self._flows:
            process.kill()
            process.communicate()
        self._flows.clear()

    def command(self, device: str) -> list[str]:
        """What makes a command run on that device's network, put in front of it."""
        return ["nsenter", f"--net=/proc/{self._holders[device].pid}/ns/net", "--"]

    def address(self, device: str) -> str:
        """The address of a device."""
        return self.layout.address(device)

    def _inside(self, name: str, command: Sequence[str], lines: Iterable[str] = ()) -> None:
        _run([*self.command(name), *command], lines)

    def _batch(self, name: str, tool: str, lines: Iterable[str]) -> None:
        self._inside(name, [tool, "-batch", "-"], lines)

    def close(self) -> None:
        """Let go of all namespaces; safe to call twice, and in a forked child (where it does
        nothing).
        """
        if self._pid != os.getpid():
            return
        self.calm()
        # at once; the kernel clears namespaces away a little later
        if self._holders and self.interface:
            subprocess.run(
                ["ip", "link", "del", self.interface], capture_output=True, timeout=COMMAND_S
            )
        for holder in self._holders.values():
            for pipe in (holder.stdin, holder.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            try:
                holder.wait(COMMAND_S)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()
        self._holders.clear()


class _Exists(HomeError):
    """An interface of that name is there already."""


def _hold() -> "subprocess.Popen[bytes]":
    """A process that keeps a new namespace until the pipe to it is closed."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert holder.stdout is not None
    if not holder.stdout.readline():
        holder.communicate()
        raise HomeError("a network namespace could not be made.")
    return holder


def _run(command: Sequence[str], lines: Iterable[str] = ()) -> None:
    """Run to its end, with `lines` as its input; HomeError with what it said otherwise."""
    given = "".join(f"{line}\n" for line in lines).encode()
    done = subprocess.run(command, input=given, capture_output=True, timeout=COMMAND_S)
    if done.returncode:
        output = " ".join(done.stderr.decode(errors="replace").split())
        kind = _Exists if "File exists" in output else HomeError
        raise kind(f"links cannot be emulated: `{' '.join(command[-4:])}` says {output!r}.")
