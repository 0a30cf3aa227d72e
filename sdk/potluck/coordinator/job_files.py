"""The jobs in a folder, each a folder of its own: which there are, and whether their files hold."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from potluck.coordinator.file_batches import batches_of
from potluck.coordinator.job import (
    BATCHES,
    COMING,
    JOB,
    JOURNAL,
    MODEL,
    MOST_BYTES,
    SAVED,
    START,
    digest,
    is_job_name,
    read_job,
    read_profile,
)
from potluck.coordinator.journal import Journal, Progress, progress_of
from potluck.errors import FileError, UserError
from potluck.graph.model_file import load_model
from potluck.run.checkpoint import load as load_checkpoint
from potluck.run.checkpoint import step_of
from potluck_wire.durable_rename import keep_names
from potluck_wire.file_reading import is_there, open_file

APART_NS = 2_000_000_000  # some disks keep dates in steps of so much


def jobs_in(folder: Path) -> tuple[str, ...]:
    """The names of all jobs that are whole, the latest last.

    Parameters
    ----------
    folder
        Of all of them.
    """
    found = [path.parent for path in folder.glob(f"*/{JOURNAL}") if is_job_name(path.parent.name)]
    return tuple(path.name for path in sorted(found, key=_order))


def _order(folder: Path) -> int:
    """The later a job came, the more; of one that is spoiled nobody knows."""
    try:
        return (folder / JOB).stat().st_mtime_ns
    except OSError:
        return 0


def make_latest(folder: Path) -> None:
    """This job came after all others: its date says so, even where the clock was set back.

    Parameters
    ----------
    folder
        Of the job, within that of all of them.

    Raises
    ------
    OSError
        Its date cannot be set.
    """
    folders = [path.parent for path in folder.parent.glob(f"*/{JOB}")]
    others = [_order(other) for other in folders if other != folder]
    order = max(_order(folder), max(others, default=0) + APART_NS)
    os.utime(folder / JOB, ns=(order, order))


def progress_in(folder: Path, job: str) -> Progress:
    """How far a job is, by its journal.

    Parameters
    ----------
    folder
        Of all jobs.
    job
        Its name.

    Raises
    ------
    UserError
        There is none of that name.
    FileError
        Its journal does not hold.
    """
    if job not in jobs_in(folder):
        names = ", ".join(jobs_in(folder)) or "none"
        raise UserError(f"there is no job {job!r} here; there are {names}.")
    path = folder / job / JOURNAL
    progress = progress_of(path)
    if not progress.n_batches:  # as of a job's second line
        raise FileError(
            f"{path} does not say what is trained.",
            next_step="The state that was saved last is beside it, and can be deployed with "
            "resume=.",
            path=str(path),
        )
    return progress


def check_files(folder: Path, reads: Path | None = None) -> None:
    """See that the files of a job hold.

    Parameters
    ----------
    folder
        Of the job.
    reads
        The folder whose files of arrays its coordinator may read; None: there is none.

    Raises
    ------
    FileError
        They do not, or its state is not of its model.
    """
    wanted = read_job(folder)
    read_profile(folder)
    start, model = load_checkpoint(folder / START), load_model(folder / MODEL)
    if start.signature != model.signature:
        raise FileError(
            f"{folder / START} is the state of another model.", path=str(folder / START)
        )
    store = batches_of(folder, reads)
    store.check()
    n_batches = len(store)
    if n_batches != wanted.n_batches:
        raise FileError(
            f"{folder / BATCHES} has {n_batches} batches, {wanted.n_batches} are expected.",
            path=str(folder / BATCHES),
        )


def begin_journal(folder: Path) -> None:
    """From now on this is a job: nothing of it is trained yet.

    Parameters
    ----------
    folder
        Of the job; its files hold.

    Raises
    ------
    FileError
        It cannot be written.
    """
    step, n_batches = step_of(folder / START), read_job(folder).n_batches
    try:
        make_latest(folder)
        keep_on_disk(folder)
        journal = Journal(folder / JOURNAL)
        documents = _documents(folder)
        journal.add(begun=step, n_batches=n_batches, saved=START, documents=documents, durable=True)
        journal.close()
        keep_names(folder)
    except OSError as error:
        raise FileError(f"cannot write {folder / JOB}: {error.strerror}.") from error


def keep_on_disk(folder: Path) -> None:
    """Have all files of a job on the disk, and not only on their way there: whoever handed it over
    has it no more, and the power may be cut.

    Parameters
    ----------
    folder
        Of the job.

    Raises
    ------
    OSError
        They cannot be.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            keep_names(path)
        else:
            with open_file(path) as file:
                os.fsync(file.fileno())
    keep_names(folder)
    keep_names(folder.parent)


def check_documents(folder: Path, digests: Mapping[str, str]) -> None:
    """See that what is written down of a job is as it was when it began: a digit that has changed
    would have it train on other batches, or call weights otherwise, without a word.

    Parameters
    ----------
    folder
        Of the job.
    digests
        By its journal; of an older one, none.

    Raises
    ------
    FileError
        It is not, or cannot be read.
    """
    if not digests:
        return
    found = _documents(folder)
    for name in MOST_BYTES:
        if found.get(name) != digests.get(name):
            raise FileError(
                f"{folder / name} is not as it was handed over.",
                next_step="Hand the run over again, or deploy the state that was saved last with "
                "resume=.",
                path=str(folder / name),
            )


def _documents(folder: Path) -> dict[str, str]:
    """The SHA-256 of each that is there."""
    found = {}
    for name in MOST_BYTES:
        path = folder / name
        try:
            if is_there(path):
                found[name] = digest(path)
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror}.", path=str(path)) from error
    return found


def delete_cut(folder: Path) -> None:
    """Delete those jobs that never came whole, and of which nothing was learned.

    Parameters
    ----------
    folder
        Of all jobs.
    """
    cut = [*folder.glob(f"*{COMING}"), *(path.parent for path in folder.glob(f"*/{JOB}"))]
    for path in cut:
        with suppress(OSError):  # it is another user's, and stays
            is_cut = not any(is_there(path / name) for name in (JOURNAL, *SAVED))
            if is_cut and path.is_dir():  # a pipe would be waited for
                shutil.rmtree(path, ignore_errors=True)
