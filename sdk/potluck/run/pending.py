"""What the controller waits for: sessions, questions to several devices, executions. Records only."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from potluck.errors import PotluckError
from potluck.run.events import Address, Launch, Payload, Session, Timeline
from potluck.run.pulse import Pulse
from potluck.run.traffic import Place, Raw, Traffic
from potluck_wire.messages import (
    Commit,
    Committed,
    Done,
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
COMMON_BEGIN = (1, 1)  # the version that has `Execute.begin_s`


def subject(message: Message) -> tuple[Any, ...]:
    """What a question and its answer have in common."""
    return tuple(getattr(message, name, "") for name in ("run", "epoch", "task"))


def is_over(drop: Drop, question: Message) -> bool:
    """Whether nobody will answer this question, because its run or epoch is dropped."""
    if not isinstance(question, Prepare | Commit):
        return False
    return question.run == drop.run and drop.epoch in (-1, question.epoch)


def read_timeline(message: Done, document: Any, offset_s: float) -> Timeline:
    """What a device did, on our clock. ValueError or TypeError where it cannot be read."""
    rows = tuple((int(i), start + offset_s, stop + offset_s) for i, start, stop in json.loads(bytes(document)))
    return Timeline(rows=rows, busy_s=message.busy_s, peak_bytes=message.peak_bytes)


@dataclass(slots=True)
class Peer:
    address: Address
    key: str
    join_ticket: int
    deadline_s: float
    traffic: Traffic
    pulse: Pulse
    session: Session | None = None

    def own_s(self, now_s: float) -> float:
        """This moment by the device's own clock; 0 where that is not known, or the device would not understand."""
        if self.session is None or self.session.version < COMMON_BEGIN or self.pulse.offset_s is None:
            return 0.0
        return now_s - self.pulse.offset_s


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


def startable(every: Sequence[Launched]) -> list[tuple[Launched, str]]:
    """Which executions may begin on which devices.

    Each waits, per device, for those of its run and lane before it; devices that begin together wait for all.
    """
    found: list[tuple[Launched, str]] = []
    busy: set[tuple[str, str, str]] = set()
    for launched in every:
        launch = launched.launch
        ready = [d for d in launched.to_start if (launch.run, launch.lane, d) not in busy]
        if not launch.together or len(ready) == len(launched.to_start):
            found += [(launched, device) for device in ready]
        if launch.lane:
            busy.update(
                (launch.run, launch.lane, device) for device in launch.devices if device not in launched.timelines
            )
    return found
