"""A graph that does not give what the module gives when it is called is refused: its answers, its
loss, and every gradient are compared.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import l1_loss

from potluck.errors import ModelError
from potluck.graph import Model

X, T = torch.randn(6, 8), torch.randn(6, 4)


class Scaled(nn.Module):
    """A layer's output divided by a scale of itself, which `made` takes from its gradient."""

    def __init__(self, made):
        super().__init__()
        self.inner = nn.Linear(8, 6)
        self.outer = nn.Linear(6, 4)
        self.made = made

    def forward(self, x):
        h = self.inner(x)
        return self.outer(h / self.made(h))


def largest(h):
    return h.abs().amax(1, keepdim=True)


def in_inference_mode(h):
    with torch.inference_mode():
        scale = largest(h)
    return scale.clone()


def without_gradient(h):
    with torch.no_grad():
        return largest(h)


def behind_a_hook_of_its_node(h):
    scale = largest(h)
    if scale.grad_fn is not None:
        scale.grad_fn.register_prehook(lambda given: tuple(0.5 * g for g in given))
    return scale


def of_changed_memory(h):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return 1 + h.sigmoid().amax(1, keepdim=True)


def of_this_call(h):
    return largest(h) if torch.compiler.is_compiling() else 2 * largest(h)


@pytest.mark.few(1)
@pytest.mark.parametrize("made", [in_inference_mode, behind_a_hook_of_its_node, of_changed_memory])
def test_other_gradients_are_refused(made):
    with pytest.raises(ModelError, match=r"other gradients when it is called.*detach\(\)"):
        Model.from_torch(Scaled(made), X, loss=functional.mse_loss, example_targets=T)


def test_they_are_refused_in_a_loss():
    def loss(y, t):
        with torch.inference_mode():
            weight = (y - t).abs()
        return ((y - t).square() * weight.clone()).mean()

    with pytest.raises(ModelError, match="other gradients when it is called"):
        Model.from_torch(nn.Linear(8, 4), X, loss=loss, example_targets=T)


def test_they_are_refused_where_torch_itself_loses_an_argument():
    """It has the weight of an `l1_loss` where that is called, and loses it in every export; only by
    its name in `torch.nn.functional` is it kept.
    """

    def loss(y, t):
        return l1_loss(y, t, weight=t.abs())

    with pytest.raises(ModelError, match="other gradients when it is called"):
        Model.from_torch(nn.Linear(8, 4), X, loss=loss, example_targets=T)


def test_other_answers_are_refused():
    with pytest.raises(ModelError, match="other answers when it is called"):
        Model.from_torch(Scaled(of_this_call), X)


@pytest.mark.few(1)
@pytest.mark.parametrize("made", [without_gradient, lambda h: largest(h).detach()])
def test_the_same_gradients_are_taken(made):
    net = nn.Sequential(Scaled(made), nn.Dropout(0.5))
    assert Model.from_torch(net, X, loss=functional.mse_loss, example_targets=T).trains


def test_answers_in_inference_mode_are_taken():
    assert Model.from_torch(Scaled(in_inference_mode), X)


@pytest.fixture
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("make", [lambda x: x / 3, lambda x: x.sigmoid() * torch.ones(5)])
def test_floats_of_another_default_type_are_refused(doubles, make):
    class Net(nn.Module):
        def forward(self, x):
            return make(x)

    with pytest.raises(ModelError, match=r"float64 here and float32 on devices.*to\(torch.float64"):
        Model.from_torch(Net(), torch.randint(1, 9, (4, 5)))


def test_where_types_are_said_the_default_does_not_matter(doubles):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 2)
            self.norm = nn.BatchNorm1d(2)  # its counter of batches is read by nobody

        def forward(self, x):
            return self.norm(self.linear(x.to(torch.float64) / 3))

    x, t = torch.randint(1, 9, (4, 5)), torch.rand(4, 2)
    assert Model.from_torch(Net(), x)
    assert Model.from_torch(Net(), x, loss=functional.mse_loss, example_targets=t).trains


def test_an_infinite_value_spoils_no_more_than_with_torch():
    class Net(nn.Module):
        def forward(self, x):
            return functional.interpolate(x, size=11, mode="linear", align_corners=True)

    x = torch.randn(2, 1, 6)
    x[0, 0, 1], x[1, 0, 2] = torch.inf, torch.nan
    assert Model.from_torch(Net(), x)  # its answers are compared with the module's


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_weights_may_be_made_inside_a_loss(dtype):
    def loss(y, t):
        return functional.cross_entropy(y, t, weight=torch.tensor([0.2, 1, 3, 0.7], dtype=dtype))

    net, targets = nn.Linear(8, 4).to(dtype), torch.randint(0, 4, (6,))
    model = Model.from_torch(net, X.to(dtype), loss=loss, example_targets=targets)
    assert model.trains
    assert not any("not proven" in note for note in model.notes(True))
