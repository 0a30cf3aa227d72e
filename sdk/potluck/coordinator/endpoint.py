"""Where a coordinator listens, and how it is asked: one request, one answer, over CURVE."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck import units
from potluck.coordinator.checked_replies import MAX_TEXT
from potluck.coordinator.job import files_of
from potluck.coordinator.server import CHUNK_BYTES, VERSION
from potluck.documents import read_json
from potluck.errors import HomeError
from potluck.handle import Task
from potluck.sanitized_text import harmless
from potluck.sessions.connections import Keys

CONNECT_S = 5.0
ANSWER_S = 20.0  # it looks through all files of a job before it admits it
MAX_ANSWER_BYTES = 64 << 20
_HANDSHAKE = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
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
            f"no coordinator answers at {self}.",
            next_step="Is `potluck coordinate` running there?",
            is_silent=True,
        )

    def hand_over(self, job: str, folder: Path, task: Task, *, reads: str = "") -> None:
        """Send the files of a job, and have it admitted.

        Parameters
        ----------
        job
            What it is called there.
        folder
            That `pack` filled.
        task
            Shows the progress.
        reads
            The folder of its files of arrays there: said by who has the coordinator's own keys.

        Raises
        ------
        HomeError
            It is refused; says why.
        """
        files = files_of(folder)
        self.ask("begin", job=job, files=files, reads=reads)
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
