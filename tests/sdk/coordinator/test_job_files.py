"""The jobs in a folder are in the order in which they came, whatever the clock says."""

import os

import pytest

from potluck.coordinator.fetched_states import FetchedStates
from potluck.coordinator.job import JOB, JOURNAL, MODEL, START, files_of
from potluck.coordinator.job_files import jobs_in, make_latest

HOUR_NS = 3600 * 10**9


def come(folder, name, at_ns):
    """A job, of which only that it is there counts; the clock of the disk says this."""
    (folder / name).mkdir()
    for file in (JOB, JOURNAL):
        (folder / name / file).touch()
    os.utime(folder / name / JOB, ns=(at_ns, at_ns))
    make_latest(folder / name)


def test_a_clock_that_is_set_back_does_not_make_an_older_job_the_latest(tmp_path):
    names = ("birds", "ants", "cats", "dogs")
    for name, at_ns in zip(names, (5 * HOUR_NS, 4 * HOUR_NS, 5 * HOUR_NS, 0), strict=True):
        come(tmp_path, name, at_ns)
    assert jobs_in(tmp_path) == names


def test_a_pipe_among_its_files_is_waited_for_by_nobody(tmp_path):
    for name in (MODEL, START):
        os.mkfifo(tmp_path / name)
    for read in (
        lambda: files_of(tmp_path),
        lambda: FetchedStates().part("k", tmp_path / START, 0),
    ):
        with pytest.raises(OSError, match="no file"):
            read()
