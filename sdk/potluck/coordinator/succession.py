"""Who of several coordinators acts, and who is next: `handle(event, now_s) -> actions`. Pure.

The devices of a training vote. To take over, a coordinator needs the promise of a majority of them;
to keep acting, a set that every majority meets (Howard, Malkhi and Spiegelman, "Flexible Paxos",
2016), so that of two devices one may go. What devices keep is a small record: who acts, and whose
copies of the journal have all that was ever told to anybody (`in_sync`; Lin et al., "PacificA",
2008, and there the configuration, kept by Paxos). Only they take over.

Why it holds:

1. To take over, a coordinator needs the promise of a newer term by a majority. Its acts then need a
   set that meets every majority. Both kinds of sets meet, so the latest record that counts is
   always read.
2. A step is told to notebooks once every copy in sync has it on disk. A copy leaves the record
   before telling goes on without it, and comes in once it has all that was told. So whoever is in
   the latest record has all that was told.
3. Devices drop runs of older terms, and refuse them. So one that stood still beyond its lease does
   nothing when it wakes up. A copy never takes lines from an older term than its own.
4. While a lease runs, no device promises a newer term to another. So two never compute at once, as
   long as clocks run at about the same rate. Points 1 to 3 need no clock.

The voters are those devices that were there when the first coordinator joined, and never change.
`tests/sdk/coordinator/interleavings.py` searches the orders of events, with loss, repeats, delays
and restarts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.coordinator.coordinator_group import MAX_SEATS

LEASE_S = 5.0
HELD_S = 0.98 * LEASE_S  # by the holder's clock, from when it asked: clocks differ by less
RENEW_S = 1.0
PROMISE_S = 2.0  # a promise is worth so long, and a coordinator waits so long for promises
RETRY_S = 0.5
STAGGER_S = 0.7  # the next in line asks so much later than the one before it
# A term is one more than the last whenever somebody asks, twice a second at most. Whoever tells of
# one that is newer by more may lie, and is followed no further at once: terms have an end.
MAX_NEWER = 1_000_000
LAG_S = 4.0  # a copy that was not asked for by its holder in so long does not count any more

FOLLOWING = "following"
ASKING = "asking"
TAKING = "taking"
ACTING = "acting"


@dataclass(frozen=True, slots=True)
class Record:
    """What devices keep: who acts, and whose copies have all that was told, by their keys."""

    leader: str
    in_sync: tuple[str, ...]


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Voted:
    """A device has answered the question of this number; as `potluck_wire.messages.Leased`."""

    voter: str
    number: int
    granted: bool
    term: int
    left_s: float
    ballot: tuple[int, int]
    record: Record | None


@dataclass(frozen=True, slots=True)
class LeaderAnswered:
    """The coordinator that acts in this term has answered: this copy is as new as it says."""

    leader: str
    term: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """Another's copy of the journal is the same as ours up to this position."""

    by: str
    position: int


@dataclass(frozen=True, slots=True)
class Grew:
    """The journal is on our disk up to this position."""

    position: int


@dataclass(frozen=True, slots=True)
class Resign:
    """We act no longer, and whoever is next need not wait for the lease to end."""


Event = Tick | Voted | LeaderAnswered | Pulled | Grew | Resign

# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskVoters:
    """Ask every device; as `potluck_wire.messages.Lease`."""

    number: int
    term: int
    serial: int
    lasts_s: float
    record: Record | None


@dataclass(frozen=True, slots=True)
class Begin:
    """Act, in this term."""

    term: int


@dataclass(frozen=True, slots=True)
class End:
    """Act no more, and say why."""

    why: str


