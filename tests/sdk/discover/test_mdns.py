"""What comes by multicast is hostile until proven otherwise."""

import secrets

import pytest
from tests.timeouts import TIMEOUT_S

from potluck.discover.mdns import Sightings, browse
from potluck_agent.net.mdns import Announcement
from potluck_wire.limits import SERVICE_TYPE


@pytest.mark.parametrize(
    ("instance", "port", "hosts"),
    [
        ("evil\x00name", 47600, ["10.0.0.1"]),
        ("Big Name", 47600, ["10.0.0.1"]),
        ("x" * 41, 47600, ["10.0.0.1"]),
        ("", 47600, ["10.0.0.1"]),
        ("phone", 0, ["10.0.0.1"]),
        ("phone", 70000, ["10.0.0.1"]),
        ("phone", None, ["10.0.0.1"]),
        ("phone", 47600, []),
        ("phone", 47600, ["not an address"]),
        ("phone", 47600, ["224.0.0.251"]),
        ("phone", 47600, ["0.0.0.0"]),
    ],
)
def test_refuses(instance, port, hosts):
    found = Sightings()
    assert found.saw(f"{instance}.{SERVICE_TYPE}", port, hosts) is None
    assert found.all() == {}
    assert found.n_refused == 1


def test_keeps_every_candidate_address_because_keys_decide():
    found = Sightings()
    found.saw(f"phone.{SERVICE_TYPE}", 47600, ["10.0.0.1"])
    found.saw(f"phone.{SERVICE_TYPE}", 6666, ["10.0.0.66"])
    assert [str(place) for place in found.all()["phone"]] == ["10.0.0.66:6666", "10.0.0.1:47600"]


def test_a_flood_of_names_stops_at_the_cap():
    found = Sightings(limit=64)
    for i in range(1000):
        found.saw(f"fake-{i}.{SERVICE_TYPE}", 47600, ["10.0.0.1"])
    assert len(found.all()) == 64


def test_a_device_whose_address_came_late_is_asked_for_again(monkeypatch):
    """Its name is announced once; who did not get its address then would never have found it."""
    zeroconf = pytest.importorskip("zeroconf")
    name, questions = f"late-{secrets.token_hex(4)}", []
    ask = zeroconf.Zeroconf.get_service_info
    announced = Announcement(name=name, host="127.0.0.1", port=1, key="k", note=pytest.fail)

    def late(self, service_type, instance, *options):
        is_ours = instance == f"{name}.{SERVICE_TYPE}" and len(options) == 1  # the browser's
        questions.extend([instance] * is_ours)
        return (
            None if is_ours and len(questions) < 3 else ask(self, service_type, instance, *options)
        )

    monkeypatch.setattr(zeroconf.Zeroconf, "get_service_info", late)
    try:
        assert name in browse(TIMEOUT_S, enough=lambda found: name in found)
    finally:
        announced.close()
    assert len(questions) >= 3


def test_a_device_whose_network_comes_late_is_announced_all_the_same(monkeypatch):
    """And it says once that it was not."""
    zeroconf = pytest.importorskip("zeroconf")
    real = zeroconf.Zeroconf
    failures = iter([OSError(19, "No such device")] * 2)
    noted = []

    def late(**given):
        for failure in failures if "interfaces" in given else ():
            raise failure
        return real(**given)

    monkeypatch.setattr(zeroconf, "Zeroconf", late)
    monkeypatch.setattr("potluck_agent.net.mdns.AGAIN_S", 0.01)
    name = f"late-{secrets.token_hex(4)}"
    announced = Announcement(name=name, host="127.0.0.1", port=1, key="k", note=noted.append)
    try:
        assert name in browse(TIMEOUT_S, enough=lambda found: name in found)
    finally:
        announced.close()
    (text,) = noted
    assert "not announced by mDNS yet: OSError" in text


def test_an_announcement_that_failed_half_way_takes_its_own_name_again(monkeypatch):
    """What was told before the failure is still heard, and is no other device of that name."""
    zeroconf = pytest.importorskip("zeroconf")
    tell = zeroconf.Zeroconf.register_service
    stale = []
    names = []
    noted = []

    def half(self, info, *args, **options):
        names.append(info.name)
        if not stale:
            stale.append(zeroconf.Zeroconf(interfaces=["127.0.0.1"]))
            tell(stale[0], info)
            raise TimeoutError("the network is busy")
        return tell(self, info, *args, **options)

    monkeypatch.setattr(zeroconf.Zeroconf, "register_service", half)
    monkeypatch.setattr("potluck_agent.net.mdns.AGAIN_S", 0.01)
    name = f"half-{secrets.token_hex(4)}"
    announced = Announcement(name=name, host="127.0.0.1", port=1, key="k", note=noted.append)
    try:
        found = browse(TIMEOUT_S, enough=lambda found: name in found and len(names) > 1)
    finally:
        announced.close()
        stale[0].close()
    assert names == [f"{name}.{SERVICE_TYPE}"] * 2
    assert f"{name}-2" not in found
