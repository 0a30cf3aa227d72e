"""What was seen of a home and its run at one moment: what the cockpit's machine takes in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from potluck.adapt.adapter import Decision
from potluck.records import Network, Plan, Problem, Trace
from potluck.run.history import History
from potluck.sessions.members import Member


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservation:
    """A run. `n_done`: steps, or requests. `latest`: its newest step, where that is not the one
    that was seen before. `last_s`: seconds since a step ended. `number` tells runs apart.
    `is_imagined`: nothing runs, and its step is simulated.
    """

    number: int = 0
    plan: Plan
    n_done: int
    history: History
    ended: str = ""
    is_training: bool = False
    is_imagined: bool = False
    problem: Problem | None = None
    used_bytes: Mapping[str, int] = field(default_factory=dict)
    step_s: Sequence[float] = ()
    latest: Trace | None = None
    latest_step: int = -1
    last_s: float = float("inf")
    predicted: Trace | None = None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What the adapter said."""
        return self.history.decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class CockpitObservation:
    """A home. `can_pair`: its agents are not paired already, as those of a lab are. `given`: who
    asked for it, or took it over.
    """

    members: tuple[Member, ...] = ()
    network: Network | None = None
    run: RunObservation | None = None
    is_closed: bool = False
    given: str = ""
    can_pair: bool = False
