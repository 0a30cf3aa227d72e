"""How many bytes the state of a job may have: a coordinator elsewhere may say anything."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

from potluck import units
from potluck.coordinator.job import MODEL, START
from potluck.documents import read_json, write_whole
from potluck.errors import FileError, HomeError, UserError
from potluck_wire.file_reading import read_file

FILE = "handed-over.json"  # beside the keys: job to bytes, the latest last
MAX_KNOWN = 1000
MAX_BYTES = 2**20  # of the file
# Weights, at most three more of each that an optimizer keeps, and an average; in twice their width.
COPIES = 10
BESIDE_BYTES = 64 << 20  # names, plan, and what a loader says of itself
FREE_FRAC = 0.5  # of a disk, for a state of which nothing is known


def most_state_bytes(folder: Path) -> int:
    """What a job's state may come to, whatever its optimizer is.

    Parameters
    ----------
    folder
        Of the job.

    Raises
    ------
    OSError
        It has no model, or no state.
    """
    return (folder / START).stat().st_size + COPIES * (folder / MODEL).stat().st_size + BESIDE_BYTES


def remember(state: Path, job: str, nbytes: int) -> None:
    """Write down what the state of a job may come to; where that cannot be, it is not known later.

    Parameters
    ----------
    state
        The folder of the keys.
    job
        That is handed over.
    nbytes
        As of `most_state_bytes`.
    """
    kept = [(name, max_bytes) for name, max_bytes in _known(state).items() if name != job]
    with suppress(FileError):
        write_whole(state / FILE, json.dumps(dict([*kept, (job, nbytes)][-MAX_KNOWN:])))


def remembered(state: Path | None, job: str) -> int | None:
    """What was written down of it; None: nothing.

    Parameters
    ----------
    state
        The folder of the keys, where there is one.
    job
        Its name.
    """
    return None if state is None else _known(state).get(job)


def check_size(job: str, nbytes: int, max_bytes: int | None, into: Path) -> None:
    """See that a state is not larger than it may be, before it is fetched.

    Parameters
    ----------
    job
        Whose.
    nbytes
        That it has, as its coordinator says.
    max_bytes
        That it may have; None: nobody here knows.
    into
        The folder where it is to be; it keeps half of its room where nobody knows.

    Raises
    ------
    HomeError
        It is larger than the job's state may be.
    UserError
        It is larger than what may be fetched where nobody knows.
    """
    if max_bytes is not None and nbytes > max_bytes:
        raise HomeError(
            f"the coordinator says that the state of {job} has {units.size(nbytes)}; it may have "
            f"{units.size(max_bytes)}.",
            next_step="Is it the coordinator that the job was handed over to?",
        )
    free = shutil.disk_usage(into).free
    room = free if max_bytes is not None else int(FREE_FRAC * free)
    if nbytes > room:
        raise UserError(
            f"the state of {job} has {units.size(nbytes)}, and {units.size(free)} are free at "
            f"{into}" + ("." if max_bytes is not None else ", of which it may take half."),
            next_step="Make room there, or save it where there is more.",
        )


def _known(state: Path) -> dict[str, int]:
    path = state / FILE
    try:
        document = read_json(read_file(path, MAX_BYTES, is_own=True), str(path))
    except (OSError, FileError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {job: size for job, size in document.items() if type(size) is int and size > 0}
