"""Masks of dropout are a function of the seed, the step, the micro-batch and the row: of no plan,
wherever a value has its rows, and where it has none.
"""

from functools import cache

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
A, B = "local-1", "local-2"
PLANS = {
    "another device": [((B,), (6,))],
    "two stages": [((A,), (6,)), ((B,), (6,))],
    "equal shares": [((A, B), (3, 3))],
    "one row alone": [((A, B), (1, 5))],
    "both": [((A, B), (4, 2)), ((B, A), (5, 1))],
}


class Net(nn.Module):
    """Of a part and what is done with it, between two linear layers."""

    def __init__(self, call, part=None, width=16):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.part = part
        self.last = nn.Linear(width, 4)
        self.call = call

    def forward(self, x):
        return self.last(self.call(self.first(x), self.part))


def outputs(x, part):
    """Of the last place of a sequence."""
    found = part(x.view(-1, 4, 4) if part.batch_first else x.view(-1, 4, 4).transpose(0, 1))[0]
    return found[:, -1] if part.batch_first else found[-1]


def states(x, part):
    """The states of the last layer."""
    last = part(x.view(-1, 4, 4))[1]
    return torch.cat([state[-1] for state in last], 1) if isinstance(part, nn.LSTM) else last[-1]


def attended(x, part, heads_first=False):
    """Attention over four places, with rows of the batch or the heads in the first dimension."""
    p = part.p if part.training else 0.0
    x = x.view(-1, 4, 2, 2).transpose(1, 2)
    x = x.transpose(0, 1) if heads_first else x
    x = functional.scaled_dot_product_attention(x, x, x, dropout_p=p)
    return (x.transpose(0, 1) if heads_first else x).flatten(1)


def without_gradient(x, part):
    with torch.no_grad():
        return part(x)


def sequence_first(x, part):
    return part(x.view(-1, 4, 4).transpose(0, 1)).transpose(0, 1).flatten(1)


def connect(x, part):
    return torch.tanh(functional.linear(x, part[0](part[1].weight), part[1].bias))


def cases(p):
    """Networks by name, with dropout of so much."""
    drop, more = nn.Dropout(p), {"num_layers": 3, "dropout": p}
    linear = nn.Linear(16, 16)
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=p)
    return {
        "rows first": Net(lambda x, part: part(x), drop),
        "LSTM": Net(outputs, nn.LSTM(4, 6, batch_first=True, **more), 6),
        "LSTM, states": Net(states, nn.LSTM(4, 6, batch_first=True, **more), 12),
        "LSTM, both ways, sequence first": Net(
            outputs, nn.LSTM(4, 6, bidirectional=True, **more), 12
        ),
        "LSTM, projected": Net(outputs, nn.LSTM(4, 6, proj_size=5, **more), 5),
        "GRU": Net(outputs, nn.GRU(4, 6, **more), 6),
        "GRU, states": Net(states, nn.GRU(4, 6, batch_first=True, bias=False, **more), 6),
        "encoder, sequence first": Net(sequence_first, encoder),
        "rows in the third dimension": Net(
            lambda x, part: part(x.view(-1, 4, 4).permute(1, 2, 0)).permute(2, 0, 1).flatten(1),
            drop,
        ),
        "heads beside rows": Net(
            lambda x, part: (
                part(x.view(-1, 4, 4).transpose(0, 1).reshape(4, -1, 2))
                .reshape(4, -1, 4)
                .transpose(0, 1)
                .flatten(1)
            ),
            drop,
        ),
        "stacked": Net(lambda x, part: part(torch.stack([x, x.relu()], 0)).sum(0), drop),
        "channels first": Net(
            lambda x, part: part(x.view(-1, 4, 4).transpose(0, 1)).transpose(0, 1).flatten(1),
            nn.Dropout1d(p),
        ),
        "attention": Net(attended, drop),
        "weight": Net(connect, nn.ModuleList([drop, linear])),
        "constant": Net(lambda x, part: x * part(torch.ones(16)), drop),
        "constant with rows": Net(lambda x, part: x * part(torch.ones(x.shape[0], 16)), drop),
        "one for each row": Net(lambda x, part: x * part(x.new_ones(x.shape[0], 1)), drop),
        "in place": Net(
            lambda x, part: part(torch.stack([x, x.relu()], 0)).sum(0), nn.Dropout(p, inplace=True)
        ),
        "without gradient": Net(without_gradient, nn.Sequential(linear, drop)),
    }


