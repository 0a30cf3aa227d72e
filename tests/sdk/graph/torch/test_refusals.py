"""What is refused names the user's own line, and all of it is told at once."""

import pytest

from potluck.errors import ModelError
from potluck.graph import Model

torch = pytest.importorskip("torch")
MSE = torch.nn.functional.mse_loss


class Block(torch.nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)  # the line of a block


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block = torch.nn.Linear(4, 4), Block()

    def forward(self, x):
        x = self.first(x)
        x = x.masked_scatter(x > 0, x.as_strided((2, 2), (2, 1)))  # the line of a net
        return self.block(x)


class Fine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        y[:, 0] = 0.0
        return torch.where(y > 0, y, 0.0)


class Mixing(torch.nn.Module):
    def forward(self, x):
        return x / x.sum(0)  # over the rows


def refusal_of(net, **how):
    return [str(error) for error in Model.check(net, torch.randn(3, 4), **how)]


def test_all_refusals_are_told_at_once_each_with_its_line_and_a_next_step():
    strided, random = refusal_of(Net())
    assert "aten.as_strided.default reads memory as it lies" in strided
    assert "in Net.forward: x = x.masked_scatter" in strided
    assert "it draws random numbers when it answers: randn_like" in random
    assert "in the module block, at test_refusals.py, line " in random
    assert "in Block.forward: return x + torch.randn_like(x)" in random
    assert strided.endswith("say what is meant.")
    assert "ask self.training" in random


def test_the_first_refusal_says_that_there_are_more():
    with pytest.raises(ModelError, match="lists all 2 refusals") as caught:
        Model.from_torch(Net(), torch.randn(3, 4))
    assert caught.value.facts["operator"] == "aten.as_strided.default"


def test_what_the_loss_adds_is_told_beside():
    def loss(output, target):
        return MSE(output, torch.poisson(target))

    every = refusal_of(Net(), loss=loss, example_targets=torch.rand(3, 4))
    assert len(every) == 3
    assert "draws random numbers" in every[-1]


def test_rows_that_mix_are_told_with_their_line():
    (mixed,) = refusal_of(Mixing())
    assert "in Mixing.forward: return x / x.sum(0)" in mixed


def test_nothing_is_told_where_nothing_is_refused():
    assert refusal_of(Fine(), loss=MSE, example_targets=torch.rand(3, 4)) == []


def test_nan_as_a_plain_number_is_refused_and_as_a_tensor_taken():
    class Masked(torch.nn.Module):
        def __init__(self, kept):
            super().__init__()
            self.register_buffer("nan", torch.tensor(float("nan")))
            self.kept = kept

        def forward(self, x):
            nan = self.nan if self.kept else float("nan")
            return torch.nan_to_num(torch.where(x < 0, nan, x), 0.5)

    with pytest.raises(ModelError, match=r"given NaN as a plain number .*register_buffer"):
        Model.from_torch(Masked(False), torch.randn(4, 3))
    assert refusal_of(Masked(True)) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4)), "It is a buffer"),
        (torch.nn.RReLU(), "draws random numbers"),
    ],
    ids=["spectral norm", "random slopes"],
)
def test_the_reason_that_helps_comes_first(part, reason):
    """In training; in evaluation each of them is taken."""
    net, x = torch.nn.Sequential(torch.nn.Linear(4, 4), part), torch.randn(3, 4)
    with pytest.raises(ModelError, match=reason):
        Model.from_torch(net, x, loss=MSE, example_targets=torch.randn(3, 4))
    for module in part.modules():
        module.eval()
    assert Model.from_torch(net, x, loss=MSE, example_targets=torch.randn(3, 4)).trains
