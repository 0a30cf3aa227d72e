"""Training with int8 between layers, gradients too: the same wherever a plan cuts, and that of one
machine with the roundings written in.
"""

import copy
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.sdk.graph.models import CASES
from tests.sdk.graph.partition.test_branched_equality import Woven
from tests.sdk.graph.test_equality import chain_step, loaded
from tests.sdk.run.conftest import make_plan
from torch import nn

from potluck import SGD
from potluck.graph import Model
from potluck.testing.memory import memory_home
from potluck_wire.graph import node_refs

LEAST = 1e-30


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def nearest(x):
    """A scale for each row, and for each token or channel: written anew for these tests."""
    n_leading = 1 if x.dim() < 3 else 2
    over = tuple(range(n_leading, x.dim()))
    scale = (x.abs().amax(over, keepdim=True) / 127).clamp_min(LEAST)
    return (x / scale).round() * scale


class Nearest(torch.autograd.Function):
    """Rounds, and rounds the gradient in the same way."""

    @staticmethod
    def forward(ctx, x):
        return nearest(x)

    @staticmethod
    def backward(ctx, gradient):
        return nearest(gradient)


class Rounded(nn.Module):
    def forward(self, x):
        return Nearest.apply(x)


def trained(by_hand, loss, batches, optimizer):
    losses = []
    for x, y in batches:
        value = loss(by_hand(x), y)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 6)], ids=["rows", "tokens"])
def test_training_is_that_of_a_module_with_the_roundings_written_in(shape):
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)]
    x, y = torch.randn(shape), torch.randn(shape)
    loss = nn.MSELoss()
    net = nn.Sequential(*copy.deepcopy(layers))
    made = Model.from_torch(net, x, loss=loss, example_targets=y).rounded("int8")
    by_hand = nn.Sequential(*(part for layer in layers for part in (layer, Rounded())))[:-1]
    segment = loaded(made.segment(0, len(made.layers(True)), train=True)[1], made.state())
    optimizer, losses = torch.optim.SGD(by_hand.parameters(), lr=0.1), []
    for _ in range(5):
        (got,) = segment.forward(tuple(made.fed(x, y).values()), key="k", train=True)
        segment.backward("k")
        segment.step(None, {"name": "sgd", "lr": 0.1})
        losses.append(got.item())
    assert losses == trained(by_hand, loss, [(x, y)] * 5, optimizer)
    for name, parameter in zip(made.state(), by_hand.parameters(), strict=True):
        assert torch.equal(segment.read(name), parameter), name


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_the_same_wherever_a_plan_cuts(name):
    case = CASES[name]
    made = Model.from_torch(
        case.make(), case.inputs(4), loss=case.loss, example_targets=case.targets(4)
    ).rounded("int8")
    n, state = len(made.layers(True)), made.state()
    fed = made.fed(case.inputs(5), case.targets(5))
    reached = []
    for bounds in [(0, n), *((0, cut, n) for cut in range(1, n)), tuple(range(n + 1))]:
        parts = [loaded(made.segment(a, b, train=True)[1], state) for a, b in pairwise(bounds)]
        torch.manual_seed(1)
        (loss,) = chain_step(parts, fed)
        for part in parts:
            part.step(None, {"name": "sgd", "lr": 0.1})
        reached.append((loss, {n: part.read(n) for part in parts for n in part.names()}))
    (expected, weights), *others = reached
    for loss, found in others:
        assert torch.equal(loss, expected)
        assert all(torch.equal(found[name], weight) for name, weight in weights.items())


def test_what_crosses_has_one_reader():
    """Gradients that are packed are bits: their sum would be nonsense that nobody notices."""
    for name, case in CASES.items():
        made = Model.from_torch(
            case.make(), case.inputs(4), loss=case.loss, example_targets=case.targets(4)
        ).rounded("int8")
        graph = made.segment(0, len(made.layers(True)), train=True)[1]
        packs = [n for n in graph.nodes if n.op == "potluck.pack_int8.default"]
        reads = [n.args[0] for n in graph.nodes if n.op == "potluck.unpack_int8.default"]
        assert len(reads) == len(set(reads)) == len(packs), name
        values = {graph.first_node + i for i, n in enumerate(graph.nodes) if n in packs}
        assert {ref.value for ref in reads} == values, name
        others = [n for n in graph.nodes if not n.op.startswith("potluck.")]
        assert not values & {r.value for n in others for r in node_refs(n)}, name
        assert not values & {output.ref.value for output in graph.outputs}, name


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_any_plan_of_a_network_with_branches_trains_the_same(seed):
    """Stages, replicas of unequal shares, and micro-batches of a stage's own size."""
    rng = random.Random(seed)
    net, rows = Woven(rng), 8
    data = [torch.randn(rows, 6) for _ in range(net.n_inputs)], torch.randn(rows, 6)
    model = Model.from_torch(net, data[0], loss=nn.MSELoss(), example_targets=data[1], name="w")
    made = model.rounded("int8")
    n = len(made.layers(True))
    reached = []
    with memory_home(3) as home:
        first, second, third = home.devices
        cuts = sorted(rng.sample(range(1, n), 1))
        shapes = (
            [((first,), (4,))],
            [((first,), (4,)), ((second,), (4,))],
            [((first, third), (1, 3)), ((second,), (4,))],
            [((first,), (2,)), ((second, third), (3, 1))],
        )
        for groups in shapes:
            bounds = [0, *cuts, n] if len(groups) > 1 else [0, n]
            plan = make_plan(made, *groups, micro_batch=4, n_micro_batches=2, bounds=bounds)
            run = home.deploy(plan, made, optimizer=SGD(lr=0.1), protect=False).wait()
            losses = run.fit([(tuple(data[0]), data[1])] * 3, adapt=False).wait().losses
            reached.append((losses, run.state_dict()))
            run.close()
    (losses, weights), *others = reached
    largest = max(weight.abs().max() for weight in weights.values())
    for other, found in others:
        # sums in another order may tip an entry over to the next step
        assert other == pytest.approx(losses, rel=1e-2)
        assert all((found[k] - weights[k]).abs().max() <= 0.01 * largest for k in weights)


