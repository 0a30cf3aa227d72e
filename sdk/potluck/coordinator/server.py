"""A coordinator's entrance: one CURVE socket for the notebooks whose keys it knows.

A request is a JSON object and perhaps bytes; so is its answer. Whatever is wrong with a request is
answered in words, and changes nothing.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from potluck.coordinator.checked_replies import MAX_JOBS, MAX_LOSSES, MAX_NOTES
from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.coordinator_group import is_anywhere, read_seats
from potluck.coordinator.fetched_states import FetchedStates, part_of
from potluck.coordinator.file_batches import let_read
from potluck.coordinator.job import (
    COMING,
    SAVED,
    START,
    files_of,
    is_file_of_job,
    is_job_name,
    read_job,
)
from potluck.coordinator.job_files import check_documents
from potluck.coordinator.job_upload import JobUpload
from potluck.coordinator.server_socket import ServerSocket
from potluck.coordinator.shared_job import SharedJob
from potluck.documents import read_json
from potluck.errors import FileError, HomeError, PotluckError, UserError
from potluck.sessions.connections import Keys
from potluck_wire.file_reading import open_file

VERSION = 1
MAX_REQUEST_BYTES = 1 << 18
MAX_COMING = 4  # jobs on their way at once
MAX_ADMITTING = 16  # answers that wait for jobs to be looked through
LOOK_S = 0.1
OF_WHO_ACTS = ("status", "start", "stop", "read", "forget")
OF_GUESTS = (*OF_WHO_ACTS, "join", "files", "file", "pull")
# what must not happen and did; silent in an honest home
FAULTS = logging.getLogger("potluck.faults")

Answer = tuple[dict[str, Any], bytes]
T = TypeVar("T")


class CoordinatorServer:
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
        self._known, self._own = known, keys.public
        self._entrance = ServerSocket(keys, self._knows, host, port)
        self.port = self._entrance.port
        self._arrivals: dict[str, JobUpload] = {}
        self._states = FetchedStates()
        # a large job takes a while to look through, and others want to be heard
        self._admissions = ThreadPoolExecutor(1)
        self._admitting: list[tuple[bytes, Future[Answer]]] = []
        self._answers: Mapping[
            str, Callable[[Mapping[str, Any], bytes], Answer | Future[Answer]]
        ] = {
            "jobs": self._jobs,
            "status": self._status,
            "begin": self._begin,
            "put": self._put,
            "admit": self._admit,
            "start": self._start,
            "stop": self._stop,
            "read": self._read,
            "forget": self._forget,
            "join": self._join,
            "files": self._files,
            "file": self._file,
            "pull": self._pull,
        }

    def _knows(self, key: str) -> bool:
        return key in self._known or key in self._coordinator.guests

    def serve(self, goes_on: Callable[[float], bool]) -> None:
        """Answer until `goes_on(seconds since the last request)` says no.

        Parameters
        ----------
        goes_on
            Asked ten times a second.
        """
        heard_s = time.monotonic()
        while goes_on(time.monotonic() - heard_s):
            for route, key, parts in self._entrance.requests(LOOK_S):
                heard_s = time.monotonic()
                answer = self.answer(parts, key)
                if isinstance(answer, Future):
                    self._admitting.append((route, answer))
                else:
                    self._reply(route, answer)
            for route, admission in [each for each in self._admitting if each[1].done()]:
                self._admitting.remove((route, admission))
                self._reply(route, admission.result())

    def _reply(self, route: bytes, answer: Answer) -> None:
        self._entrance.send(route, [json.dumps(answer[0]).encode(), answer[1]])

    def close(self) -> None:
        """Listen no more."""
        self._admissions.shutdown()
        self._entrance.close()
        self._states.close()

    # --- answers ----------------------------------------------------------------------------------

    def answer(self, parts: list[bytes], key: str) -> "Answer | Future[Answer]":
        """What is answered to a request, or will be.

        Parameters
        ----------
        parts
            Its frames: empty, the JSON object, the bytes.
        key
            Of who asks.
        """
        return _guarded(lambda: self._answered(parts, key), parts)

    def _answered(self, parts: list[bytes], key: str) -> "Answer | Future[Answer]":
        if len(parts) != 3 or parts[0] or len(parts[1]) > MAX_REQUEST_BYTES:
            raise UserError("that is no request.")
        request = read_json(parts[1], "the request")
        if not isinstance(request, dict) or request.get("version") != VERSION:
            raise UserError(
                "the request is of another version of potluck.",
                next_step=f"Use one that speaks version {VERSION}.",
            )
        what = str(request.get("ask"))
        act = self._answers.get(what)
        if act is None:
            raise UserError(f"nobody here answers {what[:40]!r}.")
        if key not in self._known and what != "jobs":
            self._check_guest(key, what, request)
        if what in OF_WHO_ACTS and (seat := self._coordinator.elsewhere(_name(request))):
            return {"acts": seat.row()}, b""
        return act({**request, "key": key}, parts[2])

    def _check_guest(self, key: str, what: str, request: Mapping[str, Any]) -> None:
        """Who may ask because a job is shared with it asks about that one, and hands nothing
        over: who else is heard here, the owner says.
        """
        shared = self._coordinator.shared if what == "join" else None
        job = shared.job if shared is not None else _name(request)
        if what not in OF_GUESTS or key not in self._coordinator.guests_of(job):
            raise UserError(
                f"{what!r} is not for a key that is not trusted here.",
                next_step=f"Start the coordinator with --trust '{key}'.",
            )

    def _jobs(self, request: Mapping[str, Any], _: bytes) -> Answer:
        key, jobs = request["key"], self._coordinator.jobs()
        if key not in self._known:
            jobs = tuple(job for job in jobs if key in self._coordinator.guests_of(job))
        answer: dict[str, Any] = {"jobs": [*jobs[-MAX_JOBS:]]}
        busy = self._coordinator.under_way or self._coordinator.followed
        if busy and key in self._known:
            answer["under_way"] = busy
        return answer, b""

    def _status(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job, since = _name(request), _whole(request, "since")
        progress = self._coordinator.read_progress(job)
        is_under_way = self._coordinator.under_way == job
        losses = progress.losses.copy()  # another thread adds to them
        # also one that has joined and does not count yet: it may be the one to ask next
        group, shared = self._coordinator.progress(job).group, self._coordinator.shared
        copies = shared.copies if shared is not None and shared.job == job else ()
        if request.get("names"):
            check_documents(self._folder(job), progress.documents)
        return {
            "first_step": progress.first_step,
            "n_batches": progress.n_batches,
            "step": progress.first_step + len(losses),
            "losses": losses[since : since + MAX_LOSSES],
            "state": progress.state,
            "why": progress.why,
            "notes": progress.notes[-MAX_NOTES:],
            "plan": self._coordinator.plan if is_under_way else "",
            "is_under_way": is_under_way,
            "seats": [seat.row() for seat in group.seats] if group else [],
            "copies": [seat.row() for seat in copies],
            "names": read_job(self._folder(job)).state_names if request.get("names") else [],
        }, b""

    def _begin(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job = _name(request)
        if busy := self._coordinator.under_way or self._coordinator.followed:
            raise HomeError(f"{busy} is trained here now.", next_step="Wait for it, or stop it.")
        if job in self._coordinator.jobs():
            raise UserError(f"there is a job {job!r} already.")
        if self._admitting:
            raise HomeError("another job is being looked through.", next_step="Wait a moment.")
        if (arrival := self._arrivals.get(job)) is not None and arrival.key != request["key"]:
            raise UserError(
                f"another notebook hands over a job {job!r} now.", next_step="Do it again."
            )
        while len(self._arrivals) >= MAX_COMING:
            self._give_up(next(iter(self._arrivals)))
        self._coordinator.folder.mkdir(parents=True, exist_ok=True)
        folder = self._coordinator.folder / f"{job}{COMING}"
        arrival = JobUpload(folder, request.get("files"), request["key"])
        reads = request.get("reads")
        if type(reads) is str and reads and request["key"] == self._own:
            let_read(arrival.folder, reads)
        self._arrivals[job] = arrival
        return {}, b""

    def _give_up(self, job: str) -> None:
        """It did not come whole, and others come, or nothing of it can be written."""
        shutil.rmtree(self._arrivals.pop(job).folder, ignore_errors=True)

    def _put(self, request: Mapping[str, Any], data: bytes) -> Answer:
        name, at = str(request.get("file")), _whole(request, "at")
        arrival = self._arrival(request)
        try:
            arrival.put(name, at, data)
        except FileError:
            self._give_up(_name(request))
            raise
        return {}, b""

    def _arrival(self, request: Mapping[str, Any]) -> JobUpload:
        """The job on its way, for whoever hands it over."""
        arrival = self._arrivals.get(_name(request))
        if arrival is None or arrival.key != request["key"]:
            raise UserError("no such job is being handed over.")
        return arrival

    def _admit(self, request: Mapping[str, Any], _: bytes) -> "Future[Answer]":
        job, arrival = _name(request), self._arrival(request)

        def admit() -> Answer:
            folder = arrival.folder
            try:
                arrival.check()
                folder = folder.rename(self._coordinator.folder / job)
                self._coordinator.admit(job)
            except BaseException:
                shutil.rmtree(folder)
                raise
            return {}, b""

        answer = self._later(admit, job)
        del self._arrivals[job]
        return answer

    def _later(self, act: Callable[[], Answer], job: str) -> "Future[Answer]":
        """The answer of what takes a while."""
        if len(self._admitting) >= MAX_ADMITTING:
            raise HomeError(
                f"{MAX_ADMITTING} requests wait for jobs to be looked through.",
                next_step="Ask again in a moment.",
            )
        return self._admissions.submit(_guarded, act, job)

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
        return self._states.part(request["key"], self._folder(job) / name, at)

    def _forget(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job = _name(request)
        if job not in self._coordinator.jobs():
            raise UserError(f"there is no job {job!r} here.")
        if job in (self._coordinator.under_way, self._coordinator.followed):
            raise HomeError(f"{job} is trained now.", next_step="Stop it first.")
        self._states.close()
        shutil.rmtree(self._coordinator.folder / job)
        return {}, b""

    # --- for other coordinators -------------------------------------------------------------------

    def _join(self, request: Mapping[str, Any], _: bytes) -> Answer:
        place = request["key"], request.get("host"), request.get("port")
        try:
            (seat,) = read_seats([place])
        except ValueError as error:
            raise UserError(f"{error}.") from error
        if is_anywhere(seat.host):
            raise UserError(
                "who joins says where it is, and not that it is everywhere.",
                next_step="Start it with --address and an address of its own.",
            )
        shared = self._coordinator.share()
        if shared is None or not shared.acts:
            return {"job": ""}, b""
        return {"job": shared.job, "group": shared.add_seat(seat).row()}, b""

    def _shared(self, request: Mapping[str, Any]) -> SharedJob:
        """The job that is asked for, by one who shares it."""
        shared, job = self._coordinator.shared, _name(request)
        if shared is None or shared.job != job:
            raise HomeError(f"{job} is not shared here now.")
        if shared.group.seat(request["key"]) is None:
            raise UserError(f"{job} is shared with others.", next_step="Join first.")
        return shared

    def _files(self, request: Mapping[str, Any], _: bytes) -> "Future[Answer]":
        job = self._shared(request).job

        def files() -> Answer:
            return {"files": files_of(self._folder(job))}, b""

        return self._later(files, job)

    def _file(self, request: Mapping[str, Any], _: bytes) -> Answer:
        job, name = self._shared(request).job, str(request.get("file"))
        if not is_file_of_job(name):
            raise UserError(f"a job has no file {name[:80]!r}.")
        path, at = self._folder(job) / name, _whole(request, "at")
        with open_file(path) as file:
            return part_of(file, path.name, at)

    def _pull(self, request: Mapping[str, Any], _: bytes) -> Answer:
        return self._shared(request).pulled(request["key"], request)

    def _folder(self, job: str) -> Path:
        return self._coordinator.folder / job


def _guarded(act: "Callable[[], T]", about: object) -> "T | Answer":
    """What this gives; or why not, in words. Whoever asked is told, and the next one answered."""
    try:
        return act()
    except PotluckError as error:
        return {"error": str(error)}, b""
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return {"error": f"{where}{error.strerror or error}."}, b""
    except Exception as error:  # the last line of defence
        FAULTS.exception("a fault in the coordinator while answering %.500r", about)
        return {"error": f"this is a fault of potluck's ({type(error).__name__})."}, b""


def _name(request: Mapping[str, Any]) -> str:
    job: Any = request.get("job")
    if not is_job_name(job):
        raise UserError(
            "a job has a name of small letters, digits, dots and hyphens, and not that of a file "
            "of the coordinator's."
        )
    return str(job)


def _whole(request: Mapping[str, Any], name: str) -> int:
    number = request.get(name, 0)
    if type(number) is not int or not 0 <= number < 1 << 60:
        raise UserError(f"{name} is a whole number of 0 or more.")
    return number
