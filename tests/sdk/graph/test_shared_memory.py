"""Weights that share memory, and are not the same Parameter, would be trained apart on devices."""

import pytest

from potluck.errors import ModelError
from potluck.graph import Model

torch = pytest.importorskip("torch")
nn = torch.nn


def data_of_another():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight.data = net[0].weight.data
    return net


def a_part_of_another():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    net[1].weight = nn.Parameter(net[0].weight.data[1:3])
    return net


def a_transposed_view():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = nn.Parameter(net[0].weight.data.T)
    return net


def a_buffer():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    net[1].running_mean = net[0].bias.detach()
    return net


def a_frozen_view():
    net = data_of_another()
    net[1].weight.requires_grad_(False)
    return net


def made(net, **training):
    return Model.from_torch(net, torch.randn(6, 4), **training)


def trained(net):
    n = net(torch.randn(2, 4)).shape[1]
    loss, targets = nn.functional.cross_entropy, torch.randint(0, n, (6,))
    return made(net, loss=loss, example_targets=targets)


SHARED = [data_of_another, a_part_of_another, a_transposed_view, a_buffer, a_frozen_view]


@pytest.mark.parametrize("build", SHARED)
def test_is_refused_by_both_names(build):
    with pytest.raises(
        ModelError, match=r"0\.(weight|bias) and 1\.\w+ share memory|1\.\w+ and 0\."
    ):
        trained(build())


@pytest.mark.few(2)
@pytest.mark.parametrize("build", SHARED)
def test_answers_are_as_before(build):
    made(build())


def tied():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


def both_frozen():
    return nn.Sequential(data_of_another().requires_grad_(False), nn.Linear(4, 4))


def parts_of_one():
    """They stand beside each other, as after parameters were flattened."""
    flat = torch.randn(40)
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 6, bias=False))
    net[0].weight.data, net[1].weight.data = flat[:16].view(4, 4), flat[16:].view(6, 4)
    return net


@pytest.mark.few(1)
@pytest.mark.parametrize("build", [tied, both_frozen, parts_of_one])
def test_what_is_tied_or_frozen_or_apart_is_taken(build):
    trained(build())
