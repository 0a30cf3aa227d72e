"""The document of a network: rows and trees say the same, files hold it, and what is wrong in one
is named.
"""

import random
from dataclasses import replace
from itertools import permutations
from math import inf

import pytest

from potluck.display.network_views import drawing
from potluck.errors import FileError, UserError
from potluck.profile import access_tree
from potluck.profile.access_tree import BOTH, DOWN, PORT, UP, Block, Site, ports
from potluck.profile.home_network import (
    AIR,
    BUS,
    LEARNED,
    MEASURED,
    SWITCH,
    UPLINK,
    Figure,
    HomeNetwork,
    SharedMedium,
)
from potluck.profile.network_file import (
    FILE,
    as_toml,
    declared,
    keep_network,
    load_network,
    save_network,
)
from potluck.records import HOME

pytest.importorskip("numpy")

from potluck.bench.tomography import WIRINGS, drawn, measured
from potluck.profile.declared_network import figures, fitted
from potluck.profile.network_rows import document_of, rates_of, tree_of
from potluck.profile.tomography import Tomography


def shared(kind, *devices, up=None, down=None, name="", **more):
    rates = {"up_bytes_per_s": up, "down_bytes_per_s": down}
    return SharedMedium(
        name=name or f"{kind} of {', '.join(devices)}",
        kind=kind,
        devices=devices,
        **{key: Figure(value=rate) for key, rate in rates.items() if rate},
        **more,
    )


def drawn_document(wiring, seed, wait_s=0.001):
    names, tree, rates = drawn(random.Random(f"{wiring} {seed}"), wiring)
    everybody = [*names, HOME]
    waits_s = {
        (a, b): (0.9 * wait_s, wait_s, 1.1 * wait_s) for a in everybody for b in everybody if a != b
    }
    found = {
        one: Figure(value=rate, error_frac=0.05, source=MEASURED) for one, rate in rates.items()
    }
    return everybody, tree, rates, document_of(tree, found, waits_s)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_tree_and_its_document_are_the_same_network(wiring, seed, tmp_path):
    names, tree, rates, document = drawn_document(wiring, seed)
    assert {one: figure.value for one, figure in rates_of(document).items()} == rates
    assert set(access_tree.attachments(tree_of(document))) == set(rates)
    expected = access_tree.network(tree, rates, {}, names)
    for pair in expected.paths:
        assert document.bandwidth(*pair) == pytest.approx(expected.bandwidth(*pair))
        assert document.latency(*pair) == pytest.approx(0.001, rel=0.75)
    save_network(document, tmp_path / "network.toml")
    assert load_network(tmp_path / "network.toml") == document


def test_what_a_row_says_is_what_paths_cross():
    document = HomeNetwork(
        media=(
            shared(AIR, "a", "b", "p", "q", up=8e6),
            shared(UPLINK, "p", "q", up=2e6),
            shared(SWITCH, "w", HOME, up=1e8, down=5e7),
            shared(UPLINK, "x", "y", up=1e6, down=4e6),
            shared(BUS, "x", "y", up=2e7),
        )
    )
    assert document.bandwidth("a", "b") == pytest.approx(4e6)
    assert document.bandwidth("a", "w") == pytest.approx(8e6)
    assert document.bandwidth("p", "w") == pytest.approx(2e6)
    assert document.bandwidth("p", "q") > 1e9  # behind one station, at ports that nobody knows
    assert document.bandwidth("w", HOME) == pytest.approx(5e7)
    assert document.bandwidth("x", "y") == pytest.approx(2e7)
    assert document.bandwidth("x", "w") == pytest.approx(1e6)
    assert document.bandwidth("w", "x") == pytest.approx(4e6)


