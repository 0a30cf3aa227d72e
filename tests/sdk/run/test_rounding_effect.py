"""What handing on smaller values changes, as a user asks for it."""

import pytest
import torch
from tests.sdk.run.conftest import make_plan
from torch import nn

import potluck
from potluck.errors import ModelError
from potluck.testing.memory import memory_home
from potluck_agent.worker.blocks import packed


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


@pytest.mark.long
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


def nearest(x):
    scale = (x.abs().amax(1, keepdim=True) / 127).clamp_min(1e-30)
    return (x / scale).round() * scale


class Nearest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return nearest(x)

    @staticmethod
    def backward(ctx, gradient):
        return nearest(gradient)


class RoundedToSteps(nn.Module):
    def forward(self, x):
        return Nearest.apply(x)


def test_it_measures_what_int8_does_to_training(home):
    x, y = torch.randn(6, 12), torch.randn(6, 12)
    model = potluck.Model.from_torch(network(), x, loss=nn.MSELoss(), example_targets=y)
    effect = potluck.rounding_effect(home, model, "int8", x, y)
    parts = list(network())
    pairs = [nn.Sequential(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
    made = nn.Sequential(*(part for pair in pairs for part in (pair, RoundedToSteps())))[:-1]
    answers, loss, gradient = by_hand(made, x, y)
    exact, exact_loss, exact_gradient = by_hand(network(), x, y)
    assert effect.loss == pytest.approx((loss, exact_loss))
    expected = (answers - exact).norm() / exact.norm()
    assert effect.answers_frac == pytest.approx(float(expected), rel=1e-3)
    expected = (gradient - exact_gradient).norm() / exact_gradient.norm()
    assert effect.gradient_frac == pytest.approx(float(expected), rel=1e-3)
    assert 0 < effect.gradient_frac < 0.1
    assert effect.handed_bytes == (3 * (12 + 4), 3 * 12 * 4)
    assert "gradients differ by" in repr(effect)


@pytest.mark.long
def test_agents_train_with_int8_what_one_machine_trains_with_it(process_home):
    """Packed values and gradients go through real workers and sockets bit by bit, also those that
    are no number as the float32 that they travel as.
    """
    torch.manual_seed(3)
    x, y = torch.randn(64, 12), torch.randn(64, 12)
    middle = network()[:4](x)
    assert packed(middle, 1).isnan().any()
    model = potluck.Model.from_torch(network(), x, loss=nn.MSELoss(), example_targets=y)
    made = model.rounded("int8")
    one, two = process_home.devices
    plan = make_plan(made, ((one,), (64,)), ((two,), (64,)), micro_batch=64)
    run = process_home.deploy(plan, made, optimizer=potluck.SGD(0.1), protect=False).wait()
    losses = run.fit([(x, y)] * 4, adapt=False).wait().losses
    parts, expected = list(network()), []
    pairs = [nn.Sequential(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
    alone = nn.Sequential(*(part for pair in pairs for part in (pair, RoundedToSteps())))[:-1]
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for _ in range(4):
        expected.append(nn.functional.mse_loss(alone(x), y))
        expected[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert list(losses) == [loss.item() for loss in expected]
    learned = run.state_dict()
    for name, weight in zip(learned, alone.parameters(), strict=True):
        assert torch.equal(learned[name], weight), name
    run.close()


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
