"""The log: bounded whoever writes, one line for each thing, open to its owner only, and no reason
to stop.
"""

import os
import stat
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_agent import log_file
from potluck_agent.cli.arguments import LEVELS
from potluck_agent.errors import AgentError
from potluck_agent.log_file import (
    LINES,
    MAX_FILE_BYTES,
    MAX_LINE,
    N_OLDER,
    PAIRING,
    STRANGER,
    STRANGERS_LINES,
    WINDOW_S,
    LogFile,
    printable,
)


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.log"


@pytest.mark.parametrize(
    ("kind", "most"), [(STRANGER, STRANGERS_LINES), (PAIRING, STRANGERS_LINES), ("other", LINES)]
)
def test_each_kind_fills_so_many_lines_in_a_time_and_the_rest_are_counted(path, clock, kind, most):
    log = LogFile(path, "info", pytest.fail, clock)
    for number in range(most + 1000):
        log.warning(kind, f"number {number}")
    log.info("another", "is written all the same")
    assert len(lines(path)) == most + 1
    clock.now_s = WINDOW_S
    log.warning(kind, "later")
    assert lines(path)[-2].endswith(f"1000 more lines about {kind} were left out")
    assert lines(path)[-1].endswith("later")
    log.warning(kind, "later")
    for _ in range(most):
        log.warning(kind, "later")
    log.close()
    assert lines(path)[-1].endswith(f"2 more lines about {kind} were left out")


@pytest.mark.long
def test_all_of_it_stays_small_whatever_is_written(path, clock, monkeypatch):
    monkeypatch.setattr(log_file, "MAX_FILE_BYTES", 20_000)
    log = LogFile(path, "debug", pytest.fail, clock)
    for number in range(1000):
        clock.now_s = number * WINDOW_S
        log.error("kind", "\n" * 2 * MAX_LINE)
    log.close()
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == [
        "agent.log",
        *(f"agent.log.{number}" for number in range(1, N_OLDER + 1)),
    ]
    assert sum(file.stat().st_size for file in files) <= (N_OLDER + 1) * 20_000
    assert MAX_FILE_BYTES <= 2**20


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_its_owner_may_read_it_also_the_older_ones(path, clock, monkeypatch):
    monkeypatch.setattr(log_file, "MAX_FILE_BYTES", 1000)
    before = os.umask(0)
    try:
        log = LogFile(path, "info", pytest.fail, clock)
        for _ in range(LINES):
            log.info("kind", "x" * 100)
        log.close()
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {0o600}


@given(st.text(st.characters(), max_size=50))
def test_no_text_ends_a_line_or_is_obeyed_by_a_terminal(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_a_text_of_others_begins_no_line_of_its_own(path):
    log = LogFile(path, "info", pytest.fail)
    log.info("kind", "ada\n2026-01-01T00:00:00+0000 INFO    paired with eve \x1b[2J \ud800 \u202e")
    log.close()
    (line,) = lines(path)
    assert "ada\\n2026" in line
    assert "\\x1b[2J \\ud800 \\u202e" in line


@pytest.mark.parametrize("level", LEVELS)
def test_less_than_its_level_is_not_kept(path, level):
    log = LogFile(path, level, pytest.fail)
    for each in LEVELS:
        getattr(log, each)(each, f"of {each}")
    log.close()
    assert [line.split()[-1] for line in lines(path)] == list(LEVELS[LEVELS.index(level) :])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full: only Linux has it")
def test_a_disk_that_is_full_is_told_once_and_stops_nothing(path, clock):
    path.symlink_to("/dev/full")
    notes = []
    log = LogFile(path, "info", notes.append, clock)
    for _ in range(5):
        log.info("kind", "x")
    log.close()
    assert len(notes) == 1
    assert str(path) in notes[0]


def test_a_file_that_cannot_be_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(AgentError, match="--log-file"):
        LogFile(tmp_path / "nowhere" / "log", "info", pytest.fail)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such files")
def test_a_pipe_that_nobody_reads_is_an_error_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "log")
    with pytest.raises(AgentError, match="log"):
        LogFile(tmp_path / "log", "info", pytest.fail)
