"""What is said to be on the disk is there by its name, too: after a power cut nobody who was
forgotten is trusted again, and no promise is taken back.
"""

import errno
import os

import pytest
import zmq

from potluck.discover.keyring import DEVICES, Keyring, KnownDevice
from potluck.documents import write_text, write_whole
from potluck_agent import keys, lease_file

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no folder is opened there")
KEY = zmq.curve_keypair()[0].decode()
PEER = keys.TrustedPeer(name="ada", key=KEY)
DEVICE = KnownDevice(name="jetson", key=KEY)


def paired(folder):
    keys.add_peer(folder, PEER)
    Keyring(folder).remember(DEVICE)


CHANGES = {
    "an identity": (keys.IDENTITY, keys.identity),
    "a pairing": (keys.PEERS, lambda folder: keys.add_peer(folder, PEER)),
    "an end of trust": (keys.PEERS, lambda folder: keys.forget_peer(folder, "ada")),
    "a promise": (lease_file.FILE, lambda folder: lease_file.keep(folder, [])),
    "an end of trust in a device": (DEVICES, lambda folder: Keyring(folder).forget("jetson")),
    "a file of a notebook": ("file", lambda folder: write_whole(folder / "file", "x")),
    "a file of a user": ("file", lambda folder: write_text(folder / "file", "x")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_has_its_name_on_the_disk(tmp_path, monkeypatch, change):
    name, act = change
    if act is not keys.identity:
        paired(tmp_path)
    synced, sync = [], os.fsync

    def recorded(handle):
        sync(handle)
        named = (tmp_path / name).stat().st_ino if (tmp_path / name).exists() else 0
        synced.append((os.fstat(handle).st_ino, named))

    monkeypatch.setattr(os, "fsync", recorded)
    act(tmp_path)
    (file, before), (folder, after) = synced
    assert folder == tmp_path.stat().st_ino
    assert after == file == (tmp_path / name).stat().st_ino
    assert before != file  # the old one stays until the new one is whole


def test_a_disk_that_cannot_bring_names_to_itself_is_used_all_the_same(tmp_path, monkeypatch):
    def refuses(handle):
        if os.fstat(handle).st_ino == tmp_path.stat().st_ino:
            raise OSError(errno.EINVAL, "no such thing")

    monkeypatch.setattr(os, "fsync", refuses)
    keys.add_peer(tmp_path, PEER)
    assert keys.load_peers(tmp_path)[0].key == KEY
