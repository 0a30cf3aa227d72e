"""What a worker that was taken over cannot do to its agent, which has the same user: signals,
limits, orphans.
"""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.agent.worker.test_sandbox import SOURCE
from tests.agent.worker.worker_driver import begin, numbers

from potluck_agent.worker import seccomp

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux filters system calls"
)

# --- the filter, as the kernel runs it ------------------------------------------------------------

OWN, AGENT = 4711, 4710
ALLOWED = 0x7FFF0000
EPERM = 0x00050001
ENOSYS = 0x00050026
F_GETFL = 3
F_SETOWN = 8
F_SETSIG = 10
F_SETOWN_EX = 15
FIONREAD, TCGETS = 0x541B, 0x5401
FS_IOC_SETFLAGS = 0x40086602
MAP_SHARED, MAP_PRIVATE = 0x1, 0x2
MAP_ANONYMOUS, MAP_GROWSDOWN = 0x20, 0x100
PROT_ALL = 7
FIOSETOWN = 0x8901
SIOCSPGRP = 0x8902
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
PTHREAD = 0x3D0F00
SIGCHLD = 17
KILL = 9
RLIMIT_DATA = 2


def answer(steps, audit, number, *arguments):
    """What these steps return for a call."""
    shown = {0: number, 4: audit} | {
        16 + 8 * index + 4 * half: value >> 32 * half & 0xFFFFFFFF
        for index, value in enumerate(arguments)
        for half in (0, 1)
    }
    at = value = 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        match code:
            case 0x20:
                value = shown[operand]
            case 0x06:
                return operand
            case 0x15 | 0x35 | 0x45:
                holds = {
                    0x15: value == operand,
                    0x35: value >= operand,
                    0x45: bool(value & operand),
                }[code]
                at += if_true if holds else if_false


REFUSED = {
    **{f"{name} of the agent": (name, AGENT, KILL) for name in seccomp.TO_ITSELF},
    **{f"{name} of its group": (name, 0, KILL) for name in seccomp.TO_ITSELF},
    "kill of everybody": ("kill", -1, KILL),
    **{name: (name, 3, KILL) for name in seccomp.REFUSED},
    "a child": ("clone", SIGCHLD),
    "the limits of the agent": ("prlimit64", AGENT, RLIMIT_DATA, 0),
    "its own limits, changed": ("prlimit64", 0, RLIMIT_DATA, 0x1000),
    "by its number, too": ("prlimit64", OWN, RLIMIT_DATA, 0x1000),
    "by what lies in the upper half": ("prlimit64", 0, RLIMIT_DATA, 0x7FFF00000000),
    "the agent owns a socket": ("fcntl", 3, F_SETOWN, AGENT),
    "or so": ("fcntl", 3, F_SETOWN_EX, 0),
    "which signal it gets": ("fcntl", 3, F_SETSIG, KILL),
    "by another call": ("ioctl", 3, FIOSETOWN, 0),
    "by a third": ("ioctl", 3, SIOCSPGRP, 0),
    "it outlives its agent": ("prctl", PR_SET_PDEATHSIG, 0),
    "memory that others may share": ("mmap", 0, 4096, PROT_ALL, MAP_SHARED | MAP_ANONYMOUS),
    "a file that it shares": ("mmap", 0, 4096, PROT_ALL, MAP_SHARED),
    "memory that grows by itself": ("mmap", 0, 4096, PROT_ALL, MAP_GROWSDOWN | MAP_PRIVATE),
    "attributes of a file": ("ioctl", 3, FS_IOC_SETFLAGS, 0),
    "whatever else a file is told": ("ioctl", 3, 0x1234, 0),
}
PERMITTED = {
    **{f"{name} of itself": (name, OWN, KILL) for name in seccomp.TO_ITSELF},
    "a thread": ("clone", PTHREAD),
    "a look at its own limits": ("prlimit64", 0, RLIMIT_DATA, 0, 0x1000),
    "and by its number": ("prlimit64", OWN, RLIMIT_DATA, 0, 0x1000),
    "flags of a socket": ("fcntl", 3, F_GETFL),
    "what waits in it": ("ioctl", 3, FIONREAD),
    "the name of a thread": ("prctl", PR_SET_NAME, 0),
    "memory of its own": ("mmap", 0, 4096, PROT_ALL, MAP_PRIVATE | MAP_ANONYMOUS),
    "a library": ("mmap", 0, 4096, PROT_ALL, MAP_PRIVATE),
    "whether it is a terminal": ("ioctl", 3, TCGETS, 0),
}


