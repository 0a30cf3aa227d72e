"""Would a helper pay: answered for homes that need not exist, never worse than what others do."""

import pytest
import torch
from tests.sdk.graph.families import family

import potluck
from potluck.errors import PotluckError

RATES = (2e6, 20e6)


@pytest.fixture(scope="module")
def model():
    net, example = family("vgg")
    return potluck.Model.from_torch(net, example)


@pytest.fixture(scope="module")
def found(model):
    return potluck.offload_what_if("robot-indoors", model, bandwidths=RATES)


def test_the_device_is_the_notebooks_and_the_strongest_other_helps(found):
    assert (found.device, found.helpers) == ("robot", ("server",))


def test_sharing_is_never_later_than_others(found):
    for point in found.points:
        assert set(point.others) == {"device", "helper", "layer cut"}
        for other in point.others.values():
            assert point.split.latency_s <= other.latency_s * (1 + 1e-9)


def test_a_front_goes_from_the_fastest_to_the_thriftiest(found):
    front = found.front(RATES[1])
    assert front[0].latency_s == pytest.approx(found.points[1].split.latency_s)
    assert [split.energy_j for split in front] == sorted(
        (split.energy_j for split in front), reverse=True
    )
    assert [split.latency_s for split in front] == sorted(split.latency_s for split in front)


def test_it_shows_itself(found, tmp_path):
    assert "20 MB/s" in repr(found)
    assert "robot alone" in found._repr_html_()
    assert len(repr(found.points[0].split)) < 80
    for name in ("chart.svg", "chart.html"):
        assert "best layer cut" in found.save(tmp_path / name).read_text()


def test_a_second_helper_never_makes_it_later(model):
    one, two = (
        potluck.offload_what_if(
            "smart-home-1", model, device="laptop-1", helper=helpers, bandwidths=RATES[1:]
        )
        for helpers in (["desktop-1"], ["desktop-1", "desktop-2"])
    )
    assert two.points[0].split.latency_s <= one.points[0].split.latency_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"device": "toaster"}, "has no device 'toaster'"),
        ({"helper": "robot"}, "different devices"),
        ({"helper": ["server", "server"]}, "different devices"),
        ({"bandwidths": (0.0, 1e6)}, "above zero"),
        ({"bandwidths": ()}, "above zero"),
    ],
)
def test_says_what_is_wrong(model, options, pattern):
    with pytest.raises(PotluckError, match=pattern):
        potluck.offload_what_if("robot-indoors", model, **options)


def test_a_module_is_not_yet_a_model():
    with pytest.raises(PotluckError, match="from_torch"):
        potluck.offload_what_if("robot-indoors", torch.nn.Linear(2, 2))


def test_a_profile_is_estimated_for_a_model_of_ones_own(model):
    profile = potluck.estimate("robot-indoors", model)
    assert profile == potluck.estimate("robot-indoors", model.graph())
    with pytest.raises(PotluckError, match="from_torch"):
        potluck.estimate("robot-indoors", torch.nn.Linear(2, 2))
