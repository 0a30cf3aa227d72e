"""Where a coordinator listens, and how it is asked: one request, one answer, over CURVE."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck import units
from potluck.coordinator.checked_replies import MAX_TEXT
from potluck.coordinator.fetched_states import CHUNK_BYTES
from potluck.coordinator.job import files_of
from potluck.coordinator.server import VERSION
from potluck.documents import read_json
from potluck.errors import HomeError
from potluck.handle import Task
from potluck.sanitized_text import harmless
from potluck.sessions.connections import Keys
from potluck.sessions.events import Address
from potluck.sessions.socket_memory import ConnectionMemory

CONNECT_S = 5.0
ANSWER_S = 20.0  # it looks through all files of a job before it admits it
MAX_ANSWER_BYTES = 64 << 20
LOOK_S = 0.1  # how often it is looked at what has come of an answer
_WATCHED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
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
        return str(Address(host=self.host, port=self.port))

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
            with socket.get_monitor_socket(_WATCHED) as monitor:
                try:
                    socket.connect(f"tcp://{self}")
                except zmq.ZMQError as error:
                    raise HomeError(f"{self} is no address: {error.strerror}.") from error
                request = {"version": VERSION, "ask": what, **about}
                socket.send_multipart([json.dumps(request).encode(), data])
                came = ConnectionMemory()
                self._await_handshake(monitor, came, min(within_s, CONNECT_S))
                self._await_answer(socket, monitor, came, within_s)
                text, *rest = socket.recv_multipart()
                socket.disable_monitor()
        answer = read_json(text, f"the answer of the coordinator at {self}")
        if len(rest) != 1 or not isinstance(answer, dict):
            raise HomeError(f"the coordinator at {self} answers what is no answer.")
        if "error" in answer:
            raise HomeError(harmless(str(answer["error"])[:MAX_TEXT]))
        return answer, rest[0]

    def _await_handshake(self, monitor: Any, came: ConnectionMemory, within_s: float) -> None:
        end_s = time.monotonic() + within_s
        while monitor.poll(max(0, int((end_s - time.monotonic()) * 1000))):
            event: Any = recv_monitor_message(monitor)
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            if event["event"] != zmq.EVENT_CONNECTED:
                raise self._silent(is_refused=True)
            came.opened(event["value"])
        raise self._silent(is_refused=False)

    def _await_answer(
        self, socket: Any, monitor: Any, came: ConnectionMemory, within_s: float
    ) -> None:
        """Until all of it is there. Before that ZeroMQ shows none of it, however much has come."""
        end_s = time.monotonic() + within_s
        while not socket.poll(int(min(LOOK_S, within_s) * 1000)):
            while monitor.poll(0):
                event: Any = recv_monitor_message(monitor)
                if event["event"] == zmq.EVENT_CONNECTED:
                    came.opened(event["value"])
            if came.left_bytes(is_empty=False) > MAX_ANSWER_BYTES + CHUNK_BYTES:
                raise HomeError(
                    f"the coordinator at {self} answers more than {units.size(MAX_ANSWER_BYTES)}.",
                    next_step="Is it of this version of potluck?",
                )
            if time.monotonic() > end_s:
                raise self._silent(is_refused=False)

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
