"""Which labs are up on this machine: a file each, made by `potluck lab up` and read by everybody
else who is this user.

A file whose process is gone is removed by whoever looks next: nothing else of such a lab is left.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from potluck.documents import read_json
from potluck.errors import FileError, UserError
from potluck.sessions.events import Address
from potluck.sessions.local_agents import Started
from potluck_wire.file_reading import read_file
from potluck_wire.process_identity import identity

MAX_BYTES = 2**20  # of the file of a lab


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLab:
    """A lab that is up: its home, its process, its agents, and the keys of the notebook that they
    trust.
    """

    name: str
    home: str
    time_scale: float
    pid: int
    identity: str
    public: str
    secret: str
    agents: tuple[Started, ...]


def folder() -> Path:
    """Where the files are: readable by this user alone.

    Raises FileError where it is somebody else's.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    path = Path(
        os.environ.get("POTLUCK_RUN") or Path(tempfile.gettempdir()) / f"potluck-labs-{user}"
    )
    if not os.path.lexists(path):  # anybody may put a link there, also one to nothing
        return path
    status = path.lstat()
    if hasattr(os, "getuid") and (
        status.st_uid != user or path.is_symlink() or status.st_mode & 0o077
    ):
        raise FileError(
            f"{path} is not this user's own.",
            next_step="Remove it, or set POTLUCK_RUN to a folder of yours.",
        )
    return path


def entries() -> tuple[RunningLab, ...]:
    """The labs that are up. What those that are gone have left is removed."""
    return tuple(entry for _, entry in _alive())


def find(name: str) -> RunningLab | None:
    """The lab of that name, where it is up."""
    return next((entry for entry in entries() if entry.name == name), None)


def add(entry: RunningLab) -> None:
    """Say that this lab is up. UserError where one of that name is."""
    if find(entry.name) is not None:
        raise _up_already(entry.name)
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(dir=folder(), prefix=".")  # readable by this user alone
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(entry), file)
        os.link(made, _file(entry.name))  # whole, and never over another's
    except FileExistsError:
        raise _up_already(entry.name) from None
    finally:
        os.unlink(made)


def remove(entry: RunningLab) -> None:
    """This lab is not up any more; another one of its name, of another process, stays."""
    path = _file(entry.name)
    if (found := _read(path)) is not None and found.pid == entry.pid:
        path.unlink(missing_ok=True)
        lock(entry.name).unlink(missing_ok=True)


def lock(name: str) -> Path:
    """The file that the home which has joined that lab has a claim on."""
    return folder() / f"{name}.lock"


def _up_already(name: str) -> UserError:
    return UserError(f"the lab {name!r} is up already.", next_step=f"potluck lab down {name}")


def _file(name: str) -> Path:
    return folder() / f"{name}.json"


def _alive() -> Iterator[tuple[Path, RunningLab]]:
    for path in sorted(folder().glob("*.json")):
        entry = _read(path)
        if entry is not None and entry.identity and identity(entry.pid) == entry.identity:
            yield path, entry
        else:
            with suppress(OSError):
                path.unlink()


def _read(path: Path) -> RunningLab | None:
    try:
        document = read_json(read_file(path, MAX_BYTES, is_own=True), str(path))
        agents = tuple(
            Started(**{**row, "address": Address(**row["address"])})
            for row in document.pop("agents")
        )
        return RunningLab(**document, agents=agents)
    except (OSError, FileError, TypeError, KeyError, AttributeError):
        return None
