"""How flows cross a tree of switches, airs, buses and sites, and the network made of it."""

import pytest

from potluck.profile.access_tree import (
    AIR,
    BOTH,
    BUS,
    DOWN,
    PORT,
    UP,
    Block,
    Site,
    attachments,
    described,
    network,
    ports,
)
from potluck.profile.flow_model import FlowModel

np = pytest.importorskip("numpy")

PAIR = ports(["p", "q"])
WIFI = Site((Block(AIR, ("a", "b", "c")),))
HOME = Site((Block(AIR, ("a", "b", PAIR)), Block(PORT, ("w",)), Block(BUS, ("x", "y"))))


def rates_of(tree, rate=8.0):
    return dict.fromkeys(attachments(tree), rate)


def flows_at_once(tree, rates, *flows):
    model = FlowModel(tree, [flows])
    return model.rates(np.log([[rates[one] for one in model.attachments]]))[0].tolist()


@pytest.mark.parametrize(
    ("flows", "seen"),
    [
        ([("a", "b")], [4]),  # up to the access point and down again
        ([("a", "w")], [8]),
        ([("x", "y")], [8]),  # a bus is crossed once
        ([("p", "q")], [8]),  # within a site
        ([("p", "a"), ("q", "b")], [2, 2]),  # the site's attachment, twice each over the air
        ([("a", "w"), ("b", "w")], [4, 4]),
        ([("x", "w"), ("y", "a")], [4, 4]),
        ([("p", "q"), ("a", "b")], [8, 4]),
    ],
)
def test_flows_share_what_they_both_cross(flows, seen):
    assert flows_at_once(HOME, rates_of(HOME), *flows) == pytest.approx(seen)


def test_a_slow_station_costs_the_others_of_its_air():
    rates = rates_of(WIFI) | {(frozenset("c"), BOTH): 2.0}
    assert flows_at_once(WIFI, rates, ("a", "c")) == pytest.approx([1 / (1 / 8 + 1 / 2)])
    assert flows_at_once(WIFI, rates, ("a", "b"), ("b", "c")) == pytest.approx(
        [1 / (1 / 4 + 1 / 8 + 1 / 2)] * 2
    )


def test_a_port_has_a_lane_each_way():
    tree = ports("abc")
    rates = rates_of(tree) | {(frozenset("a"), UP): 1.0, (frozenset("a"), DOWN): 4.0}
    assert flows_at_once(tree, rates, ("a", "b"), ("b", "a"), ("c", "a")) == pytest.approx(
        [1, 2, 2]
    )


def test_what_is_left_of_a_full_medium_is_for_those_that_are_slow_elsewhere():
    tree = Site((*ports(["w"]).blocks, Block(AIR, ("a", "b"))))
    rates = rates_of(tree) | {(frozenset("w"), UP): 1.0}
    assert flows_at_once(tree, rates, ("w", "a"), ("b", "w")) == pytest.approx([1, 7])


@pytest.mark.parametrize("slow", [8.0, 5.0, 4.0, 0.9])
def test_the_network_of_a_tree_has_its_rates_on_every_path(slow):
    names = ["a", "b", "p", "q", "w", "x", "y"]
    rates = rates_of(HOME) | {(frozenset("b"), BOTH): slow}
    found = network(HOME, rates, {("a", "b"): 0.25}, names)
    for source in names:
        for target in names:
            if source != target:
                (alone,) = flows_at_once(HOME, rates, (source, target))
                assert found.bandwidth(source, target) == pytest.approx(alone, rel=0.1)
    assert found.latency("a", "b") == 0.25
    assert {name for name, _ in found.path("a", "b").media} == {"shared by a, b, p, q"}


def test_what_devices_share_is_told_in_words():
    assert described(HOME) == [
        "a, b, p, q share one medium",
        "x, y share one medium",
        "p, q share the way to all others",
    ]
    assert described(ports("abc")) == []
