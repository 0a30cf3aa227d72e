"""What the owner of a device has chosen: the command line as one record."""

import argparse
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from potluck_agent.errors import AgentError
from potluck_agent.keys import TrustedPeer, default_state_dir
from potluck_agent.owner_rules import NO_RULES, OwnerRules
from potluck_agent.relay.invitations import Invitation, read_invitation
from potluck_wire.limits import is_device_name
from potluck_wire.messages import HOME

GIB = 1024**3
ARENA_BYTES = 1 * GIB  # each arena, at most; it takes real memory only where it is used


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Watts when idle, when computing, and on top of either while the radio is on."""

    idle_w: float
    busy_w: float
    radio_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `potluck agent start` was told. `memory_bytes` None: half of what this machine has.

    `kept_bytes`: of weights, between runs. `threads` None: as many as are fastest. `device` "":
    what is fastest. `backends`: those to compute with; empty: all that are installed. `record`:
    where to keep all that happens. `relay`: the invitation to a relay that it is reached through.
    `log_file` None: beside the keys. `rules`: when it takes part. `drain_s`: when it has to leave,
    what is under way has so long to move elsewhere.
    """

    name: str
    bind: str
    port: int
    state: Path
    memory_bytes: int | None = None
    kept_bytes: int = 0
    slowdown: float = 1.0
    link_bytes_per_s: float = 0.0
    emulated: bool = False
    power: Power | None = None
    threads: int | None = None
    device: str = ""
    backends: tuple[str, ...] = ()
    pair: bool = False
    record: Path | None = None
    relay: Invitation | None = None
    log_file: Path | None = None
    log_level: str = "info"
    trusted: tuple[TrustedPeer, ...] = ()
    parent_pid: int | None = None
    scratch: Path | None = None
    fork_server: Path | None = None
    mdns: bool = True
    as_json: bool = False
    ready_fd: int | None = None
    await_network_s: float = 0.0
    hang_s: float = 30.0
    grace_s: float = 30.0
    quiet: bool = False
    rules: OwnerRules = NO_RULES
    drain_s: float = 0.0
    system_root: Path = Path("/")

    @property
    def is_emulated(self) -> bool:
        """Whether it plays another device."""
        return self.emulated or self.slowdown != 1.0 or self.link_bytes_per_s > 0


def start_options(given: argparse.Namespace, own_parent: int) -> Options:
    """The options of `start`; AgentError where a name or an invitation cannot be."""
    return Options(
        name=device_name(given),
        bind=given.bind,
        port=given.port,
        state=state_dir(given),
        memory_bytes=given.memory,
        kept_bytes=given.keep,
        slowdown=given.slowdown,
        link_bytes_per_s=given.link_rate,
        emulated=given.emulated,
        power=given.power,
        threads=given.threads,
        device=given.device or "",
        backends=given.backends,
        pair=given.pair,
        record=given.record,
        relay=read_invitation(given.relay) if given.relay is not None else None,
        log_file=given.log_file,
        log_level=given.log_level,
        trusted=tuple(given.trust),
        parent_pid=given.parent_pid or (own_parent if given.die_with_parent else None),
        scratch=given.scratch,
        fork_server=given.fork_server,
        mdns=given.mdns,
        as_json=given.as_json,
        ready_fd=given.ready_fd,
        await_network_s=given.await_network,
        hang_s=given.hang,
        grace_s=given.grace,
        rules=OwnerRules(
            only_on_mains=given.only_on_mains,
            min_battery_frac=given.min_battery,
            max_temp_c=given.max_temp,
            quiet_hours=given.quiet_hours,
        ),
        drain_s=given.drain,
        system_root=given.system_root or Path("/"),
    )


def device_name(given: argparse.Namespace) -> str:
    """What it will be called; AgentError where that cannot be."""
    name = given.name if given.name is not None else host_name()
    if not is_device_name(name) or name == HOME:
        raise AgentError(
            f"{name!r} cannot be a device's name. Use 1-40 lower-case letters, digits and hyphens, "
            f"and not {HOME!r}."
        )
    return name


def state_dir(given: argparse.Namespace) -> Path:
    """Where this agent keeps its keys and peers."""
    return given.state if given.state is not None else default_state_dir()


def host_name() -> str:
    """This host's name as a device's name."""
    name = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:40]
    return name or "device"
