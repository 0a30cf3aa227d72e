"""What a notebook sees of a training that was handed over: how far it is, what has happened, its
weights.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from potluck.coordinator.checked_replies import JobProgress, part, read_job_progress
from potluck.coordinator.endpoint import Endpoint
from potluck.coordinator.journal import FAILED, TRAINING, WAITING
from potluck.coordinator.leader_client import LeaderClient
from potluck.coordinator.state_size import check_size
from potluck.display_hooks import Shown
from potluck.documents import file_path
from potluck.errors import FileError, HomeError, UserError
from potluck.graph.torch.state_names import check_shapes
from potluck.handle import Handle, Task
from potluck.sanitized_text import harmless

if TYPE_CHECKING:
    import torch

LOOK_S = 0.5
STOP_S = 600.0


class DetachedRun(Shown):
    """A training that a coordinator has: made by `run.detach` and `Home.attach`.

    Parameters
    ----------
    place
        Where the coordinator is; or whoever of several acts.
    job
        Its name there.
    most_bytes
        That its state may have; None: nobody here knows.
    """

    def __init__(
        self, place: Endpoint | LeaderClient, job: str, most_bytes: int | None = None
    ) -> None:
        self._who = place if isinstance(place, LeaderClient) else LeaderClient(place)
        self.job, self._most_bytes = job, most_bytes
        self._losses: list[float] = []
        self._progress = self._look()

    def _look(self) -> JobProgress:
        """Ask how far it is."""
        while True:
            since = len(self._losses)
            self._progress = read_job_progress(
                self._who.ask("status", job=self.job, since=since)[0], since
            )
            self._who.learn(self._progress.seats)
            del self._losses[self._progress.n_done :]  # it went back, and computes some again
            self._losses += self._progress.losses
            if len(self._losses) == self._progress.n_done:
                return self._progress

    # --- what it is -------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps of training done so far, with those before it was handed over."""
        return self._look().step

    @property
    def n_steps(self) -> int:
        """Steps when all is done."""
        return self._progress.first_step + self._progress.n_batches

    @property
    def losses(self) -> tuple[float, ...]:
        """Of the steps since it was handed over."""
        self._look()
        return tuple(self._losses)

    @property
    def state(self) -> str:
        """One of "waiting", "training", "ended", "stopped", "failed"."""
        return self._look().state

    @property
    def why(self) -> str:
        """Why it has failed or stopped; empty otherwise."""
        return self._look().why

    @property
    def notes(self) -> tuple[str, ...]:
        """What has happened: devices lost, switches, decisions; the latest thousand."""
        return self._look().notes

    @property
    def plan(self) -> str:
        """The plan in force, as text; empty while it is not trained."""
        return self._look().plan

    @property
    def copies(self) -> tuple[str, ...]:
        """Where else its journal is, whole: the addresses of coordinators that go on with it if the
        one that trains it dies. Empty: nowhere, or it is not trained now.

        A coordinator keeps a copy that was started with `--join`.
        """
        return _addresses(self._look())

    def __repr__(self) -> str:
        progress = self._look()
        why = f": {progress.why}" if progress.why else ""
        loss = f", loss {self._losses[-1]:.4g}" if self._losses else ""
        copies = ", ".join(_addresses(progress))
        where = f"its journal copied to {copies}" if copies else "no copy of its journal elsewhere"
        kept = f", {where}" if progress.is_under_way else ""
        return (
            f"<DetachedRun {self.job} at {self._who.place}, {progress.state}{why}, "
            f"step {progress.step} of {self.n_steps}{loss}{kept}>"
        )

    # --- what to do with it -----------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> "DetachedRun":
        """Wait until it has ended or was stopped; the notebook may be closed meanwhile.

        Parameters
        ----------
        timeout_s
            Then the wait is over, and the training goes on.

        Raises
        ------
        HomeError
            It has failed; says why.
        TimeoutError
            Time is up.
        """

        def work(task: Task) -> None:
            while True:
                progress = self._look()
                done_frac = len(self._losses) / progress.n_batches
                loss = f", loss {self._losses[-1]:.4g}" if self._losses else ""
                task.update(done_frac, f"step {progress.step}{loss}")
                if progress.state not in (WAITING, TRAINING):
                    return
                task.check()
                time.sleep(LOOK_S)

        Handle(work, f"training {self.job}, detached").wait(timeout_s)
        if self._progress.state == FAILED:
            raise HomeError(
                f"the training {self.job} has failed: {self._progress.why}",
                next_step="Its latest state is kept: `save` fetches it, and `start` goes on.",
            )
        return self

    def stop(self) -> "DetachedRun":
        """End it between two steps; its state is kept, and `start` goes on from there.

        Raises
        ------
        HomeError
            It does not stop within ten minutes.
        """
        end_s = time.monotonic() + STOP_S
        while True:
            self._who.ask("stop", job=self.job)
            progress = self._look()
            # of a shared one, who answers may be back, and another about to act: it is told again
            goes_on = bool(progress.seats) and progress.state in (WAITING, TRAINING)
            if not (progress.is_under_way or goes_on):
                return self
            if time.monotonic() > end_s:
                raise HomeError(
                    f"{self.job} was told to stop, and is still trained after {STOP_S:.0f} s.",
                    next_step="It stops after the step that is under way; look again later.",
                )
            time.sleep(LOOK_S / 5)

    def start(self) -> "DetachedRun":
        """Go on with it where it was stopped, or has failed."""
        self._who.ask("start", job=self.job)
        return self

    def forget(self) -> None:
        """Delete all that the coordinator has of it."""
        self._who.ask("forget", job=self.job)

    def save(self, path: str | Path) -> int:
        """Fetch the latest state that is on disk there, as `run.save` writes it; its step.

        Parameters
        ----------
        path
            Where to; `home.deploy(plan, model, resume=path)` goes on from it.

        Raises
        ------
        HomeError
            The coordinator does not answer, or not its state; or that would be larger than any of
            this job is.
        UserError
            There is no room for it.
        FileError
            It cannot be written there.
        """
        from potluck.run.checkpoint import load

        path, coming = file_path(path), Path(f"{path}.part")
        try:
            with coming.open("wb") as out:
                answer, data = self._who.ask("read", job=self.job)
                file, nbytes = part(answer, data, 0)
                check_size(self.job, nbytes, self._most_bytes, path.absolute().parent)
                out.write(data)
                while (at := out.tell()) < nbytes:
                    answer, data = self._who.ask("read", job=self.job, file=file, at=at)
                    if part(answer, data, at) != (file, nbytes):
                        raise HomeError(f"the state of {self.job} has changed meanwhile.")
                    out.write(data)
            step = load(coming).step
            coming.replace(path)
        except OSError as error:
            raise FileError(
                f"cannot write {coming}: {error.strerror}.", path=str(coming)
            ) from error
        finally:
            coming.unlink(missing_ok=True)
        return step

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """The weights of the latest state on disk there, by the names of the module."""
        from potluck.run.checkpoint import load

        since = len(self._losses)
        answer, _ = self._who.ask("status", job=self.job, since=since, names=True)
        names = read_job_progress(answer, since).names
        with TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            self.save(path)
            weights = load(path).weights
        return {own: weights[name] for own, name in names if name in weights}

    def load_into(self, module: Any) -> None:
        """Bring those weights into a module of the kind that was trained.

        Parameters
        ----------
        module
            A torch.nn.Module.

        Raises
        ------
        UserError
            It has none of these weights, or other shapes.
        """
        state = self.state_dict()
        check_shapes(module, state)
        strangers = module.load_state_dict(state, strict=False).unexpected_keys
        if len(strangers) == len(state):
            raise UserError(
                f"the module {type(module).__name__} has none of these weights, such as "
                f"{strangers[0]}.",
                next_step="Load them into a module of the kind that was handed over.",
            )


def _addresses(progress: JobProgress) -> tuple[str, ...]:
    return tuple(harmless(str(seat)) for seat in progress.copies)
