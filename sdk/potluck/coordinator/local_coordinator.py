"""The coordinator of this computer: one process for each folder of keys, which the notebook starts
when it is needed, and which goes on without it.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from potluck.coordinator.endpoint import Endpoint
from potluck.coordinator.job import OWN_FILES
from potluck.documents import read_json, write_whole
from potluck.errors import FileError, HomeError, PotluckError
from potluck.sessions.connections import Keys
from potluck.units import size
from potluck_wire.file_reading import read_file

FOLDER = "coordinator"
WHERE, LOG, LOCK = OWN_FILES
START_S = 60.0  # torch alone may take seconds on a slow disk
FIND_S = 2.0
LOG_BYTES = 2000  # of it, in an error
LEAST_FREE_BYTES = 64 * 1024  # its log and the place where it listens take less
MAX_BYTES = 64 * 1024  # of where it listens


def folder_of(state: Path) -> Path:
    """Where the coordinator of these keys keeps its jobs.

    Parameters
    ----------
    state
        The folder of the keys.
    """
    return state / FOLDER


def write_place(folder: Path, host: str, port: int) -> None:
    """Say where the coordinator of a folder listens.

    Parameters
    ----------
    folder
        Of its jobs.
    host, port
        Where.

    Raises
    ------
    FileError
        It cannot be written.
    """
    write_whole(folder / WHERE, json.dumps({"host": host, "port": port, "pid": os.getpid()}))


def claimed(state: Path, error: HomeError) -> HomeError:
    """Why a home cannot be opened with these keys; says so where their coordinator has it.

    Parameters
    ----------
    state
        The folder of the keys.
    error
        Fact: `holder`, the process that has it.
    """
    path = folder_of(state) / WHERE
    with suppress(OSError, FileError):
        holder, document = error.facts.get("holder"), _told(path)
        if holder and isinstance(document, dict) and document.get("pid") == holder:
            return HomeError(
                "the coordinator on this computer has this home: it trains what was handed over.",
                next_step="potluck.Home.attach() shows how far that is, and its stop() gives the "
                "home back.",
                holder=holder,
                is_coordinator=True,
            )
    return error


def _told(path: Path) -> Any:
    """What a coordinator of this user says of itself."""
    return read_json(read_file(path, MAX_BYTES, is_own=True), str(path))


def find(state: Path, keys: Keys) -> Endpoint | None:
    """Where the coordinator of these keys listens; None where none does.

    Parameters
    ----------
    state
        The folder of the keys.
    keys
        Of the notebook, which are the coordinator's, too.
    """
    path = folder_of(state) / WHERE
    try:
        document = _told(path)
    except (OSError, FileError):
        return None
    match document:
        case {"host": str(host), "port": int(port)}:
            place = Endpoint(host=host, port=port, key=keys.public, keys=keys)
        case _:
            return None
    with suppress(PotluckError):
        place.ask("jobs", within_s=FIND_S)
        return place
    return None


def find_or_start(state: Path, keys: Keys) -> Endpoint:
    """The same; where none listens, one is started.

    Parameters
    ----------
    state
        The folder of the keys.
    keys
        Of the notebook.

    Raises
    ------
    HomeError
        It does not start; says why.
    FileError
        Its folder cannot be written.
    """
    place = find(state, keys)
    if place is not None:
        return place
    folder = folder_of(state)
    log = folder / LOG
    line = [sys.executable, "-m", "potluck", "coordinate", "--state", str(state), "--until-idle"]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # a pipe of that name would be waited for
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)
        with os.fdopen(os.open(log, flags, 0o600), "ab") as out:
            out.truncate(0)
            child = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
    except OSError as error:
        raise FileError(
            f"cannot start the coordinator, {error.filename}: {error.strerror}.",
            next_step=f"Make {folder} a folder of yours, with nothing but files called {LOG} in "
            "it.",
            path=str(log),
        ) from error
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if (place := find(state, keys)) is not None:
            return place
        if child.poll() is not None:
            break
        time.sleep(0.1)
    else:
        child.kill()
    log_end = log.read_bytes()[-LOG_BYTES:].decode(errors="replace").strip()
    raise HomeError(
        "the coordinator on this computer does not start: "
        f"{log_end or _ended_silently(child.poll(), folder)}.",
        next_step=f"`potluck coordinate --state {state}` shows more.",
    )


def _ended_silently(code: int | None, folder: Path) -> str:
    """What is known of one that has left no word: on a full disk its log has no room for any."""
    ended = f"it was not ready after {START_S:.0f} s" if code is None else f"exit code {code}"
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < LEAST_FREE_BYTES:
        return f"{ended}, and the disk of {folder} is full ({size(free_bytes)} are left)"
    return f"{ended}, and said nothing"
