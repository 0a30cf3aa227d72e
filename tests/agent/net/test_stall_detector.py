"""A worker that hangs is told from one that computes, waits for the system, or waits for room."""

import os
import signal
import sys
import time

import pytest
from tests.agent.worker.worker_driver import begin, numbers

from potluck_agent.net.poller import Poller
from potluck_agent.net.stall_detector import AWAKE_S, STILL_S, StallDetector
from potluck_agent.net.worker_supervisor import WorkerSupervisor
from potluck_wire.messages import Computed, FailureCause

TICK_S = 0.2


class Proc:
    """What the system tells of a process of two threads."""

    def __init__(self, folder):
        self.folder = folder
        self.tell()

    def tell(self, used=10, main="S", helper="S"):
        for folder, state in (("7", main), ("7/task/7", main), ("7/task/8", helper)):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
            stat = f"7 (python (x) 3) {state} 1 7 7 0 -1 4194560 900 0 0 0 {used} 5 0 0 20 0\n"
            (self.folder / folder / "stat").write_text(stat)


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path)


@pytest.fixture
def stillness(proc):
    return StallDetector(7, proc.folder)


def looks(stillness, n, has_work=True, begun_s=100.0):
    return [round(stillness.look(begun_s + i * TICK_S, has_work), 6) for i in range(n)]


def test_one_that_is_stopped_or_asleep_with_work_is_still(proc, stillness):
    proc.tell(main="T", helper="T")
    assert looks(stillness, 4) == [0.0, 0.2, 0.4, 0.6]
    proc.tell(main="S")
    assert looks(stillness, 2, begun_s=100.8) == [0.8, 1.0]


@pytest.mark.parametrize(
    "alive", [{"used": 11}, {"main": "R"}, {"main": "D"}, {"helper": "R"}, {"helper": "D"}]
)
def test_whoever_computes_or_is_kept_waiting_by_the_system_is_not(proc, stillness, alive):
    looks(stillness, 6)
    proc.tell(**alive)
    assert looks(stillness, 1, begun_s=101.2) == [0.0]


def test_nor_is_one_without_work_or_that_is_gone(proc, stillness):
    assert looks(stillness, 6, has_work=False) == [0.0] * 6
    assert looks(StallDetector(8, proc.folder), 6) == [0.0] * 6


def test_what_was_while_the_agent_itself_slept_says_nothing(stillness):
    looks(stillness, 3)
    assert stillness.look(100.4 + AWAKE_S + 0.1, True) == 0.0


@pytest.fixture
def talk():
    talk = begin(backends=("onnxruntime",))  # is there sooner than torch
    yield talk
    talk.link.kill()


def supervised(talk, n=12, **how):
    """Causes of its end within so many ticks, which the clock only says."""
    supervisor = WorkerSupervisor(Poller(), lambda: talk.link, **how)
    supervisor.start()
    causes = []
    for tick in range(n):
        time.sleep(0.03)
        supervisor.supply()
        causes += [died.cause for died in supervisor.hung(TICK_S * tick, is_working=True)]
    return causes


linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@pytest.mark.few(1)
@linux
@pytest.mark.parametrize("with_orders", [True, False])
def test_a_worker_that_is_stopped_over_its_work_is_ended(talk, with_orders):
    os.kill(talk.link.pid, signal.SIGSTOP)
    if with_orders:
        talk.put("r/0/p/0/x", numbers(2))
    assert supervised(talk) == [FailureCause.HUNG]
    assert STILL_S < 2.0 - 3 * TICK_S  # the notebook hears of it within two seconds


@linux
def test_one_that_plays_a_slower_device_may_sleep(talk):
    os.kill(talk.link.pid, signal.SIGSTOP)
    assert supervised(talk, may_rest=True) == []


@linux
def test_one_that_waits_for_room_is_not(talk):
    half = ("r/0/p/0/half",)
    talk.put("r/0/p/0/x", numbers(1))
    talk.compute("pad", {"dim": 0, "after": 149_999}, inputs=("r/0/p/0/x",), outputs=half)
    for tag in (1, 2):  # 600 kB each; one fits into 1 MiB
        talk.send("", tag=tag, exports=half)
    talk.expect(Computed)
    assert supervised(talk, n=40) == []
