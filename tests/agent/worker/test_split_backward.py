"""A backward in two parts gives the bits of the whole, computes nothing twice, and keeps in between
only what the second part needs.
"""

from functools import cache

import pytest
import torch
from tests.agent.worker.test_memory import ADAMW, NETWORKS, ROWS, graph_of
from tests.agent.worker.test_recomputation import CASES, bits, state
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import potluck
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.graph import SegmentError
from potluck_wire.weight_gradients import weights_apart

SIZES = (3, 5, 2)  # micro-batches, all under way at once
WHOLE = "whole"
PARTS = "parts"
AGAIN = "parts, of a forward computed again"


class Net(nn.Module):
    """`does` to its weights, of an 8 by 8 matrix, a vector of 8 and a table, and its input."""

    def __init__(self, does, *parts):
        super().__init__()
        self.parts, self.does = nn.ModuleList(parts), does
        self.w = nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8))
        self.b = nn.Parameter(torch.linspace(1, 2, 8))

    def forward(self, x):
        return self.does(self, x)


def _part(*parts):
    return Net(lambda net, x: net.parts[-1](torch.tanh(net.parts[0](x))), *parts)


def _recurrent(net, x):
    return net.parts[0](x)[0]


ROW = (8,)
IMAGE = (4, 6, 6)
SEQUENCE = (5, 8)
# name -> (network, shape of a row of its input, whether it has weights that wait)
DOES = {
    "linear": (_part(nn.Linear(8, 8), nn.Linear(8, 3)), ROW, True),
    "linear of sequences": (_part(nn.Linear(8, 8), nn.Linear(8, 3)), SEQUENCE, True),
    "conv1d": (_part(nn.Conv1d(5, 6, 3), nn.Conv1d(6, 2, 2, bias=False)), SEQUENCE, True),
    "conv2d": (_part(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 3, padding="same")), IMAGE, True),
    "conv2d in groups": (_part(nn.Conv2d(4, 8, 3, groups=4), nn.Conv2d(8, 2, 1)), IMAGE, True),
    "conv transposed": (_part(nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 3, 2)), IMAGE, True),
    "matmul": (Net(lambda net, x: torch.tanh(x @ net.w) @ net.w.t()), ROW, True),
    "matmul from the left": (Net(lambda net, x: net.w[:5, :5] @ x), SEQUENCE, True),
    "mm": (Net(lambda net, x: torch.mm(torch.mm(x, net.w), net.w)), ROW, True),
    "addmm": (Net(lambda net, x: torch.addmm(net.b, x.relu(), net.w)), ROW, True),
    "a bias used elsewhere": (
        Net(lambda net, x: torch.addmm(net.b, x, net.w) * net.b),
        ROW,
        False,
    ),
    "a scaled weight": (Net(lambda net, x: functional.linear(x, net.w * net.b.exp())), ROW, True),
    "a normalised weight": (
        Net(lambda net, x: functional.linear(x, net.w / net.w.norm(dim=1, keepdim=True))),
        ROW,
        True,
    ),
    "low rank": (
        Net(lambda net, x: functional.linear(x, net.w + net.w[:, :2] @ net.w[:2])),
        ROW,
        True,
    ),
    "a weight used thrice": (
        Net(lambda net, x: torch.tanh(torch.tanh(x @ net.w) @ net.w) @ net.w),
        ROW,
        True,
    ),
    "a weight that also scales": (Net(lambda net, x: (x @ net.w) * net.w[0]), ROW, False),
    "a residual": (Net(lambda net, x: x + torch.relu(x @ net.w) + x @ net.w * 2), ROW, True),
    "einsum": (Net(lambda net, x: torch.einsum("ri,ij->rj", x, net.w)), ROW, False),
    "batch norm": (_part(nn.Linear(8, 8), nn.BatchNorm1d(8)), ROW, True),
    "layer norm": (_part(nn.LayerNorm(8), nn.Linear(8, 4)), SEQUENCE, True),
    "group norm": (_part(nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3)), IMAGE, True),
    "prelu": (_part(nn.PReLU(), nn.Linear(8, 4)), ROW, True),
    "lstm": (Net(_recurrent, nn.LSTM(8, 4, batch_first=True)), SEQUENCE, False),
    "gru": (Net(_recurrent, nn.GRU(8, 4, batch_first=True)), SEQUENCE, False),
    "autocast": (_part(nn.Linear(8, 8), nn.Linear(8, 4)), ROW, True),
    "frozen": (_part(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 4)), ROW, True),
    "a shifted input": (Net(lambda net, x: functional.linear(x + net.b, net.w)), ROW, True),
    "a joined token": (
        Net(lambda net, x: torch.cat([net.b.expand(x.shape[0], 1, 8), x], 1) @ net.w),
        SEQUENCE,
        True,
    ),
}  # fmt: skip


def squares(y, t):
    return (y.float().flatten(1).mean(1) - t).square().mean()


