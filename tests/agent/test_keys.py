"""Keys and peers on disk: private, whole or not at all, and never silently replaced."""

import json
import os
import stat
import subprocess
import sys
import threading

import pytest
import zmq
from tests.timeouts import TIMEOUT_S

from potluck_agent import control_files, keys, lease_file
from potluck_agent.cli import arguments, options
from potluck_agent.errors import AgentError
from potluck_agent.keys import TrustedPeer
from potluck_agent.relay import invitations
from potluck_wire.file_lock import alone
from potluck_wire.fingerprint import fingerprint

CONTROL = {control_files.RUNNING: control_files.running, control_files.STATUS: control_files.status}
KEYS = [zmq.curve_keypair()[0].decode() for _ in range(3)]
PEER = {"name": "a", "key": "0" * 40, "role": "owner"}
PEERS = [
    json.dumps(rows).encode()
    for rows in (
        [{**PEER, "key": "#" * 40}],
        [{**PEER, "date": "\x1b[2J"}],
        [{**PEER, "date": "\ud800"}],
        [{**PEER, "date": 5}],
        [PEER, {**PEER, "name": "b"}],
    )
]


def test_the_key_pair_is_made_once_and_is_private(tmp_path):
    directory = keys.open_state_dir(tmp_path / "a" / "b")
    first = keys.identity(directory)
    assert keys.identity(directory) == first
    assert zmq.curve_public(first.secret.encode()).decode() == first.public
    assert first.secret not in repr(first)
    if os.name != "nt":
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / keys.IDENTITY).stat().st_mode) == 0o600
    assert [path.name for path in directory.iterdir()] == [keys.IDENTITY]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"public": 1, "secret": 2}',
        json.dumps({"public": KEYS[0], "secret": KEYS[1]}).encode(),
        b"[" * 100_000,
        b'{"public": "a", "public": "b", "secret": "c"}',
        b'{"public": NaN, "secret": 1}',
        b'{"public": ' + b"1" * 5000 + b"}",
        b" " * (keys.MAX_FILE_BYTES + 1),
        json.dumps({"public": "#" * 40, "secret": "#" * 40}).encode(),
    ],
)
def test_a_corrupt_key_file_is_an_error_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / keys.IDENTITY
    path.write_bytes(content)
    with pytest.raises(AgentError, match=keys.IDENTITY):
        keys.identity(tmp_path)
    assert path.read_bytes() == content


@pytest.mark.skipif(os.name == "nt", reason="pipes with names")
@pytest.mark.parametrize("name", [keys.IDENTITY, keys.PEERS, *CONTROL])
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_waited_for_by_nobody(tmp_path, name, make):
    make(tmp_path / name)
    if name in CONTROL:
        assert CONTROL[name](tmp_path) is None
        return
    with pytest.raises(AgentError, match=name):
        (keys.identity if name == keys.IDENTITY else keys.load_peers)(tmp_path)


READS = {
    keys.IDENTITY: keys.identity,
    keys.PEERS: keys.load_peers,
    lease_file.FILE: lease_file.kept,
    invitations.DEVICES: invitations.devices,
}


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("target", ["/no/such/disk/file", "itself"])
def test_nothing_takes_the_place_of_a_link_to_what_is_not_there(tmp_path, name, target):
    """As to a disk that is not mounted now."""
    path = tmp_path / name
    path.symlink_to(path if target == "itself" else target)
    with pytest.raises(AgentError, match=name):
        READS[name](tmp_path)
    assert path.is_symlink()


@pytest.mark.parametrize(
    "content",
    [b"{", b"5", b'[{"name": "a"}]', b'[{"name": "a", "key": "b", "role": "owner"}]', *PEERS],
)
def test_a_corrupt_peers_file_is_an_error_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / keys.PEERS
    path.write_bytes(content)
    for act in (
        lambda: keys.load_peers(tmp_path),
        lambda: keys.add_peer(tmp_path, TrustedPeer(name="ada", key=KEYS[0])),
        lambda: keys.forget_peer(tmp_path, "ada"),
    ):
        with pytest.raises(AgentError, match=keys.PEERS):
            act()
    assert path.read_bytes() == content


def test_peers_are_added_and_forgotten(tmp_path):
    keys.add_peer(tmp_path, TrustedPeer(name="ada", key=KEYS[0]))
    keys.add_peer(tmp_path, TrustedPeer(name="bob", key=KEYS[1]))
    assert [(peer.name, peer.key, peer.role) for peer in keys.load_peers(tmp_path)] == [
        ("ada", KEYS[0], "owner"),
        ("bob", KEYS[1], "owner"),
    ]
    keys.forget_peer(tmp_path, "ada")
    assert [peer.name for peer in keys.load_peers(tmp_path)] == ["bob"]
    with pytest.raises(AgentError, match="no peer is called ada; this device trusts bob"):
        keys.forget_peer(tmp_path, "ada")


