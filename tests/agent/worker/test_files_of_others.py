"""What a worker that was taken over cannot do to files, to its agent's memory and to its place on
the processor: each thing that its bounds say, tried, by the user that runs the tests (root, too).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.worker.test_sandbox import SOURCE

from potluck_agent.worker import landlock, sandbox, seccomp
from potluck_agent.worker.system_calls import MACHINES

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux filters system calls and files"
)

# Run in a process of its own, as the worker does. What was opened before must not help.
TRIALS = """
import ctypes, fcntl, json, mmap, os, resource, socket, sys, threading
sys.path.insert(0, sys.argv[1])
from potluck_agent.worker import landlock, sandbox, seccomp
agent, place, without = int(sys.argv[2]), sys.argv[3], sys.argv[4]
if without == "landlock":
    landlock.restrict = lambda *_: False
if without == "namespaces":
    sandbox.CLONE_NEWUSER = sandbox.CLONE_NEWNET = -1
old, new, folder = place + "/old", place + "/new", place + "/folder"
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def number(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), str(number))
ours, theirs = socket.socketpair()
early, directory = os.open(old, os.O_RDONLY), os.open(place, os.O_RDONLY)
nowhere = sandbox.nowhere()
landlock.NODES["cuda"] = ("/dev/random",)
uses = ("cuda",) if without == "a processor alone" else ()
bounds = sandbox.isolate(ours, uses)
def drive():
    fcntl.ioctl(os.open("/dev/random", os.O_RDWR), 0x80045200, bytes(4))  # how much it has
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as name:
        name.write("cuda")
    driven.append(True)
driven = []
if uses:
    thread = threading.Thread(target=drive)
    thread.start()
    thread.join()
bounds |= sandbox.confine(64 << 20, nowhere, 1, uses, bounds["reading"])
def shared():
    with mmap.mmap(os.open(old, os.O_RDWR), 0) as memory:
        memory[0] = 0
CHANGES = {
    "changed through memory": shared,
    "changed through what was open": lambda: mmap.mmap(early, 0, mmap.MAP_SHARED, mmap.PROT_WRITE),
    "emptied": lambda: os.open(old, os.O_RDONLY | os.O_TRUNC),
    "cut": lambda: os.truncate(old, 0),
    "made": lambda: os.open(new, os.O_CREAT | os.O_RDONLY),
    "made by its folder": lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=directory),
    "made without a name": lambda: os.open(place, os.O_TMPFILE | os.O_RDWR),
    "made a pipe": lambda: os.mkfifo(new),
    "removed": lambda: os.unlink(old),
    "removed by its folder": lambda: os.unlink("old", dir_fd=directory),
    "renamed": lambda: os.rename(old, new),
    "replaced": lambda: os.replace("old", "new", src_dir_fd=directory, dst_dir_fd=directory),
    "linked": lambda: os.link(old, new),
    "pointed at": lambda: os.symlink(old, new),
    "a folder": lambda: os.mkdir(new),
    "no folder": lambda: os.rmdir(folder),
    "rights": lambda: os.chmod(old, 0o777),
    "rights through what was open": lambda: os.fchmod(early, 0o777),
    "owner": lambda: os.chown(old, 1, 1),
    "times": lambda: os.utime(old, (1, 1)),
    "attributes": lambda: os.setxattr(old, "user.x", b"x"),
    "a mount": lambda: call("mount", b"none", place.encode(), b"tmpfs", 0, None),
    "another root": lambda: os.chroot(place),
    "through a ring": lambda: number(425, 1, ctypes.create_string_buffer(256)),
    "by a newer call": lambda: number(437, -100, old.encode(), ctypes.create_string_buffer(24), 24),
}
def watch(path):
    handle = libc.inotify_init()
    call("inotify_add_watch", handle, path.encode(), 0xFFF)
def write(path):
    os.close(os.open(path, os.O_WRONLY))
PROCESSES = {
    "memory": lambda: os.open(f"/proc/{agent}/mem", os.O_RDWR),
    "who is ended first": lambda: write(f"/proc/{agent}/oom_score_adj"),
    "its own, too": lambda: write("/proc/self/oom_score_adj"),
    "its processors": lambda: os.sched_setaffinity(agent, {0}),
    "its turn": lambda: os.sched_setscheduler(agent, os.SCHED_BATCH, os.sched_param(0)),
    "a turn before all others": lambda: os.sched_setscheduler(
        0, os.SCHED_FIFO, os.sched_param(1)
    ),
    "memory that outlives it": lambda: call("shmget", 0, 4096, 0o1600),
    "semaphores": lambda: call("semget", 0, 1, 0o1600),
    "a queue of messages": lambda: call("msgget", 0, 0o1600),
    "a queue with a name": lambda: call("mq_open", b"/potluck-test", 0o100 | 2, 0o600, None),
    "who uses which file": lambda: watch("/usr"),
    "its priority": lambda: os.setpriority(os.PRIO_PROCESS, agent, 5),
    "that of all of its user": lambda: os.setpriority(os.PRIO_USER, 0, 5),
    "a program": lambda: os.execv("/bin/true", ["true"]),
    "a connection": lambda: socket.socket(socket.AF_UNIX),
    "a network": lambda: socket.socket(socket.AF_INET),
    "a namespace": lambda: call("unshare", 0x10000000),
}
READS = {
    "a file": lambda: os.open(old, os.O_RDONLY),
    "what a folder has": lambda: os.listdir(place),
    "memory": lambda: os.open(f"/proc/{agent}/mem", os.O_RDONLY),
    "environment": lambda: os.open(f"/proc/{agent}/environ", os.O_RDONLY),
    "another": lambda: os.listdir("/proc/1"),
}
def tried(ways):
    worked = []
    for name, way in ways.items():
        try:
            way()
        except OSError:
            continue
        worked.append(name)
    return worked
