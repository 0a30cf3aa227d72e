"""A backward pass in Python is written out where it multiplies the gradient; else it is refused by
the name of its function and the line that calls it, wherever it is in a module.
"""

import copy
from dataclasses import replace

import pytest
import torch
from tests.sdk.run.conftest import make_plan
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from potluck.errors import ModelError
from potluck.graph import Model
from potluck.run.optimizers import SGD
from potluck.testing.memory import memory_home


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-0.1, 0.1)


def again(part, x):
    return checkpoint(part, x, use_reentrant=True)


def clipped(part, x):
    return part(Clipped.apply(x))


CASES = {
    "checkpoint": (again, "CheckpointFunction.*use_reentrant=False"),
    "own": (clipped, r"Clipped .*\(test_own_backward.py, line \d+: x = part"),
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


@pytest.mark.long
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


class Product(torch.autograd.Function):
    """Of a forward and a backward pass that are said by name."""

    @staticmethod
    def forward(ctx, x, name):
        ctx.save_for_backward(x)
        ctx.name = name
        return PRODUCTS[name][0](x)

    @staticmethod
    def backward(ctx, gradient):
        return PRODUCTS[ctx.name][1](ctx.saved_tensors[0], gradient), None


class InTwo(torch.autograd.Function):
    """In the newer form, with a context that is set up beside."""

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


def hard(x, gradient):
    back = gradient.clone()
    back[x.abs() > 0.5] = 0
    return back


def gelu_back(x, gradient):
    density = torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5
    return (0.5 * (1 + torch.erf(x / 2**0.5)) + x * density) * gradient


PRODUCTS = {
    "GELU by hand": (torch.nn.functional.gelu, gelu_back),
    "straight through": (torch.sign, lambda x, g: g),
    "straight through, hard": (torch.round, hard),
    "filled": (torch.round, lambda x, g: g.masked_fill(x > 0, 0)),
    "chosen": (torch.round, lambda x, g: torch.where(x > 0, g, 0.0)),
    "halved": (lambda x: x * 1, lambda x, g: g / 2),
    "reversed": (lambda x: x * 1, lambda x, g: -0.3 * g),
    "by a number for each row": (lambda x: x * 1, lambda x, g: g * x.mean(1, keepdim=True)),
}
OTHERWISE = {
    "clipped": lambda x, g: g.clamp(-1e3, 1e3),
    "of its sign": lambda x, g: g.sign(),
    "a mask of rows": lambda x, g: hard(x[:, 0], g),
    "its sum": lambda x, g: g.sum(0).expand_as(x),
    "turned": lambda x, g: g.flip(1),
    "without it": lambda x, g: x,
    "squared": lambda x, g: g * g,
    "looked at": lambda x, g: g if g.sum() > 0 else -g,
}


class Owning(nn.Module):
    def __init__(self, own):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.own = own

    def forward(self, x):
        return self.last(self.own(self.first(x)))


def trained_alike(net):
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.ones(6, 2)
    alone, model = copy.deepcopy(net), Model.from_torch(net, x, loss=mse_loss, example_targets=y)
    with memory_home(2) as home:
        plan = make_plan(model, (("local-1",), (3,)), (("local-2",), (3,)), micro_batch=3)
        run = home.deploy(replace(plan, n_micro_batches=2), model, optimizer=SGD(0.3)).wait()
        run.fit((x, y), epochs=3).wait()
        state = run.state_dict()
    optimizer = torch.optim.SGD(alone.parameters(), 0.3)
    for _ in range(3):
        mse_loss(alone(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return all(torch.allclose(state[n], t, atol=1e-6) for n, t in alone.state_dict().items())


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_backward_that_multiplies_is_that_of_one_machine(name):
    assert trained_alike(Owning(lambda x: Product.apply(x, name)))


def test_so_is_one_in_the_newer_form():
    assert trained_alike(Owning(InTwo.apply))


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERWISE)
def test_any_other_backward_is_refused(name, monkeypatch):
    monkeypatch.setitem(PRODUCTS, name, (lambda x: x * 1, OTHERWISE[name]))
    with pytest.raises(ModelError, match="the backward pass of Product"):
        trained_alike(Owning(lambda x: Product.apply(x, name)))


class OfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


def test_a_backward_of_two_values_is_refused():
    with pytest.raises(ModelError, match="the backward pass of OfTwo"):
        made(Net(lambda part, x: OfTwo.apply(part(x), part.weight.sum().expand_as(x)), None))


class Leaf(nn.Module):
    """It makes a tensor that requires a gradient, as for checkpoints that need one."""

    def __init__(self, kept=None):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.kept = kept

    def forward(self, x):
        ones = self.kept[0] if self.kept else torch.ones(4).requires_grad_()
        return self.last(self.first(x) * ones)


def test_a_tensor_that_each_call_makes_takes_its_gradient_with_it():
    assert trained_alike(Leaf())


def test_one_that_is_kept_is_refused():
    with pytest.raises(ModelError, match="belongs to no module"):
        trained_alike(Leaf([torch.ones(4, requires_grad=True)]))


class Forces(nn.Module):
    """A gradient by the inputs is its answer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.last(self.first(x).tanh()).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force[:, :2]


@pytest.mark.long
def test_a_gradient_inside_of_the_forward_pass_is_refused():
    with pytest.raises(ModelError, match=r"takes a gradient.*torch.autograd.grad"):
        trained_alike(Forces())