@cache
def graph_doing(name):
    net, shape, _ = DOES[name]
    torch.manual_seed(1)
    model = potluck.Model.from_torch(
        net,
        torch.randn(ROWS, *shape),
        loss=squares,
        example_targets=torch.randn(ROWS),
        autocast="bfloat16" if name == "autocast" else None,
    )
    return model.segment(0, len(model.layers(True)), train=True)[1]


def trained(graph, way, inputs_of=None, seed=7):
    """Losses, gradients and state after two steps; the second parts come late, in order."""
    torch.manual_seed(3)
    made, seen = TrainingSegment(graph, seed), []
    for step in range(2):
        for m, rows in enumerate(SIZES):
            seen += made.forward(
                made.example(rows),
                key=f"{m}",
                train=True,
                rows=(0, rows, rows),
                step=step,
                micro_batch=m,
                split=way != WHOLE,
                recompute=way == AGAIN,
            )
        for m, rows in enumerate(SIZES):
            scale = rows / sum(SIZES)
            backward = made.backward if way == WHOLE else made.backward_input
            seen += [g.clone() for g in backward(f"{m}", scale=scale)]
            if way != WHOLE and m:
                made.backward_weight(f"{m - 1}")
        if way != WHOLE:
            made.backward_weight(f"{m}")
        seen.append(made.gradients())
        made.step(None, ADAMW)
    return [bits(x) for x in seen], {name: bits(x) for name, x in state(made).items()}


@pytest.mark.long
@pytest.mark.parametrize("way", [PARTS, AGAIN])
@pytest.mark.parametrize("name", DOES)
def test_two_parts_give_the_bits_of_the_whole(name, way):
    graph = graph_doing(name)
    assert trained(graph, way) == trained(graph, WHOLE)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", [PARTS, AGAIN])
@pytest.mark.parametrize("name", CASES)
def test_two_parts_of_a_network_give_the_bits_of_the_whole(name, way):
    graph = graph_of(CASES[name])
    assert trained(graph, way) == trained(graph, WHOLE)


@pytest.mark.long
@pytest.mark.parametrize("name", DOES)
def test_a_weight_waits_where_all_its_uses_can(name):
    assert bool(weights_apart(graph_doing(name)).data) is DOES[name][2]


def counted(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["linear", "conv2d", "matmul", "low rank", "a residual"])
def test_nothing_is_computed_twice(name):
    graph = graph_doing(name)

    def flop(*parts):
        made = TrainingSegment(graph)
        made.forward(made.example(ROWS), key="k", train=True, split=len(parts) > 1)
        return sum(counted(lambda part=part: getattr(made, part)("k")) for part in parts)

    assert flop("backward_input", "backward_weight") == flop("backward")


def test_a_stage_in_the_middle_hands_the_gradient_out_first():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(ROWS, 8)
    model = potluck.Model.from_torch(
        net, x, loss=nn.CrossEntropyLoss(), example_targets=torch.zeros(ROWS, dtype=torch.long)
    )
    n = len(model.layers(True))
    made = TrainingSegment(model.segment(1, n - 1 if n > 2 else n, train=True)[1])
    (inputs,) = made.example(ROWS)
    outputs = made.forward([inputs], key="k", train=True, split=True)
    gradients = [torch.ones_like(y) for y in outputs]
    (dx,) = made.backward_input("k", gradients)
    assert dx.abs().sum() > 0
    assert not made.gradients().any()  # the weights' wait
    made.backward_weight("k")
    assert made.gradients().any()


def test_a_whole_backward_of_a_forward_for_two_parts_is_whole():
    graph = graph_of(NETWORKS["cnn"])
    reference, split = TrainingSegment(graph), TrainingSegment(graph)
    for made, is_split in ((reference, False), (split, True)):
        made.forward(made.example(4), key="k", train=True, rows=(0, 4, 4), split=is_split)
        made.backward("k")
    assert bits(reference.gradients()) == bits(split.gradients())


def test_parts_of_a_forward_that_was_not_split_are_whole_at_the_first():
    made = TrainingSegment(graph_of(NETWORKS["cnn"]))
    made.forward(made.example(4), key="k", train=True, rows=(0, 4, 4))
    made.backward_input("k")
    first = made.gradients().clone()
    made.backward_weight("k")
    assert first.any()
    assert bits(first) == bits(made.gradients())


def test_the_second_part_comes_once_and_after_the_first():
    made = TrainingSegment(graph_of(NETWORKS["cnn"]))
    made.forward(made.example(4), key="k", train=True, rows=(0, 4, 4), split=True)
    with pytest.raises(SegmentError, match="no gradients of weights wait under 'k'"):
        made.backward_weight("k")
    made.backward_input("k")
    made.backward_weight("k")
    for again in (made.backward_input, made.backward_weight):
        with pytest.raises(SegmentError, match="under 'k'"):
            again("k")


def test_what_waits_is_forgotten_with_its_execution():
    made = TrainingSegment(graph_of(NETWORKS["cnn"]))
    made.forward(made.example(4), key="run/k", train=True, rows=(0, 4, 4), split=True)
    made.backward_input("run/k")
    made.forget("run/")
    with pytest.raises(SegmentError, match="no gradients of weights wait"):
        made.backward_weight("run/k")
