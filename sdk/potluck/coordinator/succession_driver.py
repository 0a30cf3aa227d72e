"""A coordinator in line: feeds `Succession`, asks the devices, and does what comes out."""

import json
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from potluck.coordinator.coordinator_group import MAX_SEATS
from potluck.coordinator.periodic_task import THREADS, Pace, PeriodicTask
from potluck.coordinator.succession import (
    ACTING,
    FOLLOWING,
    AskVoters,
    Begin,
    End,
    Event,
    Grew,
    JournalReport,
    LeaderAnswered,
    Record,
    Resign,
    Succession,
    Tick,
    Voted,
)
from potluck.documents import read_json
from potluck.errors import FileError, PotluckError
from potluck_wire.limits import is_key
from potluck_wire.messages import Lease, Leased

LOG = logging.getLogger("potluck.coordinator")
TICK_S = 0.1
PULL_S = 0.2
GONE_S = 1.0  # for devices to hear that the lease is given back

AskDevice = Callable[[str, Lease], "Future[Leased] | None"]


class CoordinatorRole(Protocol):
    """What a coordinator does about a job that it shares; each is quick but for the pulls."""

    def begin(self, term: int) -> None:
        """Train it."""

    def end(self, why: str) -> None:
        """Train it no more: another one does, or will."""

    def report(self, position: int) -> None:
        """The journal may be told up to here."""

    def sync(self) -> int:
        """The journal is on our disk up to here."""

    def pull(self, leader: str) -> tuple[int, int] | None:
        """Copy the journal of whoever acts; how much of it is here, and its term."""

    def pull_state(self, leader: str) -> None:
        """Copy its latest state, where that is newer than ours."""

    def is_over(self) -> bool:
        """Whether nothing is left to do or to copy."""

    def on_leave(self) -> None:
        """The line is left."""


class SuccessionDriver:
    """The place of one coordinator in the line of a job, until it is left.

    Parameters
    ----------
    machine
        Its part in the succession.
    lease
        What devices call it.
    ask
        Asks the device of this key.
    part
        What it does.
    pace
        How it is looked after.
    """

    def __init__(
        self,
        machine: Succession,
        lease: str,
        ask: AskDevice,
        part: CoordinatorRole,
        pace: Pace = THREADS,
    ) -> None:
        self.machine = machine
        self._lease = lease
        self._ask = ask
        self._part = part
        self._clock, self._begin = pace.clock, pace.beats
        self._events: deque[Event] = deque()
        self._leaving, self._synced = False, -1
        self._beats: list[PeriodicTask] = []

    def start(self) -> None:
        """Stand in line from now on."""
        self._beats = [
            self._begin("stand", TICK_S, self._stand, self._part.on_leave),
            self._begin("pull", PULL_S, self._pull, _nothing),
            self._begin("pull states", PULL_S, self._pull_state, _nothing),
        ]

    def notify(self, event: Event) -> None:
        """Something has happened.

        Parameters
        ----------
        event
            For the machine.
        """
        self._events.append(event)
        for beat in self._beats[:1]:
            beat.wake()

    def leave(self) -> None:
        """Leave the line; who acts gives the lease back. Waits for that."""
        self._leaving = True
        for beat in self._beats:
            beat.wake()
        for beat in self._beats:
            beat.join()

    @property
    def acts(self) -> bool:
        """Whether it acts now."""
        return self.machine.role == ACTING and self._clock() < self.machine.held_until_s

    # --- again and again --------------------------------------------------------------------------

    def _stand(self) -> bool:
        """Tick, and feed what has happened; whether it is still in line."""
        if self._leaving or self._part.is_over():
            self._leaving = True
            self._feed(Resign())
            return False
        self._feed(Tick())
        if self.machine.role == ACTING and (now := self._sync()) != self._synced:
            self._synced = now
            self._feed(Grew(now))
        while self._events:
            self._feed(self._events.popleft())
        return True

    def _sync(self) -> int:
        try:
            return self._part.sync()
        except PotluckError:  # the work on it ends with the same
            return self.machine.reached

    @property
    def _copies(self) -> bool:
        """Whether it is to copy what another has."""
        machine = self.machine
        return machine.role == FOLLOWING and machine.leader not in ("", machine.me)

    def _pull(self) -> bool:
        leader = self.machine.leader
        if self._copies and not self._leaving:
            try:
                copied = self._part.pull(leader)
            except (PotluckError, OSError) as error:
                LOG.debug("no copy of the journal: %s", error)
                return True
            if copied is not None:
                self.notify(Grew(copied[0]))
                self.notify(LeaderAnswered(leader, copied[1]))
        return not self._leaving

    def _pull_state(self) -> bool:
        if self._copies and not self._leaving:
            try:
                self._part.pull_state(self.machine.leader)
            except (PotluckError, OSError) as error:
                LOG.debug("no copy of the state: %s", error)
        return not self._leaving

    # --- the machine ------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        for action in self.machine.handle(event, self._clock()):
            match action:
                case AskVoters():
                    self._ask_voters(action)
                case Begin(term):
                    self._part.begin(term)
                case End(why) if why:
                    self._part.end(why)
                case JournalReport(position):
                    self._part.report(position)

    def _ask_voters(self, action: AskVoters) -> None:
        lease = Lease(
            task=f"lease-{action.term}-{action.number}",
            name=self._lease,
            term=action.term,
            serial=action.serial,
            lasts_s=action.lasts_s,
            record=as_text(action.record) if action.record is not None else "",
        )
        for voter in self.machine.voters:
            with suppress(PotluckError):  # the home is closed
                answer = self._ask(voter, lease)
                if answer is not None:
                    answer.add_done_callback(self._on_vote(voter, action.number))

    def _on_vote(self, voter: str, number: int) -> "Callable[[Future[Leased]], None]":
        def hear(done: "Future[Leased]") -> None:
            if done.cancelled() or done.exception() is not None:
                return
            answer = done.result()
            voted = Voted(
                voter=voter,
                number=number,
                granted=answer.granted,
                term=answer.term,
                left_s=answer.left_s,
                ballot=(answer.accepted_term, answer.accepted_serial),
                record=read_record(answer.record),
            )
            self.notify(voted)

        return hear


def as_text(record: Record) -> str:
    """A record as devices keep it.

    Parameters
    ----------
    record
        Of at most `coordinator_group.MAX_SEATS` coordinators.
    """
    return json.dumps([record.leader, *record.in_sync], separators=(",", ":"))


def read_record(text: str) -> Record | None:
    """A record as devices keep it; None where it is none.

    Parameters
    ----------
    text
        Of `as_text`.
    """
    try:
        rows: Any = read_json(text, "a record")
    except FileError:
        return None
    if not isinstance(rows, list) or not 1 <= len(rows) <= 1 + MAX_SEATS:
        return None
    if not all(map(_is_key, rows)):
        return None
    return Record(rows[0], tuple(rows[1:]))


def _is_key(row: object) -> bool:
    return type(row) is str and is_key(row)


def _nothing() -> None:
    """At the end of a pull."""
