"""A lab: real agents on this machine, and where a home of the library is played, its links and its times."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.lab.director import Director
from potluck.lab.emulation import Emulation, emulation
from potluck.lab.local import LocalAgents, Started
from potluck.lab.namespaces import Namespaces
from potluck.lab.script import Script, check, read, slowed
from potluck.lab.specs import NAMED, Spec, specs_of

if TYPE_CHECKING:
    from potluck.records import Network

Devices = str | Path | Iterable[Spec]


class Lab:
    """Started when made; `close` ends it all.

    Parameters
    ----------
    devices
        "demo", a home of `profiles/homes` by its name or as a TOML file, or specs.
    trust
        (name, key) of the notebook that the agents are paired with from the start.
    time_scale
        For a home of the library: how many times longer everything takes.
    script
        What happens when, from the moment that all agents are up: a TOML file or records of `lab.script`.
    """

    def __init__(
        self,
        devices: Devices,
        trust: tuple[str, str] | None,
        *,
        time_scale: float = 1.0,
        script: Script | None = None,
        announce: bool = False,
        extra: Sequence[str] = (),
    ) -> None:
        happenings = read(script) if script is not None else ()
        self.director: Director | None = None
        self.emulation: Emulation | None = None
        self.links: Namespaces | None = None
        if isinstance(devices, str | Path) and devices not in NAMED:
            self.emulation = emulation(devices, time_scale)
            specs = self.emulation.specs()
        elif time_scale != 1.0:
            raise UserError(
                "only homes of the library have a time scale.", next_step="Give each spec its own slowdown and link."
            )
        else:
            specs = specs_of(devices)
        check(happenings, [spec.name for spec in specs], self.media)
        if self.emulation is not None:
            self.links = Namespaces(self.emulation.network, [spec.name for spec in specs])
        self.agents = LocalAgents(specs, trust, announce=announce, extra=extra, inside=self.links)
        if happenings:
            self.play(happenings)

    @property
    def started(self) -> tuple[Started, ...]:
        """The agents that are up."""
        return self.agents.agents

    @property
    def network(self) -> "Network | None":
        """The network that is played."""
        return self.emulation.network if self.emulation is not None else None

    @property
    def media(self) -> tuple[str, ...]:
        """The media that a script may change."""
        return tuple(medium.name for medium in self.network.media) if self.network is not None else ()

    def play(self, script: Script) -> Director:
        """Let the happenings of a script happen from now on, in place of any other script."""
        happenings = read(script)
        check(happenings, [agent.name for agent in self.started], self.media)
        if self.director is not None:
            self.director.close()
        scale = self.emulation.time_scale if self.emulation is not None else 1.0
        self.director = Director([slowed(item, scale) for item in happenings], self.agents, self.links)
        return self.director

    def close(self) -> None:
        """End the agents, take the links away; safe to call twice, and in a forked child (where it does nothing)."""
        if self.director is not None:
            self.director.close()
        self.agents.close()
