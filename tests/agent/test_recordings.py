"""`potluck agent start --record FILE` and `potluck agent replay FILE`: a real agent's life, played
again.
"""

import stat
import sys

import pytest
from tests.agent.agents import Keys, RawPeer, agent, command, pair
from tests.agent.core.core_driver import EIGHT, add, plan, recv, send

from potluck_agent import keys, record_file
from potluck_agent.core.recorded_entries import Full, pack
from potluck_agent.errors import AgentError
from potluck_agent.record_file import FIRST_LINE, RecordFile
from potluck_wire.messages import (
    Channel,
    Commit,
    Committed,
    Credit,
    Done,
    Drop,
    Dropped,
    Execute,
    Goodbye,
    Hello,
    Prepare,
    Prepared,
    Value,
    Welcome,
)

FULL = b"full"


def live(running, bob):
    """Pairing, a plan in force, a step, its answer, an end in good order."""
    pair(running.port, running.code, bob, "bob")
    with RawPeer(running.port, running.key, bob) as peer:
        assert isinstance(peer.ask(Hello(major=1, name="bob")), Welcome)
        rows = plan(recv("x"), add("x", "x", "y"), send("y"))
        assert isinstance(peer.ask(Prepare(run="r", epoch=1), *rows), Prepared)
        assert isinstance(peer.ask(Commit(run="r", epoch=1)), Committed)
        peer.say(Execute(run="r", epoch=1, program="p"))
        value = Value(
            transfer=1,
            run="r",
            epoch=1,
            program="p",
            name="x",
            shape=(2,),
            nbytes=8,
            chunk_bytes=64,
        )
        peer.say(value, EIGHT)
        home = peer.receive(Channel.DATA)[0]
        while not isinstance(home, Value):
            home = peer.receive(Channel.DATA)[0]
        peer.say(Credit(transfer=home.transfer, received_bytes=8, done=True))
        assert isinstance(peer.receive()[0], Done)
        assert isinstance(peer.ask(Drop(run="r")), Dropped)
        peer.say(Goodbye())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The file of a life, and the secrets that were around."""
    directory, bob = tmp_path_factory.mktemp("agent"), Keys()
    path = directory / "life.rec"
    with agent(directory / "state", "--pair", "--record", str(path)) as running:
        code = running.code
        live(running, bob)
        token = running.command("token").stdout.strip()
    return path, (code, token, bob.secret, keys.identity(directory / "state").secret)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_real_agent_s_life_is_told_and_happens_again(recorded, monkeypatch, seed):
    monkeypatch.setenv("PYTHONHASHSEED", seed)  # the order of a set is no fact of the recording
    answer = command("replay", str(recorded[0]))
    assert answer.returncode == 0, answer.stdout
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("recorded by jetson with protocol ")
    assert lines[-1].endswith("; the replay did the same")
    for text in (
        "from bob: Hello major=1 name=bob",
        "-> StartWorker",
        "-> to bob: Welcome",
        "from bob: Prepare run=r epoch=1",
        "-> to bob: Prepared run=r epoch=1",
        "-> to bob: Committed run=r epoch=1",
        "from bob: Execute run=r epoch=1 program=p",
        "-> Store 8 bytes at 0",
        "-> to the worker: Compute",
        "from the worker: Computed",
        "-> to bob: Done run=r epoch=1 program=p",
        "-> KillWorker its notebook is gone",
    ):
        assert any(text in line for line in lines), text
    assert "DIFFERS" not in answer.stdout


@pytest.mark.long
@pytest.mark.slow
def test_no_secret_and_no_tensor_is_in_the_file(recorded):
    path, secrets = recorded
    data = path.read_bytes()
    for secret in secrets:
        assert secret.encode() not in data
        assert secret.replace("-", "").replace(" ", "").encode() not in data
    assert EIGHT not in data
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
def test_where_a_replay_differs_is_said(recorded, tmp_path):
    path = tmp_path / "other.rec"
    old, other = b"its notebook is gone", b"its notebook is lost"
    entries = [entry.replace(old, other) for entry in record_file.read(recorded[0])]
    file_of(path, *entries)
    answer = command("replay", str(path))
    assert answer.returncode == 1
    assert (
        "DIFFERS: recorded was KillWorker its notebook is lost; the replay has KillWorker"
        in answer.stdout
    )
    assert "the replay differs at 1 of them, first at +" in answer.stdout.splitlines()[-1]


@pytest.mark.long
@pytest.mark.slow
def test_what_a_stranger_said_cannot_command_the_terminal(tmp_path):
    bob, path = Keys(), tmp_path / "life.rec"
    with (
        agent(tmp_path / "state", "--trust", f"{bob.public}:bob", "--record", str(path)) as running,
        RawPeer(running.port, running.key, bob) as peer,
    ):
        peer.ask(Hello(major=2, name="\x1b[2Jbob"))
    answer = command("replay", str(path))
    assert "name=?[2Jbob" in answer.stdout


# --- the file -------------------------------------------------------------------------------------


def file_of(path, *entries, **how):
    notes = []
    file = RecordFile(path, notes.append, **how)
    for entry in entries:
        file.write(entry, FULL)
    return file, notes


ENTRIES = [b"", b"a" * 10, bytes(range(256)), b"\n\0potluck recording 1\n"]


def test_entries_are_any_bytes(tmp_path):
    file, notes = file_of(tmp_path / "f", *ENTRIES)
    assert list(record_file.read(tmp_path / "f")) == ENTRIES
    assert notes == []
    file.stop("that is all")


def test_a_file_grows_no_larger_than_it_may(tmp_path):
    path = tmp_path / "f"
    _, notes = file_of(path, *[b"x" * 50] * 100, max_bytes=1000)
    *entries, last = record_file.read(path)
    assert path.stat().st_size <= 1000
    assert (set(entries), last) == ({b"x" * 50}, FULL)
    assert len(entries) >= 14
    assert notes == [f"the recording {path} ends here: it is as large as it may be"]


@pytest.mark.slow
def test_a_full_file_says_so_in_the_replay(tmp_path, recorded):
    path = tmp_path / "f"
    file = RecordFile(path, print, max_bytes=2000)
    for entry in record_file.read(recorded[0]):
        file.write(entry, pack(Full()))
    answer = command("replay", str(path))
    assert answer.returncode == 0, answer.stdout
    assert "the file was full: nothing more was recorded" in answer.stdout


def test_a_disk_that_is_full_ends_the_recording_and_nothing_else(tmp_path):
    resource = pytest.importorskip("resource")
    path, limits = tmp_path / "f", resource.getrlimit(resource.RLIMIT_FSIZE)
    file, notes = file_of(path, b"x" * 50)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        for _ in range(5):
            file.write(b"y" * 50, FULL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(notes) == 1
    assert notes[0].startswith(f"the recording {path} ends here: ")
    read = record_file.read(path)
    assert [next(read) for _ in range(3)] == [b"x" * 50, b"y" * 50, b"y" * 50]
    with pytest.raises(AgentError, match="cut off"):
        next(read)


def test_every_cut_is_said_with_what_came_before_it(tmp_path):
    path = tmp_path / "f"
    file_of(path, *ENTRIES)[0].stop("that is all")
    intact = path.read_bytes()
    ends = {len(FIRST_LINE)}
    for entry in ENTRIES:
        ends.add(max(ends) + 8 + len(entry))
    for length in range(len(FIRST_LINE), len(intact)):
        path.write_bytes(intact[:length])
        read = record_file.read(path)
        n_whole = sum(end <= length for end in ends) - 1
        assert [next(read) for _ in range(n_whole)] == ENTRIES[:n_whole]
        if length in ends:
            assert list(read) == []
        else:
            begins = max(end for end in ends if end <= length)
            with pytest.raises(
                AgentError, match=f"cut off: its last entry begins at byte {begins} "
            ):
                next(read)


def test_every_changed_byte_of_an_entry_is_said(tmp_path):
    path = tmp_path / "f"
    file_of(path, *ENTRIES)[0].stop("that is all")
    intact = path.read_bytes()
    for place in range(len(FIRST_LINE), len(intact)):
        path.write_bytes(intact[:place] + bytes([intact[place] ^ 1]) + intact[place + 1 :])
        with pytest.raises(AgentError, match=r"is corrupt at byte|is cut off"):
            list(record_file.read(path))


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no recording of this version"),
        (b"PK\x03\x04 a zip file, say, or a model", "no recording of this version"),
        (FIRST_LINE, "does not begin with the settings"),
        (FIRST_LINE + b"\x01\0\0\0", "cut off"),
        (FIRST_LINE + b"\xff" * 8, "corrupt at byte 20"),
    ],
)
def test_a_broken_recording_is_an_error_in_one_line(tmp_path, data, text):
    path = tmp_path / "broken.rec"
    path.write_bytes(data)
    answer = command("replay", str(path))
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("potluck agent: ")
    assert text in line
    assert str(path) in line


@pytest.mark.long
def test_a_recording_is_never_written_over(tmp_path):
    path = tmp_path / "precious.rec"
    path.write_bytes(b"evidence")
    answer = command(
        "start",
        "--state",
        str(tmp_path / "state"),
        "--no-mdns",
        "--port",
        "0",
        "--threads",
        "1",
        "--device",
        "cpu",
        "--record",
        str(path),
    )
    assert answer.returncode == 1
    assert "is there already" in answer.stderr
    assert path.read_bytes() == b"evidence"


def test_there_must_be_a_file(tmp_path):
    answer = command("replay", str(tmp_path / "none.rec"))
    assert (answer.returncode, "cannot be read" in answer.stderr) == (1, True)
