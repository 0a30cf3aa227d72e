"""Trains what was handed over, one job after the other, and keeps its journal.

The state is written to disk whenever the run's own snapshot is a new one: that costs the training
nothing. Who begins again goes on from there; steps since then are computed once more, from the same
batches.
"""

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.coordinate.batch_store import BatchStore
from potluck.coordinate.group import Group, Seat, is_anywhere, lease_of
from potluck.coordinate.job import (
    BATCHES,
    COMING,
    JOB,
    JOURNAL,
    MODEL,
    PROFILE,
    SAVED,
    START,
    Job,
    read_job,
)
from potluck.coordinate.journal import (
    ENDED,
    FAILED,
    STOPPED,
    TRAINING,
    WAITING,
    Journal,
    Progress,
    progress_of,
)
from potluck.coordinate.open_home import OpenHome
from potluck.coordinate.shared_job import Ask, SharedJob
from potluck.errors import FileError, HomeError, PotluckError, UserError
from potluck.graph.model_file import load_model
from potluck.planning.text import dumps
from potluck.profile import profile_file
from potluck.run.checkpoint import load as load_checkpoint
from potluck.run.checkpoint import step_of
from potluck_wire.version import LEASE

if TYPE_CHECKING:
    from potluck.handle import Handle
    from potluck.home import Home
    from potluck.run.history import History
    from potluck.run.run import Run

SAVE_S = 10.0  # between two states on disk, at least
SHARED_SAVE_S = 2.0  # where others keep copies: what came since is computed again at a takeover
RARE = 20.0  # times what saving takes
END_S = 3.0  # for what was trained before to end
COPIES_S = 20.0  # for copies of the last state to be complete
LOOK_S = 0.1
JOIN_S = 2.0  # between two looks for devices that are not there yet


