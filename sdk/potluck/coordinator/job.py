"""A job: a folder with all that a training needs, and none of the user's code."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.adapt.lightweight_replay import POLICIES
from potluck.documents import holds, read_json_file
from potluck.errors import FileError
from potluck.profile import profile_file
from potluck_wire.file_reading import open_file

if TYPE_CHECKING:
    from potluck.profile.profiles import Profile

FORMAT = "potluck-job-1"
MODEL = "model.safetensors"
START = "start.safetensors"
PROFILE = "profile.json"
JOB = "job.json"
BATCHES = "batches"
ORDER = f"{BATCHES}/order.safetensors"
# of batches that are made of files of arrays: which files, and what a loss has made of each batch
FILES, WHOLE = f"{BATCHES}/files.json", f"{BATCHES}/whole.safetensors"
READS = "reads.json"  # of its coordinator's owner alone: the folder of those files
MAX_BATCHES = 10**8
MAX_PATIENCE_S = 366 * 86_400.0
JOURNAL = "journal"
COMING = ".coming"  # ends the folder of a job that is not whole yet
# of the coordinator, in the folder of all jobs: where it listens, what it says, that it is there
OWN_FILES = ("coordinator.json", "coordinator.log", "lock")
SAVED = ("saved-0.safetensors", "saved-1.safetensors")  # the state, in turns
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")
# What is read whole, as Python's own lists and numbers: these take some 60 bytes each
MAX_JOB_BYTES, MAX_JOB_VALUES = 4 << 20, 200_000  # a name of a weight takes some 100
MAX_PROFILE_BYTES, MAX_PROFILE_VALUES = 16 << 20, 2_000_000
MAX_FILES_BYTES, MAX_FILES_VALUES = 1 << 20, 10_000
MOST_BYTES = {JOB: MAX_JOB_BYTES, PROFILE: MAX_PROFILE_BYTES, FILES: MAX_FILES_BYTES}
_FILE = re.compile(
    rf"{re.escape(MODEL)}|{re.escape(START)}|{re.escape(PROFILE)}|{re.escape(JOB)}"
    rf"|{BATCHES}/(order|whole|rows-\d{{5,7}})\.safetensors|{re.escape(FILES)}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training that was handed over.

    Parameters
    ----------
    model
        What plans call it.
    n_batches
        That are to be trained on.
    state_names
        As `model_file.state_names` has them.
    protect, patience_s, recovery
        As for `home.deploy`.
    adapt
        As for `run.fit`.
    """

    model: str
    n_batches: int
    state_names: tuple[tuple[str, str], ...]
    protect: bool | int | None
    patience_s: float
    recovery: str
    adapt: bool | None

    def __post_init__(self) -> None:
        is_sound = (
            holds(self, Job)
            and 1 <= self.n_batches <= MAX_BATCHES
            and 0 <= self.patience_s <= MAX_PATIENCE_S
            and self.recovery in POLICIES
        )
        if not is_sound:
            raise ValueError("a field has the wrong type or size")


def read_job(folder: Path) -> Job:
    """The job of a folder.

    Parameters
    ----------
    folder
        Which `pack` wrote.

    Raises
    ------
    FileError
        There is none, of another version, or it does not hold.
    """
    path = folder / JOB
    document = read_json_file(path, most_bytes=MAX_JOB_BYTES, most_values=MAX_JOB_VALUES)
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise FileError(f"{path} is no job of this version.", path=str(path))
    try:
        names = tuple((own, name) for own, name in document.pop("state_names"))
        return Job(**document, state_names=names)
    except (TypeError, ValueError, KeyError) as error:
        raise FileError(f"{path} does not hold: {error}.", path=str(path)) from error


def read_profile(folder: Path) -> "Profile | None":
    """The profile of a job; None where it has none.

    Parameters
    ----------
    folder
        Which `pack` wrote.

    Raises
    ------
    FileError
        It does not hold.
    """
    path = folder / PROFILE
    if not path.exists():
        return None
    document = read_json_file(path, most_bytes=MAX_PROFILE_BYTES, most_values=MAX_PROFILE_VALUES)
    return profile_file.read(document, str(path))


def files_of(folder: Path) -> dict[str, tuple[int, str]]:
    """The files of a job, by name: their bytes and their SHA-256.

    Parameters
    ----------
    folder
        Of the job.
    """
    return {
        name: (path.stat().st_size, digest(path))
        for path in sorted(folder.rglob("*"))
        if is_file_of_job(name := path.relative_to(folder).as_posix())
    }


def digest(path: Path) -> str:
    """SHA-256 of a file.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    OSError
        It cannot be read, or is no ordinary file.
    """
    found = hashlib.sha256()
    with open_file(path) as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def is_file_of_job(name: str) -> bool:
    """Whether a job may have a file of this name.

    Parameters
    ----------
    name
        Relative to its folder.
    """
    return _FILE.fullmatch(name) is not None


def is_job_name(name: object) -> bool:
    """Whether a job may be called this: no file of the coordinator's own is.

    Parameters
    ----------
    name
        Of anything.
    """
    return (
        isinstance(name, str)
        and NAME.fullmatch(name) is not None
        and not name.endswith((COMING, ".part"))
        and name not in OWN_FILES
    )


def missing(files: Mapping[str, Any]) -> list[str]:
    """The files that every job has, and this one has not.

    Parameters
    ----------
    files
        Its own, by name.
    """
    order = FILES if FILES in files else ORDER
    return [name for name in (MODEL, START, JOB, order) if name not in files]