def test_two_notebooks_of_one_name_are_both_kept(tmp_path):
    for key in (KEYS[0], KEYS[1], KEYS[0]):
        keys.add_peer(tmp_path, TrustedPeer(name="laptop", key=key))
    assert {peer.key: peer.name for peer in keys.load_peers(tmp_path)} == {
        KEYS[0]: "laptop",
        KEYS[1]: "laptop-2",
    }


@pytest.mark.skipif(os.name == "nt", reason="the system bounds no files there")
def test_on_a_full_disk_a_peer_is_forgotten_too_and_may_pair_again_later(tmp_path):
    resource = pytest.importorskip("resource")
    for name, key in zip(("ada", "bob", "carl"), KEYS, strict=True):
        keys.add_peer(tmp_path, TrustedPeer(name=name, key=key))
    os.utime(tmp_path / keys.PEERS, ns=(0, 0))
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, bounds[1]))  # as where there is no room
    try:
        with pytest.raises(AgentError, match="cannot write"):
            keys.add_peer(tmp_path, TrustedPeer(name="eve", key=zmq.curve_keypair()[0].decode()))
        for name in ("ada", "bob"):
            keys.forget_peer(tmp_path, name)
        with pytest.raises(AgentError, match="no peer is called ada; this device trusts carl"):
            keys.forget_peer(tmp_path, "ada")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    assert (tmp_path / keys.PEERS).stat().st_mtime_ns  # the running agent reads it anew
    assert [peer.name for peer in keys.load_peers(tmp_path)] == ["carl"]
    assert [
        peer.name for peer in keys.add_peer(tmp_path, TrustedPeer(name="ada", key=KEYS[0]))
    ] == ["carl", "ada"]
    assert [peer.name for peer in keys.load_peers(tmp_path)] == ["carl", "ada"]
    assert not list(tmp_path.glob(f"{keys.FORGOTTEN}*"))


@pytest.mark.skipif(os.name == "nt", reason="no system call locks there")
def test_whoever_holds_the_peers_is_not_waited_for_long(tmp_path, monkeypatch):
    """The agent's loop would stand still as long."""
    monkeypatch.setattr(keys, "LOCK_TIMEOUT_S", 0.0)
    ada = TrustedPeer(name="ada", key=KEYS[0])
    with alone(tmp_path / keys.PEERS_LOCK, 0.0):
        with pytest.raises(AgentError, match=r"another process holds .*peers\.lock"):
            keys.add_peer(tmp_path, ada)
        with pytest.raises(AgentError, match=r"another process holds .*peers\.lock"):
            keys.forget_peer(tmp_path, "ada")
    keys.add_peer(tmp_path, ada)
    (tmp_path / keys.PEERS_LOCK).unlink()
    os.mkfifo(tmp_path / keys.PEERS_LOCK)
    with pytest.raises(AgentError, match=r"cannot write .*peers\.lock"):
        keys.forget_peer(tmp_path, "ada")


def test_fingerprints_are_25_characters_and_differ():
    first, second = (fingerprint(key) for key in KEYS[:2])
    assert first != second
    assert [len(part) for part in first.split("-")] == [5] * 5


def test_a_state_directory_that_cannot_be_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match="--state"):
        keys.open_state_dir(tmp_path / "file" / "below")


# --- how commands reach a running agent -----------------------------------------------------------


def test_one_agent_per_state_directory(tmp_path):
    assert control_files.running(tmp_path) is None
    claim = control_files.claim(tmp_path, {"port": 5})
    assert control_files.running(tmp_path)["port"] == 5
    claim.release()
    assert control_files.running(tmp_path) is None


@pytest.mark.parametrize("window_s", [180.0, None])
def test_what_was_asked_of_an_agent_that_was_killed_is_asked_of_no_other(tmp_path, window_s):
    """It would open a window that nobody knows of: of a token, for as long as it runs."""
    control_files.ask_window(tmp_path, "12345678", window_s, "asker")
    control_files.ask_status(tmp_path)
    claim = control_files.claim(tmp_path, {"port": 5})
    assert control_files.requested_window(tmp_path) is None
    assert not control_files.requested_status(tmp_path)
    control_files.ask_window(tmp_path, "87654321", window_s, "asker")
    assert control_files.requested_window(tmp_path) == ("87654321", window_s)
    claim.release()


