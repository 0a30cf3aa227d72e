"""A worker's bounds and its end: what it cannot do, how it dies, and that nothing of it stays."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.agent.worker.worker_driver import begin
from tests.timeouts import TIMEOUT_S

from potluck_agent.worker import launch
from potluck_agent.worker.arena import Arena
from potluck_agent.worker.launch import MALLOC, WorkerLink, start
from potluck_wire.messages import FailureCause, LoadSegment

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

SOURCE = str(Path(sys.modules["potluck_agent.worker.launch"].__file__).resolve().parents[2])


@pytest.fixture(params=["own process", "forked"])
def forks(request):
    """Where workers come from."""
    return None if request.param == "own process" else request.getfixturevalue("fork_server")


@pytest.fixture
def link(forks):
    """A worker that is only just starting: enough for how it ends."""
    link = start(memory_bytes=1 << 20, inbound_bytes=64, outbound_bytes=64, fork_server=forks)
    yield link
    link.kill()


def gone(pid):
    """Wait until a process that is not our child has ended (its last parent may be slow to bury
    it).
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(0.05)
    return True


def last_words(link):
    """Read until the worker is gone; why it went."""
    while not link.closed:
        assert select.select([link.socket], [], [], TIMEOUT_S)[0]
        link.receive()
    return link.exit_reason()


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "cause", "words"),
    [
        (signal.SIGSEGV, FailureCause.CRASHED, "crashed (SIGSEGV)"),
        (signal.SIGABRT, FailureCause.CRASHED, "crashed (SIGABRT)"),
        (signal.SIGKILL, FailureCause.CRASHED, "killed from outside"),
    ],
)
def test_a_worker_that_dies_says_how(link, number, cause, words):
    os.kill(link.pid, number)
    reason, text = last_words(link)
    assert reason == cause
    assert words in text


@pytest.mark.parametrize("linger_s", [0.0, 0.2])
def test_a_worker_that_closes_its_pipe_before_it_ends_has_its_own_last_word(linger_s):
    """Python closes sockets some time before the process is gone: that is no reason to say that
    somebody killed it.
    """
    ours, theirs = socket.socketpair()
    script = (
        f"import os, sys, time; os.close({theirs.fileno()}); time.sleep({linger_s}); "
        "sys.exit('No module named x')"
    )
    line = [sys.executable, "-c", script]
    process = subprocess.Popen(
        line, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, start_new_session=True
    )
    os.set_blocking(process.stderr.fileno(), False)
    theirs.close()
    ours.setblocking(False)
    link = WorkerLink(process, ours, Arena(64), Arena(64))
    assert last_words(link) == (
        FailureCause.CRASHED,
        "the worker crashed (exit code 1): No module named x",
    )
    link.kill()


def test_a_worker_killed_while_the_system_ran_out_of_memory_is_out_of_memory(link, monkeypatch):
    read = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path: f"oom_kill {10**9}\n" if path == Path("/proc/vmstat") else read(path),
    )
    os.kill(link.pid, signal.SIGKILL)
    assert last_words(link)[0] == FailureCause.MEMORY


def test_a_hung_worker_is_ended_at_once(link):
    os.kill(link.pid, signal.SIGSTOP)
    link.kill()
    assert not psutil.pid_exists(link.pid)
    assert link.exit_reason()[0] == FailureCause.CANCELLED
    link.kill()  # twice is fine


def test_bytes_that_are_no_message_end_the_worker_with_a_text(link):
    link.socket.send(b"\xff" * 64)
    cause, text = last_words(link)
    assert cause == FailureCause.CRASHED
    assert "WireError: buffers: 4294967295 frames" in text


def test_a_full_pipe_holds_messages_back_without_blocking(link):
    os.kill(link.pid, signal.SIGSTOP)
    link.send(LoadSegment(slot="r/0/s"), [bytes(4 << 20)])
    assert link.wants_write
    link.flush()
    assert link.wants_write


def test_a_worker_computes_with_the_kernels_that_its_agent_was_told_to_use(monkeypatch):
    chosen = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    link = start(memory_bytes=1 << 20, inbound_bytes=64, outbound_bytes=64)
    try:
        environment = psutil.Process(link.pid).environ()
    finally:
        link.kill()
    assert environment.items() >= chosen.items()