def test_latencies_are_those_of_the_media_that_are_crossed():
    def waiting(row, seconds):
        return replace(row, latency_s=Figure(value=seconds))

    air = waiting(shared(AIR, "a", "b", up=8e6), 0.002)
    uplink = waiting(shared(UPLINK, "x", "y", up=1e6, down=1e6), 0.02)
    document = HomeNetwork(media=(air, uplink))
    assert document.latency("a", "b") == pytest.approx(0.004)
    assert document.latency("a", "x") == pytest.approx(0.022)
    assert document.latency("x", "y") == 0.0


@pytest.mark.parametrize(
    ("rows", "pattern"),
    [
        ([shared(AIR, "a", "b"), shared(AIR, "b", "c")], "a device has one medium"),
        ([shared(UPLINK, "a", "b"), shared(UPLINK, "b", "c")], "overlap"),
        ([shared(AIR, "a", "b"), shared(AIR, "a", "b", name="x")], "a device has one medium"),
        ([shared(AIR, "a", "b"), shared(BUS, "c", "d", name="air of a, b")], "two media"),
        ([shared(SWITCH, "a", "b", "c"), shared(UPLINK, "a", "b")], "among the ports"),
        ([shared(AIR, "a", "b", "c"), shared(UPLINK, "a", "b", up=1.0, down=1.0)], "a station of"),
        ([shared(UPLINK, "a", "b"), shared(UPLINK, "a", "b", name="x")], "same devices"),
        ([shared(SWITCH, "No Name")], "no name of a device"),
        ([shared(SWITCH, f"d{i}") for i in range(300)], "at most"),
    ],
)
def test_rows_that_no_home_has_are_refused(rows, pattern):
    with pytest.raises(UserError, match=pattern):
        HomeNetwork(media=tuple(rows))


@pytest.mark.parametrize(
    "make",
    [
        lambda: shared("radio", "a", "b"),
        lambda: shared(AIR, "a"),
        lambda: shared(UPLINK, "a"),
        lambda: shared(AIR, "a", "b", up=1.0, down=1.0),
        lambda: shared(SWITCH, "a", "a"),
        lambda: shared(SWITCH),
        lambda: shared(SWITCH, "a", down=1.0),
        lambda: shared(AIR, "a", "b", stations={"c": Figure(value=1.0)}),
        lambda: shared(SWITCH, "a", name="two\nlines"),
        lambda: shared(SWITCH, "a", jitter_s=inf),
        lambda: Figure(value=float("nan")),
        lambda: Figure(value=-1.0),
        lambda: Figure(value=1.0, error_frac=-1.0),
        lambda: Figure(value=1.0, source="guessed"),
    ],
)
def test_a_row_that_cannot_be_is_refused(make):
    with pytest.raises(UserError):
        make()