@pytest.fixture(params=seccomp.MACHINES.values(), ids=seccomp.MACHINES)
def machine(request):
    return request.param


@pytest.mark.parametrize("way", REFUSED.values(), ids=REFUSED)
def test_the_filter_refuses(machine, way):
    name, *arguments = way
    if name not in machine.numbers:
        pytest.skip(f"there is no {name} on this machine")
    assert (
        answer(seccomp.program(machine, OWN), machine.audit, machine.numbers[name], *arguments)
        == EPERM
    )


@pytest.mark.parametrize("way", PERMITTED.values(), ids=PERMITTED)
def test_the_filter_permits(machine, way):
    name, *arguments = way
    assert (
        answer(seccomp.program(machine, OWN), machine.audit, machine.numbers[name], *arguments)
        == ALLOWED
    )


OPENED = {  # flags of open -> the answer without an accelerator, and with one
    "for reading": (0, ALLOWED, ALLOWED),
    "for writing": (1, EPERM, ALLOWED),
    "for both": (2, EPERM, ALLOWED),
    "made": (0o100, EPERM, EPERM),
    "for both, made": (0o102, EPERM, EPERM),
    "cut off": (0o1001, EPERM, EPERM),
}


@pytest.mark.parametrize("way", OPENED.values(), ids=OPENED)
def test_files_are_opened_for_writing_only_for_an_accelerator_and_never_made(machine, way):
    flags, *answers = way
    for opens_devices, expected in zip((False, True), answers, strict=True):
        steps = seccomp.program(machine, OWN, opens_devices)
        found = answer(steps, machine.audit, machine.numbers["openat"], 3, 0, flags)
        assert found == expected


WITH_DEVICES = {
    "memory of the device": (("mmap", 0, 4096, PROT_ALL, MAP_SHARED), ALLOWED),
    "memory that grows by itself": (("mmap", 0, 4096, PROT_ALL, MAP_GROWSDOWN), EPERM),
    "what the device is told": (("ioctl", 3, 0x1234, 0), ALLOWED),
    "who gets its signals": (("ioctl", 3, FIOSETOWN, 0), EPERM),
}


@pytest.mark.parametrize("way", WITH_DEVICES.values(), ids=WITH_DEVICES)
def test_an_accelerator_is_mapped_and_told_what_its_driver_wants(machine, way):
    (name, *arguments), expected = way
    steps = seccomp.program(machine, OWN, has_driver=True)
    assert answer(steps, machine.audit, machine.numbers[name], *arguments) == expected


def test_every_other_call_is_permitted_and_every_other_convention_is_not(machine):
    steps, known = seccomp.program(machine, OWN), set(machine.numbers.values())
    others = [number for number in range(500) if number not in known]
    assert {answer(steps, machine.audit, number) for number in others} == {ALLOWED}
    # so that threads are made by `clone`
    assert answer(steps, machine.audit, machine.numbers["clone3"]) == ENOSYS
    assert {answer(steps, machine.audit ^ 0x40000000, number) for number in range(500)} == {EPERM}
    assert {answer(steps, machine.audit, 0x40000000 | number) for number in range(600)} == {EPERM}