def test_the_environment_holds_no_secret(monkeypatch):
    monkeypatch.setenv("POTLUCK_TEST_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    link = start(memory_bytes=1 << 20, inbound_bytes=64, outbound_bytes=64)
    try:
        names = set(psutil.Process(link.pid).environ())
    finally:
        link.kill()
    assert names <= {
        *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"),
        *("LD_LIBRARY_PATH", "PATH", "SYSTEMROOT", "TEMP", "TMPDIR", "LC_ALL", *MALLOC),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY"),
        "GOMP_SPINCOUNT",
    }


@pytest.mark.few(1)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_ready_worker_is_in_its_bounds(forks, tmp_path, monkeypatch):
    if forks is None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
    talk = begin(fork_server=forks)
    try:
        process = psutil.Process(talk.link.pid)
        assert os.readlink(f"/proc/{talk.link.pid}/cwd").endswith("(deleted)")
        assert process.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
        assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
        assert process.rlimit(psutil.RLIMIT_DATA)[1] < 1 << 30
        inherited = [
            path
            for path in map(_target, Path(f"/proc/{talk.link.pid}/fd").iterdir())
            if "potluck" in path
        ]
        assert all(path.startswith("/memfd:potluck") for path in inherited)
        if talk.statement["bounds"]["network"] == "cut off":
            assert os.readlink(f"/proc/{talk.link.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    finally:
        talk.link.kill()
    assert list(tmp_path.iterdir()) == []


def _target(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


# Run in a process of its own, as the worker does: isolate, then confine, then try what must not be
# possible.
TRIALS = """
import mmap, os, resource, socket, sys
sys.path.insert(0, sys.argv[1])
from potluck_agent.worker import sandbox
ours, theirs = socket.socketpair()
listener = socket.create_server(("127.0.0.1", 0))
network, folder = os.readlink("/proc/self/ns/net"), sandbox.nowhere()
bounds = sandbox.isolate(ours)
bounds |= sandbox.confine(64 << 20, folder)
def tried(name, action):
    try:
        action()
    except (OSError, MemoryError) as error:
        print(name, type(error).__name__, file=sys.stderr)
    else:
        print(name, "worked", file=sys.stderr)
def write():
    with open(sys.argv[2], "w") as file:
        file.write("x")
tried("write", write)
tried("relative", lambda: open("file", "w"))
tried("memory", lambda: bytearray(200 << 20))
private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # only read: only the system's tables take memory
tried("addresses", lambda: mmap.mmap(-1, 1 << 40, private, mmap.PROT_READ))
tried("connect", lambda: socket.create_connection(listener.getsockname(), 5))
print(resource.getrlimit(resource.RLIMIT_FSIZE), file=sys.stderr)
print(os.readlink("/proc/self/ns/net") != network, file=sys.stderr)
print(bounds["network"], file=sys.stderr)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux limits")
def test_files_memory_and_network_are_out_of_reach(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TRIALS, SOURCE, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=True,
    )
    *tried, most_bytes, is_apart, network = done.stderr.splitlines()
    assert tried[0] in ("write PermissionError", "write OSError")
    assert tried[1] in ("relative PermissionError", "relative FileNotFoundError")
    assert tried[2] == "memory MemoryError"
    assert tried[3] == "addresses OSError"
    assert most_bytes == "(0, 0)"  # where no filter refuses to open
    assert is_apart == str(network == "cut off")
    if network != "cut off":
        pytest.skip(network)
    assert tried[4].startswith("connect ")
    assert tried[4] != "connect worked"


# Large values among small ones that stay: of what the large ones leave, how much counts as taken?
HOLES = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from potluck_agent.worker import sandbox
ours, theirs = socket.socketpair()
folder, memory_bytes, part = sandbox.nowhere(), int(sys.argv[2]), int(sys.argv[3])
sandbox.isolate(ours)
sandbox.confine(memory_bytes, folder)
before_bytes, large, small = sandbox.private_bytes(), [], []
for _ in range(3 * part // 4):
    large.append(bytearray(memory_bytes // part))
    small.append(bytearray(1 << 12))
large.clear()
print((sandbox.private_bytes() - before_bytes) / memory_bytes, file=sys.stderr)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux limits")
@pytest.mark.parametrize("memory_bytes", [48 << 20, 128 << 20, 512 << 20])
@pytest.mark.parametrize("part", [8, 32])
def test_what_large_values_leave_is_there_for_others(memory_bytes, part):
    done = subprocess.run(
        [sys.executable, "-c", HOLES, SOURCE, str(memory_bytes), str(part)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **MALLOC},
    )
    assert float(done.stderr) < 0.1


AGENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from potluck_agent.worker.launch import start
link = start(memory_bytes=1 << 20, inbound_bytes=1 << 20, outbound_bytes=1 << 20)
if sys.argv[2] == "ready":
    while not link.receive():
        time.sleep(0.05)
print(link.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("when", ["starting", "ready"])
def test_killing_the_agent_leaves_no_worker_and_no_file(tmp_path, when):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, SOURCE, when], stdout=subprocess.PIPE, env=environment
    )
    try:
        worker = int(agent.stdout.readline())
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()
    assert gone(worker)
    assert list(tmp_path.iterdir()) == []


GOES = "import os, sys, time; os.close(int(sys.argv[1])); os.write(2, b'tired'); time.sleep(600)"
LACKS = "import no_such_library"


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors have numbers elsewhere")
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (GOES, "crashed (closed its pipe and went on): tired"),
        (LACKS, "this device lacks no_such_library: pip install no_such_library"),
    ],
)
def test_a_worker_is_not_said_to_be_killed_from_outside_where_its_agent_knows_better(
    tmp_path, monkeypatch, program, words
):
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(launch, "PROGRAM", (str(tmp_path / "program.py"),))
    link = launch.start(memory_bytes=2**20, inbound_bytes=2**20, outbound_bytes=2**20)
    try:
        cause, text = last_words(link)
    finally:
        link.kill()
    assert cause == FailureCause.CRASHED
    assert words in text
