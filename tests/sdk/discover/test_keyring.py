"""Keys and known devices: kept whole, never replaced when corrupt, names never clash."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from potluck.discover import keyring
from potluck.discover.keyring import (
    DEVICES,
    IDENTITY,
    KEPT_ADDRESSES,
    Keyring,
    KnownDevice,
    free_name,
)
from potluck.errors import FileError, UserError
from potluck.sessions.events import Address
from potluck_wire.file_lock import alone

KEYS = [letter * 40 for letter in "abc"]


def at(host):
    return Address(host=host, port=47600)


def test_the_identity_is_made_once_and_private(tmp_path):
    ring = Keyring(tmp_path / "state")
    first = ring.identity()
    assert first == Keyring(tmp_path / "state").identity()
    assert (tmp_path / "state" / IDENTITY).stat().st_mode & 0o077 == 0


def test_devices_are_remembered_with_their_latest_addresses(tmp_path):
    ring = Keyring(tmp_path)
    for i in range(6):
        known = ring.get("phone")
        older = known.addresses if known else ()
        ring.remember(KnownDevice(name="phone", key=KEYS[0], addresses=(at(f"10.0.0.{i}"), *older)))
    (phone,) = Keyring(tmp_path).devices()
    assert [place.host for place in phone.addresses] == [f"10.0.0.{i}" for i in (5, 4, 3, 2)][
        :KEPT_ADDRESSES
    ]


def test_two_devices_of_one_name_get_two_names(tmp_path):
    ring = Keyring(tmp_path)
    names = [ring.remember(KnownDevice(name="phone", key=key)).name for key in KEYS]
    assert names == ["phone", "phone-2", "phone-3"]
    assert ring.remember(KnownDevice(name="phone", key=KEYS[0])).name == "phone"


@pytest.mark.parametrize(
    ("name", "free"),
    [("home", "home-2"), ("Ugly Name", "device"), ("x" * 40, "x" * 40), ("taken", "taken-2")],
)
def test_names_are_valid_and_free(name, free):
    assert free_name(name, lambda other: other == "taken") == free


def test_forgetting(tmp_path):
    ring = Keyring(tmp_path)
    ring.remember(KnownDevice(name="phone", key=KEYS[0]))
    ring.forget("phone")
    assert ring.devices() == ()
    with pytest.raises(UserError, match="no device is called 'phone'"):
        ring.forget("phone")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        '[{"name": "a"}]',
        '[{"name": "A!", "key": "k", "addresses": []}]',
        "[" * 100_000,
    ],
)
def test_a_corrupt_file_is_an_error_and_stays(tmp_path, text):
    path = tmp_path / DEVICES
    path.write_text(text)
    with pytest.raises(FileError, match=DEVICES):
        Keyring(tmp_path).devices()
    with pytest.raises(FileError):
        Keyring(tmp_path).remember(KnownDevice(name="phone", key=KEYS[0]))
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"public": 3}',
        "[]",
        '{"public": "x", "secret": "y"}',
        json.dumps({"public": "a" * 40, "secret": "b" * 40}),
    ],
)
def test_a_corrupt_identity_is_never_replaced(tmp_path, text):
    path = tmp_path / IDENTITY
    path.write_text(text)
    with pytest.raises(FileError, match=IDENTITY):
        Keyring(tmp_path).identity()
    assert path.read_text() == text


@pytest.mark.parametrize("target", ["/no/such/disk/file", "itself"])
@pytest.mark.parametrize("name", [IDENTITY, DEVICES])
def test_nothing_takes_the_place_of_a_link_to_what_is_not_there(tmp_path, name, target):
    """As to a disk that is not mounted now."""
    path = tmp_path / name
    path.symlink_to(path if target == "itself" else target)
    ring = Keyring(tmp_path)
    with pytest.raises(FileError, match=name):
        ring.identity() if name == IDENTITY else ring.devices()
    assert path.is_symlink()


@pytest.mark.parametrize(
    ("host", "port"),
    [
        *[("h", port) for port in (-1, 0, 2**16, "x", True)],
        *[(host, 1) for host in ([], None, "", "\x1b[2J", "h" * 1000)],
    ],
)
def test_an_address_that_cannot_be_is_a_corrupt_file(host, port, tmp_path):
    row = {"name": "phone", "key": "A" * 40, "addresses": [{"host": host, "port": port}]}
    (tmp_path / "devices.json").write_text(json.dumps([row]))
    with pytest.raises(FileError, match="address in it cannot be"):
        Keyring(tmp_path).devices()


def at_once(*acts):
    """Each in a thread, all at one moment; what they return."""
    barrier = Barrier(len(acts))
    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(lambda act: (barrier.wait(), act())[1], acts))


@pytest.mark.skipif(os.name == "nt", reason="no system call locks there")
@pytest.mark.parametrize("round_", range(5))
def test_programs_that_change_the_devices_at_once_undo_nothing(tmp_path, round_):
    ring = Keyring(tmp_path)
    for name, key in zip(("ada", "bob"), KEYS, strict=False):
        ring.remember(KnownDevice(name=name, key=key))
    new = [KnownDevice(name=f"new-{letter}", key=letter * 40) for letter in "efghij"]
    acts = [lambda known=known: Keyring(tmp_path).remember(known) for known in new]
    at_once(*acts, *(lambda name=name: Keyring(tmp_path).forget(name) for name in ("ada", "bob")))
    assert {known.name for known in ring.devices()} == {known.name for known in new}


@pytest.mark.skipif(os.name == "nt", reason="no system call locks there")
@pytest.mark.parametrize("round_", range(5))
def test_programs_that_begin_at_once_have_one_identity(tmp_path, round_):
    assert len(set(at_once(*[Keyring(tmp_path / "state").identity] * 8))) == 1


@pytest.mark.skipif(os.name == "nt", reason="no system call locks there")
def test_a_program_that_was_stopped_is_named_and_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(keyring, "LOCK_TIMEOUT_S", 0.0)
    ring = Keyring(tmp_path)
    with alone(tmp_path / keyring.LOCK, 0.0):
        for act in (ring.identity, lambda: ring.remember(KnownDevice(name="phone", key=KEYS[0]))):
            with pytest.raises(FileError, match="another program holds"):
                act()
    ring.remember(KnownDevice(name="phone", key=KEYS[0]))
