"""One of several notebooks, or coordinators, of a lab in memory: a home can be opened over each."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from potluck.errors import HomeError
from potluck.lab.scenario import Script
from potluck.sessions.connections import Keys
from potluck.sessions.local_agents import Started
from potluck.testing.memory.link import MemoryLink

if TYPE_CHECKING:
    from potluck.testing.memory.lab import MemoryLab


class InMemory:
    """A home over this is in one process: nobody else joins it, and it plays no scripts."""

    emulation = network = None

    def claim(self, give_way: Callable[[], bool]) -> None:
        """Nobody else can join it."""

    def play(self, script: Script) -> object:
        """Scripts need processes.

        Raises
        ------
        HomeError
            Always.
        """
        raise HomeError("a home in memory plays no scripts.", next_step="Use Home.lab().")


class MemoryNotebook(InMemory):
    """What `Home.over` needs of it; the devices stay when its home is closed.

    Parameters
    ----------
    lab
        Of the devices.
    name
        What the network calls it.
    keys
        Its own.
    """

    def __init__(self, lab: "MemoryLab", name: str, keys: Keys) -> None:
        self._lab = lab
        self._name = name
        self.keys = keys

    @property
    def started(self) -> Sequence[Started]:
        """The devices."""
        return self._lab.started

    def link(self) -> MemoryLink:
        """Its connection."""
        return self._lab.link_at(self._name)

    def close(self) -> None:
        """The devices are others', too."""