@cache
def case(name, p):
    torch.manual_seed(0)
    net = cases(p)[name]
    x, y = torch.randn(12, 8), torch.randint(0, 4, (12,))
    model = potluck.Model.from_torch(
        net, x[:4], loss=functional.cross_entropy, example_targets=y[:4]
    )
    return net, x, y, model


def trained(home, model, data, *stages, seed=5):
    """The losses of four steps, and the weights."""
    plan = make_plan(model, *stages, micro_batch=6, n_micro_batches=2)
    run = home.deploy(plan, model, optimizer=potluck.SGD(0.3), seed=seed).wait()
    losses, state = run.fit(data, epochs=4).wait().losses, run.state_dict()
    run.close()
    return losses, state


@pytest.mark.few(1)
@pytest.mark.parametrize("name", cases(0.5))
def test_masks_are_the_same_whatever_the_plan(home, name):
    _, x, y, model = case(name, 0.5)
    losses, state = trained(home, model, (x, y), ((A,), (6,)))
    assert trained(home, model, (x, y), ((A,), (6,)))[0] == losses
    assert trained(home, model, (x, y), ((A,), (6,)), seed=6)[0] != losses
    for stages in PLANS.values():
        others, weights = trained(home, model, (x, y), *stages)
        assert others == pytest.approx(losses, rel=1e-5)
        for key, tensor in state.items():
            assert torch.allclose(weights[key], tensor, atol=1e-5)


# Where masks are drawn is what the other test tells, in every case; here one of each kind.
DROPPED = ("LSTM", "GRU", "encoder, sequence first", "stacked", "weight", "constant")
ALL_DROPPED = [
    pytest.param(name, marks=[pytest.mark.long] * (name not in DROPPED)) for name in cases(1.0)
]


@pytest.mark.long
@pytest.mark.parametrize("name", ALL_DROPPED)
def test_where_all_is_dropped_training_is_that_of_one_machine(home, name):
    """It is the only dropout that torch itself draws alike."""
    net, x, y, model = case(name, 1.0)
    losses, state = trained(home, model, (x, y), *PLANS["both"])
    optimizer, alone = torch.optim.SGD(net.parameters(), 0.3), []
    for _ in range(4):
        loss = functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        alone.append(loss.item())
    assert losses == pytest.approx(alone, rel=1e-5)
    for key, tensor in net.state_dict().items():
        assert torch.allclose(state[key], tensor, atol=1e-5)


def scattered(x, part):
    """Each row twice, in two places of the first dimension."""
    n_rows = x.shape[0]
    both = part(torch.cat([x, x.relu()]))
    return both[:n_rows] + both[n_rows:]


REFUSED = {
    "scattered rows": (scattered, "of dropout in the module part is of a value in which the rows"),
    "heads before rows": (
        lambda x, part: attended(x, part, heads_first=True),
        "scaled_dot_product_attention is of a value in which the rows",
    ),
    "of a shape alone": (
        lambda x, part: x * part(x.new_ones(16)),
        "of dropout in the module part is shared by all rows",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("call", "what"), REFUSED.values(), ids=REFUSED)
def test_a_mask_that_cannot_be_divided_is_refused_by_name(call, what):
    x, y = torch.randn(5, 8), torch.randint(0, 4, (5,))
    with pytest.raises(ModelError, match=what.replace(" is ", ".* is ")):
        potluck.Model.from_torch(
            Net(call, nn.Dropout()), x, loss=functional.cross_entropy, example_targets=y
        )
    assert potluck.Model.from_torch(
        Net(call, nn.Dropout(0.0).eval()), x, loss=functional.cross_entropy, example_targets=y
    ).trains
