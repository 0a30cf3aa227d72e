"""One job while it is trained here, in a thread of its own.

The state is written to disk whenever the run's own snapshot is a new one: that costs the training
nothing. Who begins again goes on from there; steps since then are computed once more, from the same
batches.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.coordinator.batch_store import Batches
from potluck.coordinator.coordinator_group import lease_of
from potluck.coordinator.file_batches import batches_of
from potluck.coordinator.job import MODEL, SAVED, read_job, read_profile
from potluck.coordinator.job_files import check_documents
from potluck.coordinator.job_start import JobStart, has_ended
from potluck.coordinator.journal import ENDED, FAILED, STOPPED, TRAINING, Journal
from potluck.coordinator.open_home import OpenHome
from potluck.coordinator.shared_job import SharedJob
from potluck.errors import PotluckError
from potluck.graph.model_file import load_model
from potluck.handle import Handle
from potluck.planning.text import dumps

if TYPE_CHECKING:
    from potluck.run.history import History
    from potluck.run.run import Run

SAVE_S = 10.0  # between two states on disk, at least
SHARED_SAVE_S = 2.0  # where others keep copies: what came since is computed again at a takeover
RARE = 20.0  # times what saving takes
COPIES_S = 20.0  # for copies of the last state to be complete
LOOK_S = 0.1


class JobTraining:
    """Begins with `start`. `plan`: the one in force, as text; empty while there is none.

    Parameters
    ----------
    folder
        Of the job.
    journal
        Its own; closed at the end.
    homes
        Where it is trained.
    shared
        The job as others have it, too; None: nobody does.
    ended
        Called at the end, with why it has failed where no disk had room for that; else empty.
    reads
        As for `Coordinator`.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        homes: OpenHome,
        shared: Callable[[], SharedJob | None],
        ended: Callable[[str], None],
        *,
        reads: Path | None = None,
    ) -> None:
        self._reads = reads
        self._folder = folder
        self.job = folder.name
        self.journal = journal
        self._homes = homes
        self._shared = shared
        self._ended = ended
        self.plan, self.is_over = "", False
        self._gives_up = self._closes = False
        self._stopping, self._begins = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._carry_out, name="potluck train", daemon=True)
        self._thread.start()  # so that others may wait for it, whether it has begun or not

    def start(self) -> None:
        """Train from now on."""
        self._begins.set()

    def stop(self) -> None:
        """End between two steps, and keep the state."""
        self._stopping.set()

    def give_up(self) -> None:
        """End, and say nothing: another coordinator trains it, or will."""
        self._gives_up = True
        self._stopping.set()

    def close(self) -> None:
        """End so that the next coordinator goes on with it."""
        self._closes = True
        self._stopping.set()
        self._thread.join()

    def has_ended(self, within_s: float) -> bool:
        """Wait so long for its end: whether that has come."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    # --- the thread -------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        unwritten = ""
        self._begins.wait()
        try:
            self._train()
        except Exception as error:  # whatever it is, whoever asks is told
            unwritten = self._failed(str(error) or type(error).__name__)
        finally:
            self.plan = ""
            self._wait_for_copies()
            self.journal.close()
            self._ended(unwritten)
            self.is_over = True

    def _failed(self, why: str) -> str:
        """Write down why; what could not be written."""
        if self._gives_up:
            return ""
        try:
            self.journal.add(state=FAILED, why=why, durable=True)
        except PotluckError as full:
            return f"{why} {full}"
        return ""

    def _wait_for_copies(self) -> None:
        """Of all that is said and saved, where copies are kept."""
        end_s = time.monotonic() + COPIES_S
        while time.monotonic() < end_s and not (self._closes or self._gives_up):
            shared = self._shared()
            if shared is None or not shared.acts or shared.have_all():
                return
            time.sleep(LOOK_S)

    def _train(self) -> None:
        folder, journal = self._folder, self.journal
        check_documents(folder, journal.progress.documents)
        wanted = read_job(folder)
        model, saved = load_model(folder / MODEL), folder / journal.progress.saved[0]
        known, first = read_profile(folder), journal.progress.first_step
        store = batches_of(folder, self._reads)
        store.check_same()
        term = journal.progress.term
        start = JobStart(
            wanted,
            model,
            saved,
            known,
            last_step=first + len(store),
            prepare=lambda home: home.devices.act_under(lease_of(folder), term),
        )
        is_done = False
        with self._homes.use() as home:
            run = start.begun(home, self._homes, self._stopping)
            if run is not None:
                if note := start.note(run):
                    journal.add(note=note)
                adapt = wanted.adapt if known is not None else False
                if self._go_on(run, store.since(run.step - first), adapt):
                    is_done = not self._gives_up and self._saved_at_end(run)
                    is_done = is_done and run.step - first >= len(store)
                    self._ends(run.close, "closing")
                elif not self._gives_up:
                    self._save_kept(run)
        if self._gives_up:
            return
        if is_done:
            journal.add(state=ENDED, why="", durable=True)
        elif not self._closes:
            journal.add(state=STOPPED, why="it was told to stop.", durable=True)

    def _go_on(self, run: "Run", rest: Batches, adapt: bool | None) -> bool:
        """Train it on the batches that are left; as for `_follow`."""
        journal = self.journal
        if run.step < journal.progress.step:
            journal.add(back=run.step)
        journal.add(state=TRAINING, why="", durable=True)
        if len(rest):
            fitting = run.fit(
                rest, on_step=lambda step, loss: journal.add(step=step, loss=loss), adapt=adapt
            )
            return self._follow(run, fitting)
        return True

    def _follow(self, run: "Run", fitting: "Handle[History]") -> bool:
        """Until it has ended, or is told to: write down what happens, and save. Whether it has: a
        device may say for ever that it gets on with a step.
        """
        journal = self.journal
        n_noted = 0
        saved_s = time.monotonic()
        took_s = 0.0
        while not fitting.done:
            if self._stopping.wait(LOOK_S):
                with suppress(CancelledError):
                    return has_ended(fitting, self._stopping)
                return True
            self.plan = dumps(run.plan)
            n_noted = _note_events(run.history, n_noted, journal)
            is_new = run.protection is None or (
                run.protection.snapshot.step > journal.progress.saved[1]
            )
            if is_new and time.monotonic() - saved_s >= self._save_every_s(took_s):
                begun_s = time.monotonic()
                self._save(run, latest=run.protection is None)
                saved_s = time.monotonic()
                took_s = saved_s - begun_s
        try:
            fitting.wait()
        except PotluckError:
            if run.protection is not None:  # what it could have gone back to
                self._save(run, latest=False)
            raise
        finally:
            _note_events(run.history, n_noted, journal)
        return True

    def _save_every_s(self, took_s: float) -> float:
        """Seconds between two states on disk; the latest took so long."""
        return max(SAVE_S if self._shared() is None else SHARED_SAVE_S, RARE * took_s)

    def _saved_at_end(self, run: "Run") -> bool:
        """Save the state; whether it is the latest. Who tells it to end waits for no device that is
        lost: what the training could have gone back to is kept.
        """
        patience_s = 0.0 if self._stopping.is_set() else None
        try:
            if not self._ends(
                lambda: self._save(run, latest=True, patience_s=patience_s), "saving"
            ):
                self._save_kept(run)
                return False
        except PotluckError:
            if not self._stopping.is_set() or run.protection is None:
                raise
            self._save_kept(run)
            return False
        return True

    def _ends(self, work: Callable[[], None], title: str) -> bool:
        """Do this with the devices; as for `has_ended`."""
        return has_ended(Handle(lambda _: work(), f"{title} {self.job}"), self._stopping)

    def _save_kept(self, run: "Run") -> None:
        """What the training could go back to, where that is newer than what is on the disk."""
        kept = run.protection
        if kept is not None and kept.snapshot.step > self.journal.progress.saved[1]:
            self._save(run, latest=False)

    def _save(self, run: "Run", *, latest: bool, patience_s: float | None = None) -> None:
        """The state to the file that does not have the latest one."""
        name = SAVED[self.journal.progress.saved[0] == SAVED[0]]
        step = run.save(self._folder / name, latest=latest, patience_s=patience_s)
        if step <= self.journal.progress.step:
            self.journal.add(saved=name, at=step, durable=True)


def _note_events(history: "History", n_noted: int, journal: Journal) -> int:
    """Write down what has happened to a run since; how much that is in all."""
    events = [
        *(each.words for each in history.recoveries),
        *(each.words for each in history.departures),
        *(each.words for each in history.arrivals),
        *(each.words for each in history.decisions),
        *history.notes,
    ]
    known = set(journal.progress.notes)
    for text in events if len(events) > n_noted else ():
        if text not in known:
            journal.add(note=text)
    return len(events)
