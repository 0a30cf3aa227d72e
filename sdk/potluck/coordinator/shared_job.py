"""A job that several coordinators have, as one of them has it: it trains, or keeps a copy of all
that who trains has, ready to go on with it.

Copies are pulled: who asks for the rest of the journal says how much of it is on its disk.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from potluck.coordinator.coordinator_group import CoordinatorGroup, Seat, lease_of
from potluck.coordinator.job import COMING, JOURNAL, SAVED, START, digest
from potluck.coordinator.job_files import keep_on_disk, make_latest
from potluck.coordinator.job_upload import JobUpload
from potluck.coordinator.journal import ENDED, Journal, Prefix, Progress
from potluck.coordinator.journal_copy import JournalCopy
from potluck.coordinator.periodic_task import THREADS, Pace
from potluck.coordinator.state_size import check_size, most_state_bytes
from potluck.coordinator.succession import MAX_NEWER, Pulled, Resign, Succession
from potluck.coordinator.succession_driver import AskDevice, SuccessionDriver
from potluck.errors import FileError, HomeError, PotluckError
from potluck.run.checkpoint import step_of
from potluck_wire.durable_rename import keep_names, take_place
from potluck_wire.file_reading import open_file

if TYPE_CHECKING:
    from potluck.home import Home

CHUNK_BYTES = 1 << 20
ANSWERS_AT_ONCE = 16  # each of a chunk at most; then whoever copies looks whether it is to end
MAX_JOURNAL_BYTES = 1 << 30  # some ten million steps
COMING_JOURNAL, COMING_STATE = f"{JOURNAL}{COMING}", f"state{COMING}"

Answer = tuple[dict[str, Any], bytes]


class CoordinatorCall(Protocol):
    """How another coordinator is asked."""

    def __call__(self, what: str, data: bytes = b"", **about: Any) -> Answer:
        """Its answer, and the bytes that came with it."""


class LocalTraining(Protocol):
    """Who trains it here."""

    def journal(self, job: str) -> Journal | None:
        """That of the job, while it is trained here."""

    def go_on_with(self, job: str, public_bytes: int, entries: list[dict[str, Any]]) -> None:
        """Train it: write this into its journal first.

        Parameters
        ----------
        job
            Its name.
        public_bytes
            As for `Journal`.
        entries
            Of the journal.
        """

    def give_up(self, job: str) -> None:
        """Train it no more, and write nothing about that."""

    def on_leave(self, job: str) -> None:
        """Nothing is left to do about it."""


class SharedJob:
    """One job. Its threads run from `stand` to `leave`.

    Parameters
    ----------
    folder
        Of the job, all of whose files are there.
    me
        The seat of this coordinator.
    work
        Trains it.
    home
        Open, with the devices that vote.
    reach
        Gives the way to ask a coordinator.
    group
        Who shares it, where its journal does not say so yet.
    founds
        This coordinator has the only copy.
    wanted
        It is to go on although it has ended.
    pace
        As for `SuccessionDriver`.

    Raises
    ------
    HomeError
        Its journal does not say who shares it.
    """

    def __init__(
        self,
        folder: Path,
        me: Seat,
        work: LocalTraining,
        home: "Home",
        reach: Callable[[Seat], CoordinatorCall],
        *,
        group: CoordinatorGroup | None = None,
        founds: bool = False,
        wanted: bool = False,
        pace: Pace = THREADS,
    ) -> None:
        self.job = folder.name
        self._folder = folder
        self._me = me
        self._work = work
        self._home, self._reach = home, reach
        self._founds = founds
        self._wanted = wanted
        self._writing = threading.RLock()
        self._path = folder / JOURNAL
        (folder / COMING_JOURNAL).unlink(missing_ok=True)
        self._copy: JournalCopy | None = None  # while it is not trained here
        self._coming: JournalCopy | None = None  # another one, in place of that
        self._public_bytes = 0  # of the journal: anybody may have been told these
        self._state: tuple[str, int, str, int] | None = None  # of who trains: file, step, SHA-256
        self._digests: dict[tuple[str, int], str] = {}
        self._prefixes: dict[str, Prefix] = {}  # of the journal, by who copies it
        self._has: dict[str, int] = {}  # the step of the state that each copy has
        self._begun = 0  # the latest term in which it acts and its journal says so
        self.lease = lease_of(folder)
        journal = work.journal(self.job)
        progress = journal.progress if journal is not None else self._copied().progress
        group = progress.group or group
        if group is None:
            raise HomeError(f"{self.job} is shared by nobody.")
        self.group = group  # who shares it
        machine = Succession(
            me.key,
            group.rank(me.key),
            group.voters,
            term=progress.term,
            reached=0 if founds else self._copied().nbytes,
            founds=founds,
        )
        machine.leader = progress.acts or group.seats[0].key
        self.line = SuccessionDriver(machine, self.lease, self._ask_device, self, pace)

    @property
    def _ask_device(self) -> AskDevice:
        return self._home.devices.ask_lease

    def stand(self) -> None:
        """Take part from now on."""
        self.line.start()

    def leave(self) -> None:
        """Take part no more; where it is trained here, the next one in line need not wait."""
        self.line.leave()

    @property
    def progress(self) -> Progress:
        """As far as it is known here."""
        journal = self._work.journal(self.job)
        return journal.progress if journal is not None else self._copied().progress

    @property
    def leader(self) -> Seat | None:
        """Who acts, as far as it is known here; None: nobody, or not known."""
        return self.group.seat(self.line.machine.leader)

    @property
    def acts(self) -> bool:
        """Whether this coordinator does, and others may know."""
        return self.line.acts and self._begun == self.line.machine.term

    @property
    def copies(self) -> tuple[Seat, ...]:
        """The others whose copies count while this one acts: any of them could take over."""
        record = self.line.machine.record if self.acts else None
        seats = [self.group.seat(key) for key in record.in_sync] if record is not None else []
        return tuple(seat for seat in seats if seat is not None and seat.key != self._me.key)

    def _copied(self) -> JournalCopy:
        if self._copy is None:
            self._copy = JournalCopy(self._path)
        return self._copy

    # --- as part of the line ----------------------------------------------------------------------

    def begin(self, term: int) -> None:
        """Train it in this term."""
        self._prefixes, self._has = {}, {}
        try:
            with self._writing:
                self._home.devices.act_under(self.lease, term)
                self._begin({"acts": self._me.key, "term": term})
        except PotluckError:  # a full disk, say: the next one in line
            self.line.notify(Resign())

    def _begin(self, acts: dict[str, Any]) -> None:
        journal = self._work.journal(self.job)
        if journal is not None:  # it is trained here already, and is shared from now on
            journal.add(**acts)
            if journal.progress.group is None:
                journal.add(group=self.group.row())
            journal.publish(journal.sync())
            self._begun = acts["term"]
            return
        progress = self._copied().progress
        self._copy = self._coming = None
        name, step = self._latest_state(progress)
        # the last state may have gone with who acted: then it is computed again
        is_lost = progress.state == ENDED and step < progress.saved[1]
        if not progress.is_over or self._wanted or is_lost:
            self._wanted = False
            if not name:
                raise FileError(f"{self._folder} has no state.", path=str(self._folder))
            self._begun = acts["term"]
            self._work.go_on_with(self.job, self._public_bytes, [acts, {"saved": name, "at": step}])

    def end(self, why: str) -> None:
        """Another one trains it, or will."""
        self._work.give_up(self.job)

    def report(self, position: int) -> None:
        """The journal may be told up to here."""
        self._public_bytes = max(self._public_bytes, position)
        journal = self._work.journal(self.job)
        if journal is not None:
            journal.publish(self._public_bytes)

    def sync(self) -> int:
        """All of the journal is on the disk: how much that is."""
        journal = self._work.journal(self.job)
        return journal.sync() if journal is not None else self._copied().nbytes

    def is_over(self) -> bool:
        """Whether nothing is left to do, and the copy has all."""
        if self._work.journal(self.job) is not None or self._coming is not None or self._wanted:
            return False
        progress = self._copied().progress
        return progress.is_over and self._latest_state(progress)[1] >= progress.saved[1]

    def on_leave(self) -> None:
        """The line is left."""
        self._work.on_leave(self.job)

    def _latest_state(self, progress: Progress) -> tuple[str, int]:
        """The file with the latest state that is here, and its step; none: "" and -1."""
        steps = {}
        for name in (START, *SAVED):
            with suppress(FileError):
                steps[name] = step_of(self._folder / name)
        sound = {name: step for name, step in steps.items() if step <= progress.step}
        name = max(sound, key=sound.__getitem__, default="")
        return name, sound.get(name, -1)

    # --- who copies -------------------------------------------------------------------------------

    def pull(self, leader: str) -> tuple[int, int] | None:
        """Copy what is new in the journal of whoever acts, or as much of it as comes at once.

        Returns how much of it is here, and its term.

        Raises
        ------
        HomeError
            What is answered does not hold.
        """
        seat = self.group.seat(leader)
        if seat is None or self._work.journal(self.job) is not None:
            return None
        ask = self._reach(seat)
        pulled: tuple[int, int] | None = None
        for _ in range(ANSWERS_AT_ONCE):
            into = self._coming or self._copied()
            answer, data = ask(
                "pull",
                job=self.job,
                at=into.nbytes,
                digest=into.digest(),
                counts=into is self._copy,
                has=self._latest_state(self._copied().progress)[1],
            )
            status = _read_status(answer)
            if status is None or status.term < self._copied().progress.term:
                return None
            with self._writing:
                if self._work.journal(self.job) is not None:
                    return None
                self._state = status.state
                if status.at != into.nbytes:  # ours is another: theirs takes its place, once whole
                    if not into.nbytes:
                        raise HomeError(f"{leader:.8}: it tells of another place than was asked.")
                    self._restart()
                    continue
                is_whole = self._take_in(into, data, status)
                pulled = self._copied().nbytes, status.term
                if is_whole:
                    break
        return pulled

    def _take_in(self, into: JournalCopy, data: bytes, status: "_JournalStatus") -> bool:
        """What has come of the journal; whether that was all of it."""
        if status.nbytes > MAX_JOURNAL_BYTES:
            raise HomeError(
                f"the journal of {self.job} is said to have {status.nbytes} bytes, more than the "
                f"{MAX_JOURNAL_BYTES} that are copied."
            )
        if status.term > self.line.machine.term + MAX_NEWER:
            raise HomeError(f"the term of who acts for {self.job} is said to be {status.term}.")
        self._extend(into, data, status.term)
        if data and into.nbytes < status.nbytes:
            return False
        if into is self._coming:
            into.put_in_place_of(self._copied())
            self._copy, self._coming = into, None
        self._public_bytes = max(self._public_bytes, min(status.public_bytes, into.nbytes))
        self.group = into.progress.group or self.group
        return True

    def _restart(self) -> None:
        path = self._folder / COMING_JOURNAL
        path.unlink(missing_ok=True)
        self._coming = JournalCopy(path)

    def _extend(self, into: JournalCopy, data: bytes, term: int) -> None:
        try:
            into.extend(data, term)
        except FileError:  # what is there stays until something better has come
            self._copy = None
            self._coming = None
            raise

    def pull_state(self, leader: str) -> None:
        """Copy the latest state of whoever acts, where that is newer than ours."""
        seat, state = self.group.seat(leader), self._state
        if seat is None or state is None or self._work.journal(self.job) is not None:
            return
        name, step, sha256, nbytes = state
        if step <= self._latest_state(self._copied().progress)[1]:
            return
        check_size(self.job, nbytes, most_state_bytes(self._folder), self._folder)
        ask, coming = self._reach(seat), self._folder / COMING_STATE
        with coming.open("wb") as out:
            while out.tell() < nbytes:
                answer, data = ask("read", job=self.job, file=name, at=out.tell())
                if not data or answer.get("nbytes") != nbytes:
                    return  # a newer one has taken its place meanwhile
                out.write(data)
            out.flush()
            os.fsync(out.fileno())
        with self._writing:
            if digest(coming) == sha256 and self._work.journal(self.job) is None:
                take_place(coming, self._folder / name)

    # --- who is copied ----------------------------------------------------------------------------

    def pulled(self, key: str, request: Mapping[str, Any]) -> Answer:
        """The rest of the journal, for another coordinator.

        Parameters
        ----------
        key
            Its own.
        request
            As `pull` says it.
        """
        machine = self.line.machine
        term = machine.term
        at, digest = request.get("at"), request.get("digest")
        if not self.acts or self.progress.term != term or type(at) is not int:
            return {"acts": False}, b""
        prefix = self._prefixes.setdefault(key, Prefix(self._path))
        nbytes = self._path.stat().st_size
        is_same = at == 0 or (0 < at <= nbytes and prefix.digest(at) == digest)
        at = at if is_same else 0
        if type(has := request.get("has")) is int:
            self._has[key] = has
        if is_same and request.get("counts") is True:
            self.line.notify(Pulled(key, at))
        data = b"" if not is_same else _lines(self._path, at)
        return {
            "acts": True,
            "term": term,
            "at": at,
            "nbytes": nbytes,
            "told": self._public_bytes,
            "state": self._offered(),
        }, data

    def _offered(self) -> list[Any]:
        """The latest state: its file, step, SHA-256 and bytes."""
        name, step = self.progress.saved
        path = self._folder / name
        if (name, step) not in self._digests:
            self._digests = {(name, step): digest(path)}
        return [name, step, self._digests[name, step], path.stat().st_size]

    def have_all(self) -> bool:
        """Whether every copy that counts is complete: all may be told, and the state is there."""
        machine, step = self.line.machine, self.progress.saved[1]
        record = machine.record
        others = set(record.in_sync) - {self._me.key} if record is not None else set()
        is_reported = machine.reported >= self._path.stat().st_size
        return is_reported and all(self._has.get(key, -1) >= step for key in others)

    def add_seat(self, seat: Seat) -> CoordinatorGroup:
        """Another coordinator takes its place at the end of the line.

        Parameters
        ----------
        seat
            Where it is; one with its key is replaced.

        Raises
        ------
        HomeError
            It is not trained here, or there are too many.
        """
        with self._writing:  # the group that begins is written first
            journal, group = self._work.journal(self.job), self.group
            if journal is None or not self.acts:
                raise HomeError(f"{self.job} is not trained here now.")
            if group.seat(seat.key) == seat:
                return group
            seats = [each for each in group.seats if each.key != seat.key]
            try:
                group = CoordinatorGroup(
                    seats=(*seats, seat), voters=group.voters, notebooks=group.notebooks
                )
            except ValueError as error:
                raise HomeError(f"no more coordinators fit in: {error}.") from error
            journal.add(group=group.row(), durable=True)
            self.group = group
            return group


class _JournalStatus:
    """What a coordinator that acts says about its journal."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        name, step, sha256, nbytes = answer["state"]
        numbers = [answer["term"], answer["at"], answer["nbytes"], answer["told"], step, nbytes]
        if not all(type(n) is int and 0 <= n < 1 << 53 for n in numbers):
            raise ValueError("a number is none")
        if name not in (START, *SAVED) or type(sha256) is not str:
            raise ValueError("its state has no name")
        self.term, self.at, self.nbytes, self.public_bytes = numbers[:4]
        self.state = name, step, sha256, nbytes


