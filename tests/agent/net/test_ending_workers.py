"""A worker's end costs nobody else time: neither one that closes its pipe and goes on, nor one
whose memory the system takes long to give back.
"""

import socket
import subprocess
import sys
import threading

import pytest
from tests.timeouts import TIMEOUT_S

from potluck_agent.core.events import WorkerDied
from potluck_agent.net.poller import Poller
from potluck_agent.net.worker_supervisor import WorkerSupervisor
from potluck_agent.worker.arena import Arena
from potluck_agent.worker.launch import ENDING_S, SOON_S, WorkerLink
from potluck_wire.messages import FailureCause

NOBODY = 2**30  # no process has this number


def link_of(process):
    """A worker of this process, and its end of the pipe."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return WorkerLink(process, ours, Arena(0), Arena(0)), theirs


@pytest.fixture
def supervised():
    """How a worker of this program is begun; its supervisor, its process and its pipe."""
    begun = []

    def begin(program):
        process = subprocess.Popen(
            [sys.executable, "-c", program], stderr=subprocess.DEVNULL, start_new_session=True
        )
        link, theirs = link_of(process)
        supervisor = WorkerSupervisor(Poller(), lambda: link)
        supervisor.start()
        begun.append((supervisor, process, theirs))
        return begun[-1]

    yield begin
    for supervisor, process, theirs in begun:
        theirs.close()
        supervisor.kill()
        process.kill()
        process.wait()


def test_one_that_closed_its_pipe_and_goes_on_is_ended_later(supervised):
    supervisor, process, theirs = supervised("import time; time.sleep(600)")
    theirs.close()
    assert list(supervisor.news(1.0)) == []
    supervisor.supply()
    assert list(supervisor.hung(1.0 + ENDING_S, is_working=False)) == []
    (died,) = supervisor.hung(1.1 + ENDING_S, is_working=False)
    assert (died.cause, "closed its pipe and went on" in died.text) == (FailureCause.CRASHED, True)
    assert process.wait(TIMEOUT_S) < 0
    assert list(supervisor.hung(9.0, is_working=False)) == []


def test_one_that_ends_some_moments_after_its_pipe_tells_its_own_reason(supervised):
    supervisor, process, theirs = supervised("import time; time.sleep(600)")
    theirs.close()
    assert list(supervisor.news(1.0)) == []
    process.terminate()
    process.wait(TIMEOUT_S)
    (died,) = supervisor.hung(1.0, is_working=True)
    assert isinstance(died, WorkerDied)
    assert "SIGTERM" in died.text


class SlowEnd:
    """A process that was killed and whose memory is not given back yet, until `gone` is set."""

    pid = NOBODY
    returncode = stderr = None

    def __init__(self):
        self.gone, self.reaped = threading.Event(), threading.Event()
        self.waited_s = []

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        if timeout is not None:
            self.waited_s.append(timeout)
        if not self.gone.wait(timeout):
            raise subprocess.TimeoutExpired("worker", timeout)
        self.returncode = -9
        self.reaped.set()
        return self.returncode


def test_nobody_waits_for_the_memory_of_one_that_is_killed():
    process = SlowEnd()
    link, theirs = link_of(process)
    link.kill()
    theirs.close()
    assert process.waited_s == [SOON_S]
    assert link.exit_reason(0)[0] == FailureCause.CANCELLED
    process.gone.set()
    assert process.reaped.wait(TIMEOUT_S)  # it stays no zombie
