"""Which coordinator may act on this device, for each lease: terms only grow, and what was promised
is kept on disk before it is said. Pure.

A device is one acceptor of Paxos (Lamport, "Paxos made simple", 2001) with a lease on top: while
the holder's time runs, nobody else is promised a newer term. A notebook has so many leases at most,
and for a new one its own oldest that is over is forgotten, and never one that is held. Another's is
only where there are more than all trusted notebooks may have: some of these are trusted no more.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from potluck_wire.limits import MAX_INT, MAX_LEASE_S, MAX_LEASES, is_identifier
from potluck_wire.messages import Lease, Leased

MAX_KEPT = 64 * MAX_LEASES  # of all notebooks that a device may trust at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One lease as it is on disk: the term that was promised, and to which key; the record that was
    written last, with its own term and serial number; for how long the holder was promised it.
    """

    name: str
    term: int
    key: str
    accepted_term: int = 0
    accepted_serial: int = 0
    record: str = ""
    lasts_s: float = 0.0


class LeaseTable:
    """All leases that this device knows.

    Parameters
    ----------
    document
        What `rows` gave before the agent was started again, as JSON; empty: nothing was promised.
    max_leases
        Leases whose newest term is one notebook's.
    max_kept
        Leases of all.
    """

    def __init__(
        self, document: str = "", *, max_leases: int = MAX_LEASES, max_kept: int = MAX_KEPT
    ) -> None:
        self._max_leases = max_leases
        self._max_kept = max_kept
        rows = json.loads(document) if document else []
        # by name; replaced as a whole, never changed
        self._kept: Mapping[str, Kept] = {row["name"]: Kept(**row) for row in rows}
        # nobody knows how much of it had passed: all of it runs again from the first moment on
        self._until_s: Mapping[str, float | None] = dict.fromkeys(self._kept)
        self._is_on_disk = True

    def term(self, name: str) -> int:
        """The newest term that is known of a lease; 0 of one that nobody has had."""
        kept = self._kept.get(name)
        return kept.term if kept is not None else 0

    def holder(self, name: str) -> str:
        """The key of whom the newest term was promised to; empty where nobody was."""
        kept = self._kept.get(name)
        return kept.key if kept is not None else ""

    def rows(self) -> tuple[dict[str, Any], ...]:
        """What has to be on disk before an answer is said."""
        return tuple(asdict(kept) for kept in self._kept.values())

    def ask(self, key: str, lease: Lease, now_s: float) -> tuple[Leased, bool]:
        """The answer to a coordinator, and whether what is kept has changed.

        Parameters
        ----------
        key
            Of the coordinator.
        lease
            With a record: to be written in its term; without: a promise of a newer term.
        now_s
            By the clock of this device.
        """
        before = self._kept.get(lease.name)
        after = self._granted(key, lease, before, now_s)
        if after is None or not self._keep(after, now_s + lease.lasts_s, now_s):
            return self._answer(lease, before, now_s, granted=False), False
        has_changed, self._is_on_disk = after != before or not self._is_on_disk, True
        return self._answer(lease, after, now_s, granted=True), has_changed

    def _granted(self, key: str, lease: Lease, kept: Kept | None, now_s: float) -> Kept | None:
        """What is kept from now on; None where it is not granted."""
        if not is_sound(lease):
            return None
        kept = kept or Kept(name=lease.name, term=0, key="")
        is_own = kept.term == lease.term and kept.key == key
        is_newer = lease.term > kept.term and (
            key == kept.key or self._left_s(lease.name, now_s) <= 0.0
        )
        if not lease.record:
            held = replace(kept, term=lease.term, key=key, lasts_s=lease.lasts_s)
            return held if is_newer else None
        ballot = lease.term, lease.serial
        if not (is_own or is_newer) or ballot < (kept.accepted_term, kept.accepted_serial):
            return None
        if ballot == (kept.accepted_term, kept.accepted_serial) and lease.record != kept.record:
            return None
        return Kept(
            name=lease.name,
            term=lease.term,
            key=key,
            accepted_term=lease.term,
            accepted_serial=lease.serial,
            record=lease.record,
            lasts_s=lease.lasts_s,
        )

    def not_kept(self) -> None:
        """What was to be on disk is not: with the next answer it has to be."""
        self._is_on_disk = False

    def learn(self, key: str, name: str, term: int, now_s: float) -> bool:
        """A run of this term begins here, though this device was not asked for it; whether it may.

        Parameters
        ----------
        key
            Of its coordinator.
        name, term
            Of the lease.
        now_s
            By the clock of this device.
        """
        kept = self._kept.get(name, Kept(name=name, term=0, key=""))
        if term <= kept.term:
            return True
        learned = replace(kept, term=term, key=key)
        return self._keep(learned, self._until_s.get(name, now_s), now_s)

    def _left_s(self, name: str, now_s: float) -> float:
        until_s = self._until_s.get(name, now_s)
        if until_s is None:
            until_s = now_s + self._kept[name].lasts_s
            self._until_s = {**self._until_s, name: until_s}
        return until_s - now_s

    def _answer(self, lease: Lease, kept: Kept | None, now_s: float, *, granted: bool) -> Leased:
        known = kept or Kept(name=lease.name, term=0, key="")
        return Leased(
            task=lease.task,
            granted=granted,
            term=known.term,
            left_s=max(0.0, self._left_s(lease.name, now_s)),
            accepted_term=known.accepted_term,
            accepted_serial=known.accepted_serial,
            record=known.record,
        )

    def _keep(self, kept: Kept, until_s: float | None, now_s: float) -> bool:
        """Whether there is room for it; the one that was granted last stands last."""
        rest = {name: each for name, each in self._kept.items() if name != kept.name}
        own = [name for name, each in rest.items() if each.key == kept.key]
        has_many = len(own) >= self._max_leases
        if has_many or len(rest) >= self._max_kept:
            among = own if has_many else list(rest)
            oldest = next((name for name in among if self._left_s(name, now_s) <= 0.0), None)
            if oldest is None:
                return False
            del rest[oldest]
        until = {name: self._until_s[name] for name in rest}
        self._kept, self._until_s = {**rest, kept.name: kept}, {**until, kept.name: until_s}
        return True


def is_sound(lease: Lease) -> bool:
    """Whether a lease may be asked for so.

    Parameters
    ----------
    lease
        As it came.
    """
    return (
        is_identifier(lease.name)
        and 1 <= lease.term <= MAX_INT
        and 0.0 <= lease.lasts_s <= MAX_LEASE_S
        and (bool(lease.record) == (lease.serial >= 1))
    )
