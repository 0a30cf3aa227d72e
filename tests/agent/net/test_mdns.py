"""Announcements where somebody else answers for names; the multicast library is played."""

import threading
from types import SimpleNamespace

import pytest

from potluck_agent.net import mdns
from potluck_agent.net.mdns import MOST_NAMES, Announcement


class Network:
    """Stands for zeroconf: knows records, and sets `registered` once a name is announced."""

    def __init__(self, taken):
        self.taken = taken
        self.asked = []
        self.announced = ""
        self.registered = threading.Event()

    def __call__(self, **options):
        self.interfaces = options["interfaces"]
        return self

    def get_service_info(self, kind, name, *_):
        self.asked.append(name.partition(".")[0])
        return SimpleNamespace(properties={b"fp": b"other"}) if self.taken(name) else None

    def register_service(self, info, **_):
        self.announced = info.name.partition(".")[0]
        self.registered.set()

    def unregister_service(self, info):
        pass

    def close(self):
        pass


@pytest.fixture
def announced(monkeypatch):
    """Of an agent `jetson` in a network where these names are taken: its name, and the notes."""

    def announce(taken, host="127.0.0.1"):
        import zeroconf

        network, notes = Network(taken), []
        monkeypatch.setattr(zeroconf, "Zeroconf", network)
        monkeypatch.setattr(mdns, "PAUSE_S", 0.0)
        made = Announcement(name="jetson", host=host, port=1, key="k" * 40, note=notes.append)
        try:
            assert network.registered.wait(30.0)
        finally:
            made.close()
        return network, notes

    return announce


def test_a_name_that_is_taken_gets_a_number(announced):
    network, notes = announced(lambda name: name.startswith("jetson."))
    assert (network.announced, notes) == ("jetson-2", [])


def test_an_agent_that_listens_on_a_name_is_announced_at_its_address(announced):
    network, notes = announced(lambda name: False, host="localhost")
    assert (network.interfaces, notes) == (["127.0.0.1"], [])


def test_somebody_who_answers_to_every_name_is_told_and_asked_no_further(announced):
    network, (note,) = announced(lambda name: True)
    assert len(network.asked) == MOST_NAMES
    assert network.announced.startswith("jetson-")
    assert network.announced in note
    assert network.announced not in network.asked
