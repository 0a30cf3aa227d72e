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
from potluck_agent.net import worker_supervisor
from potluck_agent.net.poller import Poller
from potluck_agent.net.worker_pool import MOST_WAIT_S, WorkerPool
from potluck_agent.net.worker_supervisor import WorkerSupervisor
from potluck_agent.worker.arena import Arena
from potluck_agent.worker.launch import ENDING_S, SOON_S, WorkerLink
from potluck_wire.messages import FailureCause, LoadSegment, SegmentLoaded
from potluck_wire.stream import pack

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


def test_one_that_answers_and_never_reads_is_ended_before_much_waits_for_it(
    supervised, monkeypatch
):
    """It was taken over: what it is told would wait in the agent's memory without an end."""
    monkeypatch.setattr(worker_supervisor, "MOST_UNSENT_BYTES", 4 << 20)
    supervisor, process, theirs = supervised("import time; time.sleep(600)")
    for n_orders in range(9):
        supervisor.hold(LoadSegment(slot="r/0/s"), (bytes(1 << 20),))
        supervisor.supply()
        theirs.sendall(pack(SegmentLoaded(slot="r/0/s")))
        *_, last = supervisor.news(float(n_orders))
        if isinstance(last, WorkerDied):
            break
    assert (last.cause, n_orders) == (FailureCause.CRASHED, 4)
    assert "answers and does not read" in last.text
    assert process.wait(TIMEOUT_S) < 0


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


def test_a_worker_is_ended_where_the_system_gives_no_thread_to_wait_for_it(monkeypatch):
    def none_left(thread):
        raise RuntimeError("can't start new thread")

    link, theirs = link_of(SlowEnd())
    monkeypatch.setattr("threading.Thread.start", none_left)
    link.kill()
    theirs.close()
    assert link.closed
    assert link.socket.fileno() == -1


@pytest.fixture
def pool():
    """Workers that take long to give their memory back, and the processes of those that began."""
    processes, pipes = [], []

    def start():
        processes.append(SlowEnd())
        link, theirs = link_of(processes[-1])
        pipes.append(theirs)
        return link

    workers = WorkerPool(Poller(), start, lambda: None, may_rest=True)
    workers.ask(0, 0.0)
    assert list(workers.start_due(0.0)) == []
    yield workers, processes
    for process, pipe in zip(processes, pipes, strict=True):
        process.gone.set()
        pipe.close()


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_starts_once_those_that_were_ended_gave_their_memory_back(pool, number):
    """Together they would take more than the owner allows."""
    workers, processes = pool
    workers.kill(0)
    workers.ask(number, 10.0)
    assert list(workers.start_due(10.0)) == []
    assert len(processes) == 1
    processes[0].gone.set()
    assert processes[0].reaped.wait(TIMEOUT_S)
    for at_s in (10.2, 10.4):
        assert list(workers.start_due(at_s)) == []
        assert len(processes) == 2
    assert workers.numbers == (number,)


def test_a_worker_that_never_ends_keeps_others_for_some_seconds(pool):
    workers, processes = pool
    workers.kill(0)
    workers.ask(1, 10.0)
    assert list(workers.start_due(10.0 + MOST_WAIT_S)) == []
    assert len(processes) == 1
    assert list(workers.start_due(10.1 + MOST_WAIT_S)) == []
    assert len(processes) == 2


def test_a_worker_that_is_ended_before_it_began_does_not_begin(pool):
    workers, processes = pool
    workers.ask(1, 1.0)
    workers.kill(1)
    assert list(workers.start_due(2.0)) == []
    assert len(processes) == 1


def test_a_worker_that_cannot_be_started_is_told_of_once():
    def start():
        raise OSError("no memory")

    workers = WorkerPool(Poller(), start, lambda: None)
    workers.ask(3, 1.0)
    (died,) = workers.start_due(1.0)
    assert (died.worker, died.cause) == (3, FailureCause.CRASHED)
    assert "no memory" in died.text
    assert list(workers.start_due(2.0)) == []