HEAD = "schema = 1\nis_declared = true\n[[media]]\nname = 'a'\nkind = 'switch'\ndevices = ['a']\n"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("schema = 1\nis_declared = ?", r"line 2"),
        ("", "schema: expected 1, got nothing"),
        ("schema = 7\nis_declared = true", "schema: expected 1, got '7'"),
        ("schema = true\nis_declared = true", "schema: expected 1, got 'True'"),
        ("schema = 1\nis_declared = 1", "is_declared: expected true or false"),
        ("schema = 1\nis_declared = true\nmedia = 3", "media: expected"),
        ("schema = 1\nis_declared = true\nmedia = [3]", r"media\[0\]: expected"),
        (HEAD + "wifi = 1", r"media\[0\]\.wifi: expected no such field here"),
        (HEAD + "up_bytes_per_s = 'fast'", r"media\[0\]\.up_bytes_per_s: expected a number"),
        (HEAD + "up_bytes_per_s = true", r"media\[0\]\.up_bytes_per_s: expected a number"),
        (HEAD + "up_bytes_per_s = nan", r"media\[0\]\.up_bytes_per_s: a figure must be"),
        (HEAD + "up_bytes_per_s = -1", r"media\[0\]\.up_bytes_per_s: a figure must be"),
        (HEAD + f"up_bytes_per_s = {'9' * 400}", r"below 2\*\*63, got an integer of 1329 bits"),
        (HEAD + "up_bytes_per_s = {value = 1, unit = 'B'}", r"up_bytes_per_s\.unit: expected no"),
        (HEAD + "up_bytes_per_s = {}", r"up_bytes_per_s: expected a number .*, got nothing"),
        (
            HEAD + "latency_s = 1e308",
            r"latency_s: expected a number .*, at most 1e\+18, got '1e\+308'",
        ),
        (HEAD + "latency_s = {value = 1, source = 3}", r"latency_s\.source: expected text"),
        (HEAD + "stations = {b = 1}", r"media\[0\]: medium 'a': stations"),
        (HEAD + "[[media]]\nname = 'a'\nkind = 'switch'\ndevices = ['b']", "media: two media"),
        (HEAD.replace("['a']", "[1]"), r"media\[0\]\.devices: expected a list of names"),
        ("x = " + "[" * 5000, "expected TOML"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(text, pattern, tmp_path):
    path = tmp_path / "network.toml"
    path.write_text(text)
    with pytest.raises(FileError, match=pattern) as caught:
        load_network(path)
    assert str(path) in str(caught.value)
    assert "delete the file" in str(caught.value)


def test_no_file_that_was_damaged_is_more_than_refused(tmp_path):
    chance = random.Random(1)
    complete = as_toml(drawn_document("switch behind wifi", 1)[3]).encode()
    path = tmp_path / "network.toml"
    n_refused = 0
    for _ in range(300):
        data = bytearray(complete)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(data))
        try:
            load_network(path)
        except FileError:
            n_refused += 1
    assert n_refused > 100


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "network.toml"
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(FileError, match="it has more than 1048576 bytes"):
        load_network(path)


def test_only_a_document_or_a_path_is_a_network(tmp_path):
    with pytest.raises(UserError, match="got int"):
        declared(3, None)
    document = HomeNetwork(media=(shared(SWITCH, "a"),))
    save_network(document, tmp_path / "network.toml")
    assert declared(None, tmp_path) is None  # measured, not declared
    assert declared(str(tmp_path / "network.toml"), None).media == document.media
    save_network(replace(document, is_declared=True), tmp_path / "network.toml")
    assert declared(None, tmp_path) == replace(document, is_declared=True)


def test_of_devices_that_are_gone_no_row_speaks():
    document = HomeNetwork(
        media=(
            shared(AIR, "a", "p", "q", up=8e6),
            shared(UPLINK, "p", "q", up=2e6),
            shared(AIR, "m", "n", up=5e6, stations={"n": Figure(value=3e6)}),
        )
    )
    smaller = document.about({name: name for name in ("p", "q", "n")})
    kinds = {row.devices: (row.kind, row.up_bytes_per_s.value) for row in smaller.media}
    assert kinds == {("p", "q"): (UPLINK, 2e6), ("n",): (SWITCH, 3e6)}
    together = document.about({"a": "box", "m": "box", "p": "p"})
    (air,) = together.media  # of the uplink one device is left: a station as slow as it was
    assert (air.devices, air.stations["p"].value) == (("box", "p"), 2e6)
    assert document.joined_by(["a", "z"]).media[-1].devices == ("z",)


@pytest.mark.few(3)
@pytest.mark.parametrize("n_gone", range(1, 6))
@pytest.mark.parametrize("wiring", WIRINGS)
def test_whoever_leaves_the_others_have_a_network(wiring, n_gone):
    for seed in range(10):
        names, *_, document = drawn_document(wiring, seed)
        here = random.Random(seed).sample(names, max(2, len(names) - n_gone))
        left = document.about({name: name for name in here}).joined_by(here)
        for a, b in permutations(here, 2):
            there, back = document.bandwidth(a, b), document.bandwidth(b, a)
            # never faster; a station as slow as the port behind it takes more of the air's time
            assert 0.6 * min(there, back) <= left.bandwidth(a, b) <= 1.001 * there, (seed, a, b)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wiring", WIRINGS)