def test_what_killed_processes_left_half_written_goes_with_the_next_start(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(TIMEOUT_S)
    left = [tmp_path / f"{name}.{gone.pid}.part" for name in (keys.PEERS, keys.IDENTITY)]
    stays = [tmp_path / name for name in (f"{keys.PEERS}.{os.getpid()}.part", "mine.part", "a.b")]
    for path in (*left, *stays):
        path.touch()
    control_files.claim(tmp_path, {"port": 5}).release()
    assert [path.exists() for path in left] == [False] * len(left)
    assert [path.exists() for path in stays] == [True] * len(stays)


@pytest.mark.skipif(os.name == "nt", reason="no system call locks there")
def test_of_two_agents_that_start_in_the_same_instant_one_has_the_directory(tmp_path, monkeypatch):
    """Neither saw the other's file when it looked."""
    monkeypatch.setattr(control_files, "ENDING_S", 0.0)
    first = control_files.claim(tmp_path, {"port": 5})
    (tmp_path / control_files.RUNNING).unlink()
    with pytest.raises(AgentError, match="an agent already uses"):
        control_files.claim(tmp_path, {"port": 6})
    first.release()
    control_files.claim(tmp_path, {"port": 6}).release()


def test_an_agent_that_ends_leaves_alone_what_is_anothers(tmp_path):
    """Its directory was removed while it ran, and another one began in a new one of that name."""
    first = control_files.claim(tmp_path, {"port": 5})
    (tmp_path / control_files.RUNNING).write_text('{"pid": 1, "port": 6}')
    first.release()
    assert json.loads((tmp_path / control_files.RUNNING).read_text())["port"] == 6


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"pid": "x"}', b'{"pid": 1, "identity": "1"}', b'{"pid": -5}']
)
def test_what_a_killed_agent_left_behind_does_not_count(tmp_path, content):
    (tmp_path / control_files.RUNNING).write_bytes(content)
    assert control_files.running(tmp_path) is None


def test_a_window_is_asked_for_once(tmp_path):
    assert control_files.window_asker(tmp_path) is None
    control_files.ask_window(tmp_path, "12345678", 180.0, "ada")
    assert control_files.requested_window(tmp_path) == ("12345678", 180.0)
    assert control_files.requested_window(tmp_path) is None
    (tmp_path / control_files.WINDOW).write_text("junk")
    assert control_files.requested_window(tmp_path) is None
    assert control_files.window_asker(tmp_path) == "ada"
    assert [each.name for each in tmp_path.iterdir()] == [control_files.SHOWN]


# --- the command line -----------------------------------------------------------------------------


def start(*words):
    return options.start_options(arguments.read(words), 1)


def test_start_is_understood_without_saying_so():
    assert start("--port", "0", "--name", "jetson") == start(
        "start", "--port", "0", "--name", "jetson"
    )


@pytest.mark.parametrize("first", "-@a0")
def test_a_key_may_begin_like_an_option(first):
    """Z85 has a minus."""
    (peer,) = start("--trust", f"{first}{KEYS[0][1:]}:ada", "--port", "0").trusted
    assert peer.key == first + KEYS[0][1:]


@pytest.mark.parametrize("word", ["nope", "stop", "restart"])
def test_a_command_that_there_is_none_is_named_with_those_that_there_are(word, capsys):
    with pytest.raises(SystemExit) as ended:
        arguments.read([word])
    output = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"there is no command {word!r}; there are start, install, " in output


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("2Gi", 2 * 2**30), ("2GiB", 2 * 2**30), ("500MB", 5 * 10**8), ("1.5g", 15 * 10**8)],
)
def test_reads_amounts_of_memory(text, nbytes):
    assert start("--memory", text).memory_bytes == nbytes


@pytest.mark.parametrize(
    "words",
    [
        ("--memory", "lots"),
        ("--memory", "12"),
        ("--slowdown", "0.5"),
        ("--slowdown", "nan"),
        ("--power", "1,2"),
        ("--power", "5,2,1"),
        ("--trust", "short:name"),
        ("--trust", f"{KEYS[0]}:Bad Name"),
        ("--link-rate", "-1"),
        ("--port", "x"),
        ("--threads", "0"),
    ],
)
def test_refuses_options_that_make_no_sense(words, capsys):
    with pytest.raises(SystemExit):
        start(*words)
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["home", "Big", "", "a b", "x" * 41, "é"])
def test_refuses_names_that_cannot_be(name):
    with pytest.raises(AgentError, match="device's name"):
        start("--name", name)


def test_a_key_may_hold_a_colon():
    key = next(k for k in (zmq.curve_keypair()[0].decode() for _ in range(10_000)) if ":" in k)
    assert start("--trust", f"{key}:ada").trusted == (TrustedPeer(name="ada", key=key),)


@pytest.mark.skipif(os.name == "nt", reason="no system call locks there")
def test_pairing_and_forgetting_at_once_undo_nothing(tmp_path, monkeypatch):
    """Whoever comes second waits until the first has written."""
    keys.add_peer(tmp_path, keys.TrustedPeer(name="bob", key="b" * 40))
    write, others = keys.write_private, []

    def write_late(path, document):
        monkeypatch.setattr(keys, "write_private", write)
        others.append(threading.Thread(target=keys.forget_peer, args=(tmp_path, "bob")))
        others[0].start()
        others[0].join(0.2)  # long enough to read, where nothing keeps it from that
        write(path, document)

    monkeypatch.setattr(keys, "write_private", write_late)
    keys.add_peer(tmp_path, keys.TrustedPeer(name="ada", key="a" * 40))
    others[0].join()
    assert [peer.name for peer in keys.load_peers(tmp_path)] == ["ada"]
