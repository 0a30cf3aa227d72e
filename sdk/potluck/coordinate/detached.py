"""What a notebook sees of a training that was handed over: how far it is, what has happened, its
weights.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck import units
from potluck.coordinate.answers import MAX_TEXT, Told, part, told
from potluck.coordinate.job import files_of
from potluck.coordinate.journal import FAILED, TRAINING, WAITING
from potluck.coordinate.server import CHUNK_BYTES, VERSION
from potluck.documents import read_json
from potluck.errors import FileError, HomeError, UserError
from potluck.graph.torch.state_names import check_shapes
from potluck.handle import Handle, Task
from potluck.sessions.connections import Keys
from potluck.shown import Shown
from potluck.texts import harmless

if TYPE_CHECKING:
    import torch

CONNECT_S = 5.0
ANSWER_S = 20.0  # it looks through all files of a job before it admits it
LOOK_S = 0.5
STOP_S = 600.0
MAX_ANSWER_BYTES = 64 << 20
_HANDSHAKE = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a coordinator listens, its key, and those that this notebook is known by."""

    host: str
    port: int
    key: str
    keys: Keys = field(repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def ask(
        self, what: str, data: bytes = b"", *, within_s: float = ANSWER_S, **about: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Ask it something: its answer, and the bytes of that.

        Parameters
        ----------
        what
            The word for it.
        data
            Bytes that go with it.
        within_s
            Wait so long.
        **about
            What else the request says.

        Raises
        ------
        HomeError
            It does not answer, or refuses; says why.
        """
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_ANSWER_BYTES)
            socket.setsockopt(zmq.IPV6, ":" in self.host)
            socket.curve_serverkey = self.key.encode()
            socket.curve_publickey = self.keys.public.encode()
            socket.curve_secretkey = self.keys.secret.encode()
            with socket.get_monitor_socket(_HANDSHAKE) as monitor:
                try:
                    socket.connect(f"tcp://{self}")
                except zmq.ZMQError as error:
                    raise HomeError(f"{self} is no address: {error.strerror}.") from error
                request = {"version": VERSION, "ask": what, **about}
                socket.send_multipart([json.dumps(request).encode(), data])
                if not monitor.poll(int(min(within_s, CONNECT_S) * 1000)):
                    raise self._silent(is_refused=False)
                if recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    raise self._silent(is_refused=True)
                if not socket.poll(int(within_s * 1000)):
                    raise self._silent(is_refused=False)
                text, *rest = socket.recv_multipart()
                socket.disable_monitor()
        answer = read_json(text, f"the answer of the coordinator at {self}")
        if len(rest) != 1 or not isinstance(answer, dict):
            raise HomeError(f"the coordinator at {self} answers what is no answer.")
        if "error" in answer:
            raise HomeError(harmless(str(answer["error"])[:MAX_TEXT]))
        return answer, rest[0]

    def _silent(self, is_refused: bool) -> HomeError:
        if is_refused:
            return HomeError(
                f"the coordinator at {self} does not know this notebook, or has another key.",
                next_step=f"Start it with --trust '{self.keys.public}', and compare the key that "
                "it prints with the one given here.",
            )
        return HomeError(
            f"no coordinator answers at {self}.", next_step="Is `potluck coordinate` running there?"
        )

    def hand_over(self, job: str, folder: Path, task: Task) -> None:
        """Send the files of a job, and have it admitted.

        Parameters
        ----------
        job
            What it is called there.
        folder
            That `pack` filled.
        task
            Shows the progress.

        Raises
        ------
        HomeError
            It is refused; says why.
        """
        files = files_of(folder)
        self.ask("begin", job=job, files=files)
        total, sent = sum(nbytes for nbytes, _ in files.values()), 0
        for name in files:
            with (folder / name).open("rb") as file:
                at = 0
                while (data := file.read(CHUNK_BYTES)) or not at:
                    self.ask("put", data, job=job, file=name, at=at)
                    at += max(1, len(data))
                    sent += len(data)
                    task.update(sent / total, f"{units.size(sent)} handed over")
        self.ask("admit", job=job, within_s=10 * ANSWER_S)


class DetachedRun(Shown):
    """A training that a coordinator has: made by `run.detach` and `Home.attach`.

    Parameters
    ----------
    place
        Where the coordinator is.
    job
        Its name there.
    """

    def __init__(self, place: Place, job: str) -> None:
        self._place, self.job = place, job
        self._losses: list[float] = []
        self._told = self._look()

    def _look(self) -> Told:
        """Ask how far it is."""
        while True:
            since = len(self._losses)
            self._told = told(self._place.ask("status", job=self.job, since=since)[0], since)
            del self._losses[self._told.n_done :]  # it went back, and computes some again
            self._losses += self._told.losses
            if len(self._losses) == self._told.n_done:
                return self._told

    # --- what it is -------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps of training done so far, with those before it was handed over."""
        return self._look().step

    @property
    def n_steps(self) -> int:
        """Steps when all is done."""
        return self._told.first_step + self._told.n_batches

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
        """What has happened: devices lost, switches, decisions."""
        return self._look().notes

    @property
    def plan(self) -> str:
        """The plan in force, as text; empty while it is not trained."""
        return self._look().plan

    def __repr__(self) -> str:
        told = self._look()
        why = f": {told.why}" if told.why else ""
        loss = f", loss {self._losses[-1]:.4g}" if self._losses else ""
        return (
            f"<DetachedRun {self.job} at {self._place}, {told.state}{why}, step {told.step} "
            f"of {self.n_steps}{loss}>"
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
                told = self._look()
                done_frac = len(self._losses) / told.n_batches
                loss = f", loss {self._losses[-1]:.4g}" if self._losses else ""
                task.update(done_frac, f"step {told.step}{loss}")
                if told.state not in (WAITING, TRAINING):
                    return
                task.check()
                time.sleep(LOOK_S)

        Handle(work, f"training {self.job}, detached").wait(timeout_s)
        if self._told.state == FAILED:
            raise HomeError(
                f"the training {self.job} has failed: {self._told.why}",
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
        self._place.ask("stop", job=self.job)
        end_s = time.monotonic() + STOP_S
        while self._look().is_under_way:
            if time.monotonic() > end_s:
                raise HomeError(
                    f"{self.job} was told to stop, and is still trained after {STOP_S:.0f} s.",
                    next_step="It stops after the step that is under way; look again later.",
                )
            time.sleep(LOOK_S / 5)
        return self

    def start(self) -> "DetachedRun":
        """Go on with it where it was stopped, or has failed."""
        self._place.ask("start", job=self.job)
        return self

    def forget(self) -> None:
        """Delete all that the coordinator has of it."""
        self._place.ask("forget", job=self.job)

    def save(self, path: str | Path) -> int:
        """Fetch the latest state that is on disk there, as `run.save` writes it; its step.

        Parameters
        ----------
        path
            Where to; `home.deploy(plan, model, resume=path)` goes on from it.

        Raises
        ------
        HomeError
            The coordinator does not answer, or not its state.
        FileError
            It cannot be written there.
        """
        from potluck.run.checkpoint import load

        path, coming = Path(path), Path(f"{path}.part")
        try:
            with coming.open("wb") as out:
                answer, data = self._place.ask("read", job=self.job)
                file, nbytes = part(answer, data, 0)
                out.write(data)
                while (at := out.tell()) < nbytes:
                    answer, data = self._place.ask("read", job=self.job, file=file, at=at)
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
        answer, _ = self._place.ask("status", job=self.job, since=since, names=True)
        names = told(answer, since).names
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
