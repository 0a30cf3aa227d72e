"""What comes by multicast is hostile until proven otherwise."""

import pytest

from potluck.discover.mdns import Sightings
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
