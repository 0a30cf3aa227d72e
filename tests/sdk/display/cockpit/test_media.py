"""Shared media and ports are told apart, and loads are of what crossed them."""

import pytest

from potluck.display.cockpit.media import loads, wiring
from potluck.records import HOME, Event, Medium, Network, Path


def air_of(*names):
    ends = (*names, HOME)
    paths = {(a, b): Path(media=(("air", 2),)) for a in ends for b in ends if a != b} | {
        (HOME, names[0]): Path(media=()),
        (names[0], HOME): Path(media=()),
    }
    return Network(media=(Medium(name="air", capacity_bytes_per_s=100.0),), paths=paths)


def switch_of(*names):
    media = tuple(
        Medium(name=f"{name} {way}", capacity_bytes_per_s=100.0)
        for name in names
        for way in ("up", "down")
    )
    paths = {
        (a, b): Path(media=((f"{a} up", 1), (f"{b} down", 1)))
        for a in names
        for b in names
        if a != b
    }
    return Network(media=media, paths=paths)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")])
def test_an_air_is_shared_by_all_on_it(names):
    found = wiring(air_of(*names))
    assert set(found.shared["air"]) == set(names)
    assert found.ports == {}


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c", "d")])
def test_a_switch_gives_each_its_own_port(names):
    found = wiring(switch_of(*names))
    assert found.shared == {}
    assert found.ports == {f"{n} {way}": (n, way) for n in names for way in ("up", "down")}


def test_a_port_of_both_ways_is_one_devices_own():
    paths = {
        (a, b): Path(media=((f"{a}'s", 1), (f"{b}'s", 1)))
        for a, b in [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")]
    }
    media = tuple(Medium(name=f"{n}'s", capacity_bytes_per_s=1.0) for n in "abc")
    found = wiring(Network(media=media, paths=paths))
    assert found.ports == {f"{n}'s": (n, "both") for n in "abc"}


def test_what_crosses_the_air_twice_counts_twice():
    network = air_of("a", "b")
    sent = Event(device="a", lane="send", start_s=0, stop_s=1, peer="b", nbytes=50)
    got = Event(device="b", lane="receive", start_s=0, stop_s=1, peer="a", nbytes=50)
    assert loads([sent, got], network, 2.0) == {"air": pytest.approx(0.5)}


def test_what_comes_home_counts_where_it_is_sent():
    network = air_of("a", "b")
    home = Event(device="b", lane="send", start_s=0, stop_s=1, peer=HOME, nbytes=25)
    assert loads([home], network, 1.0) == {"air": pytest.approx(0.5)}


def test_a_medium_is_full_at_most():
    network = air_of("a", "b")
    got = Event(device="b", lane="receive", start_s=0, stop_s=1, peer="a", nbytes=10**9)
    assert loads([got], network, 1.0) == {"air": 1.0}
    assert loads([got], network, 0.0) == {}
