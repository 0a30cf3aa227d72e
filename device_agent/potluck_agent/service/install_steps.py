"""What an installation is made of: files to write or remove, and commands to run, in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

ENDING_S = 10.0  # ports, worker and log are given back


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentService:
    """What is to be started, and for whom.

    `command`: the agent's command line, with absolute paths. `home`: the user's. `is_system`: it
    starts with the machine, else with the user's session. `drain_s`: that it takes to end, at most.
    """

    command: tuple[str, ...]
    user: str
    uid: int
    home: PurePath
    config: PurePath
    is_system: bool
    drain_s: float = 0.0

    @property
    def stop_s(self) -> float:
        """After which whoever stops it may kill it."""
        return self.drain_s + ENDING_S


@dataclass(frozen=True, slots=True)
class Write:
    """A file with this content; its folder is made."""

    path: PurePath
    data: bytes


@dataclass(frozen=True, slots=True)
class Remove:
    """A file that may be there."""

    path: PurePath


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command. `otherwise`: what follows where it fails, and the rest goes on; None: it must
    succeed. `retry_s`: for so long it is tried again.
    """

    line: tuple[str, ...]
    otherwise: str | None = None
    retry_s: float = 0.0


Step = Write | Remove | RunCommand
Steps = Sequence[Step]
