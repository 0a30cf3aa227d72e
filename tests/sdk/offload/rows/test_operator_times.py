"""What each operator takes of the time of its layer, and what few rows of it take."""

import pytest
import torch
from torch import nn

from potluck.graph.model import Model
from potluck.offload.plan.lowering import Shareable
from potluck.offload.plan.problem import DEVICE, OffloadProblem
from potluck.offload.rows.operator_times import operator_times


@pytest.fixture(scope="module")
def model():
    net = nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(8), nn.Conv2d(64, 512, 3))
    return Model.from_torch(net.eval(), torch.zeros(1, 32, 64, 64))


def test_a_layers_time_is_divided_over_its_operators(model):
    layer_s = [0.01 * (i + 1) for i in range(len(model.layers()))]
    found = operator_times(model.laid_out(), layer_s, batch=1)
    assert sum(found.seconds.values()) == pytest.approx(sum(layer_s))
    assert all(0 < found.fixed_s[value] < seconds for value, seconds in found.seconds.items())
    assert found.scaled(2.0).seconds == {
        value: 2 * seconds for value, seconds in found.seconds.items()
    }


def test_few_rows_of_an_operator_that_has_many_weights_for_them_take_more_than_their_share(model):
    found = operator_times(model.laid_out(), [1.0] * len(model.layers()), batch=1)
    operators = Shareable(model.traced_line()).operators((found, found))
    sharing = OffloadProblem(operators=operators, bytes_per_s=0.0)

    def beyond(place):
        """Seconds of a row without its halos, in shares of the whole."""
        untiled = operators[place]
        row_s = sharing.seconds(DEVICE, place, 1) - untiled.halo_s(DEVICE)
        return row_s / untiled.side_s[DEVICE] * untiled.count

    wide, narrow = (p for p, operator in enumerate(operators) if "conv" in operator.name)
    assert 1 < beyond(wide) < beyond(narrow)
    assert sharing.seconds(DEVICE, narrow, operators[narrow].count) == pytest.approx(
        operators[narrow].side_s[DEVICE]
    )
    assert sharing.seconds(DEVICE, narrow, 0) == 0


def test_pieces_of_an_operator_that_reads_rows_beyond_its_own_take_more_than_the_whole():
    net = nn.Sequential(
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.MaxPool2d(2)
    )
    model = Model.from_torch(net.eval(), torch.zeros(1, 8, 16, 16))
    found = operator_times(model.laid_out(), [1.0] * len(model.layers()), batch=1)
    shareable = Shareable(model.traced_line())
    operators = shareable.operators((found, found))
    sharing = OffloadProblem(operators=operators, bytes_per_s=0.0)
    extra_s = []
    for place, operator in enumerate(operators[1:-1], 1):
        half_s = sharing.seconds(DEVICE, place, operator.count // 2)
        extra_s.append(2 * half_s - operator.seconds(DEVICE) - operator.fixed_s(DEVICE))
    # the convolution of three rows; what follows reads its own rows alone
    wide, *_ = shareable.groups[1]
    assert extra_s == pytest.approx([2 * found.halo_s[wide], 0.0])
    assert found.scaled(2.0).halo_s == {
        value: 2 * seconds for value, seconds in found.halo_s.items()
    }
