"""What a notebook sees of a training that was handed over: how far it is, what has happened, its
weights.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck import units
from potluck.coordinate.job import files_of
from potluck.coordinate.journal import FAILED, TRAINING, WAITING
from potluck.coordinate.server import CHUNK_BYTES, VERSION
from potluck.documents import read_json
from potluck.errors import HomeError, UserError
from potluck.graph.torch.state_names import check_shapes
from potluck.handle import Handle, Task
from potluck.sessions.connections import Keys
from potluck.shown import Shown

if TYPE_CHECKING:
    import torch

CONNECT_S = 5.0
ANSWER_S = 20.0  # it looks through all files of a job before it admits it
LOOK_S = 0.5
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
            socket.setsockopt(zmq.IPV6, ":" in self.host)
            socket.curve_serverkey = self.key.encode()
            socket.curve_publickey = self.keys.public.encode()
            socket.curve_secretkey = self.keys.secret.encode()
            with socket.get_monitor_socket(_HANDSHAKE) as monitor:
                socket.connect(f"tcp://{self}")
                request = {"version": VERSION, "ask": what, **about}
                socket.send_multipart([json.dumps(request).encode(), data])
                if not monitor.poll(int(min(within_s, CONNECT_S) * 1000)):
                    raise self._silent(is_refused=False)
                if recv_monitor_message(monitor)["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    raise self._silent(is_refused=True)
                if not socket.poll(int(within_s * 1000)):
                    raise self._silent(is_refused=False)
                text, answered = socket.recv_multipart()
                socket.disable_monitor()
        answer = read_json(text, f"the answer of the coordinator at {self}")
        if not isinstance(answer, dict):
            raise HomeError(f"the coordinator at {self} answers what is no answer.")
        if "error" in answer:
            raise HomeError(str(answer["error"]))
        return answer, answered

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
        self._told: Mapping[str, Any] = {}
        self._look()

    def _look(self) -> Mapping[str, Any]:
        """Ask how far it is."""
        while True:
            told, _ = self._place.ask("status", job=self.job, since=len(self._losses))
            n_done = int(told["step"]) - int(told["first_step"])
            if n_done < len(self._losses):  # it went back, and computes some again
                del self._losses[n_done:]
                continue
            self._losses += map(float, told["losses"])
            self._told = told
            if len(self._losses) >= n_done or not told["losses"]:
                return told

    # --- what it is -------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps of training done so far, with those before it was handed over."""
        return int(self._look()["step"])

    @property
    def n_steps(self) -> int:
        """Steps when all is done."""
        return int(self._told["first_step"]) + int(self._told["n_batches"])

    @property
    def losses(self) -> tuple[float, ...]:
        """Of the steps since it was handed over."""
        self._look()
        return tuple(self._losses)

    @property
    def state(self) -> str:
        """One of "waiting", "training", "ended", "stopped", "failed"."""
        return str(self._look()["state"])

    @property
    def why(self) -> str:
        """Why it has failed or stopped; empty otherwise."""
        return str(self._look()["why"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What has happened: devices lost, switches, decisions."""
        return tuple(map(str, self._look()["notes"]))

    @property
    def plan(self) -> str:
        """The plan in force, as text; empty while it is not trained."""
        return str(self._look()["plan"])

    def __repr__(self) -> str:
        told = self._look()
        why = f": {told['why']}" if told["why"] else ""
        loss = f", loss {self._losses[-1]:.4g}" if self._losses else ""
        return (
            f"<DetachedRun {self.job} at {self._place}, {told['state']}{why}, step {told['step']} "
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
                done_frac = len(self._losses) / max(1, int(told["n_batches"]))
                loss = f", loss {self._losses[-1]:.4g}" if self._losses else ""
                task.update(done_frac, f"step {told['step']}{loss}")
                if told["state"] not in (WAITING, TRAINING):
                    return
                task.check()
                time.sleep(LOOK_S)

        Handle(work, f"training {self.job}, detached").wait(timeout_s)
        if self._told["state"] == FAILED:
            raise HomeError(
                f"the training {self.job} has failed: {self._told['why']}",
                next_step="Its latest state is kept: `save` fetches it, and `start` goes on.",
            )
        return self

    def stop(self) -> "DetachedRun":
        """End it between two steps; its state is kept, and `start` goes on from there."""
        self._place.ask("stop", job=self.job)
        while self._look()["is_under_way"]:
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
            The coordinator does not answer.
        """
        path, part = Path(path), Path(f"{path}.part")
        told, data = self._place.ask("read", job=self.job)
        with part.open("wb") as out:
            out.write(data)
            while out.tell() < told["nbytes"]:
                more = {"file": told["file"], "at": out.tell()}
                out.write(self._place.ask("read", job=self.job, **more)[1])
        from potluck.run.checkpoint import load

        step = load(part).step
        part.replace(path)
        return step

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """The weights of the latest state on disk there, by the names of the module."""
        from potluck.run.checkpoint import load

        names = self._place.ask("status", job=self.job, names=True)[0]["names"]
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
