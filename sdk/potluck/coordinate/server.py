"""A coordinator's entrance: one CURVE socket for the notebooks whose keys it knows.

A request is a JSON object and perhaps bytes; so is its answer. Whatever is wrong with a request is
answered in words, and changes nothing.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from potluck.coordinate.coordinator import Coordinator
from potluck.coordinate.job import (
    COMING,
    NAME,
    SAVED,
    START,
    digest,
    is_file_of_job,
    missing,
    read_job,
)
from potluck.documents import read_json
from potluck.errors import FileError, HomeError, PotluckError, UserError
from potluck.sessions.connections import Keys

VERSION = 1
CHUNK_BYTES = 1 << 20
MAX_REQUEST_BYTES = 1 << 18
MAX_FILES = 10_000
MAX_LOSSES = 4096  # in one answer
DOMAIN = "potluck"
# what must not happen and did; silent in an honest home
FAULTS = logging.getLogger("potluck.faults")

Answer = tuple[dict[str, Any], bytes]


class _Known:
    """Whose key may speak here."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = {key.encode() for key in keys}

    def callback(self, domain: str, key: bytes) -> bool:
        """As ZAP asks: whether this is one."""
        return key in self._keys


class Server:
    """Listens from the start on; `serve` answers.

    Parameters
    ----------
    coordinator
        What is asked.
    keys
        Its own.
    known
        Public keys of those who may ask.
    host, port
        Where to listen; port 0: a free one.

    Raises
    ------
    HomeError
        Nobody can listen there.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        keys: Keys,
        known: frozenset[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._coordinator = coordinator
        self._context: zmq.Context[Any] = zmq.Context()
        self._auth = ThreadAuthenticator(self._context)
        self._auth.start()
        self._auth.configure_curve_callback(DOMAIN, _Known(known))
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, CHUNK_BYTES + MAX_REQUEST_BYTES)
        self._socket.setsockopt(zmq.RCVHWM, 64)
        self._socket.setsockopt(zmq.IPV6, ":" in host)
        self._socket.curve_server = True
        # without anybody who answers ZAP, CURVE alone would let every key in
        self._socket.zap_domain = DOMAIN.encode()
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._socket.curve_publickey = keys.public.encode()
        self._socket.curve_secretkey = keys.secret.encode()
        place = f"[{host}]" if ":" in host else host
        try:
            self.port = self._bound(place, port)
        except zmq.ZMQError as error:
            self.close()
            raise HomeError(
                f"a coordinator cannot listen at {place}:{port}: {error.strerror}.",
                next_step="Give another --address or --port.",
            ) from error
        self._answers: Mapping[str, Callable[[Mapping[str, Any], bytes], Answer]] = {
            "status": self._status,
            "begin": self._begin,
            "put": self._put,
            "admit": self._admit,
            "start": self._start,
            "stop": self._stop,
            "read": self._read,
            "forget": self._forget,
        }

    def _bound(self, place: str, port: int) -> int:
        if port:
            self._socket.bind(f"tcp://{place}:{port}")
            return port
        return self._socket.bind_to_random_port(f"tcp://{place}")

    def serve(self, goes_on: Callable[[float], bool]) -> None:
        """Answer until `goes_on(seconds since the last request)` says no.

        Parameters
        ----------
        goes_on
            Asked ten times a second.
        """
        heard_s = time.monotonic()
        while goes_on(time.monotonic() - heard_s):
            if not self._socket.poll(100):
                continue
            who, *parts = self._socket.recv_multipart()
            heard_s = time.monotonic()
            answer, data = self.answer(parts)
            self._socket.send_multipart([who, b"", json.dumps(answer).encode(), data])

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()
        self._auth.stop()
        self._context.term()

    # --- answers ----------------------------------------------------------------------------------

    def answer(self, parts: list[bytes]) -> Answer:
        """What is answered to a request.

        Parameters
        ----------
        parts
            Its frames: empty, the JSON object, the bytes.
        """
        try:
            if len(parts) != 3 or parts[0] or len(parts[1]) > MAX_REQUEST_BYTES:
                raise UserError("that is no request.")
            request = read_json(parts[1], "the request")
            if not isinstance(request, dict) or request.get("version") != VERSION:
                raise UserError(
                    "the request is of another version of potluck.",
                    next_step=f"Use one that speaks version {VERSION}.",
                )
            act = self._answers.get(str(request.get("ask")))
            if act is None:
                raise UserError(f"nobody here answers {str(request.get('ask'))[:40]!r}.")
            return act(request, parts[2])
        except PotluckError as error:
            return {"error": str(error)}, b""
        except OSError as error:
            return {"error": f"{error.filename}: {error.strerror}."}, b""
        # the last line of defence: who asked is told, and the next one is answered
        except Exception as error:
            FAULTS.exception("a fault in the coordinator while answering %.500r", parts)
            return {"error": f"this is a fault of potluck's ({type(error).__name__})."}, b""

    def _status(self, request: Mapping[str, Any], _: bytes) -> Answer:
        jobs, since = self._coordinator.jobs(), _whole(request, "since")
        if not jobs and not request.get("job"):
            return {"jobs": []}, b""
        job = str(request.get("job") or jobs[-1])
        progress = self._coordinator.progress(job)
        is_under_way = self._coordinator.under_way == job
        return {
            "jobs": jobs,
            "job": job,
            "is_under_way": is_under_way,
            "plan": self._coordinator.plan if is_under_way else "",
            "losses": progress.losses[since : since + MAX_LOSSES],
            **{
                name: getattr(progress, name)
                for name in ("first_step", "n_batches", "step", "saved", "state", "why", "notes")
            },
            "names": read_job(self._folder(job)).state_names if request.get("names") else [],
        }, b""

    def _begin(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job, files = _name(request), request.get("files")
        if self._coordinator.under_way:
            raise HomeError(
                f"{self._coordinator.under_way} is trained here now.",
                next_step="Wait for it, or stop it.",
            )
        if job in self._coordinator.jobs():
            raise UserError(f"there is a job {job!r} already.")
        if not isinstance(files, dict) or len(files) > MAX_FILES or missing(files):
            raise UserError("these are not the files of a job.")
        needed = 0
        for name, known in files.items():
            match known:
                case [int(nbytes), str()] if is_file_of_job(name) and nbytes >= 0:
                    needed += nbytes
                case _:
                    raise UserError(f"a job has no file {name[:80]!r}.")
        self._coordinator.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._coordinator.folder).free
        if needed > free:
            raise UserError(
                f"the job has {needed} bytes, and {free} are free where the coordinator keeps it.",
                next_step="Make room there, or hand it to another.",
            )
        folder = self._coming(job)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        (folder / "files").write_text(json.dumps(files))
        return {}, b""

    def _put(self, request: Mapping[str, Any], data: bytes) -> Answer:
        folder, file = self._coming(_name(request)), str(request.get("file"))
        files = json.loads((folder / "files").read_text()) if folder.is_dir() else {}
        if file not in files:
            raise UserError(f"no file {file[:80]!r} is expected.")
        at, path = _whole(request, "at"), folder / file
        if at + len(data) > files[file][0]:
            raise UserError(f"{file} has {files[file][0]} bytes.")
        path.parent.mkdir(exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as out:
            out.seek(at)
            out.write(data)
        return {}, b""

    def _admit(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job = _name(request)
        folder = self._coming(job)
        if not folder.is_dir():
            raise UserError(f"no job {job!r} is being handed over.")
        listing = folder / "files"
        for name, (nbytes, sha256) in json.loads(listing.read_text()).items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != nbytes or digest(path) != sha256:
                raise FileError(f"{name} is not as it was sent.", next_step="Hand it over again.")
        listing.unlink()
        folder.rename(self._coordinator.folder / job)
        try:
            self._coordinator.admit(job)
        except PotluckError:
            shutil.rmtree(self._coordinator.folder / job)
            raise
        return {}, b""

    def _start(self, request: Mapping[str, Any], _: bytes) -> Answer:
        self._coordinator.start(_name(request))
        return {}, b""

    def _stop(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job = _name(request)
        self._coordinator.progress(job)  # there is one
        self._coordinator.stop(job)
        return {}, b""

    def _read(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job, at = _name(request), _whole(request, "at")
        name = str(request.get("file") or self._coordinator.progress(job).saved[0])
        if name not in (START, *SAVED):
            raise UserError(f"a job keeps no state in {name[:80]!r}.")
        with (self._coordinator.folder / job / name).open("rb") as file:
            nbytes = file.seek(0, 2)
            file.seek(at)
            return {"nbytes": nbytes, "file": name}, file.read(CHUNK_BYTES)

    def _forget(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job = _name(request)
        self._coordinator.progress(job)  # there is one
        if self._coordinator.under_way == job:
            raise HomeError(f"{job} is trained now.", next_step="Stop it first.")
        shutil.rmtree(self._coordinator.folder / job)
        return {}, b""

    def _folder(self, job: str) -> Path:
        return self._coordinator.folder / job

    def _coming(self, job: str) -> Path:
        return self._coordinator.folder / f"{job}{COMING}"


def _name(request: Mapping[str, Any]) -> str:
    job = request.get("job")
    if not isinstance(job, str) or not NAME.fullmatch(job) or job.endswith(COMING):
        raise UserError("a job has a name of small letters, digits, dots and hyphens.")
    return job


def _whole(request: Mapping[str, Any], name: str) -> int:
    number = request.get(name, 0)
    if type(number) is not int or not 0 <= number < 1 << 60:
        raise UserError(f"{name} is a whole number of 0 or more.")
    return number