def test_what_was_declared_of_devices_that_are_away_is_kept(wiring, seed, tmp_path):
    names, *_, document = drawn_document(wiring, seed)
    document = replace(document, is_declared=True)
    save_network(document, tmp_path / FILE)
    here = random.Random(seed).sample(names, len(names) - 2)
    now = document.about({name: name for name in here}).joined_by([*here, "new"])
    learned = Figure(value=5e5, source=LEARNED)
    rows = tuple(replace(row, up_bytes_per_s=learned) for row in now.media)
    keep_network(replace(now, media=rows), tmp_path)
    kept = load_network(tmp_path / FILE)
    assert kept.is_declared
    assert set(kept.devices) == {*document.devices, "new"}
    before = {(row.name, row.kind): row for row in document.media}
    for row in kept.media:
        old = before.pop((row.name, row.kind), None)
        is_here = any((row.name, row.kind) == (each.name, each.kind) for each in rows)
        assert (row.up_bytes_per_s == learned) if is_here else row == old
        assert old is None or row.devices == old.devices
    assert not before
    everybody = kept.about({name: name for name in names})
    assert {row.devices for row in everybody.media} == {row.devices for row in document.media}


SITE = ("nas", "tv")
UPLINKS = {
    "nothing behind it is named": (PORT, PORT, ()),
    "its ports are named": (PORT, PORT, (shared(SWITCH, *SITE, up=1e7, down=1e7),)),
    "an air behind it": (PORT, AIR, (shared(AIR, *SITE, up=1e7),)),
    "an air behind one medium both ways": (AIR, AIR, (shared(AIR, *SITE, up=1e7),)),
}


@pytest.mark.parametrize("gone", [(), ("tv",), ("pc",), ("pc", HOME)], ids=str)
@pytest.mark.parametrize("case", UPLINKS)
def test_plans_believe_what_was_measured_however_much_of_a_site_is_declared_or_left(case, gone):
    way, inner, rows = UPLINKS[case]
    ways = {PORT: (UP, DOWN), AIR: (BOTH,)}
    site = ports(SITE) if inner == PORT else Site((Block(AIR, SITE),))
    tree = Site((*ports(("pc", HOME)).blocks, Block(way, (site,))))
    rates = {(frozenset((name,)), it): 1e8 for name in ("pc", HOME) for it in ways[PORT]}
    rates |= {(frozenset((name,)), it): 1e7 for name in SITE for it in ways[inner]}
    rates |= {(frozenset(SITE), it): 1e6 for it in ways[way]}
    names = [name for name in ("pc", HOME, *SITE) if name not in gone]
    uplink = shared(UPLINK, *SITE, up=1e6, down=1e6 if way == PORT else None)
    document = HomeNetwork(media=(uplink, *rows), is_declared=True)
    document = document.about({name: name for name in names}).joined_by(names)
    tomography, rng = Tomography(names), random.Random(1)
    while flows := tomography.next_probe():
        tomography.add(measured(tree, rates, flows, rng, 0.02))
    believed, _ = fitted(
        document, tomography, {(a, b): (1e-3,) for a in names for b in names if a != b}
    )
    expected = access_tree.network(tree, rates, {}, names)
    for pair in expected.paths:
        assert believed.bandwidth(*pair) == pytest.approx(expected.bandwidth(*pair), rel=0.15)


def test_an_uplink_both_ways_share_is_no_part_of_the_air_behind_it():
    tree = Site((*ports(("pc",)).blocks, Block(AIR, (Site((Block(AIR, SITE),)),))))
    media = [medium for medium, _ in access_tree.crossings(tree, ("nas", "pc"))]
    assert len(set(media)) == len(media) == 3