class Coordinator:
    """The jobs in a folder.

    Parameters
    ----------
    folder
        Each job has a folder in it.
    open_home
        Gives a home with the devices that are there now; it is closed after the job. Asked again
        while a device is missing.
    reach
        Gives the way to ask another coordinator, where jobs are shared with some.
    """

    def __init__(
        self,
        folder: Path,
        open_home: "Callable[[], Home]",
        reach: Callable[[Seat], Ask] | None = None,
    ) -> None:
        self.folder, self._homes, self._reach = folder, OpenHome(open_home), reach
        self.seat: Seat | None = None  # where it listens, for other coordinators
        self.trusted: frozenset[str] = frozenset()  # keys of notebooks
        self._shared: SharedJob | None = None
        self._giving_up = False
        self._guests: frozenset[str] = frozenset()
        self._journals: dict[str, Journal] = {}  # of the job that is under way
        self._ended: dict[str, str] = {}  # why jobs have failed, where no disk had room for that
        self._work: threading.Thread | None = None
        self._stopping = threading.Event()
        self._closing = False
        self._plan = ""  # in force

    # --- what there is ----------------------------------------------------------------------------

    def jobs(self) -> tuple[str, ...]:
        """The names of all jobs that are whole, the latest last."""
        found = [path.parent for path in self.folder.glob(f"*/{JOURNAL}")]
        return tuple(path.name for path in sorted(found, key=_handed_over_s))

    def progress(self, job: str) -> Progress:
        """How far a job is.

        Parameters
        ----------
        job
            Its name.

        Raises
        ------
        UserError
            There is none of that name.
        FileError
            Its journal does not hold.
        """
        journal = self._journals.get(job)
        if journal is not None:
            return journal.progress
        if job not in self.jobs():
            there = ", ".join(self.jobs()) or "none"
            raise UserError(f"there is no job {job!r} here; there are {there}.")
        path = self.folder / job / JOURNAL
        progress = progress_of(path)
        if not progress.n_batches:  # as of a job's second line
            raise FileError(
                f"{path} does not say what is trained.",
                next_step="The state that was saved last is beside it, and can be deployed with "
                "resume=.",
                path=str(path),
            )
        if job in self._ended:
            progress.state, progress.why = FAILED, self._ended[job]
        return progress

    @property
    def under_way(self) -> str:
        """The name of the job that is trained now; empty: none is."""
        return "".join(tuple(self._journals))  # of one job at most; another thread takes it away

    def told(self, job: str) -> Progress:
        """How far a job is, as far as that may be told: of one that is shared, what copies have.

        Parameters
        ----------
        job
            Its name.

        Raises
        ------
        UserError, FileError
            As for `progress`.
        """
        journal = self._journals.get(job)
        return journal.told if journal is not None else self.progress(job)

    @property
    def guests(self) -> frozenset[str]:
        """The keys of all that may ask because a job is shared with them."""
        shared = self._shared
        return self._guests | (shared.group.may_ask if shared is not None else frozenset())

    def _remember_guests(self) -> None:
        for job in self.jobs():
            with suppress(PotluckError, OSError):
                group = self.progress(job).group
                self._guests |= group.may_ask if group is not None else frozenset()

    @property
    def plan(self) -> str:
        """The plan in force, as text; empty while there is none."""
        return self._plan

    # --- what is done -----------------------------------------------------------------------------

    def admit(self, job: str) -> None:
        """A job whose files are all there is one from now on.

        Parameters
        ----------
        job
            Its name.

        Raises
        ------
        FileError
            Its files do not hold, or its state is not of its model.
        """
        self.check(job)
        folder = self.folder / job
        step, n_batches = step_of(folder / START), len(BatchStore(folder / BATCHES))
        journal = Journal(folder / JOURNAL)
        journal.add(begun=step, n_batches=n_batches, saved=START, durable=True)
        journal.close()

    def check(self, job: str) -> None:
        """See that the files of a job hold.

        Parameters
        ----------
        job
            Its name.

        Raises
        ------
        FileError
            They do not, or its state is not of its model.
        """
        folder = self.folder / job
        wanted = read_job(folder)
        start, model = load_checkpoint(folder / START), load_model(folder / MODEL)
        if start.signature != model.signature:
            raise FileError(
                f"{folder / START} is the state of another model.", path=str(folder / START)
            )
        store = BatchStore(folder / BATCHES)
        store.check()
        n_batches = len(store)
        if n_batches != wanted.n_batches:
            raise FileError(
                f"{folder / BATCHES} has {n_batches} batches, {wanted.n_batches} are expected.",
                path=str(folder / BATCHES),
            )

    def start(self, job: str) -> None:
        """Train it, in the background, from where it is.

        Parameters
        ----------
        job
            Its name.

        Raises
        ------
        HomeError
            Another one is under way.
        UserError
            There is none of that name, or it has ended.
        """
        if job in (self.under_way, self.followed):
            return
        if busy := self.under_way or self.followed:
            raise HomeError(
                f"{busy} is trained here now.",
                next_step="Wait for it, or stop it, and start this one again.",
            )
        progress = self.progress(job)
        if progress.state == ENDED:
            raise UserError(f"{job} has ended: all its batches are trained on.")
        if progress.group is not None:
            self.follow(job, wanted=True)
        else:
            self.go_on_with(job, None, [])

    def go_on_with(self, job: str, told: int | None, entries: list[dict[str, Any]]) -> None:
        """Train it, in the background; no other one is.

        Parameters
        ----------
        job
            Its name.
        told
            As for `Journal`.
        entries
            Written into its journal first.

        Raises
        ------
        FileError
            They cannot be, or the journal does not hold.
        HomeError
            What was trained before does not end.
        """
        if self._work is not None:
            self._work.join(END_S)  # its journal is closed; the home may still be
            if self._work.is_alive():
                raise HomeError("what was trained here before does not end.")
        journal = Journal(self.folder / job / JOURNAL, told)
        try:
            for entry in entries:
                journal.add(**entry)
            journal.add(state=WAITING, why="", durable=bool(entries))
        except FileError:
            journal.close()
            raise
        self._ended.pop(job, None)
        self._journals[job] = journal
        self._giving_up = False
        self._stopping.clear()
        self._work = threading.Thread(target=self._carry_out, args=(job, journal), daemon=True)
        self._work.start()

    def elsewhere(self, job: str) -> Seat | None:
        """Who trains a job, where that is another coordinator.

        Parameters
        ----------
        job
            Its name.
        """
        shared = self._shared
        if shared is None or shared.job != job or shared.acts:
            return None
        leader = shared.leader
        return None if leader == self.seat else leader

    # --- shared with other coordinators -----------------------------------------------------------

    @property
    def followed(self) -> str:
        """The name of the job in whose line it stands; empty: in none."""
        shared = self._shared
        return shared.job if shared is not None else ""

    @property
    def shared(self) -> SharedJob | None:
        """That job."""
        return self._shared

    def share(self) -> SharedJob | None:
        """Have the job that is trained here shared from now on; None: none is.

        Raises
        ------
        HomeError
            No device can vote, or this coordinator cannot be reached.
        """
        job = self.under_way
        if self._shared is None and job and self._plan:
            home = self._homes.take()
            try:
                voters = [m.key for m in home.devices.values() if m.session and m.speaks(LEASE)]
                group = self._founded(voters)
                self._stand(job, home, group=group, founds=True)
            except BaseException:
                self._homes.give_back()
                raise
        return self._shared

    def _founded(self, voters: list[str]) -> Group:
        if self.seat is None or is_anywhere(self.seat.host):
            raise HomeError(
                "this coordinator does not say where it is.",
                next_step="Start it with --address and an address of its own.",
            )
        if not voters:
            raise HomeError(
                "no device here can vote on who coordinates.", next_step="Update potluck on them."
            )
        return Group(
            seats=(self.seat,), voters=tuple(sorted(voters)), notebooks=tuple(sorted(self.trusted))
        )

    def follow(self, job: str, *, group: Group | None = None, wanted: bool = False) -> None:
        """Stand in line for a job that is shared, and all of whose files are here.

        Parameters
        ----------
        job
            Its name.
        group, wanted
            As for `SharedJob`.

        Raises
        ------
        HomeError, FileError
            There is no home, or its journal does not hold.
        """
        home = self._homes.take()
        try:
            self._stand(job, home, group=group, wanted=wanted)
        except BaseException:
            self._homes.give_back()
            raise

    def _stand(self, job: str, home: "Home", **options: Any) -> None:
        assert self.seat is not None
        assert self._reach is not None
        folder = self.folder / job
        self._shared = SharedJob(folder, self.seat, self, home, self._reach, **options)
        self._shared.stand()

    def journal(self, job: str) -> Journal | None:
        """That of a job while it is trained here.

        Parameters
        ----------
        job
            Its name.
        """
        return self._journals.get(job)

    def give_up(self, job: str) -> None:
        """Another coordinator trains it, or will: end that here, and say nothing.

        Parameters
        ----------
        job
            Its name.
        """
        if self.under_way == job:
            self._giving_up = True
            self._stopping.set()

    def left(self, job: str) -> None:
        """It is in line no more.

        Parameters
        ----------
        job
            Of which.
        """
        self._remember_guests()
        self._shared = None
        self._homes.give_back()

    def go_on(self) -> None:
        """Start the job that was under way when the last coordinator of this folder ended, and
        delete those that never came whole.
        """
        for path in (
            *self.folder.glob(f"*{COMING}"),
            *(x.parent for x in self.folder.glob(f"*/{JOB}")),
        ):
            if not any((path / name).exists() for name in (JOURNAL, *SAVED)):
                shutil.rmtree(path, ignore_errors=True)
        self._remember_guests()
        for job in reversed(self.jobs()):
            with suppress(PotluckError, OSError):
                if self.progress(job).state in (WAITING, TRAINING):
                    self.start(job)
                    return

    def stop(self, job: str) -> None:
        """End the training between two steps, and keep its state.

        Parameters
        ----------
        job
            Its name; one that is not under way stays as it is.
        """
        if self.under_way == job:
            self._stopping.set()

    def close(self) -> None:
        """End what is under way so that the next coordinator goes on with it."""
        self._closing = True
        self._stopping.set()
        if self._work is not None:
            self._work.join()
        if (shared := self._shared) is not None:
            shared.leave()

    # --- the work ---------------------------------------------------------------------------------

    def _carry_out(self, job: str, journal: Journal) -> None:
        try:
            self._train(job, journal)
        except Exception as error:  # whatever it is, whoever asks is told
            if self._giving_up:
                return
            why = str(error) or type(error).__name__
            try:
                journal.add(state=FAILED, why=why, durable=True)
            except PotluckError as full:
                self._ended[job] = f"{why} {full}"
        finally:
            self._plan = ""
            self._wait_for_copies()
            journal.close()
            del self._journals[job]

    def _wait_for_copies(self) -> None:
        """Of all that is said and saved, where copies are kept."""
        end_s = time.monotonic() + COPIES_S
        while time.monotonic() < end_s and not (self._closing or self._giving_up):
            shared = self._shared
            if shared is None or not shared.acts or shared.have_all():
                return
            time.sleep(LOOK_S)

    def _train(self, job: str, journal: Journal) -> None:
        folder = self.folder / job
        wanted = read_job(folder)
        model, saved = load_model(folder / MODEL), folder / journal.progress.saved[0]
        checkpoint = load_checkpoint(saved)
        profile = folder / PROFILE
        known = profile_file.loads(profile.read_bytes(), str(profile)) if profile.exists() else None
        with self._homes.use() as home:
            home = self._with_all(home, checkpoint.plan.devices, wanted.patience_s)
            home.devices.act_under(lease_of(folder), journal.progress.term)
            run = home.deploy(
                checkpoint.plan,
                model,
                resume=saved,
                profile=known,
                protect=wanted.protect,
                patience_s=wanted.patience_s,
                recovery=wanted.recovery,
            ).wait()
            if run.step < journal.progress.step:
                journal.add(back=run.step)
            journal.add(state=TRAINING, why="", durable=True)
            store = BatchStore(folder / BATCHES)
            rest = store.since(run.step - journal.progress.first_step)
            if len(rest):
                fitting = run.fit(
                    rest,
                    on_step=lambda step, loss: journal.add(step=step, loss=loss),
                    adapt=wanted.adapt if known is not None else False,
                )
                self._follow(run, fitting, wanted, folder, journal)
            if self._giving_up:
                run.close()
                return
            self._save(run, folder, journal, latest=True)
            is_done = run.step - journal.progress.first_step >= len(store)
            run.close()
        if is_done:
            journal.add(state=ENDED, why="", durable=True)
        elif not self._closing:
            journal.add(state=STOPPED, why="it was told to stop.", durable=True)

    def _with_all(self, home: "Home", devices: tuple[str, ...], patience_s: float) -> "Home":
        """The home once these devices are in it; waits for them as long as it is patient."""
        end_s = time.monotonic() + patience_s
        while True:
            away = [name for name in devices if name not in home.devices.ready]
            if not away:
                return home
            if self._stopping.wait(JOIN_S) or time.monotonic() > end_s:
                raise HomeError(
                    f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} not there.",
                    next_step="Start it again when they are.",
                )
            home = self._homes.looked_for(away)

    def _follow(
        self, run: "Run", fitting: "Handle[History]", wanted: Job, folder: Path, journal: Journal
    ) -> None:
        """Until it has ended, or is told to: write down what happens, and save."""
        told, saved_s, took_s = 0, time.monotonic(), 0.0
        while not fitting.done:
            if self._stopping.wait(LOOK_S):
                fitting.cancel()
                with suppress(CancelledError):
                    fitting.wait()
                return
            self._plan = dumps(run.plan)
            told = _tell(run.history, told, journal)
            is_new = run.protection is None or (
                run.protection.snapshot.step > journal.progress.saved[1]
            )
            if is_new and time.monotonic() - saved_s >= self._save_every_s(took_s):
                begun_s = time.monotonic()
                self._save(run, folder, journal, latest=run.protection is None)
                saved_s = time.monotonic()
                took_s = saved_s - begun_s
        try:
            fitting.wait()
        except PotluckError:
            if run.protection is not None:  # what it could have gone back to
                self._save(run, folder, journal, latest=False)
            raise
        finally:
            _tell(run.history, told, journal)

    def _save_every_s(self, took_s: float) -> float:
        """Seconds between two states on disk; the latest took so long."""
        return max(SAVE_S if self._shared is None else SHARED_SAVE_S, RARE * took_s)

    def _save(self, run: "Run", folder: Path, journal: Journal, *, latest: bool) -> None:
        """The state to the file that does not have the latest one."""
        name = SAVED[journal.progress.saved[0] == SAVED[0]]
        step = run.save(folder / name, latest=latest)
        if step <= journal.progress.step:
            journal.add(saved=name, at=step, durable=True)


def _handed_over_s(folder: Path) -> float:
    """When a job came, by the clock of the disk; of one that is spoiled nobody knows."""
    try:
        return (folder / JOB).stat().st_mtime
    except OSError:
        return 0.0


def _tell(history: "History", told: int, journal: Journal) -> int:
    """Write down what has happened to a run since; how much that is in all."""
    events = [
        *(each.words for each in history.recoveries),
        *(each.words for each in history.departures),
        *(each.words for each in history.arrivals),
        *(each.words for each in history.decisions),
        *history.notes,
    ]
    known = set(journal.progress.notes)
    for text in events if len(events) > told else ():
        if text not in known:
            journal.add(note=text)
    return len(events)
