"""A module for which random numbers of Python or numpy decide is refused: a graph would keep them.
One that draws them for nothing is taken.
"""

import random

import numpy as np
import pytest
import torch
from torch import nn

from potluck.errors import ModelError
from potluck.graph import Model

X, T = torch.randn(4, 8), torch.randn(4, 8)


class Drawing(nn.Module):
    """Two layers; what is drawn says what becomes of the second one."""

    def __init__(self, step, held=None):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.step, self.held = step, held

    def forward(self, x):
        return self.step(self, self.first(x))


def left_out(probability, draw):
    def step(self, x):
        is_left_out = draw(self) < probability and self.training
        return x if is_left_out else self.second(x)

    return step


DECIDING = {
    "a layer left out": left_out(0.01, lambda self: random.random()),
    "by numpy": left_out(0.1, lambda self: np.random.rand()),
    "one of few": lambda self, x: self.second(x) * random.randint(1, 3),
    "an order": lambda self, x: x[:, np.random.permutation(8).copy()],
    "a factor": lambda self, x: self.second(x) * random.gauss(1.0, 0.1),
}
HARMLESS = {
    "never left out": left_out(0.0, lambda self: random.uniform(0, 1)),
    "as many as ever": lambda self, x: self.second(x) * len(random.sample(range(9), 3)),
    "numbers of torch": lambda self, x: nn.functional.dropout(x, 0.5, self.training),
}
HELD = {
    "Python's": (random.Random(1), left_out(0.1, lambda self: self.held.random())),
    "numpy's": (np.random.default_rng(1), left_out(0.1, lambda self: self.held.random())),
    "numpy's older": (np.random.RandomState(1), left_out(0.1, lambda self: self.held.rand())),
}


def made(*given):
    return Model.from_torch(Drawing(*given), X, loss=nn.functional.mse_loss, example_targets=T)


@pytest.mark.few(2)
@pytest.mark.parametrize("step", DECIDING.values(), ids=DECIDING)
def test_what_python_or_numpy_draws_in_each_call_is_refused(step):
    with pytest.raises(ModelError, match="draws random numbers of Python or numpy"):
        made(step)


@pytest.mark.few(1)
@pytest.mark.parametrize("step", HARMLESS.values(), ids=HARMLESS)
def test_what_is_drawn_for_nothing_is_taken(step):
    assert made(step).trains


@pytest.mark.few(1)
@pytest.mark.parametrize(("held", "step"), HELD.values(), ids=HELD)
def test_a_generator_that_a_module_holds_is_named(held, step):
    with pytest.raises(ModelError, match="each call changes its attribute held"):
        made(step, held)
