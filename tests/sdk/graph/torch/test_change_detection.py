"""A number that a module or its loss holds, however deep, is what it was when the model was made,
or it is said.
"""

import logging
import random
from argparse import Namespace
from collections import UserDict, deque
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn


@dataclass
class Config:
    held: object
    more: list = field(default_factory=list)


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Plain:
    def __init__(self, held):
        self.held = held

    def name(self):
        return self.held


class Called(Plain):
    def __call__(self, x):
        return x


# what holds something, and how it is got out again
HOLDERS = {
    "list": (lambda held: [0.5, held], lambda holder: holder[1]),
    "tuple": (lambda held: (held, 0.5), lambda holder: holder[0]),
    "mapping": (lambda held: {"a": 1, "b": held}, lambda holder: holder["b"]),
    "queue": (lambda held: deque([held]), lambda holder: holder[0]),
    "user's mapping": (lambda held: UserDict(a=held), lambda holder: holder["a"]),
    "data class": (Config, lambda holder: holder.held),
    "namespace": (lambda held: SimpleNamespace(held=held), lambda holder: holder.held),
    "parsed arguments": (lambda held: Namespace(held=held), lambda holder: holder.held),
    "slots": (Slotted, lambda holder: holder.held),
    "object": (Plain, lambda holder: holder.held),
    "one that is called": (Called, lambda holder: holder.held),
    "its method": (lambda held: Plain(held).name, lambda holder: holder()),
    "part of a call": (lambda held: partial(max, held), lambda holder: holder.args[0]),
}
# what can be changed in place
NUMBERS = {
    "list": (lambda: [1.0], lambda numbers: numbers.__setitem__(0, 2.0)),
    "mapping": (lambda: {"a": 1.0}, lambda numbers: numbers.update(a=2.0)),
    "array": (lambda: np.ones(3), lambda numbers: numbers.__setitem__(1, 2.0)),
    "set": (lambda: {1.0}, lambda numbers: numbers.add(2.0)),
    "object": (lambda: Plain(1.0), lambda numbers: setattr(numbers, "held", 2.0)),
    "data class": (lambda: Config(1.0), lambda numbers: numbers.more.append(2.0)),
}


class Net(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.layer, self.config = nn.Linear(4, 4), config

    def forward(self, x):
        return self.layer(x)


class Loss:
    def __init__(self, config=None):
        self.config = config

    def __call__(self, output, target):
        return nn.functional.mse_loss(output, target)


def made(net, loss):
    x = torch.randn(4, 4)
    return potluck.Model.from_torch(net, x, loss=loss, example_targets=x)


def nested(rng, numbers):
    """The numbers in some holders, and how to get them out again."""
    ways = []
    for name in rng.sample(sorted(HOLDERS), rng.randint(1, 7)):
        hold, get = HOLDERS[name]
        numbers = hold(numbers)
        ways.insert(0, get)
    return numbers, ways


@pytest.mark.few(6)
@pytest.mark.parametrize("where", ["module", "loss"])
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_held_deep_inside_is_not_changed_without_a_word(where, kind, seed):
    make, change = NUMBERS[kind]
    config, ways = nested(random.Random(f"{kind} {seed}"), make())
    net, loss = Net(), Loss()
    owner = net if where == "module" else loss
    owner.config = config
    model = made(net, loss)
    model.check_as_traced(train=True)
    held = owner.config  # torch's exporter puts copies of lists and mappings there
    for way in ways:
        held = way(held)
    change(held)
    with pytest.raises(ModelError, match=rf"the {where} was changed.*config is another one now"):
        model.check_as_traced(train=True)


def test_what_a_tool_notes_for_itself_is_no_change():
    tool = logging.getLogger("potluck.tests.change_detection")
    model = made(Net(tool), Loss())
    tool.addFilter(lambda record: True)
    model.check_as_traced(train=True)


def test_what_holds_itself_is_looked_into_once():
    inner = Plain(1.0)
    inner.again = Plain(inner)
    model = made(Net(inner), Loss())
    model.check_as_traced(train=True)
    inner.again.more = 2.0
    with pytest.raises(ModelError, match="config is another one now"):
        model.check_as_traced(train=True)
