"""A process keeps its identity however the wall clock is set, and no other has it."""

import os
import subprocess
import sys

import pytest

from potluck_wire.process_identity import identity

STAT = "{pid} (a ) name) {state} " + " ".join(["0"] * 18) + " {ticks} 0 0"


@pytest.fixture
def process():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def write(proc, *, pid=7, state="S", ticks=100, boot="one", btime=1):
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    (proc / str(pid) / "stat").write_text(STAT.format(pid=pid, state=state, ticks=ticks))
    (proc / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
    (proc / "sys/kernel/random/boot_id").write_text(boot)
    (proc / "stat").write_text(f"btime {btime}")


def test_it_stays_while_the_process_lives_and_ends_with_it(process):
    known = identity(process.pid)
    assert known == identity(process.pid) != identity(os.getpid())
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert identity(process.pid) == ""
    process.wait()
    assert identity(process.pid) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system keeps the start")
def test_a_clock_that_is_set_changes_nothing_and_a_start_of_the_system_does(tmp_path):
    write(tmp_path)
    known = identity(7, tmp_path)
    write(tmp_path, btime=3600)
    assert identity(7, tmp_path) == known != ""
    for other in ({"ticks": 101}, {"boot": "two"}, {"state": "Z"}):
        write(tmp_path, **other)
        assert identity(7, tmp_path) != known


@pytest.mark.parametrize("pid", [-5, 0, 10**30])
def test_a_number_that_no_process_has(pid):
    assert identity(pid) == ""
