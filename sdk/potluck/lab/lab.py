"""A lab: real agents on this machine, and where a home of the library is played, its links and its
times.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import zmq

from potluck.discover.key_claim import KeyClaim, claim
from potluck.errors import HomeError, UserError
from potluck.lab.emulation import Emulation, emulation
from potluck.lab.namespaces import Namespaces, missing
from potluck.lab.registry import RunningLab, find, lock
from potluck.lab.relay_client import RelayClient
from potluck.lab.runner import Happened, ScenarioRunner, log
from potluck.lab.scenario import (
    Bandwidth,
    Loss,
    ScenarioContext,
    ScenarioEvent,
    Script,
    check,
    read,
)
from potluck.sessions.agent_specs import NAMED, Spec, specs_of
from potluck.sessions.connections import Keys
from potluck.sessions.curve_link import CurveLink
from potluck.sessions.link import SessionLink
from potluck.sessions.local_agents import LocalAgents, Started
from potluck.units import parse_rate

if TYPE_CHECKING:
    from potluck.records import Network

Devices = str | Path | Iterable[Spec]


class Playground(Protocol):
    """What a home needs of the lab that its agents are in."""

    @property
    def keys(self) -> Keys:
        """Those of the notebook that its agents trust."""

    @property
    def emulation(self) -> Emulation | None:
        """The home of the library that it plays."""

    @property
    def network(self) -> "Network | None":
        """The network that is played."""

    @property
    def started(self) -> tuple[Started, ...]:
        """The agents that are up."""

    def link(self) -> SessionLink:
        """A new connection to them."""

    def claim(self, give_way: Callable[[], bool]) -> None:
        """Ask `give_way()` before another home takes this lab."""

    def play(self, script: Script) -> object:
        """Play the events of a scenario from now on."""

    def close(self) -> None:
        """The home is closed."""


class Lab:
    """Started when made; `close` ends it all. `keys`: those of the notebook that its agents trust.

    Parameters
    ----------
    devices
        "demo", a home of `profiles/homes` by its name or as a TOML file, or specs.
    time_scale
        For a home of the library: how many times longer everything takes.
    script
        What happens when, from the moment that all agents are up: a TOML file or records of
        `lab.script`.
    tell
        Hears of each event, in a thread; by default failures are logged as warnings.
    links
        How those of a home of the library are made: "namespaces" or "relay". By default the first
        where it is possible and no path has a latency of its own (which the kernel cannot add
        everywhere).
    """

    def __init__(
        self,
        devices: Devices,
        *,
        time_scale: float = 1.0,
        script: Script | None = None,
        tell: Callable[[Happened], None] = log,
        links: str = "",
        announce: bool = False,
        extra: Sequence[str] = (),
    ) -> None:
        events = read(script) if script is not None else ()
        if links not in ("", "namespaces", "relay"):
            raise UserError(
                f"there are no links by {links!r}.", next_step="namespaces and relay are possible."
            )
        public, secret = (part.decode() for part in zmq.curve_keypair())
        self.keys = Keys(public=public, secret=secret)
        self.scenario: ScenarioRunner | None = None
        self.emulation: Emulation | None = None
        self.links: Namespaces | RelayClient | None = None
        if isinstance(devices, str | Path) and devices not in NAMED:
            self.emulation = emulation(devices, time_scale)
            specs = self.emulation.specs()
        elif time_scale != 1.0:
            raise UserError(
                "only homes of the library have a time scale.",
                next_step="Give each spec its own slowdown and link.",
            )
        elif links:
            raise UserError(
                "only homes of the library have links of another kind.",
                next_step="Agents pace a spec's own link.",
            )
        else:
            specs = specs_of(devices)
        self._emulated = frozenset(
            spec.name for spec in specs if spec.emulated or spec.slowdown > 1.0
        )
        self._notify = tell
        self._check(events, [spec.name for spec in specs])
        inside = None
        if (
            self.emulation is not None
            and (links or _best_links(self.emulation.network)) == "namespaces"
        ):
            self.links = inside = Namespaces(self.emulation.network, [spec.name for spec in specs])
        self.agents = LocalAgents(
            specs, ("notebook", public), announce=announce, extra=extra, inside=inside
        )
        try:
            if self.emulation is not None and inside is None:
                self.links = RelayClient(self.emulation.network, self.agents.agents)
            if events:
                self.play(events)
        except BaseException:
            self.close()
            raise

    @property
    def started(self) -> tuple[Started, ...]:
        """The agents that are up."""
        return self.links.agents if isinstance(self.links, RelayClient) else self.agents.agents

    @property
    def network(self) -> "Network | None":
        """The network that is played."""
        return self.emulation.network if self.emulation is not None else None

    def link(self) -> SessionLink:
        """A new connection of the notebook's."""
        return CurveLink(self.keys)

    def claim(self, give_way: Callable[[], bool]) -> None:
        """Nobody else can join a lab of this program's own."""

    def play(self, script: Script) -> ScenarioRunner:
        """Play the events of a scenario from now on, in place of any other script."""
        events = read(script)
        names = [agent.name for agent in self.started]
        self._check(events, names, [name for name in names if not self.agents.is_there(name)])
        if isinstance(self.links, Namespaces) and any(isinstance(item, Loss) for item in events):
            self.links.need_loss()
        if self.scenario is not None:
            self.scenario.close()
        scale = self.emulation.time_scale if self.emulation is not None else 1.0
        self.scenario = ScenarioRunner(
            events, self.agents, self.links, time_scale=scale, tell=self._notify
        )
        return self.scenario

    def _check(
        self, events: Iterable[ScenarioEvent], devices: Sequence[str], absent: Sequence[str] = ()
    ) -> None:
        media = [medium.name for medium in self.network.media] if self.network is not None else []
        check(
            events,
            ScenarioContext(devices=devices, media=media, emulated=self._emulated, absent=absent),
        )
        for item in events:
            if isinstance(item, Bandwidth) and self.emulation is not None:
                self.emulation.check_rate(item.medium, parse_rate(item.rate))

    def close(self) -> None:
        """End the agents, take the links away.

        Safe to call twice, and in a forked child (where it does nothing).
        """
        if self.scenario is not None:
            self.scenario.close()
        self.agents.close()
        if self.links is not None:
            self.links.close()


