"""A lab: real agents on this machine, and where a home of the library is played, its links and its times."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.lab.emulation import Emulation, emulation
from potluck.lab.local import LocalAgents, Started
from potluck.lab.namespaces import Namespaces
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
    """

    def __init__(
        self,
        devices: Devices,
        trust: tuple[str, str] | None,
        *,
        time_scale: float = 1.0,
        announce: bool = False,
        extra: Sequence[str] = (),
    ) -> None:
        self.emulation: Emulation | None = None
        self.links: Namespaces | None = None
        if isinstance(devices, str | Path) and devices not in NAMED:
            self.emulation = emulation(devices, time_scale)
            specs = self.emulation.specs()
            self.links = Namespaces(self.emulation.network, [spec.name for spec in specs])
        elif time_scale != 1.0:
            raise UserError(
                "only homes of the library have a time scale.", next_step="Give each spec its own slowdown and link."
            )
        else:
            specs = specs_of(devices)
        self.agents = LocalAgents(specs, trust, announce=announce, extra=extra, inside=self.links)

    @property
    def started(self) -> tuple[Started, ...]:
        """The agents that are up."""
        return self.agents.agents

    @property
    def network(self) -> "Network | None":
        """The network that is played."""
        return self.emulation.network if self.emulation is not None else None

    def close(self) -> None:
        """End the agents, take the links away; safe to call twice, and in a forked child (where it does nothing)."""
        self.agents.close()
