"""Workers that a fork server starts are confined and ended as processes of their own are."""

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch
from tests.agent.worker.worker_driver import begin, load
from tests.timeouts import TIMEOUT_S

from potluck_agent.worker import fork_server as servers
from potluck_agent.worker import forked_worker
from potluck_agent.worker.forked_worker import workers_of
from potluck_agent.worker.launch import start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")

OWNER = """
import sys
from pathlib import Path
from potluck_agent.worker import fork_server
process = fork_server.start(Path(sys.argv[1]))
if sys.argv[2] == "loaded":
    process.stdout.read(1)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def alone():
    """A process of its own."""
    talk = begin()
    yield talk
    talk.link.kill()


@pytest.fixture
def forked(fork_server):
    talk = begin(fork_server=fork_server)
    yield talk
    talk.link.kill()


def eventually(holds) -> bool:
    until_s = time.monotonic() + TIMEOUT_S
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.01)
    return holds()


def is_forked(link, path) -> bool:
    return link.pid in workers_of(path, os.getpid())


@pytest.mark.long
def test_it_says_of_itself_what_a_process_of_its_own_does(forked, alone, fork_server):
    assert is_forked(forked.link, fork_server)
    assert not is_forked(alone.link, fork_server)
    for name in ("bounds", "backends", "operators", "dtypes"):
        assert forked.statement[name] == alone.statement[name]


@pytest.mark.long
def test_it_computes_the_same_bits(forked, alone):
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    results = []
    for talk in (forked, alone):
        load(talk)
        talk.put("x", x)
        results += talk.compute(
            "run", slot="r/0/s", inputs=("x",), outputs=("y",), exports=("y",), frees=("x", "y")
        )
    assert torch.equal(*results)


def descriptors(talk):
    """What it has open, without the numbers of sockets and pipes."""
    found = (os.readlink(fd) for fd in Path(f"/proc/{talk.link.pid}/fd").iterdir())
    return Counter(path.partition(":[")[0] for path in found)


@pytest.mark.long
def test_it_holds_nothing_of_its_server_or_of_others(fork_server, alone):
    talks = [begin(fork_server=fork_server) for _ in range(2)]
    try:
        assert [descriptors(talk) for talk in talks] == [descriptors(alone)] * 2
        assert all(os.getpgid(talk.link.pid) == talk.link.pid for talk in talks)
    finally:
        for talk in talks:
            talk.link.kill()


def test_one_ends_without_the_others(fork_server):
    talks = [begin(fork_server=fork_server) for _ in range(2)]
    talks[0].link.kill()
    assert not psutil.pid_exists(talks[0].link.pid)
    assert workers_of(fork_server, os.getpid()) == [talks[1].link.pid]
    talks[1].link.kill()
    assert workers_of(fork_server, os.getpid()) == []


def test_it_ends_with_its_agent_though_it_computes_and_reads_nothing(fork_server):
    script = (
        "import os, sys; from pathlib import Path; from potluck_agent.worker.launch import start;"
        "link = start(memory_bytes=1 << 20, inbound_bytes=64, outbound_bytes=64,"
        " fork_server=Path(sys.argv[1])); os.kill(link.pid, 19); print(link.pid, flush=True);"
        "os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", script, fork_server], stdout=subprocess.PIPE)
    assert eventually(lambda: not psutil.pid_exists(int(done.stdout)))


@pytest.mark.few(1)
@pytest.mark.parametrize("ends", ["SIGKILL", "SIGTERM"])
def test_server_and_workers_end_with_whoever_started_them(tmp_path, ends):
    path = tmp_path / "own" / "socket"
    path.parent.mkdir()
    owner = psutil.Popen(
        [sys.executable, "-c", OWNER, path, "loaded"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout.readline()
    link = start(memory_bytes=1 << 20, inbound_bytes=64, outbound_bytes=64, fork_server=path)
    assert is_forked(link, path)
    (server,) = owner.children()
    getattr(owner, {"SIGKILL": "kill", "SIGTERM": "terminate"}[ends])()
    owner.communicate()
    assert eventually(lambda: not server.is_running())
    assert link.exit_reason()[1] == "the worker was killed from outside"
    assert not path.parent.exists()
    link.kill()


@pytest.mark.long
def test_whose_owner_ends_before_it_has_loaded_leaves_nothing(tmp_path):
    path = tmp_path / "own" / "socket"
    path.parent.mkdir()
    owner = psutil.Popen(
        [sys.executable, "-c", OWNER, path, "loads"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout.readline()
    (server,) = owner.children()
    owner.kill()
    owner.communicate()
    assert eventually(lambda: not server.is_running())
    assert not path.parent.exists()


@pytest.fixture
def own_server(tmp_path):
    """One that a test may stop: its process, and where it listens."""
    process = servers.start(tmp_path / "socket")
    assert process.stdout.read(1)
    yield psutil.Process(process.pid), tmp_path / "socket"
    process.kill()
    process.communicate()


@pytest.mark.long
def test_a_stuck_server_keeps_nobody_waiting_for_ever(own_server, monkeypatch):
    process, path = own_server
    monkeypatch.setattr(forked_worker, "ANSWER_S", 1.0)
    talks = [begin(fork_server=path)]
    assert is_forked(talks[0].link, path)
    process.suspend()
    assert workers_of(path, os.getpid()) == []
    talks.append(begin(fork_server=path))  # a process of its own
    assert talks[1].link.pid in [child.pid for child in psutil.Process().children()]
    process.resume()  # and starts another one for the same request, perhaps
    load(talks[1])  # which reads nothing that this one is told
    assert eventually(lambda: workers_of(path, os.getpid()) == [talks[0].link.pid])
    process.suspend()
    for talk in talks:
        talk.link.kill()
        assert talk.link.exit_reason()[1] == "the worker was stopped by its agent"
    process.resume()
    assert eventually(lambda: workers_of(path, os.getpid()) == [])


@pytest.mark.long
@pytest.mark.parametrize(
    "n_free", [0, 1, 5], ids=["no connection", "no request", "nothing that shows its end"]
)
def test_without_descriptors_for_one_more_it_keeps_those_it_has(own_server, monkeypatch, n_free):
    process, path = own_server
    monkeypatch.setattr(forked_worker, "ANSWER_S", 1.0)
    first = begin(fork_server=path)
    taken = set(map(int, os.listdir(f"/proc/{process.pid}/fd")))
    free = [number for number in range(1 << 10) if number not in taken]
    process.rlimit(psutil.RLIMIT_NOFILE, (free[n_free], 1 << 10))
    link = start(memory_bytes=1 << 20, inbound_bytes=64, outbound_bytes=64, fork_server=path)
    process.rlimit(psutil.RLIMIT_NOFILE, (1 << 10, 1 << 10))
    try:
        assert is_forked(first.link, path)
        assert not is_forked(link, path)
        load(first)
    finally:
        link.kill()
        first.link.kill()
    assert eventually(lambda: not process.children())


@pytest.mark.parametrize(
    "other",
    [{"threads": 2}, {"backends": ("torch",)}, {"variable": "ATEN_CPU_CAPABILITY"}, {"path": "/x"}],
    ids=["threads", "backends", "environment", "nobody there"],
)
def test_where_none_has_loaded_the_same_the_worker_is_a_process_of_its_own(
    fork_server, monkeypatch, other
):
    other = dict(other)
    path = Path(other.pop("path", fork_server))
    if name := other.pop("variable", None):
        monkeypatch.setenv(name, "avx2" if os.environ.get(name) == "default" else "default")
    link = start(memory_bytes=1, inbound_bytes=64, outbound_bytes=64, fork_server=path, **other)
    try:
        assert link.pid in [child.pid for child in psutil.Process().children()]
        assert not is_forked(link, fork_server)
    finally:
        link.kill()


@pytest.mark.parametrize(
    "message", [b"", b"[]", b"\xff", b"{}", b"[" * 50_000, b'{"workers_of": []}', b'{"command": 1}']
)
def test_what_is_no_request_ends_its_connection_and_nothing_else(fork_server, forked, message):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(fork_server))
        connection.send(message)
        connection.settimeout(TIMEOUT_S)
        assert connection.recv(64) in (b"", b"0", b"[]")
    assert is_forked(forked.link, fork_server)


def test_a_server_needs_a_path_that_nobody_has(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(OSError, match="in use"):
        servers.start(tmp_path / "taken")
