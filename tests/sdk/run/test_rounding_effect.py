"""What handing on smaller values changes, as a user asks for it."""

import pytest
import torch
from torch import nn

import potluck
from potluck.errors import ModelError
from potluck.testing.memory import memory_home


@pytest.fixture(scope="module")
def home():
    torch.set_num_threads(1)
    with memory_home(2) as made:
        yield made


def network():
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(12, 12), nn.Tanh())))


def by_hand(net, x, y):
    """Answers, loss and gradients of this module."""
    answers = net(x)
    loss = nn.functional.mse_loss(answers, y)
    loss.backward()
    return answers.detach(), loss.item(), torch.cat([p.grad.flatten() for p in net.parameters()])


class Rounded(nn.Module):
    def forward(self, x):
        return x.to(torch.bfloat16).to(torch.float32)


def test_it_measures_answers_loss_and_gradients(home):
    x, y = torch.randn(6, 12), torch.randn(6, 12)
    net = network()
    model = potluck.Model.from_torch(net, x, loss=nn.MSELoss(), example_targets=y)
    effect = potluck.rounding_effect(home, model, "bfloat16", x, y)
    parts = list(network())
    pairs = [nn.Sequential(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
    rounded = nn.Sequential(*(part for pair in pairs for part in (pair, Rounded())))[:-1]
    answers, loss, gradient = by_hand(rounded, x, y)
    exact, exact_loss, exact_gradient = by_hand(network(), x, y)
    assert effect.loss == pytest.approx((loss, exact_loss))
    expected = (answers - exact).norm() / exact.norm()
    assert effect.answers_frac == pytest.approx(float(expected), rel=1e-3)
    expected = (gradient - exact_gradient).norm() / exact_gradient.norm()
    assert effect.gradient_frac == pytest.approx(float(expected), rel=1e-3)
    assert effect.handed_bytes == (3 * 12 * 2, 3 * 12 * 4)
    assert "bfloat16: 72 of 144 bytes a row; answers differ by 0." in repr(effect)
    assert all(
        torch.equal(a, b) for a, b in zip(net.parameters(), network().parameters(), strict=True)
    )


def test_of_answers_alone(home):
    x, net = torch.randn(6, 12), network()
    effect = potluck.rounding_effect(home, potluck.Model.from_torch(net, x), "int8", x)
    assert effect.loss is None
    assert effect.gradient_frac is None
    assert 0 < effect.answers_frac < 0.05
    assert effect.handed_bytes == (3 * (12 + 4), 3 * 12 * 4)


def test_what_cannot_be_rounded_is_refused(home):
    x = torch.randn(6, 12)
    with pytest.raises(ModelError, match="cannot be handed on as 'int2'"):
        potluck.rounding_effect(home, potluck.Model.from_torch(network(), x), "int2", x)
