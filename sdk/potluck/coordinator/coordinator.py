"""The jobs of a coordinator: which is trained here, and which is shared with other coordinators."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.coordinator.coordinator_group import CoordinatorGroup, Seat, is_anywhere
from potluck.coordinator.job import JOURNAL
from potluck.coordinator.job_files import (
    begin_journal,
    check_files,
    delete_cut,
    jobs_in,
    progress_in,
)
from potluck.coordinator.job_training import JobTraining
from potluck.coordinator.journal import ENDED, FAILED, TRAINING, WAITING, Journal, Progress
from potluck.coordinator.open_home import OpenHome
from potluck.coordinator.periodic_task import THREADS, Pace
from potluck.coordinator.shared_job import CoordinatorCall, SharedJob
from potluck.errors import FileError, HomeError, PotluckError, UserError
from potluck_wire.version import LEASE

if TYPE_CHECKING:
    from potluck.home import Home

END_S = 3.0  # for what was trained before to end


class Coordinator:
    """The jobs in a folder, trained one after the other.

    Parameters
    ----------
    folder
        Each job has a folder in it.
    open_home
        Gives a home with the devices that are there now; it is closed after the job. Asked again
        while a device is missing.
    reach
        Gives the way to ask another coordinator, where jobs are shared with some.
    pace
        How what is shared is looked after.
    reads
        The folder whose files of arrays it may read for who hands over; None: there is none.
    """

    def __init__(
        self,
        folder: Path,
        open_home: "Callable[[], Home]",
        reach: Callable[[Seat], CoordinatorCall] | None = None,
        pace: Pace = THREADS,
        reads: Path | None = None,
    ) -> None:
        self.reads = reads
        self.folder = folder
        self._homes = OpenHome(open_home)
        self._reach = reach
        self.seat: Seat | None = None  # where it listens, for other coordinators
        self.trusted: frozenset[str] = frozenset()  # keys of notebooks
        self._pace = pace
        self._shared: SharedJob | None = None
        self._guests: frozenset[str] = frozenset()
        self._training: JobTraining | None = None  # the latest
        self._ended: dict[str, str] = {}  # why jobs have failed, where no disk had room for that

    # --- what there is ----------------------------------------------------------------------------

    def jobs(self) -> tuple[str, ...]:
        """The names of all jobs that are whole, the latest last."""
        return jobs_in(self.folder)

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
        journal = self.journal(job)
        if journal is not None:
            return journal.progress
        progress = progress_in(self.folder, job)
        if job in self._ended:
            progress.state, progress.why = FAILED, self._ended[job]
        return progress

    def _at_work(self) -> JobTraining | None:
        training = self._training  # another thread ends it
        return None if training is None or training.is_over else training

    @property
    def under_way(self) -> str:
        """The name of the job that is trained now; empty: none is."""
        training = self._at_work()
        return training.job if training is not None else ""

    def journal(self, job: str) -> Journal | None:
        """That of a job while it is trained here.

        Parameters
        ----------
        job
            Its name.
        """
        training = self._at_work()
        return training.journal if training is not None and training.job == job else None

    def read_progress(self, job: str) -> Progress:
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
        journal = self.journal(job)
        return journal.published if journal is not None else self.progress(job)

    @property
    def guests(self) -> frozenset[str]:
        """The keys of all that may ask because a job is shared with them."""
        shared = self._shared
        return self._guests | (shared.group.may_ask if shared is not None else frozenset())

    def guests_of(self, job: str) -> frozenset[str]:
        """The keys of those that may ask about a job because it is shared with them.

        Parameters
        ----------
        job
            Its name.
        """
        shared = self._shared
        if shared is not None and shared.job == job:
            return shared.group.may_ask
        with suppress(PotluckError, OSError):
            group = self.progress(job).group
            return group.may_ask if group is not None else frozenset()
        return frozenset()

    def _remember_guests(self) -> None:
        for job in self.jobs():
            self._guests |= self.guests_of(job)

    @property
    def plan(self) -> str:
        """The plan in force, as text; empty while there is none."""
        training = self._at_work()
        return training.plan if training is not None else ""

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
        check_files(self.folder / job, self.reads)
        begin_journal(self.folder / job)

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

    def go_on_with(self, job: str, public_bytes: int | None, entries: list[dict[str, Any]]) -> None:
        """Train it, in the background; no other one is.

        Parameters
        ----------
        job
            Its name.
        public_bytes
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
        # its journal is closed; the home may still be
        if self._training is not None and not self._training.has_ended(END_S):
            raise HomeError("what was trained here before does not end.")
        journal = Journal(self.folder / job / JOURNAL, public_bytes)
        try:
            for entry in entries:
                journal.add(**entry)
            journal.add(state=WAITING, why="", durable=bool(entries))
        except FileError:
            journal.close()
            raise
        self._ended.pop(job, None)

        def ended(why: str) -> None:
            if why:
                self._ended[job] = why

        training = JobTraining(
            self.folder / job, journal, self._homes, lambda: self._shared, ended, reads=self.reads
        )
        self._training = training
        training.start()

    def go_on(self) -> None:
        """Start the job that was under way when the last coordinator of this folder ended, and
        delete those that never came whole.
        """
        delete_cut(self.folder)
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
        training = self._at_work()
        if training is not None and training.job == job:
            training.stop()

    def close(self) -> None:
        """End what is under way so that the next coordinator goes on with it."""
        if self._training is not None:
            self._training.close()
        if (shared := self._shared) is not None:
            shared.leave()

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

    def share(self) -> SharedJob | None:
        """Have the job that is trained here shared from now on; None: none is.

        Raises
        ------
        HomeError
            No device can vote, or this coordinator cannot be reached.
        """
        job = self.under_way
        if self._shared is None and job and self.plan:
            self._stand(job, lambda home: {"group": self._founded(home), "founds": True})
        return self._shared

    def _founded(self, home: "Home") -> CoordinatorGroup:
        if self.seat is None or is_anywhere(self.seat.host):
            raise HomeError(
                "this coordinator does not say where it is.",
                next_step="Start it with --address and an address of its own.",
            )
        voters = [m.key for m in home.devices.values() if m.session and m.speaks(LEASE)]
        if not voters:
            raise HomeError(
                "no device here can vote on who coordinates.", next_step="Update potluck on them."
            )
        return CoordinatorGroup(
            seats=(self.seat,), voters=tuple(sorted(voters)), notebooks=tuple(sorted(self.trusted))
        )

    def follow(
        self, job: str, *, group: CoordinatorGroup | None = None, wanted: bool = False
    ) -> None:
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
        self._stand(job, lambda home: {"group": group, "wanted": wanted})

    def _stand(self, job: str, options: "Callable[[Home], dict[str, Any]]") -> None:
        """Keep the home open while it is in line."""
        home = self._homes.take()
        try:
            self._shared = self._part(job, home, **options(home))
            self._shared.stand()
        except BaseException:
            self._homes.give_back()
            raise

    def _part(self, job: str, home: "Home", **options: Any) -> SharedJob:
        assert self.seat is not None
        assert self._reach is not None
        folder = self.folder / job
        return SharedJob(folder, self.seat, self, home, self._reach, pace=self._pace, **options)

    def give_up(self, job: str) -> None:
        """Another coordinator trains it, or will: end that here, and say nothing.

        Parameters
        ----------
        job
            Its name.
        """
        training = self._at_work()
        if training is not None and training.job == job:
            training.give_up()

    def on_leave(self, job: str) -> None:
        """It is in line no more.

        Parameters
        ----------
        job
            Of which.
        """
        self._remember_guests()
        self._shared = None
        self._homes.give_back()
