"""Homes that do not exist: one device more or less, another rate.

Who shares what with the newcomer.
"""

import pytest
from tests.sdk.planning.homes import random_home

import potluck
from potluck.errors import UserError
from potluck.planning import make_plans
from potluck.planning.scenario import joined, parted, rated, with_medium, with_twin
from potluck.profile import library
from potluck.profile.network import network_of
from potluck.records import HOME, Training


def media(network, source, target):
    return network.path(source, target).media


def test_a_newcomer_on_wifi_shares_the_air():
    home = library.load_home("smart-home-2")
    network = joined(home.network, "tablet", "galaxy")
    assert network.media == home.network.media
    for other in ("laptop-1", "galaxy", HOME):
        assert media(network, "tablet", other) == media(network, other, "tablet") == (("air", 2),)


def test_a_newcomer_at_a_switch_has_a_port_of_its_own():
    home = library.load_home("asteroid-a-100")
    network = joined(home.network, "new", "nano-2")
    assert media(network, "nano-3", "new") == (("nano-3 up", 1), ("new down", 1))
    assert media(network, "nano-2", "new") == (("nano-2 up", 1), ("new down", 1))
    assert media(network, "new", HOME) == (("new up", 1), ("nano-1 down", 1))
    added = {
        medium.name: medium.capacity_bytes_per_s
        for medium in network.media[len(home.network.media) :]
    }
    assert added == {"new up": 12.5e6, "new down": 12.5e6}


def test_a_newcomer_behind_a_port_that_several_share_shares_it_too():
    network = joined(library.load_home("deepcee-1").network, "new", "cloud-1-2")
    assert media(network, "new", "cloud-1-3") == (("cloud-1 bus", 1),)
    assert media(network, "new", "end-1") == (
        ("cloud-1 up", 1),
        ("cloud > end", 1),
        ("end-1 down", 1),
    )


@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("n", [2, 3])
def test_a_newcomer_in_a_measured_home_has_links_of_its_own(n, paced):
    capability = {"emulated": {"link_bytes_per_s": 1e6}} if paced else {}
    names = [f"d{i}" for i in range(n)]
    network = network_of(dict.fromkeys(names, capability), {})
    found = joined(network, "new", "d1")
    full = network_of(dict.fromkeys([*names, "new"], capability), {})
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in full.media}
    assert {medium.name: medium.capacity_bytes_per_s for medium in found.media} == capacity
    assert found.paths == full.paths


def test_two_devices_at_a_switch_keep_their_own_ports():
    home = library.load_home("asteroid-a-100")
    network = home.network
    for name in ("nano-3", "nano-4", "nano-5"):
        network = parted(network, name)
    assert sorted(medium.name for medium in network.media) == [
        f"nano-{i} {way}" for i in (1, 2) for way in ("down", "up")
    ]
    network = joined(network, "new", "nano-2")
    assert media(network, "new", "nano-1") == (("new up", 1), ("nano-1 down", 1))
    assert media(network, "nano-2", "new") == (("nano-2 up", 1), ("new down", 1))


def test_a_device_without_neighbours_is_no_example_of_a_link():
    alone = parted(parted(random_home(3, devices=2).network, "d1"), "d2")
    with pytest.raises(UserError, match="d0 is alone"):
        joined(alone, "new", "d0")


def test_an_unknown_medium_is_named_with_near_ones():
    with pytest.raises(UserError, match=r"no medium 'aire' in this home\. Did you mean air\?"):
        rated(random_home(1).network, "aire", 1.0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_second_device_or_a_faster_medium_never_makes_the_best_plan_slower(seed):
    problem = random_home(seed, Training(batch=8, micro_batch=4))
    best_s = make_plans(problem).best.latency_s
    assert make_plans(with_twin(problem, "d0")).best.latency_s <= best_s * 1.01
    assert make_plans(with_medium(problem, "air", 1e12)).best.latency_s <= best_s * 1.01


# --- profiles -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile():
    return potluck.estimate("smart-home-2", "bert-small", max_layers=8, rows=(1, 8))


def test_an_imagined_device_is_estimated_and_says_so(profile):
    more = profile.with_device("jetson-orin-nano")
    costs = more.problem(Training(batch=8)).costs["jetson-orin-nano"]
    assert {cost.source for cost in costs} == {"estimated"}
    assert any("is imagined" in note for note in more.notes)
    assert any("busy_w is assumed" in note for note in more.notes)  # nobody measured it
    assert "is imagined: connected like" in more._repr_html_()
    assert len(profile.devices) == 5  # the profile itself stays as it was
    assert more.home == ""


def test_a_second_one_of_a_kind_is_as_fast_as_the_first(profile):
    more = profile.with_device("galaxy-s25").with_device("galaxy-s25")
    assert [device.name for device in more.devices[-2:]] == ["galaxy-s25", "galaxy-s25-2"]
    costs = more.problem(Training(batch=8)).costs
    assert costs["galaxy-s25"] == costs["galaxy-s25-2"] == costs["galaxy"]


def test_a_measured_profile_estimates_from_its_layers(profile):
    from dataclasses import replace

    measured = replace(profile, graph=None, bounds=())
    rough, fine = (
        p.with_device("jetson-orin-nano").training.costs["jetson-orin-nano"]
        for p in (measured, profile)
    )
    for a, b in zip(rough, fine, strict=True):
        assert 0.2 < sum(a.forward_s) / sum(b.forward_s) < 5


def test_numbers_that_the_caller_knows_come_first(profile):
    found = profile.with_device(
        "jetson-orin-nano", "mine", busy_w=7, memory_bytes=4e9, like="laptop-2"
    )
    device = found.devices[-1]
    assert (device.name, device.busy_w, device.memory_bytes) == ("mine", 7, 4_000_000_000)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda p: p.with_device("jetson-orin"),
            "no device called 'jetson-orin'. Did you mean jetson-orin-nano",
        ),
        (
            lambda p: p.with_device("jetson-orin-nano", "galaxy"),
            "there is a 'galaxy' in this home already",
        ),
        (
            lambda p: p.with_device("jetson-orin-nano", like="laptop"),
            "no device 'laptop' in this home. Did you mean",
        ),
        (lambda p: p.with_device("jetson-orin-nano", watts=3), "a device has no number 'watts'"),
        (
            lambda p: p.with_device("jetson-orin-nano", busy_w=float("nan")),
            "busy_w must be a number, zero or more",
        ),
        (
            lambda p: p.with_device("jetson-orin-nano", memory_bytes=0),
            "memory_bytes must be above zero",
        ),
        (
            lambda p: p.without_device("gallaxy"),
            "no device 'gallaxy' in this home. Did you mean galaxy?",
        ),
        (
            lambda p: p.with_medium("wifi", "50 Mbit/s"),
            "no medium 'wifi' in this home. There are air.",
        ),
        (lambda p: p.with_medium("air", "50 parsecs"), "cannot read the amount '50 parsecs'"),
        (lambda p: p.with_medium("air", 0), "capacity_bytes_per_s must be above zero"),
    ],
)
def test_what_cannot_be_imagined_is_said(profile, change, text):
    with pytest.raises(UserError) as error:
        change(profile)
    assert text in str(error.value)


@pytest.mark.long
def test_a_slower_wifi_and_a_missing_device_change_the_plan(profile):
    workload = Training(batch=8)
    best = potluck.plan(profile, workload).best
    assert (
        potluck.plan(profile.with_medium("air", "1 Mbit/s"), workload).best.latency_s
        >= best.latency_s
    )
    gone = best.devices[0]
    assert gone not in potluck.plan(profile.without_device(gone), workload).best.devices