def _read_status(answer: Mapping[str, Any]) -> _JournalStatus | None:
    if answer.get("acts") is not True:
        return None
    try:
        return _JournalStatus(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise HomeError(f"a coordinator's answer is none: {error}.") from error


def _lines(path: Path, at: int) -> bytes:
    """Whole lines from there on: one at least, where there is one."""
    with open_file(path) as file:
        file.seek(at)
        data = file.read(CHUNK_BYTES)
    return data[: data.rfind(b"\n") + 1]


def fetch(folder: Path, job: str, ask: CoordinatorCall) -> None:
    """Copy the files of a job from who has it, and see that they hold.

    Parameters
    ----------
    folder
        Of all jobs.
    job
        Its name.
    ask
        Asks who has it.

    Raises
    ------
    HomeError, UserError, FileError
        It does not give them, there is no room for them, or they do not hold.
    """
    files = ask("files", job=job)[0].get("files")
    arrival = JobUpload(folder / f"{job}{COMING}", files)
    assert isinstance(files, dict)
    for name, (nbytes, _) in files.items():
        at = 0
        while at < nbytes or not at:
            data = ask("file", job=job, file=name, at=at)[1]
            arrival.put(name, at, data)
            at += max(1, len(data))
            if not data and nbytes:
                raise HomeError(f"{name} of {job} does not come whole.")
    arrival.check()
    make_latest(arrival.folder)
    keep_on_disk(arrival.folder)
    arrival.folder.rename(folder / job)
    keep_names(folder)