said = {"bounds": bounds, "driven": driven, "changes": tried(CHANGES)}
said["processes"] = tried(PROCESSES)
print(json.dumps(said | {"reads": tried(READS)}))
os.sched_setaffinity(0, {0})  # of itself it may
os.sched_getaffinity(agent)
"""
# what is missing, as where a kernel has none, or an accelerator is there
KINDS = ("nothing", "landlock", "namespaces", "a processor alone")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "old").write_bytes(b"as it was")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.few(1)
@pytest.mark.parametrize("without", KINDS)
def test_what_the_bounds_say_holds(place, without):
    agent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    before = snapshot(place)
    try:
        line = [sys.executable, "-c", TRIALS, SOURCE, str(agent.pid), str(place), without]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert agent.poll() is None
    finally:
        agent.kill()
        agent.communicate()
    bounds = report["bounds"]
    if bounds["signals"] != seccomp.IN_FORCE:
        pytest.skip(bounds["signals"])
    drives = without == "a processor alone"
    assert report["driven"] == [True] * drives
    knows = drives and bounds["reading"] != sandbox.READS_ALL
    assert bounds["files"] == (sandbox.CHANGES_DEVICES if knows else sandbox.CHANGES_NONE)
    assert report["changes"] == []
    assert report["processes"] == []
    assert snapshot(place) == before
    if bounds["reading"].startswith(sandbox.READS_LITTLE):
        assert report["reads"] == []
    else:
        assert "a file" in report["reads"]  # it says no more than what holds
    assert without != "landlock" or bounds["reading"] == sandbox.READS_ALL


ANOTHER_TORCH = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from potluck_agent.worker import sandbox
nowhere = sandbox.nowhere()
ours, theirs = socket.socketpair()
sandbox.isolate(ours)
from potluck_agent.worker import torch_setup
torch_setup.STAND_INS["torch.fx.experimental.symbolic_shapes"].clear()
torch_setup.prepare(1)
from torch._inductor.runtime.cache_dir_utils import cache_dir
cache_dir()  # torch 2.11 makes it when its compiler is loaded
sandbox.confine(64 << 20, nowhere)
import torch
print(int((torch.ones(2, 2) @ torch.ones(2, 2)).sum()))
"""


@pytest.mark.long
def test_a_torch_that_loads_its_compiler_gets_ready_where_no_folder_may_be_made(tmp_path):
    pytest.importorskip("torch")
    line = [sys.executable, "-c", ANOTHER_TORCH, SOURCE]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch sets it in this process, too
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, list(tmp_path.iterdir())) == ("8\n", []), done.stderr


def snapshot(place):
    """All that could be changed there."""
    return [
        (path.name, state.st_mode, state.st_uid, state.st_mtime_ns, state.st_size)
        for path in (place, *sorted(place.iterdir()))
        for state in [path.stat()]
    ] + [(place / "old").read_bytes(), os.listxattr(place / "old")]


def test_a_worker_reads_its_libraries_and_no_place_of_people_as_a_whole():
    paths = {os.path.realpath(path) for path in landlock.readable()}
    assert not paths & {"/", "/dev", "/proc", os.path.expanduser("~"), "/tmp", "/home", "/var"}
    for module in (json, sandbox):
        assert any(Path(module.__file__).resolve().is_relative_to(path) for path in paths)


def test_without_a_filter_the_bounds_say_so(monkeypatch):
    """Another system, or another processor: run here as far as that goes."""
    script = """
import platform, socket, sys
sys.path.insert(0, sys.argv[1])
from potluck_agent.worker import landlock, sandbox
platform.machine = lambda: "riscv64"
landlock.restrict = lambda *_: False
folder = sandbox.nowhere()
print((sandbox.isolate(socket.socketpair()[0]) | sandbox.confine(64 << 20, folder))["files"])
"""
    line = [sys.executable, "-c", script, SOURCE]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == sandbox.GROWS_NONE


HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.skipif(not HEADER.exists(), reason="the kernel's headers are not here")
def test_the_numbers_are_those_of_the_kernels_headers():
    lines = [line.split() for line in HEADER.read_text().splitlines()]
    known = {line[1][5:]: int(line[2]) for line in lines if line[:1] == ["#define"] and line[2:]}
    ours = MACHINES["x86_64"].numbers
    assert {name: known[name] for name in ours.keys() & known.keys()} == {
        name: ours[name] for name in ours.keys() & known.keys()
    }
    assert len(ours.keys() & known.keys()) > 90


def test_every_call_that_is_refused_has_a_number_on_each_machine_or_was_never_there():
    old = {  # of x86_64 alone; elsewhere newer ones do it
        *("open", "creat", "rename", "link", "symlink", "unlink", "mkdir", "rmdir", "mknod"),
        *("chmod", "chown", "lchown", "utime", "utimes", "futimesat", "fork", "vfork"),
        *("iopl", "ioperm"),
    }
    named = {*seccomp.REFUSED, *seccomp.ABSENT_CALLS, *seccomp.BITS, *seccomp.OF_ITSELF}
    assert named <= MACHINES["x86_64"].numbers.keys()
    assert named - old <= MACHINES["aarch64"].numbers.keys()
    assert not old & MACHINES["aarch64"].numbers.keys()
