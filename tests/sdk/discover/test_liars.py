"""Anybody in the network may announce devices that are not there, and answer to none: looking for
those that are paired takes no longer for all of them than for a few.
"""

import socket
from contextlib import ExitStack
from itertools import count
from types import SimpleNamespace

import pytest
import zmq

from potluck import Home, home
from potluck.discover import identification
from potluck.discover.addresses import MAX_CANDIDATES, candidates
from potluck.discover.keyring import Keyring, KnownDevice
from potluck.sessions.events import Address

KEY = zmq.curve_keypair()[0].decode()


@pytest.fixture
def silent():
    """Addresses where somebody lets everybody in and says nothing."""
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            for _ in range(20)
        ]
        yield {each: Address(host="127.0.0.1", port=each.getsockname()[1]) for each in sockets}


def was_visited(listener):
    listener.settimeout(0.0)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("each_s", [1.0, 5.0, 100.0])
def test_of_many_that_do_not_answer_few_are_waited_for(silent, each_s, tmp_path, monkeypatch):
    """64 of them had `Home.discover` wait for minutes, where one paired device was away."""
    Keyring(tmp_path).remember(KnownDevice(name="phone", key=KEY))
    found = {f"fake-{i}": (address,) for i, address in enumerate(silent.values())}
    monkeypatch.setattr(home, "browse", lambda *_, **__: found)
    clock = count(0.0, each_s)
    monkeypatch.setattr(identification, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with Home.discover(state=tmp_path) as here:
        assert {*here.devices} == {"phone", *found}
    assert sum(map(was_visited, silent)) <= identification.RECOGNIZE_S / each_s


@pytest.mark.parametrize("n_liars", [0, 1, 64])
def test_however_much_is_announced_few_addresses_of_a_device_are_tried(n_liars):
    kept = tuple(Address(host=f"192.168.1.{i}", port=47600) for i in range(4))
    lies = [
        tuple(Address(host=f"10.0.{i}.{k}", port=47600) for k in range(8)) for i in range(n_liars)
    ]
    found = {f"phone-{i}" if i else "phone": places for i, places in enumerate(lies)}
    tried = candidates(KnownDevice(name="phone", key=KEY, addresses=kept), found)
    assert {*kept} <= {*tried}
    assert len(tried) <= MAX_CANDIDATES
