"""What devices were asked, one thing each (prepare, commit, drop, measure, a probe), and who has
not answered. Pure.

Every method returns what to do about it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from potluck.errors import PotluckError
from potluck.sessions.events import Action, Payload, Reject, Resolve
from potluck_wire.messages import (
    NUMBER_OF,
    Commit,
    Committed,
    Drop,
    Dropped,
    Goodbye,
    GrantService,
    Lease,
    Leased,
    Measure,
    Measured,
    Message,
    Meter,
    Prepare,
    Prepared,
    Probe,
    Probed,
    Refused,
    Roster,
    RosterSet,
    ServiceGranted,
    Value,
)
from potluck_wire.replies import check_seconds, check_timings

ANSWERS: dict[type[Message], type[Message]] = {
    Roster: RosterSet,
    Prepare: Prepared,
    Commit: Committed,
    Drop: Dropped,
    Measure: Measured,
    Probe: Probed,
    Lease: Leased,
    GrantService: ServiceGranted,
}
UNANSWERED = (Meter, Goodbye)
# how long a device that lives may take to answer: what it has at hand; what frees memory; and what
# loads, compiles or computes, at most
AT_HAND_S = 10.0
FREES_S = 60.0
WORKS_S = 900.0
ANSWER_S: dict[type[Message], float] = {
    Roster: AT_HAND_S,
    Lease: AT_HAND_S,
    GrantService: AT_HAND_S,
    Commit: FREES_S,
    Drop: FREES_S,
}
LEAST_BYTES_PER_S = 64 << 10  # what comes with a question is under way before it can be answered


@dataclass(slots=True)
class PendingRequest:
    """One question to several devices: what each of them was asked, and what those said that have
    answered.
    """

    waiting: dict[str, Message]
    most_s: float = WORKS_S
    passed_s: float = 0.0
    answers: dict[str, Payload] = field(default_factory=dict)
    since_s: float = 0.0


class PendingRequests:
    """All that is open, by ticket."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingRequest] = {}

    def ask(self, ticket: int, requests: Mapping[str, Payload]) -> list[Action]:
        """These messages go to these devices; the last answer resolves the ticket."""
        waiting = {
            device: message
            for device, (message, _) in requests.items()
            if not isinstance(message, UNANSWERED)
        }
        if not waiting:
            return [Resolve(ticket=ticket, result={})]
        nbytes = sum(memoryview(part).nbytes for _, parts in requests.values() for part in parts)
        most_s = max(ANSWER_S.get(type(message), WORKS_S) for message in waiting.values())
        self._pending[ticket] = PendingRequest(waiting, most_s + nbytes / LEAST_BYTES_PER_S)
        return []

    def pass_time(self, seconds: float) -> list[tuple[str, Message, float]]:
        """Who should have answered what by now, and the seconds that it has had.

        Parameters
        ----------
        seconds
            That have passed, and in which answers were heard.
        """
        late = []
        for request in self._pending.values():
            request.passed_s += seconds
            if request.passed_s > request.most_s:
                late += [
                    (name, message, request.passed_s) for name, message in request.waiting.items()
                ]
        return late

    def probe(self, ticket: int, device: str, now_s: float) -> None:
        """A value goes to the device, only to see how long it takes."""
        self._pending[ticket] = PendingRequest({device: Value()}, since_s=now_s)

    def probed(self, ticket: int, now_s: float) -> list[Action]:
        """All of that value is there."""
        request = self._pending.pop(ticket, None)
        return [Resolve(ticket=ticket, result=now_s - request.since_s)] if request else []

    def answered(self, device: str, message: Message, buffers: tuple[Any, ...]) -> list[Action]:
        """A device has said this. WireError where it is no answer to what was asked."""
        for ticket, question in self._open(device):
            if ANSWERS.get(type(question)) is type(message) and _subject(question) == _subject(
                message
            ):
                if isinstance(question, Measure) and isinstance(message, Measured):
                    check_timings(question, message)
                if isinstance(question, Probe) and isinstance(message, Probed):
                    check_seconds(question, message)
                request = self._pending[ticket]
                del request.waiting[device]
                request.answers[device] = (message, buffers)
                if request.waiting:
                    return []
                del self._pending[ticket]
                return [Resolve(ticket=ticket, result=request.answers)]
        return []

    def refused(self, device: str, message: Refused, error: PotluckError) -> list[Action]:
        """A device will not do what it was asked."""
        for ticket, question in self._open(device):
            is_of_it = _run_of(question) in ((message.run, message.epoch), ("", ""))
            if NUMBER_OF[type(question)] == message.about and is_of_it:
                return self.cancel(ticket, error)
        return []

    def give_up(
        self,
        device: str,
        error: PotluckError,
        which: Callable[[Message], bool] = lambda question: True,
    ) -> list[Action]:
        """The device will not answer these questions (default: any)."""
        ended = [ticket for ticket, question in self._open(device) if which(question)]
        return [action for ticket in ended for action in self.cancel(ticket, error)]

    def cancel(self, ticket: int, error: PotluckError | None = None) -> list[Action]:
        """Nobody waits for this any more; whoever did is told the error."""
        known = self._pending.pop(ticket, None) is not None
        return [Reject(ticket=ticket, error=error)] if known and error is not None else []

    def _open(self, device: str) -> list[tuple[int, Message]]:
        """What the device has been asked and not answered."""
        return [
            (ticket, request.waiting[device])
            for ticket, request in self._pending.items()
            if device in request.waiting
        ]


def _subject(message: Message) -> tuple[Any, ...]:
    """What a question and its answer have in common."""
    if isinstance(message, GrantService | ServiceGranted):
        return (message.service,)
    return (*_run_of(message), getattr(message, "task", ""))


def _run_of(message: Message) -> tuple[Any, Any]:
    return getattr(message, "run", ""), getattr(message, "epoch", "")