@pytest.mark.long
def test_it_learns_as_the_unrounded_does():
    layers = [nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 32), nn.Linear(32, 4)]
    net = nn.Sequential(*layers)
    x = torch.randn(64, 8)
    y = (x @ torch.randn(8, 4)).argmax(1)
    model = Model.from_torch(net, x, loss=nn.functional.cross_entropy, example_targets=y)
    ends = []
    for made in (model, model.rounded("int8")):
        segment = loaded(made.segment(0, len(made.layers(True)), train=True)[1], made.state())
        for _ in range(150):
            (loss,) = segment.forward(tuple(made.fed(x, y).values()), key="k", train=True)
            segment.backward("k")
            segment.step(None, {"name": "sgd", "lr": 0.3})
        ends.append(loss.item())
    assert ends[1] < 0.3
    assert abs(ends[1] - ends[0]) < 0.05


def test_values_and_gradients_are_a_quarter_as_large():
    net = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(256, 256), nn.Tanh())))
    x = torch.randn(2, 256)
    model = Model.from_torch(net, x, loss=nn.MSELoss(), example_targets=x)
    made = model.rounded("int8")
    full, small = (
        [layer.output_bytes for layer in each.layers(True)[:-1]] for each in (model, made)
    )
    assert full == [1024, 1024]
    assert small == [256 + 4, 256 + 4]


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_nothing_that_is_not_finite_is_hidden(odd):
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    x[1, 2] = odd
    made = Model.from_torch(net, torch.randn(4, 6), loss=nn.MSELoss(), example_targets=y)
    made = made.rounded("int8")
    segment = loaded(made.segment(0, len(made.layers(True)), train=True)[1], made.state())
    (loss,) = segment.forward(tuple(made.fed(x, y).values()), key="k", train=True)
    assert not loss.isfinite()


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["zb-h1", "fill-drain"])
@pytest.mark.parametrize("recompute", [False, True])
def test_schedules_that_divide_or_repeat_work_learn_the_same(schedule, recompute):
    net = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(6, 6), nn.Tanh())))
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    made = Model.from_torch(net, x, loss=nn.MSELoss(), example_targets=y).rounded("int8")
    reached = []
    with memory_home(2) as home:
        one, two = home.devices
        for groups, how in (([((one,), (4,))], None), ([((one,), (4,)), ((two,), (4,))], schedule)):
            plan = make_plan(made, *groups, micro_batch=4, n_micro_batches=2)
            if how:
                stages = tuple(replace(stage, recompute=recompute) for stage in plan.stages)
                plan = replace(plan, stages=stages)
            run = home.deploy(plan, made, optimizer=SGD(lr=0.1), protect=False, schedule=how).wait()
            losses = run.fit([(x, y)] * 3, adapt=False).wait().losses
            reached.append((losses, run.state_dict()))
            run.close()
    (losses, weights), (other, found) = reached
    assert other == losses
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_a_model_that_trains_so_can_be_divided():
    block = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    net = nn.Sequential(*(copy.deepcopy(block) for _ in range(3)))
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    model = Model.from_torch(net, x, loss=nn.MSELoss(), example_targets=y).rounded("int8")
    reached = []
    for made in (model, model.divided((1, 1))):
        segment = loaded(made.segment(0, len(made.layers(True)), train=True)[1], made.state())
        losses = []
        for _ in range(3):
            (loss,) = segment.forward(tuple(made.fed(x, y).values()), key="k", train=True)
            segment.backward("k")
            segment.step(None, {"name": "sgd", "lr": 0.1})
            losses.append(loss.item())
        reached.append(losses)
    assert reached[1] == pytest.approx(reached[0], rel=1e-2)
