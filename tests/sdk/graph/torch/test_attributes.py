"""A module whose attributes change with each call is refused, wherever it keeps what changes; what
it only keeps is no reason.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from potluck.errors import ModelError
from potluck.graph import Model

X, T = torch.randn(4, 8), torch.randn(4, 4)


class Box:
    """An object with an attribute."""

    k = 0


@dataclass(slots=True)
class Slotted:
    k: int = 0


class Net(nn.Module):
    def __init__(self, held, step):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.m = held
        self.step = step

    def forward(self, x):
        return self.linear(x) * self.step(self)


def replaced(self):
    self.m = self.m + 1
    return self.m


def in_place(self):
    self.m.add_(1)
    return self.m.clone()


def made_first(self):
    self.m = torch.ones(4) if self.m is None else self.m * 1.5
    return self.m


def of_dict(self):
    self.m["k"] = self.m["k"] + 1
    return self.m["k"]


def of_dict_of_dicts(self):
    self.m["k"]["l"] = self.m["k"]["l"] + 1
    return self.m["k"]["l"]


def of_object(self):
    self.m.k += 1
    return self.m.k


def of_list(self):
    self.m[0] = self.m[0] + 1
    return self.m[0]


def appended(self):
    self.m.append(1)
    return len(self.m)


def added(self):
    self.m.add(len(self.m))
    return len(self.m)


def of_array(self):
    self.m += 1
    return float(self.m[0])


def turned(self):
    self.m = None if self.m else "on"
    return 1.0 if self.m else 2.0


def box_of(held):
    box = Box()
    box.k = held
    return box


CHANGING = {
    "a number": (lambda: 0, replaced, "m"),
    "a tensor": (lambda: torch.zeros(4), replaced, "m"),
    "a tensor in place": (lambda: torch.zeros(4), in_place, "m"),
    "a tensor made by the first call": (lambda: None, made_first, "m"),
    "an entry": (lambda: {"k": 0}, of_dict, r"m\['k'\]"),
    "an entry that is a tensor": (lambda: {"k": torch.zeros(4)}, of_dict, r"m\['k'\]"),
    "an entry of an entry": (lambda: {"k": {"l": 0}}, of_dict_of_dicts, r"m\['k'\]\['l'\]"),
    "an attribute of an attribute": (Box, of_object, r"m\.k"),
    "a tensor of an attribute": (lambda: box_of(torch.zeros(4)), of_object, r"m\.k"),
    "a slot": (Slotted, of_object, r"m\.k"),
    "an item": (lambda: [0], of_list, r"m\[0\]"),
    "an item that is a tensor": (lambda: [torch.zeros(4)], of_list, r"m\[0\]"),
    "a list that grows": (list, appended, r"len\(m\)|m\[\d+\]"),
    "a queue that grows": (deque, appended, r"len\(m\)|m\[\d+\]"),
    "a set that grows": (set, added, r"len\(m\)"),
    "an array": (lambda: np.zeros(1), of_array, "m"),
    "on and off": (lambda: None, turned, "m"),
}


@pytest.mark.long
@pytest.mark.parametrize("with_loss", [False, True])
@pytest.mark.parametrize(("held", "step", "path"), CHANGING.values(), ids=CHANGING)
@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_what_each_call_changes_is_refused_by_name(held, step, path, with_loss):
    more = {"loss": mse_loss, "example_targets": T} if with_loss else {}
    says = rf"each call changes its attribute {path}(,| )|changes a tensor in place"
    with pytest.raises(ModelError, match=says):
        Model.from_torch(Net(held(), step), X, **more)
    with pytest.raises(ModelError, match=r"attribute (len\()?0\.m|changes a tensor in place"):
        Model.from_torch(nn.Sequential(Net(held(), step)), X, **more)


def counted(self):
    self.m = self.linear.weight
    return 1.0


def kept(self):
    if "table" not in self.m:
        self.m["table"] = 4
    return self.m["table"]


def overwritten(self):
    self.m = [0, "a", None, {"k": float("nan")}]
    return 1.0


def renewed(self):
    self.m = torch.full((4,), float("nan"))
    return 1.0


KEEPING = {
    "what the first call found": (dict, kept),
    "the same again": (list, overwritten),
    "a tensor of the same values": (lambda: None, renewed),
    "a weight": (lambda: None, counted),
    "itself": (lambda: box_of([]), lambda self: setattr(self.m, "k", self.m) or 1.0),
    "the module": (lambda: None, lambda self: setattr(self.m or Box(), "k", self) or 1.0),
    "code": (lambda: [torch.relu, np, Box, lambda: 1], lambda self: 1.0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize(("held", "step"), KEEPING.values(), ids=KEEPING)
@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_what_is_only_kept_is_taken(held, step):
    net = Net(held(), step)
    model = Model.from_torch(net, X, loss=mse_loss, example_targets=T)
    assert model.trains


def test_what_a_loss_keeps_counts_too():
    class Loss:
        k = 0

        def __call__(self, y, t):
            self.k += 1
            return mse_loss(y, t) * self.k

    with pytest.raises(ModelError, match=r"each call changes its attribute loss\.k"):
        Model.from_torch(nn.Linear(8, 4), X, loss=Loss(), example_targets=T)
