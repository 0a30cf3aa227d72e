"""What devices say of their connection decides what measurements leave open, and nothing else."""

import random

import pytest

from potluck.profile.access_tree import AIR, BUS, PORT, Block, Site, ports
from potluck.profile.connection_hints import Hint, hints_of, likely_tree, unlikeliness
from potluck.records import HOME

pytest.importorskip("numpy")

from potluck.bench.tomography import WIRINGS, drawn, errors_by_medium, measured
from potluck.profile.tomography import Tomography

CABLE = Hint(kind="wired")


def wifi(mhz=None, gateway="192.168.1.1"):
    return Hint(kind="wifi", channel=(gateway, mhz))


def test_a_statement_is_a_hint_for_its_machine():
    statements = {
        "a": {"connection": {"kind": "wifi", "gateway": "10.0.0.1", "frequency_hz": 2.437e9}},
        "b": {"connection": {"kind": "wired"}},
        "c": {"connection": None},
        "d": {},
        "e": {"connection": {"kind": "wifi"}},
    }
    machines = {HOME: [HOME, "a"], "b": ["b"], "c": ["c"], "d": ["d", "b"], "e": ["e"]}
    assert hints_of(statements, machines) == {
        HOME: wifi(2437, "10.0.0.1"),
        "b": CABLE,
        "d": CABLE,
        "e": Hint(kind="wifi"),
    }


@pytest.mark.parametrize(
    ("tree", "n_wrong"),
    [
        (Site((Block(AIR, ("a", "b")), Block(PORT, ("w",)))), 0),
        (Site((Block(BUS, ("a", "b")), Block(PORT, ("w",)))), 2),
        (Site((Block(AIR, ("a", "b", "w")),)), 1),
        (ports(["a", "b", "w"]), 3),
        (Site((Block(AIR, ("a", "g")), Block(AIR, ("b",)), Block(PORT, ("w",)))), 2),
        (Site((Block(AIR, ("a", "b", "g")), Block(PORT, ("w",)))), 1),
        (Site((Block(AIR, ("a", "b", ports(["w", "x"]))),)), 0),
    ],
)
def test_what_contradicts_the_hints_is_counted(tree, n_wrong):
    hints = {"a": wifi(2437), "b": wifi(2437), "g": wifi(5180), "w": CABLE}
    assert unlikeliness(tree, hints) == 4.0 * n_wrong
    assert unlikeliness(tree, {}) == 0.0


def test_stations_of_one_channel_are_first_tried_as_one_air():
    hints = {"a": wifi(2437), "b": wifi(2437), "c": wifi(5180), "d": CABLE}
    assert likely_tree(("a", "b", "c", "d", "e"), hints) == Site(
        (Block(AIR, ("a", "b")), *(Block(PORT, (name,)) for name in "cde"))
    )


def inferred(names, tree, rates, hints, seed):
    rng = random.Random(seed)
    tomography = Tomography(names, seed=seed, hints=hints)
    while flows := tomography.next_probe():
        tomography.add(measured(tree, rates, flows, rng, 0.05))
    return tomography.best


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("hint", "kind"),
    [(None, AIR), (wifi(2437), AIR), (CABLE, BUS)],
    ids=["silent", "wifi", "wired"],
)
def test_an_air_or_a_bus_is_what_devices_say_where_rates_are_the_same(hint, kind):
    """All that is sent takes the time of one medium: that is an air, or a bus of half its rate."""
    names = ("a", "b", HOME)
    tree = Site((Block(AIR, names),))
    rates = {(frozenset((name,)), "both"): 8e6 for name in names}
    hints = dict.fromkeys(names, hint) if hint else {}
    best = inferred(names, tree, rates, hints, 3)
    assert {block.kind for block in best.tree.blocks} & {AIR, BUS} == {kind}
    for flows in ([("a", "b")], [("a", HOME), ("b", "a")]):
        share = 4e6 / len(flows)
        assert best.predicted([flows])[0] == [pytest.approx(share, rel=0.1)] * len(flows)


@pytest.mark.long
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_device_that_lies_spoils_no_rate(wiring):
    rng = random.Random(f"lies {wiring}")
    names, tree, rates = drawn(rng, wiring)
    everybody = [*names, HOME]
    lies = {name: rng.choice((CABLE, wifi(2437), wifi(5180))) for name in everybody}
    best = inferred(everybody, tree, rates, lies, 1)
    for errors in errors_by_medium(names, tree, rates, best.tree, best.rates):
        assert sum(error < 0.25 for error in errors) >= 0.85 * len(errors)
