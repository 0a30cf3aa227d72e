"""Anybody in the network may announce devices that are not there, and answer to none: looking for
those that are paired takes no longer for all of them than for a few.
"""

import socket
from contextlib import ExitStack, closing
from itertools import count
from types import SimpleNamespace

import pytest
import zmq

from potluck import Home, home
from potluck.discover import identification
from potluck.discover.addresses import MAX_CANDIDATES, candidates
from potluck.discover.keyring import Keyring, KnownDevice
from potluck.sessions import controller
from potluck.sessions.connections import Keys
from potluck.sessions.curve_link import CurveLink
from potluck.sessions.events import Address, OpenSession
from potluck.sessions.members import Member, Members

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


class AgentSocket:
    """The control port of a device that has its key, and says nothing more."""

    def __init__(self):
        public, secret = zmq.curve_keypair()
        self.key = public.decode()
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.curve_server = True
        self.router.curve_publickey, self.router.curve_secretkey = public, secret
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.address = Address(host="127.0.0.1", port=port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(0)


@pytest.mark.parametrize("place", range(MAX_CANDIDATES))
def test_a_device_among_addresses_that_do_not_answer_is_asked_and_two_at_most_are_waited_for(
    silent, monkeypatch, place
):
    """Each was waited for by itself, 5 s: 40 s, where the device was the last of eight."""
    monkeypatch.setattr(controller, "JOIN_S", 0.3)
    public, secret = (part.decode() for part in zmq.curve_keypair())
    link, asked = CurveLink(Keys(public=public, secret=secret)), []
    link.watch(lambda event, actions: asked.append(event))
    with AgentSocket() as phone, closing(link):
        addresses = [*silent.values()][: MAX_CANDIDATES - 1]
        addresses.insert(place, phone.address)
        members = Members(link)
        members.add(Member(name="phone", key=phone.key, addresses=tuple(addresses)))
        members.join()
    waited_for = [event.address for event in asked if isinstance(event, OpenSession)]
    assert waited_for == [*dict.fromkeys((addresses[0], phone.address))]


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
