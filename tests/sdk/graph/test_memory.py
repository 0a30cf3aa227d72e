"""What a module remembers from call to call is not exported: it is refused by its name, not
forgotten.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from potluck.errors import ModelError
from potluck.graph import Model

X, T = torch.randn(4, 3), torch.randn(4, 3)


class Remembers(nn.Module):
    """A model, or a loss, that does something with itself in each call."""

    def __init__(self, change):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.change = change
        self.calls = 0
        self.register_buffer("average", torch.ones(()))

    def forward(self, x, *targets):
        self.change(self, x)
        return mse_loss(x, *targets) * self.average if targets else self.linear(x) * self.average


def averages(self, x):
    self.average = 0.9 * self.average + 0.1


def replaces(self, x):
    self.average = self.average.clone()


def counts(self, x):
    self.calls += 1


def alternates(self, x):
    self.calls = 1.5 - self.calls


def keeps(self, x):
    self.calls = x.shape[1]


CHANGES = {
    "average": (averages, "buffer.*average"),
    "new": (replaces, "buffer.*average"),
    "count": (counts, "attribute.*calls"),
    "alternate": (alternates, "attribute.*calls"),
}


@pytest.mark.long
@pytest.mark.parametrize(("change", "text"), CHANGES.values(), ids=CHANGES)
def test_what_changes_in_each_call_is_refused_by_name_in_a_model_and_in_a_loss(change, text):
    with pytest.raises(ModelError, match=text):
        Model.from_torch(Remembers(change), X)
    with pytest.raises(ModelError, match=text):
        Model.from_torch(Remembers(change), X, loss=nn.MSELoss(), example_targets=T)
    with pytest.raises(ModelError, match=text):
        Model.from_torch(nn.Linear(3, 3), X, loss=Remembers(change), example_targets=T)


def test_what_is_the_same_in_each_call_may_be_kept():
    net = Remembers(keeps)
    average = net.average
    assert Model.from_torch(net, X, loss=nn.MSELoss(), example_targets=T).layers()
    assert net.average is average
