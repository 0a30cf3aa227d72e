"""Whatever lies where a small file of ours is looked for costs an error, and no wait or memory; and
nobody is believed whose file it is not.
"""

import json
import os

import pytest
import zmq

from potluck.coordinator import leader_client, local_coordinator, state_size
from potluck.discover.key_claim import claim, holder_of
from potluck.discover.keyring import DEVICES, IDENTITY, Keyring
from potluck.errors import HomeError, PotluckError
from potluck.profile.layer_times_store import LayerTimesStore
from potluck.profile.power_file import FILE as WATTS
from potluck.profile.power_file import kept_watts
from potluck.sessions.connections import Keys
from potluck_agent import control_files, keys, lease_file
from potluck_agent.errors import AgentError
from potluck_wire.file_reading import read_file

pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes with names, and users by number")
PUBLIC, SECRET = (part.decode() for part in zmq.curve_keypair())
NOTHING = None, (), {}, "", False
NOBODY = 65534
MOST_BYTES = 2**30  # sparse: it takes no room on the disk


def pipe(path):
    os.mkfifo(path)


def folder(path):
    path.mkdir()


def endless(path):
    path.symlink_to("/dev/zero")


def large(path):
    with path.open("wb") as file:
        file.truncate(MOST_BYTES)


def cached(state):
    store = LayerTimesStore(state)
    return store.load("m", {}, train=False, rows=(1,), n_layers=1)


READERS = {  # by file: what reads it, with the folder
    IDENTITY: lambda state: Keyring(state).identity(),
    DEVICES: lambda state: Keyring(state).devices(),
    WATTS: kept_watts,
    state_size.FILE: lambda state: state_size.remembered(state, "job"),
    leader_client.FILE: leader_client.kept_seats,
    f"{local_coordinator.FOLDER}/{local_coordinator.WHERE}": lambda state: local_coordinator.find(
        state, Keys(public=PUBLIC, secret=SECRET)
    ),
    "layer times": cached,
    keys.IDENTITY: keys.identity,
    keys.PEERS: keys.load_peers,
    lease_file.FILE: lease_file.kept,
    control_files.RUNNING: control_files.running,
    control_files.WINDOW: control_files.requested_window,
    control_files.TRIES: lambda state: control_files.tries_left(state, 0) or None,
    control_files.PAIRED: control_files.paired,
    control_files.STATUS: control_files.status,
}


def place_of(state, name):
    path = LayerTimesStore(state).path("m", {}) if name == "layer times" else state / name
    path.parent.mkdir(exist_ok=True)
    return path


def read(name, state):
    """What is found in the file, or the error in words."""
    try:
        return READERS[name](state), ""
    except (AgentError, PotluckError) as error:
        return None, str(error)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [pipe, folder, endless, large])
def test_what_is_no_file_of_ours_is_an_error_or_nothing(name, make, tmp_path):
    make(place_of(tmp_path, name))
    found, error = read(name, tmp_path)
    assert found in NOTHING
    assert not error or str(tmp_path) in error


PLANTED = {
    IDENTITY: {"public": PUBLIC, "secret": SECRET},
    DEVICES: [{"name": "phone", "key": PUBLIC, "addresses": []}],
    keys.IDENTITY: {"public": PUBLIC, "secret": SECRET},
    keys.PEERS: [{"name": "mallory", "key": PUBLIC, "role": "owner", "date": ""}],
    control_files.WINDOW: {"secret": "12345678", "window_s": None},
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("is_own", [False, True])
def test_nobody_is_believed_whose_file_it_is_not(name, is_own, tmp_path, monkeypatch):
    """Another user of the machine put it there, before the folder was closed to him."""
    path = tmp_path / name
    path.write_text(json.dumps(PLANTED[name]))
    if not is_own and os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    elif not is_own:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    believed, error = read(name, tmp_path)
    assert bool(believed) == is_own
    assert not error or "belongs to another user" in error


@pytest.mark.parametrize("n_bytes", [0, 5])
def test_a_file_may_have_so_many_bytes(n_bytes, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * n_bytes)
    assert read_file(path, n_bytes) == b"x" * n_bytes
    path.write_bytes(b"x" * (n_bytes + 1))
    with pytest.raises(OSError, match=f"more than {n_bytes} bytes"):
        read_file(path, n_bytes)


@pytest.mark.parametrize("make", [pipe, endless, large])
def test_a_lock_that_is_no_file_is_waited_for_by_nobody(make, tmp_path):
    make(tmp_path / "home.lock")
    assert holder_of(tmp_path) is None


@pytest.mark.parametrize("text", [b"\xff\xfe", b"9" * 5000, b"\xc2\xb2", b"x" * 2**20])
def test_whatever_a_lock_says_it_is_held(text, tmp_path):
    held = claim(tmp_path, "a.lock")
    (tmp_path / "a.lock").write_bytes(text)
    assert isinstance(holder_of(tmp_path, "a.lock"), int)
    with pytest.raises(HomeError):
        claim(tmp_path, "a.lock")
    held.close()