def test_where_there_is_no_filter_the_worker_says_so(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert seccomp.refuse(1).startswith("not refused: ")
    monkeypatch.setattr("sys.platform", "darwin")
    assert seccomp.refuse(1) == seccomp.ABSENT


# --- the kernel -----------------------------------------------------------------------------------

# Run in a process of its own, as the worker does: isolate, then confine, then try what must not be
# possible.
TRIALS = """
import ctypes, fcntl, mmap, os, resource, signal, socket, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from potluck_agent.worker import sandbox
agent, (ours, theirs) = int(sys.argv[2]), socket.socketpair()
handle = os.pidfd_open(agent)
early = threading.Event(), []
def from_a_thread():
    early[0].wait()
    try:
        os.kill(agent, signal.SIGSTOP)
    except OSError as error:
        early[1].append(error)
thread = threading.Thread(target=from_a_thread)
thread.start()
folder = sandbox.nowhere()
bounds = sandbox.isolate(ours) | sandbox.confine(64 << 20, folder)
print(bounds["signals"], bounds["processes"], sep="|", file=sys.stderr)
early[0].set()
thread.join()
def call(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
WAYS = {
    "stop": lambda: os.kill(agent, signal.SIGSTOP),
    "end": lambda: os.kill(agent, signal.SIGKILL),
    "queue": lambda: call("sigqueue", agent, signal.SIGKILL, None),
    "handle": lambda: signal.pidfd_send_signal(handle, signal.SIGKILL),
    "owner": lambda: fcntl.fcntl(theirs, fcntl.F_SETOWN, agent),
    "trace": lambda: call("ptrace", 16, agent, None, None),
    "limits": lambda: resource.prlimit(agent, resource.RLIMIT_CPU, (1, 1)),
    "own limits": lambda: resource.prlimit(0, resource.RLIMIT_DATA, (1 << 40, 1 << 40)),
    "session": os.setsid,
    "group": lambda: os.setpgid(0, 0),
    "outlive": lambda: call("prctl", 1, 0, 0, 0, 0),
    "child": lambda: os.fork() or os._exit(0),
    "program": lambda: subprocess.run(["/bin/true"]),
    "datagrams to anybody": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "shared memory": lambda: mmap.mmap(-1, 1 << 20),
    "growing memory": lambda: mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100),
    "attributes": lambda: fcntl.ioctl(theirs, 0x40086602, bytes(8)),
    "from a thread": lambda: (_ for _ in ()).throw(*early[1]),
}
for name, way in WAYS.items():
    try:
        way()
    except OSError as error:
        print(name, error.errno, file=sys.stderr)
    else:
        print(name, "worked", file=sys.stderr)
thread = threading.Thread(target=signal.raise_signal, args=(signal.SIGCONT,))  # to itself
thread.start()
thread.join()
os.kill(os.getpid(), 0)
os.abort()
"""


@linux
def test_a_worker_that_was_taken_over_cannot_touch_its_agent():
    agent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        line = [sys.executable, "-c", TRIALS, SOURCE, str(agent.pid)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        bounds, *tried = done.stderr.splitlines()[:19]
        if bounds.startswith("not refused"):
            pytest.skip(bounds)
        assert bounds == "refused, but to itself|none started"
        assert {line.rpartition(" ")[2] for line in tried} == {"1"}, tried
        assert len(tried) == 18
        assert done.returncode == -6, done.stderr  # it can end itself: a crash stays one
        assert agent.poll() is None
        assert psutil.Process(agent.pid).status() != psutil.STATUS_STOPPED
    finally:
        agent.kill()
        agent.communicate()


@linux
def test_every_thread_of_a_worker_at_work_is_filtered():
    talk = begin(threads=2, inbound=8 << 20)
    try:
        state = talk.statement["bounds"]["signals"]
        if state.startswith("not refused"):
            pytest.skip(state)
        talk.put("r/0/p/0/x", numbers(1 << 20))
        # large: on both threads
        talk.compute("add", inputs=("r/0/p/0/x", "r/0/p/0/x"), outputs=("r/0/p/0/y",))
        tasks = list(Path(f"/proc/{talk.link.pid}/task").iterdir())
        states = [line for task in tasks for line in (task / "status").read_text().splitlines()]
        assert len(tasks) > 1
        assert [line.split()[1] for line in states if line.startswith("Seccomp:")] == ["2"] * len(
            tasks
        )
    finally:
        talk.link.kill()
