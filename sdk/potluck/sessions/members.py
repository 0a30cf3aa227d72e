"""The devices of a home as the notebook knows them: name, key, where they may be, and the session,
if one is open.
"""

import json
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count, repeat
from typing import Any, Protocol

from potluck.display_hooks import Shown
from potluck.errors import DeviceGone, EmptyHome, IdentityChanged, NotPaired, PotluckError
from potluck.sanitized_text import who_is_here
from potluck.sessions import failures
from potluck.sessions.events import (
    ActUnder,
    Address,
    CloseSession,
    OpenSession,
    Payload,
    RequestAll,
    Session,
)
from potluck.sessions.link import SessionLink
from potluck.sessions.metering import Metering
from potluck.sessions.owed_drops import OwedDrops
from potluck.sessions.power_reading import can_follow
from potluck.sessions.readings import Readings
from potluck_wire.messages import (
    Available,
    Lease,
    Leased,
    Leaving,
    Reading,
    RefusalCode,
    Roster,
    Staying,
)
from potluck_wire.version import LEASE, parse

MAX_METERED = 600  # ten minutes of readings
# between looks for a device that was lost: one that restarts is back within a second
SEARCH_S = (1.0, 2.0, 4.0, 8.0)


class Watcher(Protocol):
    """Whoever has something on devices that may leave."""

    def leaves(self, device: str) -> None:
        """This device wants to leave: called in the link's thread, must be quick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Shown):
    """One device. `key` is empty before it is paired; `error` says why there is no session;
    `leaving` why it takes nothing new.
    """

    name: str
    key: str = ""
    addresses: tuple[Address, ...] = ()
    session: Session | None = None
    reading: Reading | None = None
    # (notebook's clock, joules so far) by a real meter, the latest
    metered: tuple[tuple[float, float], ...] = ()
    error: PotluckError | None = None
    # another program has this notebook's keys, so that nobody here can ask the device
    in_use: bool = False
    leaving: str = ""
    beside: Available | None = None  # what other notebooks leave of it

    @property
    def capability(self) -> Mapping[str, Any]:
        """What the device says of itself; empty while there is no session.

        Where other notebooks use it, `available_bytes` is what they leave of `memory_bytes`, and
        `n_beside` how many of them have runs there.
        """
        stated = self.session.capability if self.session else {}
        if self.beside is None or not stated:
            return stated
        left_bytes = min(self.beside.memory_bytes, int(stated["memory_bytes"]))
        return {**stated, "available_bytes": left_bytes, "n_beside": self.beside.n_beside}

    def speaks(self, version: tuple[int, int]) -> bool:
        """Whether the device understands this version of the protocol."""
        return parse(str(self.capability.get("version", "1.0"))) >= version

    @property
    def is_lost(self) -> bool:
        """Whether it had a session or could have one, and may come back by itself."""
        return self.session is None and bool(self.key) and isinstance(self.error, DeviceGone)

    @property
    def status(self) -> str:
        """One word or two for people: ready, not paired, gone, computes nothing."""
        if self.session is not None:
            return "leaving" if self.leaving else "ready"
        if self.in_use and self.error is None:
            return "paired" if self.key else "not asked"
        if isinstance(self.error, IdentityChanged):
            return "identity changed"
        if isinstance(self.error, NotPaired):
            return "not paired"
        if self.error is not None and self.error.facts.get("code") == RefusalCode.BACKEND:
            return "computes nothing"
        if self.error is not None:
            return "gone" if self.key else "not there"
        return "gone" if self.key else "not paired"

    def __repr__(self) -> str:
        where = f" at {self.addresses[0]}" if self.addresses else ""
        return f"<{self.name}: {self.status}{where}>"


class Members(Shown, Mapping[str, Member]):
    """All devices by name. Sessions are opened with `join`.

    The roster is theirs to know one another.

    A device that was lost is looked for until it is back, or until `close`.
    """

    def __init__(self, link: SessionLink) -> None:
        self._link, self._lock = link, threading.RLock()
        self._joining = threading.Lock()
        self._members: dict[str, Member] = {}
        self._search: threading.Thread | None = None
        self._closed = threading.Event()
        # what each said last of leaving in this session, which may be newer than its statement
        self._leave_reasons: dict[str, str] = {}
        self._beside: dict[str, Available] = {}  # likewise, of what others leave of it
        self._watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self.drops = OwedDrops(link)
        self.metering = Metering(link, lambda: self.ready)
        self.readings = Readings(self.metering, lambda: self._members)
        link.listen(self.receive)

    def close(self) -> None:
        """Look for nobody any more; streams of readings end."""
        self._closed.set()
        self.readings.close()

    # --- a mapping --------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return (
            f"<{len(self)} devices: {', '.join(f'{m.name} ({m.status})' for m in self.values())}>"
        )

    # --- changing ---------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Add a device, or replace what is known of it."""
        with self._lock:
            self._members[member.name] = member

    def remove(self, name: str) -> None:
        """Forget a device; its session is closed."""
        with self._lock:
            member = self._members.pop(name, None)
        if member is not None and member.session is not None:
            self._link.notify(CloseSession(device=name))

    def watch(self, watcher: Watcher) -> None:
        """Tell it of every device that wants to leave, as long as it lives."""
        with self._lock:
            self._watchers.add(watcher)

    def receive(self, device: str, news: Any) -> None:
        """A power reading, that it wants to leave or not, or the end of a session; called by the
        link.
        """
        if device in self:
            if isinstance(news, PotluckError):
                self.readings.lost(device)
            elif isinstance(news, Reading) and not self.readings.receive(device, news):
                return
        with self._lock:
            member = self._members.get(device)
            if member is None:
                return
            if isinstance(news, PotluckError):
                self._leave_reasons.pop(device, None)
                self._beside.pop(device, None)
                gone = replace(member, session=None, error=news, leaving="", beside=None)
                self._members[device] = gone
                self._look_for_lost()
            elif isinstance(news, Leaving | Staying):
                self._leave_reasons[device] = news.reason if isinstance(news, Leaving) else ""
                self._members[device] = replace(member, leaving=self._leave_reasons[device])
            elif isinstance(news, Available):
                self._beside[device] = news
                self._members[device] = replace(member, beside=news)
            elif isinstance(news, Reading):
                point = ((news.at_s, news.joules),) if news.source == "measured" else ()
                known = member.metered
                if known and not can_follow(news.at_s, news.joules, *known[-1]):
                    known = ()  # it has begun anew, or jumped
                metered = (*known, *point)[-MAX_METERED:]
                self._members[device] = replace(member, reading=news, metered=metered)
            watchers = tuple(self._watchers) if isinstance(news, Leaving) else ()
        for watcher in watchers:
            watcher.leaves(device)

    # --- sessions ---------------------------------------------------------------------------------

    @property
    def ready(self) -> tuple[str, ...]:
        """Names of the devices with an open session."""
        return tuple(name for name, member in self.items() if member.session is not None)

    @property
    def staying(self) -> tuple[str, ...]:
        """Those of them that do not want to leave."""
        return tuple(name for name in self.ready if not self[name].leaving)

    def join(self, names: Iterable[str] | None = None) -> None:
        """Open sessions with these devices (all paired ones by default) and tell everybody who
        belongs to the home.

        The first address of a device is tried, then those where somebody answers; what went wrong
        first stands in `Member.error`.
        """
        chosen = tuple(self if names is None else names)
        if self._without_session(chosen):
            with self._joining:  # the search for lost ones may be at it
                self._join(self._without_session(chosen))

    def _without_session(self, names: Iterable[str]) -> list[str]:
        return [
            name for name in names if name in self and self[name].key and self[name].session is None
        ]

    def _join(self, wanted: Collection[str]) -> None:
        attempts = {name: list(self[name].addresses) for name in wanted}
        errors: dict[str, PotluckError] = {}
        for turn in count():
            if turn == 1:
                attempts = self._that_answer(attempts)
            if not attempts:
                break
            futures = {}
            for name, addresses in tuple(attempts.items()):
                if not addresses:
                    del attempts[name]
                    continue
                event = OpenSession(device=name, address=addresses.pop(0), key=self[name].key)
                futures[name] = self._link.ask(event), event.address
            wait_for([future for future, _ in futures.values()])
            for name, (future, address) in futures.items():
                error = future.exception()
                if error is None:
                    self._joined(name, future.result(), address)
                    attempts.pop(name, None)
                elif isinstance(error, PotluckError):  # the likeliest address comes first
                    errors.setdefault(name, error)
                    self.add(replace(self[name], session=None, error=errors[name]))
        if any(self[name].session is not None for name in wanted if name in self):
            self.share_roster(wanted)

    def _that_answer(self, attempts: Mapping[str, Sequence[Address]]) -> dict[str, list[Address]]:
        """Of each device the addresses that are worth waiting for."""
        rest = {self[name].key: addresses for name, addresses in attempts.items() if addresses}
        found = self._link.answering(rest) if rest else {}
        return {name: list(found.get(self[name].key, ())) for name in attempts}

    def _joined(self, name: str, session: Session, address: Address) -> None:
        self.drops.joined(name)  # before anybody has it do more
        with self._lock:
            member = self[name]
            others = tuple(other for other in member.addresses if other != address)
            leaving = self._leave_reasons.get(name, str(session.capability.get("leaving", "")))
            self.add(
                replace(
                    member,
                    session=session,
                    addresses=(address, *others),
                    error=None,
                    leaving=leaving,
                    beside=self._beside.get(name),
                )
            )
        self.readings.joined(name)

    def _look_for_lost(self) -> None:
        """Have a thread join those that were lost, as soon as they are back."""
        if self._search is None or not self._search.is_alive():
            self._search = threading.Thread(
                target=self._search_lost, name="potluck search", daemon=True
            )
            self._search.start()

    def _search_lost(self) -> None:
        for pause_s in chain(SEARCH_S, repeat(SEARCH_S[-1])):
            if self._closed.wait(pause_s):
                return
            with self._lock:
                lost = [name for name, member in self.items() if member.is_lost]
                if not lost:
                    self._search = None  # the next loss starts another
                    return
            with suppress(PotluckError):  # the home was closed meanwhile
                self.join(lost)

    def act_under(self, lease: str, term: int) -> None:
        """Prepare every plan under this lease from now on: devices refuse older terms.

        Parameters
        ----------
        lease, term
            As for `potluck_wire.messages.Prepare`.
        """
        self._link.notify(ActUnder(lease=lease, term=term))

    def ask_lease(self, key: str, request: Lease) -> "Future[Leased] | None":
        """Ask a device for a lease; None where it is not there, or does not know leases.

        Parameters
        ----------
        key
            Of the device.
        request
            What it is asked.
        """
        name = next((name for name, member in self.items() if member.key == key), "")
        session = self[name].session if name else None
        if session is None or session.version < LEASE:
            return None
        answer: Future[Leased] = Future()

        def pass_on(done: "Future[dict[str, Payload]]") -> None:
            if done.cancelled() or done.exception() is not None:
                answer.cancel()
            else:
                answer.set_result(done.result()[name][0])  # type: ignore[arg-type]

        self._link.ask(RequestAll(requests={name: (request, ())})).add_done_callback(pass_on)
        return answer

    def pass_time(self, seconds: float) -> None:
        """Come back after so long, or when the home is closed."""
        self._link.pass_time(seconds)

    def share_roster(self, about: Collection[str] = ()) -> None:
        """Tell every connected device the names, keys and addresses of all.

        Parameters
        ----------
        about
            Devices whose word counts: the session of one that does not take it ends, and
            `Member.error` says why. None is a reason to do without the rest.
        """
        rows = [
            {"name": name, "key": self[name].key, "address": str(self[name].addresses[0])}
            for name in self.ready
        ]
        document = json.dumps(rows, separators=(",", ":")).encode()
        answers = {
            name: self._link.ask(RequestAll(requests={name: (Roster(home="home"), (document,))}))
            for name in self.ready
        }
        wait_for(answers.values())
        for name in about:
            error = answers[name].exception() if name in answers else None
            if isinstance(error, PotluckError) and name in self:
                self._link.notify(CloseSession(device=name))
                self.add(replace(self[name], session=None, error=error))

    def need(self, names: Iterable[str] | None = None) -> tuple[str, ...]:
        """These devices (default: all that are ready and stay, or all that are ready) with an open
        session each, joined anew where it was lost.

        Raises
        ------
        EmptyHome
            Nobody is there at all.
        NotPaired, IdentityChanged, DeviceGone
            One of those asked for by name is not there, and why.
        """
        if names is None:
            if not self.ready:
                self.join()
            return self._some_ready()
        wanted = tuple(names)
        self.join(name for name in wanted if name in self and self[name].session is None)
        for name in wanted:
            member = self._members.get(name)
            if member is None:
                raise DeviceGone(f"it is not in this home; {who_is_here(self)}.", device=name)
            if member.session is None:
                raise member.error or (
                    failures.not_paired(name) if not member.key else failures.gone(name)
                )
        return wanted

    def _some_ready(self) -> tuple[str, ...]:
        if self.ready:
            return self.staying or self.ready
        if not self:
            raise EmptyHome(
                "nobody is in this home.",
                next_step="Start `potluck agent` on a device, or try Home.local(); see `potluck "
                "doctor`.",
            )
        for member in self.values():
            if member.error is not None:
                raise member.error
        raise failures.not_paired(next(iter(self)))
