"""What the controller waits for: sessions, questions to several devices, executions. Records only."""

from dataclasses import dataclass, field
from typing import Any

from potluck.errors import PotluckError
from potluck.run.events import Address, Launch, Payload, Session, Timeline
from potluck.run.pulse import Pulse
from potluck.run.traffic import Place, Raw, Traffic
from potluck_wire.messages import (
    Commit,
    Committed,
    Drop,
    Dropped,
    Goodbye,
    Hello,
    Measure,
    Measured,
    Message,
    Meter,
    Prepare,
    Prepared,
    Probe,
    Probed,
    Roster,
    RosterSet,
    Welcome,
)

ANSWERS: dict[type[Message], type[Message]] = {
    Hello: Welcome, Roster: RosterSet, Prepare: Prepared, Commit: Committed, Drop: Dropped, Measure: Measured,
    Probe: Probed,
}  # fmt: skip
UNANSWERED = (Meter, Goodbye)


def subject(message: Message) -> tuple[Any, ...]:
    """What a question and its answer have in common."""
    return tuple(getattr(message, name, "") for name in ("run", "epoch", "task"))


@dataclass(slots=True)
class Peer:
    address: Address
    key: str
    join_ticket: int
    deadline_s: float
    traffic: Traffic
    pulse: Pulse
    session: Session | None = None


@dataclass(slots=True)
class Asking:
    waiting: dict[str, Message]
    answers: dict[str, Payload] = field(default_factory=dict)
    since_s: float = 0.0


@dataclass(slots=True)
class Launched:
    launch: Launch
    start_s: float
    waiting_values: set[tuple[str, str]]
    to_start: list[str]
    running: set[str] = field(default_factory=set)
    outputs: dict[tuple[str, str], Raw] = field(default_factory=dict)
    timelines: dict[str, Timeline] = field(default_factory=dict)
    suspicion: tuple[float, PotluckError] | None = None  # fail with this after that time, unless a better cause appears

    @property
    def place(self) -> Place:
        launch = self.launch
        return (launch.run, launch.epoch, launch.program, launch.step)
