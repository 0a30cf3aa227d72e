"""The jobs in a folder are in the order in which they came, whatever the clock says."""

import time

from potluck.coordinate.job import JOB, JOURNAL
from potluck.coordinate.job_files import jobs_in, make_latest

HOUR_NS = 3600 * 10**9


def come(folder, name):
    """A job, of which only that it is there counts."""
    (folder / name).mkdir()
    for file in (JOB, JOURNAL):
        (folder / name / file).touch()
    make_latest(folder / name)


def test_a_clock_that_is_set_back_does_not_make_an_older_job_the_latest(tmp_path, monkeypatch):
    names = ("birds", "ants", "cats", "dogs")
    now_ns = time.time_ns()
    for name, at_ns in zip(names, (now_ns, now_ns - HOUR_NS, now_ns, 0), strict=True):
        monkeypatch.setattr(time, "time_ns", lambda at_ns=at_ns: at_ns)
        come(tmp_path, name)
    assert jobs_in(tmp_path) == names
