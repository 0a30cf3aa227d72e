"""Which media a path crosses, for each way to wire a home; worked by hand."""

import pytest

from potluck.errors import UserError
from potluck.profile.topology import Attachment, Cable, HomeWiring, build
from potluck.records import HOME


def members(n, **fields):
    return [Attachment(name="abcdefgh"[i], port="abcdefgh"[i], **fields) for i in range(n)]


def media(network, source, target):
    return dict(network.paths[source, target].media)


def test_wifi_crosses_the_one_air_twice():
    network = build(
        HomeWiring(topology="wifi", capacity_bytes_per_s=100, latency_s=0.001), members(3), "a"
    )
    assert media(network, "a", "c") == media(network, HOME, "c") == {"air": 2}
    assert network.bandwidth("a", "c") == 50
    assert network.latency("a", "c") == 0.002


def test_a_device_wired_to_the_access_point_costs_one_crossing():
    robot = Attachment(name="r", port="r")
    server = Attachment(name="s", port="s", wired=True)
    desk = Attachment(name="d", port="d", wired=True)
    network = build(HomeWiring(topology="wifi", capacity_bytes_per_s=100), [robot, server], "r")
    assert media(network, "r", "s") == {"air": 1}
    wiring = HomeWiring(topology="wifi", capacity_bytes_per_s=100, cable_bytes_per_s=1000)
    network = build(wiring, [robot, server, desk], "r")
    assert media(network, "s", "d") == {"s up": 1, "d down": 1}
    assert media(network, "s", "r") == {"s up": 1, "air": 1}
    with pytest.raises(UserError, match="cable_bytes_per_s"):
        build(HomeWiring(topology="wifi", capacity_bytes_per_s=100), [robot, server, desk], "r")


def test_switch_has_a_medium_per_port_and_direction():
    network = build(HomeWiring(topology="switch", capacity_bytes_per_s=10), members(3), "a")
    assert media(network, "a", "b") == {"a up": 1, "b down": 1}
    assert media(network, "b", "a") == {"b up": 1, "a down": 1}
    assert len(network.media) == 6


@pytest.mark.parametrize(
    ("n", "pair", "cables"),
    [
        (5, "ab", ["a > b"]),
        (5, "ba", ["b > a"]),
        (5, "ac", ["a > b", "b > c"]),
        (5, "ad", ["a > e", "e > d"]),
        (4, "ac", ["a > b", "b > c"]),  # a tie goes forward
        (4, "ca", ["c > d", "d > a"]),
        (2, "ab", ["a > b"]),
        (2, "ba", ["b > a"]),
    ],
)
def test_ring_goes_the_shorter_way_round(n, pair, cables):
    network = build(
        HomeWiring(topology="ring", capacity_bytes_per_s=10, latency_s=1.0), members(n), "a"
    )
    assert media(network, *pair) == dict.fromkeys(cables, 1)
    assert network.latency(*pair) == len(cables)
    assert len(network.media) == (2 if n == 2 else 2 * n)


def test_sites_share_the_line_between_them_each_way():
    local, remote = members(2, site="home"), [Attachment(name="x", port="x", site="cloud")]
    link = Cable(sites=("home", "cloud"), there_bytes_per_s=2, back_bytes_per_s=5, latency_s=0.02)
    network = build(
        HomeWiring(topology="sites", capacity_bytes_per_s=100, links=(link,)), local + remote, "a"
    )
    assert media(network, "a", "x") == {"a up": 1, "home > cloud": 1, "x down": 1}
    assert (network.bandwidth("b", "x"), network.bandwidth("x", "b")) == (2, 5)
    assert media(network, "a", "b") == {"a up": 1, "b down": 1}
    assert network.latency("a", "x") == 0.02


def test_sites_without_a_link_are_refused():
    parts = [
        Attachment(name="a", port="a", site="home"),
        Attachment(name="x", port="x", site="moon"),
    ]
    with pytest.raises(UserError, match=r"no link joins site 'home' \(a\) and site 'moon' \(x\)"):
        build(HomeWiring(topology="sites", capacity_bytes_per_s=1), parts, "a")


def test_devices_of_one_machine_share_its_port_and_its_bus():
    pair = [Attachment(name="gpu-1", port="server"), Attachment(name="gpu-2", port="server")]
    wiring = HomeWiring(topology="switch", capacity_bytes_per_s=10, bus_bytes_per_s=1000)
    network = build(wiring, [*pair, *members(1)], "a")
    assert media(network, "gpu-1", "gpu-2") == {"server bus": 1}
    assert (
        media(network, "gpu-1", "a")
        == media(network, "gpu-2", "a")
        == {"server up": 1, "a down": 1}
    )
    with pytest.raises(UserError, match="bus_bytes_per_s"):
        build(HomeWiring(topology="switch", capacity_bytes_per_s=10), pair, "gpu-1")