def seen(wiring, seed):
    rng = random.Random(f"{wiring} {seed}")
    names, tree, rates = drawn(rng, wiring)
    tomography = Tomography([*names, HOME], seed=seed)
    while flows := tomography.next_probe():
        tomography.add(measured(tree, rates, flows, rng, 0.05))
    return [*names, HOME], tree, rates, tomography


@pytest.mark.long
def test_a_declaration_that_holds_is_not_contradicted():
    tree, rates, tomography = seen("wifi and cables", 1)[1:]
    declared_rates = {one: Figure(value=rate) for one, rate in rates.items()}
    truth = document_of(tree, declared_rates, {})
    document, contradictions = fitted(replace(truth, is_declared=True), tomography, {})
    assert contradictions == []
    assert document.is_declared
    assert tree_of(document) == tree_of(truth)
    for (key, way), figure in rates_of(document).items():
        if figure.source == MEASURED and figure.error_frac < 0.1:
            assert figure.value == pytest.approx(rates[key, way], rel=4 * figure.error_frac + 0.05)


def test_a_rate_that_was_not_measured_is_said_with_both_numbers():
    tree, rates, tomography = seen("wifi", 2)[1:]
    wrong = {one: Figure(value=3 * rate) for one, rate in rates.items()}
    document, contradictions = fitted(document_of(tree, wrong, {}), tomography, {})
    assert any("was declared gives" in line and "measured is" in line for line in contradictions)
    assert all("home.network" in line for line in contradictions)
    quickest = max(rate.value for rate in rates_of(document).values())
    assert quickest == pytest.approx(max(rates.values()), rel=0.3)


@pytest.mark.long
def test_a_structure_that_explains_nothing_is_kept_and_said():
    names, _, _, tomography = seen("wifi", 3)
    ports = HomeNetwork(media=tuple(shared(SWITCH, name) for name in names), is_declared=True)
    document, contradictions = fitted(ports, tomography, {})
    assert any("cannot explain" in line and "it gives" in line for line in contradictions)
    assert tree_of(document) == access_tree.ports(sorted(names))


@pytest.mark.long
def test_an_error_is_how_far_fits_of_the_same_truth_lie_apart():
    rng = random.Random("errors")
    names, tree, rates = drawn(rng, "wifi")
    tomography = Tomography([*names, HOME], seed=1)
    while flows := tomography.next_probe():
        tomography.add(measured(tree, rates, flows, rng, 0.1))
    off = []
    for _ in range(12):
        again = Tomography([*names, HOME], seed=1)
        for observation in tomography.observations:
            again.add(measured(tree, rates, observation.flows, rng, 0.1))
        found = figures(again.fitted(tree), again.observations)
        off += [
            (figure.value / rates[one] - 1) / figure.error_frac
            for one, figure in found.items()
            if figure.error_frac < inf
        ]
    spread = (sum(z * z for z in off) / len(off)) ** 0.5
    assert 0.6 < spread < 1.6


def test_a_network_shows_itself():
    document = HomeNetwork(
        media=(
            shared(AIR, "a", "b", "p", "q", up=8e6, stations={"b": Figure(value=2e6)}),
            shared(UPLINK, "p", "q", up=2e6),
            shared(SWITCH, "w", up=1e8, down=5e7),
        ),
        is_declared=True,
    )
    text = repr(document)
    for word in ("air of a, b, p, q", "uplink", "declared", "the same medium"):
        assert word in text
    assert "air of a, b, p, q" in document._repr_html_()
    lines = drawing(document).splitlines()
    assert [line.strip("│├└─ ") for line in lines[1:]][-1].startswith("switch of w")
    below = {line.strip("│├└─ "): line.index(line.strip("│├└─ ")) for line in lines}
    assert below["p"] == below["q"] > below["a"] == below["b"]
    assert "nothing is known" in repr(HomeNetwork())


def test_a_name_of_very_many_parts_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "network.toml"
    path.write_text(".".join(["a"] * 30_000) + " = 1")
    with pytest.raises(FileError, match="a name of more than 64 parts"):
        load_network(path)