def _best_links(network: "Network") -> str:
    late = any(path.latency_s > 0 for path in network.paths.values())
    return "relay" if late or missing() else "namespaces"


class JoinedLab:
    """A lab that another process has up (`potluck lab up`): used here by one home at a time, and
    ended there.
    """

    def __init__(self, entry: RunningLab) -> None:
        self._lock = lock(entry.name)
        self._claim: KeyClaim | None = claim(
            self._lock.parent, self._lock.name, otherwise=", or play another lab"
        )
        self.keys = Keys(public=entry.public, secret=entry.secret)
        self.emulation = None if entry.home in NAMED else emulation(entry.home, entry.time_scale)
        self.started = entry.agents
        self.network = self.emulation.network if self.emulation is not None else None

    def link(self) -> SessionLink:
        """A new connection of the notebook's."""
        return CurveLink(self.keys)

    def claim(self, give_way: Callable[[], bool]) -> None:
        """Ask `give_way()` whether this lab is free by now, when another home of this program joins
        it.
        """
        if self._claim is not None:
            self._claim.give_way = give_way

    def play(self, script: Script) -> ScenarioRunner:
        """Scripts belong to whoever has the lab up."""
        raise HomeError(
            "this lab is another process's.",
            next_step="Give the script to `potluck lab up --script`.",
        )

    def close(self) -> None:
        """It stays up, and another home may join it."""
        if self._claim is not None:
            self._lock.unlink(missing_ok=True)
            self._claim.close()
            self._claim = None


def open_lab(
    devices: Devices,
    *,
    time_scale: float = 1.0,
    script: Script | None = None,
    links: str = "",
    extra: Sequence[str] = (),
) -> Lab | JoinedLab:
    """The lab of that name that is up already, or a new one.

    Raises
    ------
    UserError
        Where the one that is up is another than the one asked for.
    """
    entry = find(devices) if isinstance(devices, str) else None
    if entry is None:
        return Lab(devices, time_scale=time_scale, script=script, links=links, extra=extra)
    if time_scale not in (1.0, entry.time_scale) or script is not None or links or extra:
        raise UserError(
            f"the lab {entry.name!r} is up already, {entry.time_scale:g} times slower than "
            "the home.",
            next_step=f"Join it as it is, or end it: potluck lab down {entry.name}.",
        )
    return JoinedLab(entry)