@dataclass(frozen=True, slots=True)
class JournalReport:
    """The journal may be told up to this position: nobody takes over without it."""

    position: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Keep a copy of what this one has."""

    leader: str


Action = AskVoters | Begin | End | JournalReport | Follow


class Succession:
    """One coordinator's part. Every attribute is a plain value that is replaced, never changed.

    Parameters
    ----------
    me
        Its key.
    rank
        Its place in the line, from 0 on.
    voters
        The keys of the devices that vote; the same for all coordinators, for good.
    term
        The newest that its journal knows.
    reached
        The journal is on its disk up to here.
    founds
        It has the only copy there is.
    """

    def __init__(
        self,
        me: str,
        rank: int,
        voters: tuple[str, ...],
        *,
        term: int = 0,
        reached: int = 0,
        founds: bool = False,
    ) -> None:
        self.me = me
        self.rank = rank
        self.voters = voters
        self.founds = founds
        self.role = FOLLOWING
        self.term = term
        self.reached = reached
        self.reported = 0
        self.leader, self.why = "", ""
        self._followed = term  # the newest term whose coordinator this copy is of
        self.held_until_s = float("-inf")
        self.record: Record | None = None  # in force while we act
        self._next_s = float("-inf")  # when to ask for promises
        self._number = 0
        self._serial = 0
        self._asked_s = float("-inf")
        self._granted: frozenset[str] = frozenset()
        self._denied: frozenset[str] = frozenset()
        self._latest: tuple[tuple[int, int], Record] | None = None
        self._left_s = 0.0
        self._pending: Record | None = None  # is written, and not known to be
        self._needed: frozenset[str] = frozenset()  # whose copies count
        self._copies: Mapping[
            str, tuple[int, float]
        ] = {}  # how far they are, and when they said so
        self._offered: Mapping[str, int] = {}  # how far the journal was then
        self._joining: frozenset[str] = frozenset()  # are to count: nothing is told without them
        self._actions: list[Action] = []

    @property
    def n_to_take(self) -> int:
        """Devices that have to promise."""
        return len(self.voters) // 2 + 1

    @property
    def n_to_keep(self) -> int:
        """Devices that every majority meets."""
        return len(self.voters) - self.n_to_take + 1

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do because of this event, in order.

        Parameters
        ----------
        event
            What has happened.
        now_s
            By a clock that goes on while the machine sleeps.
        """
        self._actions = []
        if self.role == ACTING and now_s >= self.held_until_s:
            self._end("too few devices renewed its lease.", now_s)
        match event:
            case Tick():
                self._tick(now_s)
            case Voted():
                self._voted(event, now_s)
            case LeaderAnswered():
                self._leader_answered(event, now_s)
            case Pulled() if self.role == ACTING:
                self._pulled(event, now_s)
            case Grew():
                self.reached = event.position
                self._report()
            case Resign() if self.role == ACTING:
                self._ask(self._serial, 0.0, self._pending or self.record, now_s)
                self._end("", now_s)
        return self._actions

    # --- following --------------------------------------------------------------------------------

    def _leader_answered(self, event: LeaderAnswered, now_s: float) -> None:
        is_at_it = self.role != FOLLOWING
        if event.leader == self.me or event.term < (self.term if is_at_it else self._followed):
            return
        if is_at_it:
            self._end("another one acts in a newer term.", now_s)
        self._follow_term(event.term)
        self._followed = min(event.term, self.term)
        self.leader, self.why = event.leader, ""
        self._next_s = now_s + LEASE_S + self.rank * STAGGER_S

    def _tick(self, now_s: float) -> None:
        if self.role == FOLLOWING and now_s >= self._next_s:
            self.role = ASKING
            self._latest = None
            self.term = self.term + 1
            self._left_s = 0.0
            self._ask(0, PROMISE_S, None, now_s)
        elif self.role in (ASKING, TAKING) and now_s >= self._asked_s + PROMISE_S:
            self._wait(now_s)
        elif self.role == ACTING:
            self._renew(now_s)

    def _ask(self, serial: int, lasts_s: float, record: Record | None, now_s: float) -> None:
        self._number = self._number + 1
        self._asked_s = now_s
        self._serial = serial
        self._granted = self._denied = frozenset()
        self._actions.append(AskVoters(self._number, self.term, serial, lasts_s, record))

    def _wait(self, now_s: float) -> None:
        """Not this time: follow whoever acts, and ask again."""
        self.role = FOLLOWING
        self._next_s = now_s + max(RETRY_S, self._left_s) + self.rank * STAGGER_S
        if self._latest is not None and self._latest[1].leader != self.me:
            self.leader = self._latest[1].leader
            self._actions.append(Follow(self.leader))

    # --- answers ----------------------------------------------------------------------------------

    def _voted(self, event: Voted, now_s: float) -> None:
        if event.number != self._number or event.voter not in self.voters:
            return
        if event.granted:
            self._granted |= {event.voter}
        else:
            self._denied |= {event.voter}
        if event.record is not None and (self._latest is None or event.ballot > self._latest[0]):
            self._latest = event.ballot, event.record
        if not event.granted:
            self._refused(event, now_s)
        elif self.role == ASKING and len(self._granted) >= self.n_to_take:
            self._take(now_s)
        elif self.role == TAKING and len(self._granted) >= self.n_to_keep:
            self._begin(now_s)
        elif self.role == ACTING and len(self._granted) >= self.n_to_keep:
            self._renewed(now_s)

    def _refused(self, event: Voted, now_s: float) -> None:
        newer = event.term > self.term
        if self.role == ACTING and newer:
            self._follow_term(event.term)
            self._end("another one acts in a newer term.", now_s)
            return
        needed = self.n_to_take if self.role == ASKING else self.n_to_keep
        if self.role in (ASKING, TAKING):
            self._follow_term(event.term)
            self._left_s = max(self._left_s, min(event.left_s, LEASE_S))
            if len(self.voters) - len(self._denied) < needed or (self.role == TAKING and newer):
                self._wait(now_s)

    def _follow_term(self, term: int) -> None:
        self.term = max(self.term, min(term, self.term + MAX_NEWER))

    def _take(self, now_s: float) -> None:
        """A majority has promised: write that we act, if our copy has all that was told."""
        if self._latest is None:
            in_sync: tuple[str, ...] = (self.me,) if self.founds else ()
        else:
            in_sync = self._latest[1].in_sync
        if self.me not in in_sync:
            complete = ", ".join(in_sync) or "nobody"
            self.why = f"its copy is older than what was told; complete ones: {complete}."
            self._left_s = LEASE_S
            self._wait(now_s)
            return
        self.role, self._pending = TAKING, Record(self.me, in_sync)
        self._ask(1, LEASE_S, self._pending, now_s)

    # --- acting -----------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        self.role = ACTING
        self.leader = self.me
        self.why = ""
        self._followed = self.term
        assert self._pending is not None
        others = set(self._pending.in_sync) - {self.me}
        self._copies, self._offered = dict.fromkeys(others, (0, now_s)), {}
        self._joining = frozenset()
        self._renewed(now_s)
        self._actions.append(Begin(self.term))

    def _renewed(self, now_s: float) -> None:
        self.held_until_s = self._asked_s + HELD_S
        if self._pending is not None:
            self.record, self._pending = self._pending, None
        assert self.record is not None
        self._joining = frozenset(key for key in self._joining if not self._lags(key, now_s))
        self._needed = (frozenset(self.record.in_sync) | self._joining) - {self.me}
        self._report()

    def _renew(self, now_s: float) -> None:
        is_heard = len(self._granted) >= self.n_to_keep
        if now_s < self._asked_s + (RENEW_S if is_heard else 2 * RENEW_S):
            return
        record = self._pending or self.record
        assert record is not None
        left = tuple(key for key in record.in_sync if key == self.me or not self._lags(key, now_s))
        self._write(left, now_s)

    def _lags(self, key: str, now_s: float) -> bool:
        return now_s - self._copies.get(key, (0, float("-inf")))[1] > LAG_S

    def _write(self, in_sync: tuple[str, ...], now_s: float) -> None:
        """Renew the lease; with other copies that count, where these have changed. Those that
        counted go on doing so until the devices know that they do not.
        """
        latest = self._pending or self.record
        assert latest is not None
        serial = self._serial
        if in_sync != latest.in_sync:
            serial, latest = serial + 1, Record(self.me, in_sync)
            self._pending, self._needed = latest, self._needed | set(in_sync) - {self.me}
        self._ask(serial, LEASE_S, latest, now_s)

    def _pulled(self, event: Pulled, now_s: float) -> None:
        had, self._offered = self._offered.get(event.by), {**self._offered, event.by: self.reached}
        self._copies = {**self._copies, event.by: (event.position, now_s)}
        latest = self._pending or self.record
        assert latest is not None
        is_full = len(latest.in_sync) >= MAX_SEATS  # of a record that somebody made up
        if event.by not in latest.in_sync and event.position >= self.reported and not is_full:
            self._joining -= {event.by}
            self._write((*latest.in_sync, event.by), now_s)
        elif event.by not in latest.in_sync and had is not None and event.position >= had:
            # it keeps up: what comes from now on waits for it, so that it has all that was told
            self._joining |= {event.by}
            self._needed |= self._joining
        self._report()

    def _report(self) -> None:
        if self.role != ACTING:
            return
        copies = [self._copies.get(key, (0, 0.0))[0] for key in self._needed]
        position = min([self.reached, *copies])
        if position > self.reported:
            self.reported = position
            self._actions.append(JournalReport(position))

    def _end(self, why: str, now_s: float) -> None:
        if self.role == ACTING:
            self._actions.append(End(why))
        self.role = FOLLOWING
        self.record = None
        self._pending = None
        self.held_until_s = float("-inf")
        self._next_s = now_s + LEASE_S + self.rank * STAGGER_S
