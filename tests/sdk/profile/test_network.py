"""Links: lines through probes, and media from what devices state or what was measured."""

import pytest

from potluck.errors import UserError
from potluck.profile.links import Line, fit_line
from potluck.profile.measure import with_home
from potluck.profile.network import network_of


def test_a_line_through_exact_probes():
    line = fit_line([1000, 5000, 9000], [0.011, 0.015, 0.019])
    assert line.latency_s == pytest.approx(0.010)
    assert line.bytes_per_s == pytest.approx(1e6)


def test_noise_on_a_fast_link_gives_no_negative_numbers():
    line = fit_line([1000, 2000], [0.002, 0.001])
    assert line.bytes_per_s > 0
    assert line.latency_s >= 0


@pytest.mark.parametrize(("nbytes", "seconds"), [([1000], [1.0]), ([5, 5], [1.0, 2.0]), ([1, 2], [1.0])])
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
    lines = with_home(
        {("a", "b"): Line(latency_s=0.1, bytes_per_s=5e6), ("a", "home"): Line(latency_s=0.2, bytes_per_s=3e6)},
        {"a": 0.06},
    )
    network = network_of({"a": {}, "b": {}}, lines)
    assert network.bandwidth("a", "b") == 5e6
    assert network.latency("a", "b") == 0.1
    assert network.bandwidth("home", "a") == 3e6
    assert network.latency("home", "a") == pytest.approx(0.03)
    assert network.paths["a", "b"].media != network.paths["a", "home"].media
