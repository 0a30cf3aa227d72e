"""Links: lines through probes, and media from what devices state or what was measured."""

import pytest

from potluck.errors import UserError
from potluck.profile.links import LinkLine, fit_line
from potluck.profile.network import machines, network_of
from potluck.records import Medium, Network, Path


def test_a_line_through_exact_probes():
    line = fit_line([1000, 5000, 9000], [0.011, 0.015, 0.019])
    assert line.latency_s == pytest.approx(0.010)
    assert line.bytes_per_s == pytest.approx(1e6)


def test_noise_on_a_fast_link_gives_no_negative_numbers():
    line = fit_line([1000, 2000], [0.002, 0.001])
    assert line.bytes_per_s > 0
    assert line.latency_s >= 0


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [([1000], [1.0]), ([5, 5], [1.0, 2.0]), ([1, 2], [1.0])]
)
def test_a_line_needs_two_sizes(nbytes, seconds):
    with pytest.raises(UserError):
        fit_line(nbytes, seconds)


def test_a_paced_uplink_is_one_medium_for_all_that_it_sends():
    network = network_of({"slow": {"emulated": {"link_bytes_per_s": 1e6}}, "fast": {}}, {})
    up = network.paths["slow", "fast"].media
    assert up == network.paths["slow", "home"].media
    assert network.bandwidth("slow", "fast") == 1e6
    assert network.bandwidth("fast", "slow") > 1e8


def test_measured_pairs_are_media_of_their_own():
    lines = {
        ("a", "b"): LinkLine(latency_s=0.1, bytes_per_s=5e6),
        ("a", "home"): LinkLine(latency_s=0.2, bytes_per_s=3e6),
        ("home", "a"): LinkLine(latency_s=0.03, bytes_per_s=4e6),
    }
    network = network_of({"a": {}, "b": {}}, lines)
    assert network.bandwidth("a", "b") == 5e6
    assert network.latency("a", "b") == 0.1
    assert network.bandwidth("home", "a") == 4e6
    assert network.latency("home", "a") == 0.03
    assert network.paths["a", "b"].media != network.paths["a", "home"].media


def test_what_stays_inside_one_machine_is_work_for_its_processor():
    slow, paced = (
        {"slowdown": 4.0, "link_bytes_per_s": None},
        {"slowdown": 1.0, "link_bytes_per_s": 1e6},
    )
    box = {"a": {"host": "box"}, "b": {"host": "box"}, "c": {"host": "elsewhere"}}
    emulated = {
        "slow": {"host": "box", "emulated": slow},
        "paced": {"host": "box", "emulated": paced},
    }
    network = network_of(box | emulated, {}, "box")
    inside = {pair for pair, path in network.paths.items() if path.host == "box"}
    assert inside == {
        (a, b) for a in ("a", "b", "home") for b in ("a", "b", "home", "paced") if a != b
    }


def test_what_is_between_machines_is_shared_by_all_that_are_on_them():
    capabilities = {
        name: {"host": host} for name, host in (("a", "x"), ("b", "x"), ("c", "y"), ("d", ""))
    }
    capabilities["paced"] = {"host": "y", "emulated": {"link_bytes_per_s": 1e6}}
    assert machines(capabilities, "here") == {
        "home": ["home"],
        "a": ["a", "b"],
        "c": ["c"],
        "d": ["d"],
    }
    over_air = Path(media=(("air", 2),), latency_s=0.5)
    speakers = ("home", "a", "c", "d")
    between = Network(
        media=(Medium(name="air", capacity_bytes_per_s=8e6),),
        paths={(s, t): over_air for s in speakers for t in speakers if s != t},
    )
    network = network_of(
        capabilities, {("a", "b"): LinkLine(latency_s=0.0, bytes_per_s=5e8)}, "here", between
    )
    assert network.path("b", "c") == network.path("home", "b") == over_air
    assert network.bandwidth("a", "b") == 5e8
    assert network.path("a", "b").host == "x"
    assert network.bandwidth("paced", "a") == 1e6
