"""Two levels of groups: what is well connected, and in it what is alike."""

import math
import random
from dataclasses import replace
from itertools import combinations

import pytest

import potluck
from potluck.planning.grouping import (
    PAYLOAD_BYTES,
    Dendrogram,
    PairSpeed,
    best_grouping,
    compute_dendrogram,
    groupings,
    network_dendrogram,
    pair_speed,
    pair_speeds,
)
from potluck.records import Medium, Network, Path


@pytest.fixture(scope="module")
def problem():
    profile = potluck.estimate("deepcee-1", "resnet101-cifar", max_layers=8, rows=(1, 8))
    return profile.problem(potluck.Training(batch=64), potluck.QoE())


def network_of(rates, latency_s=0.001):
    """Links of their own between pairs, at these bytes per second."""
    media = tuple(Medium(name=f"{a}{b}", capacity_bytes_per_s=r) for (a, b), r in rates.items())
    paths = {
        way: Path(media=((f"{a}{b}", 1),), latency_s=latency_s)
        for a, b in rates
        for way in ((a, b), (b, a))
    }
    return Network(media=media, paths=paths)


def test_alpha_and_beta_from_a_tiny_and_a_large_payload():
    speed = pair_speed(0.002 + 20e-6, 0.002 + 1.0, 20, 1_000_000)
    assert speed.alpha_s == pytest.approx(0.002)
    assert speed.beta_s_per_byte == pytest.approx(1e-6)
    assert speed.seconds(500_000) == pytest.approx(0.502)
    assert pair_speed(0.5, 0.1, 1, 100) == PairSpeed(0.5, 0.0)  # noise is no speed below zero


def test_pairs_by_the_network_and_none_where_no_path_is():
    known = network_of({("a", "b"): 1e6})
    speeds = pair_speeds(known, ("a", "b", "c"))
    assert speeds.keys() == {("a", "b")}
    assert speeds["a", "b"].alpha_s == pytest.approx(0.001)
    assert speeds["a", "b"].beta_s_per_byte == pytest.approx(1e-6)


def test_cloud_and_edge_are_found_in_the_papers_setting(problem):
    tree = network_dendrogram(problem)
    (whole,) = tree.cut(tree.thresholds[-1])
    assert len(whole) == 22
    slowest = tree.cut(tree.thresholds[-2])
    assert [{name.split("-")[0] for name in group} for group in slowest] == [
        {"cloud"},
        {"edge", "end"},
    ]
    servers = tree.cut(tree.thresholds[1])
    assert [len(group) for group in servers] == [4, 4, 4, 2, 2, 2, 1, 1, 1, 1]
    assert [len(group) for group in tree.cut(0.0)] == [1] * 22


def test_inside_a_group_the_alike_are_together(problem):
    tree = compute_dendrogram(problem, ("edge-1-1", "edge-1-2", "end-1", "end-2"))
    assert tree.cut(1.0) == (("edge-1-1", "edge-1-2"), ("end-1", "end-2"))
    assert len(tree.cut(10.0)) == 1


def test_every_grouping_has_every_device_once_and_comes_once(problem):
    names, seen = sorted(device.name for device in problem.devices), set()
    for grouping in groupings(problem):
        assert sorted(name for region in grouping.regions for name in region) == names
        assert grouping.groups not in seen
        seen.add(grouping.groups)


def test_the_threshold_is_the_one_whose_plan_is_soonest(problem):
    wanted = next(grouping for grouping in groupings(problem) if len(grouping.groups) == 2)
    best, seconds = best_grouping(problem, lambda g: abs(len(g.groups) - 2) + 1.0)
    assert best.regions == wanted.regions
    assert min(seconds.values()) == 1.0
    only, tried = best_grouping(problem, lambda g: 1.0, most_groups=1)
    assert len(only.groups) == 1
    assert len(tried) < len(seconds)


def test_groups_that_no_link_joins_stay_apart_the_longest(problem):
    devices = problem.devices[:4]
    a, b, c, d = (device.name for device in devices)
    apart = replace(
        problem,
        devices=devices,
        network=network_of({(a, b): 1e6, (c, d): 1e3}),
        costs={name: problem.costs[name] for name in (a, b, c, d)},
    )
    tree = network_dendrogram(apart)
    assert tree.cut(tree.thresholds[-2]) == ((a, b), (c, d))


def test_one_device_is_one_group():
    assert Dendrogram(names=("only",)).cut(1.0) == (("only",),)


def home_of(names, rates):
    """Devices that are alike, on links of their own."""
    profile = potluck.estimate("family", "mobilenet-v2-cifar", max_layers=3, rows=(1,))
    known = profile.problem(potluck.Training(batch=2), potluck.QoE())
    one = known.devices[0]
    return replace(
        known,
        devices=tuple(replace(one, name=name) for name in names),
        costs=dict.fromkeys(names, known.costs[one.name]),
        network=network_of(rates),
        home="",
    )


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(20))
def test_merges_are_those_of_scipy(seed):
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    rng = random.Random(seed)
    names = tuple(f"d{i}" for i in range(rng.randint(2, 9)))
    rates = {pair: 10 ** rng.uniform(4, 8) for pair in combinations(names, 2)}
    problem = home_of(names, rates)
    speeds = pair_speeds(problem.network, names)
    apart = [math.log(speeds[pair].seconds(PAYLOAD_BYTES)) + 40 for pair in combinations(names, 2)]
    steps = hierarchy.linkage(apart, "average")
    found = network_dendrogram(problem).merges
    assert [merge.height for merge in found] == pytest.approx(
        [math.exp(height - 40) for _, _, height, _ in steps], rel=1e-5
    )
    assert [len(merge.members) for merge in found] == [int(size) for *_, size in steps]


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(20))
def test_a_cut_only_joins_as_it_rises(seed):
    rng = random.Random(seed)
    names = [f"d{i}" for i in range(rng.randint(2, 7))]
    rates = {pair: rng.choice([1e4, 1e6, 1e8]) for pair in combinations(names, 2)}
    tree = network_dendrogram(home_of(names, rates))
    before = tree.cut(0.0)
    for height in tree.thresholds[1:]:
        after = tree.cut(height)
        assert len(after) < len(before)
        assert all(any({*small} <= {*large} for large in after) for small in before)
        before = after
