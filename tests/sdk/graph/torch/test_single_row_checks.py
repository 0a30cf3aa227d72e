"""What a module does for one row, or a sequence of one, alone, is in no graph: it is refused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from potluck.errors import ModelError
from potluck.graph import Model

ROWS, LENGTH = 5, 4
X, TOKENS = torch.randn(ROWS, 8), torch.randint(0, 9, (ROWS, LENGTH))
T = torch.randn(ROWS, 4)


class Net(nn.Module):
    """A linear layer, and what is done with its answer y; x is what came."""

    def __init__(self, then, width=8):
        super().__init__()
        self.embedding = nn.Embedding(9, width)
        self.linear, self.then = nn.Linear(width, 4), then

    def forward(self, x):
        return self.then(self.linear(x if x.is_floating_point() else self.embedding(x)), x)


BRANCHES = {
    "equal": lambda n, y: y if n == 1 else y * 2,
    "unequal": lambda n, y: y * 2 if n != 1 else y,
    "more than": lambda n, y: y * 2 if n > 1 else y,
    "less than": lambda n, y: y if n < 2 else y * 2,
    "at least": lambda n, y: y * 2 if n >= 2 else y,
    "detached": lambda n, y: y.detach() + 0 * y if n == 1 else y,
    "a constant": lambda n, y: y * 0 if n == 1 else y,
}
SAME = {
    "squeezed": lambda y, x: y.squeeze(),
    "of length": lambda y, x: y / max(y.shape[-1], 1),
    "asked for nothing": lambda y, x: y if x.shape[0] == 1 else y.clone(),
    "none at all": lambda y, x: y[: x.shape[0]] if x.shape[0] > 0 else y * 2,
    "zeros": lambda y, x: y * 0,
    "no number": lambda y, x: y + (y * 0).log() * 0,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("branch", BRANCHES.values(), ids=BRANCHES)
def test_a_branch_for_one_row_is_refused(branch):
    net = Net(lambda y, x: branch(x.shape[0], y))
    with pytest.raises(ModelError, match=r"something else for one row.*x\.shape\[0\] == 1"):
        Model.from_torch(net, X, loss=mse_loss, example_targets=T)
    if branch is not BRANCHES["detached"]:
        with pytest.raises(ModelError, match="something else for one row"):
            Model.from_torch(net, torch.zeros(ROWS, 8))


@pytest.mark.few(1)
@pytest.mark.parametrize("branch", BRANCHES.values(), ids=BRANCHES)
def test_a_branch_of_the_loss_for_one_row_is_refused(branch):
    def loss(y, t):
        return mse_loss(branch(t.shape[0], y), t)

    with pytest.raises(ModelError, match="something else for one row"):
        Model.from_torch(nn.Linear(8, 4), X, loss=loss, example_targets=T)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(BRANCHES.keys() - {"detached"}))
def test_a_branch_for_a_sequence_of_one_is_refused_where_lengths_change(name):
    net = Net(lambda y, x: BRANCHES[name](x.shape[1], y))
    with pytest.raises(ModelError, match="something else for a sequence of one"):
        Model.from_torch(net, TOKENS, sequence_dims=(1,))
    assert Model.from_torch(net, TOKENS)  # of one length, that of the example


@pytest.mark.few(1)
@pytest.mark.parametrize("then", SAME.values(), ids=SAME)
def test_what_is_the_same_for_one_row_is_taken(then):
    assert Model.from_torch(Net(then), X)
    assert Model.from_torch(Net(then), X, loss=mse_loss, example_targets=T).trains
    assert Model.from_torch(Net(then), TOKENS, sequence_dims=(1,))


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_where_torch_takes_another_kernel_nothing_is_refused(dtype):
    """An encoder has a faster way in evaluation, which no graph has."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 4)).to(dtype)
    x, t = torch.randn(ROWS, LENGTH, 8, dtype=dtype), torch.randn(ROWS, LENGTH, 4, dtype=dtype)
    model = Model.from_torch(net, x, loss=mse_loss, example_targets=t, sequence_dims=(1, 1))
    assert model.trains


def test_a_module_that_takes_no_single_row_is_left_alone():
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout())
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    drawn = torch.get_rng_state()
    assert Model.from_torch(net, X, loss=mse_loss, example_targets=T).trains
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(parameter.grad is None for parameter in net.parameters())
