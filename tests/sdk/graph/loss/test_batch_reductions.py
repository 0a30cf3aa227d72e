"""However its rows are divided, the loss of a batch is that of one machine.

Weighted means, too, are of all rows.
"""

import copy
from itertools import accumulate, pairwise

import pytest
import torch
from tests.sdk.graph.test_equality import ADAMW, chain_step, loaded
from torch import nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    kl_div,
    mse_loss,
    nll_loss,
    one_hot,
    triplet_margin_loss,
)

from potluck.errors import ModelError
from potluck.graph import Model

ROWS, CLASSES = 8, 5
WEIGHT = torch.tensor([1.0, 0.2, 3.0, 0.0, 2.0], dtype=torch.float64)


class Net(nn.Module):
    """Three places with a score for each class."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(4, 6), nn.Linear(6, 3 * CLASSES)

    def forward(self, x):
        return self.up(torch.tanh(self.down(x))).view(-1, 3, CLASSES)


def labels():
    found = torch.randint(0, CLASSES, (ROWS, 3))
    found[torch.rand(ROWS, 3) < 0.4] = -100
    found[:2] = -100  # a share in which nothing counts
    found[-1] = torch.tensor([0, 1, 2])
    return found


def marks():
    return (torch.rand(ROWS, 3) < 0.5).double()


def noise():
    return torch.rand(ROWS, 3, CLASSES).double()


def scores(y):
    return y.sum(2)


def each(y, labels):
    return cross_entropy(y.transpose(1, 2), labels.clamp(min=0), reduction="none")


def shifted(y, labels):
    """As language models are trained: of each place the label of the next."""
    return cross_entropy(y[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def normalised(y, labels, mask):
    weight = mask / mask.sum()
    return (each(y, labels) * weight).sum()


def balanced(y, marks):
    return binary_cross_entropy_with_logits(
        scores(y), marks, pos_weight=(1 - marks).sum() / marks.sum()
    )


def by_class(y, labels):
    """Each place counts as much as its class is rare."""
    counts = one_hot(labels.clamp(min=0), CLASSES).sum((0, 1)).clamp(min=1)
    return (each(y, labels) / counts[labels.clamp(min=0)]).sum() / CLASSES


class Weighing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", WEIGHT)

    def forward(self, y, labels):
        return nll_loss(y.transpose(1, 2).log_softmax(1), labels, weight=self.weight)


def plain(y, labels, marks, odds):
    """Means over rows as they are: by weights of rows, by odds, by shares of classes."""
    of_rows = (each(y, labels) * marks).mean() + kl_div(
        y.log_softmax(2), odds.softmax(2), reduction="batchmean"
    )
    weighted = nn.BCEWithLogitsLoss(WEIGHT[None, :3, None], pos_weight=WEIGHT)(y, odds)
    return of_rows + weighted + cross_entropy(y[:, 0], odds[:, 0].softmax(1), WEIGHT)


def triplets(y):
    return triplet_margin_loss(y[:, 0], y[:, 1], y[:, 2])


def two_heads(y, labels, others):
    # torch's old word
    return shifted(y, labels) + 0.3 * cross_entropy(y[:, 0], others[:, 0], size_average=True)


# name: (loss, its targets, how many reductions)
LOSSES = {
    "shifted tokens": (shifted, (labels,), 1),
    "all at once": (
        lambda y, t: cross_entropy(
            y.transpose(1, 2), t, WEIGHT, ignore_index=2, label_smoothing=0.1
        ),
        (lambda: labels().abs().remainder(CLASSES),),
        1,
    ),
    "a module's own weights": (Weighing(), (labels,), 1),
    "two heads": (two_heads, (labels, labels), 2),
    "a mask that may be empty": (
        lambda y, t, m: (each(y, t) * m).sum() / m.sum().clamp(min=1),
        (labels, marks),
        1,
    ),
    "means of both": (lambda y, t, m: (each(y, t) * m).mean() / m.mean(), (labels, marks), 1),
    "weights of sum one": (normalised, (labels, marks), 1),
    "balanced marks": (balanced, (marks,), 1),
    "balanced classes": (by_class, (labels,), 1),
    # of a target that is not needed
    "nothing of a mean": (lambda y, t: triplets(y) + 0 * t.mean(), (noise,), 1),
    "nothing of a sum": (lambda y, t: triplets(y) + t.sum() * 0, (noise,), 1),
    "plain means": (plain, (labels, marks, noise), 0),
}
DIVISIONS = {
    "one share": (8,),
    "micro-batches": (4, 4),
    "unequal shares of micro-batches": (1, 3, 2, 2),
}


@pytest.fixture(scope="module", params=LOSSES)
def trained(request):
    """The model, three batches, and what one machine makes of them."""
    loss, targets, n_reductions = LOSSES[request.param]
    torch.manual_seed(0)
    batches = [(torch.randn(ROWS, 4).double(), *(make() for make in targets)) for _ in range(3)]
    net = Net().double()
    model = Model.from_torch(net, batches[0][0], loss=loss, example_targets=batches[0][1:])
    alone, losses = copy.deepcopy(net), []
    optimizer = torch.optim.AdamW(alone.parameters(), lr=ADAMW["lr"])
    for x, *t in batches:
        losses.append(loss(alone(x), *t))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, batches, n_reductions, torch.stack(losses).detach(), alone.state_dict()


@pytest.mark.long
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("shares", DIVISIONS.values(), ids=DIVISIONS)
def test_three_adamw_steps_are_those_of_one_machine(trained, shares, stages):
    model, batches, n_reductions, losses, weights = trained
    n_layers = len(model.layers(True))
    assert n_layers > 1
    bounds = (0, n_layers) if stages == 1 else (0, 1, n_layers)
    segments = [
        loaded(model.segment(a, b, train=True)[1], model.state()) for a, b in pairwise(bounds)
    ]
    for batch, expected in zip(batches, losses, strict=True):
        model.check_inputs(*batch, train=True)
        fed, total = model.fed(*batch), 0.0
        assert len(fed) == len(batch) + n_reductions
        for rows in map(slice, *zip(*pairwise(accumulate(shares, initial=0)), strict=True)):
            share = {name: tensor[rows] for name, tensor in fed.items()}
            frac = (rows.stop - rows.start) / ROWS
            (loss,) = chain_step(segments, share, scale=frac)
            total += loss * frac
        assert torch.allclose(total, expected, rtol=1e-12)
        for segment in segments:
            segment.step(None, ADAMW)
    for segment in segments:
        for name in segment.names():
            if name in weights:
                assert torch.allclose(segment.read(name), weights[name], rtol=0, atol=1e-10), name


def test_a_batch_in_which_nothing_counts_is_answered_as_by_one_machine():
    torch.manual_seed(0)
    net = nn.Linear(4, CLASSES)
    x = torch.randn(4, 4)
    t = torch.tensor([0, 1, 2, 3])
    model = Model.from_torch(net, x, loss=nn.CrossEntropyLoss(), example_targets=t)
    segment = loaded(model.segment(0, len(model.layers(True)), train=True)[1], model.state())
    nothing = torch.full((4,), -100)
    (loss,) = segment.forward(tuple(model.fed(x, nothing).values()), key="k", train=True)
    segment.backward("k")
    expected = cross_entropy(net(x), nothing)
    expected.backward()
    assert torch.allclose(loss, expected.detach(), equal_nan=True)
    alone = torch.cat([net.weight.grad.flatten(), net.bias.grad])
    assert torch.equal(segment.gradients(), alone)


def test_what_cannot_be_divided_is_refused():
    def loss(y, t):  # of all rows, and of the output
        return mse_loss(y, t) + (y - y.mean(0)).square().mean()

    torch.manual_seed(0)
    with pytest.raises(ModelError, match=r"no mean over rows.*divided by"):
        Model.from_torch(
            nn.Linear(3, 3), torch.randn(4, 3), loss=loss, example_targets=torch.rand(4, 3)
        )


def test_zeros_as_an_example_of_a_mask_do_not_mislead():
    net = nn.Linear(3, 3)
    x = torch.randn(4, 3)
    t = torch.randn(4, 3)
    model = Model.from_torch(
        net,
        x,
        loss=lambda y, t, m: ((y - t).square() * m).sum() / m.sum().clamp(min=1),
        example_targets=(t, torch.zeros(4, 3)),
    )
    assert model.fed(x, t, torch.ones(4, 3))["reduction"].tolist() == [3.0] * 4
