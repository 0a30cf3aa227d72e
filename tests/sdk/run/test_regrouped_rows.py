"""Values at a cut that have several entries for each row of the batch, as heads or windows: devices
pass on all entries of their rows, whatever the shares on both sides.
"""

import copy
from functools import cache

import pytest
from tests.sdk.run.conftest import make_data

import potluck
from potluck.records import Plan, Stage
from potluck_wire.graph import BATCH, evaluate

torch = pytest.importorskip("torch")

A, B = "local-1", "local-2"
UNEQUAL = {  # devices and shares before the cut, and behind it
    "split": (((A,), (6,)), ((B, A), (5, 1))),
    "joined": (((A, B), (1, 5)), ((A,), (6,))),
    "shared anew": (((A, B), (4, 2)), ((A, B), (1, 5))),
}


class Windows(torch.nn.Module):
    """Four pairs of numbers in each row, which two layers take as rows of their own."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.pairs = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))

    def forward(self, x):
        pairs = self.first(x).view(-1, 2)
        for layer in self.pairs:
            pairs = layer(pairs).tanh()
        return self.last(pairs.view(-1, 8))


class Heads(torch.nn.Module):
    """Attention, whose exported form has [rows x heads, length, ...] in the middle."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = torch.nn.Linear(4, 4)

    def forward(self, x):
        words = x.view(-1, 2, 4)
        return self.last(self.attention(words, words, words)[0][:, -1])


def made(kind):
    net, model = traced(kind)
    return copy.deepcopy(net), model


@cache
def traced(kind):
    torch.manual_seed(0)
    net, (x, y) = kind(), make_data("mlp", 4)
    return net, potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )


def regrouped(model, train):
    """Where layers may be cut, and values cross that have several entries for each row."""
    found = []
    for cut in range(1, len(model.layers(train))):
        segment, _ = model.segment(0, cut, train=train)
        if any(tensor.multiple > 1 for tensor in segment.outputs):
            found.append(cut)
    return found


def plan_of(model, cut, stages, *, training):
    bounds = (0, cut, len(model.layers(training)))
    return Plan(
        planner="by hand",
        model="test",
        micro_batch=6,
        n_micro_batches=2 if training else 1,
        training=training,
        stages=tuple(
            Stage(start=bounds[p], stop=bounds[p + 1], devices=devices, shares=shares)
            for p, (devices, shares) in enumerate(stages)
        ),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [Windows, Heads])
@pytest.mark.parametrize("train", [True, False])
def test_a_segments_record_counts_the_entries_of_a_row(kind, train):
    _, model = made(kind)
    assert regrouped(model, train)
    for cut in range(1, len(model.layers(train))):
        segment, graph = model.segment(0, cut, train=train)
        for tensor, port in zip(segment.outputs, graph.outputs, strict=True):
            assert evaluate(port.shape[0], {BATCH: 7}) == 7 * tensor.multiple


@pytest.mark.few(1)
@pytest.mark.parametrize("shares", UNEQUAL)
@pytest.mark.parametrize("kind", [Windows, Heads])
def test_training_is_that_of_one_machine_at_every_such_cut(home, kind, shares):
    net, model = made(kind)
    x, y = make_data("mlp", 12)
    alone = copy.deepcopy(net)
    optimizer, expected = torch.optim.SGD(alone.parameters(), 0.1), []
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(alone(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    for cut in regrouped(model, True):
        plan = plan_of(model, cut, UNEQUAL[shares], training=True)
        run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
        assert run.fit([(x, y)] * 2).wait().losses == pytest.approx(expected, abs=1e-6)
        for name, tensor in run.state_dict().items():
            assert torch.allclose(tensor, alone.state_dict()[name], atol=1e-5), name
        run.close()


@pytest.mark.long
@pytest.mark.parametrize("shares", UNEQUAL)
@pytest.mark.parametrize("kind", [Windows, Heads])
def test_answers_are_those_of_one_machine_at_every_such_cut(home, kind, shares):
    net, model = made(kind)
    x, _ = make_data("mlp", 7)
    with torch.no_grad():
        expected = net.eval()(x)
    for cut in regrouped(model, False):
        plan = plan_of(model, cut, UNEQUAL[shares], training=False)
        run = home.deploy(plan, model).wait()
        assert torch.allclose(run(x), expected, atol=1e-6)
        run.close()
