"""A backward pass in Python is refused by the name of its function, wherever it is in a module."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from potluck.errors import ModelError
from potluck.graph import Model


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def again(part, x):
    return checkpoint(part, x, use_reentrant=True)


def halved(part, x):
    return part(Halves.apply(x))


CASES = {
    "checkpoint": (again, "CheckpointFunction.*use_reentrant=False"),
    "own": (halved, "Halves"),
}


class Net(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.parts, self.ways = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)]), (first, last)

    def forward(self, x):
        for part, way in zip(self.parts, self.ways, strict=True):
            x = part(x) if way is None else way(part, x)
        return x


def made(net):
    x = torch.randn(6, 4)
    return Model.from_torch(net, x, loss=mse_loss, example_targets=x)


@pytest.mark.parametrize("case", CASES)
def test_it_is_named_behind_a_layer(case):
    way, named = CASES[case]
    with pytest.raises(ModelError, match=named):
        made(Net(None, way))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_of_the_inputs_which_teaches_nothing_is_named_too():
    with pytest.raises(ModelError, match=CASES["checkpoint"][1]):
        made(Net(again, None))


def test_other_functions_are_as_they_were_afterwards():
    apply = vars(torch.autograd.Function)["apply"]
    assert made(Net(None, None)).trains
    assert vars(torch.autograd.Function)["apply"] is apply
