"""Means over the values that count: taken whatever the example's targets are, and trained as on one
machine, though each micro-batch counts another number.
"""

import copy

import pytest
from tests.sdk.run.conftest import make_plan

import potluck

torch = pytest.importorskip("torch")
mse_loss, l1_loss = torch.nn.functional.mse_loss, torch.nn.functional.l1_loss

LR = 0.05
EXAMPLES = {"none counts": -1.0, "all count": 1.0}


def plain(y, t):
    counted = t > 0
    return ((y - t).abs() * counted).sum() / counted.sum().clamp(min=1)


def beside_a_mean(y, t):
    return mse_loss(y, t) + 0.5 * plain(y, t)


def of_two_masks(y, t):
    other = (t > 9).double()
    return plain(y, t) + ((y - t).square() * other).sum() / (other.sum() + 1e-6)


def with_a_least_value(y, t):
    count = (t > 0).sum()
    counted = torch.where(count > 0, count, torch.ones_like(count))
    return l1_loss(y, t) + ((y - t).abs() * (t > 0)).sum() / torch.maximum(counted, torch.tensor(2))


def by_columns(y, t):
    counted = (t > 0).double()
    of_each = ((y - t).abs() * counted).sum(0) / counted.sum(0).clamp(min=1)
    return mse_loss(y, t) + of_each.mean()


def weighed_by_rarity(y, t):
    counted = (t > 0).double()
    rarity = (1 - counted).sum() / counted.sum().clamp(min=1)
    return ((y - t).square() * (1 + counted * rarity)).mean()


def times_a_part(y, t):
    return ((y - t).square() * (t > 0)).sum() * (1 / (t > 0).sum().clamp(min=1))


def where_any_counts(y, t):
    any_counts = ((t > 0).sum() > 0).double()
    return mse_loss(y, t) * (1 + any_counts)


LOSSES = [
    *(plain, beside_a_mean, of_two_masks, with_a_least_value),
    *(by_columns, weighed_by_rarity, times_a_part, where_any_counts),
]


def targets(rows, how_many):
    """Random ones, of which few, or none, count."""
    t = -torch.rand(rows, 4, dtype=torch.float64)
    t.view(-1)[:how_many] *= -20
    return t


@pytest.mark.few(2)
@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_masked_mean_is_that_of_the_whole_batch_whatever_the_example_counts(home, loss, example):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    net = net.double()
    batches = [
        (torch.randn(n, 6, dtype=torch.float64), targets(n, k))
        for n, k in ((8, 5), (7, 0), (11, 1), (8, 32))
    ]
    first = torch.rand(4, 4, dtype=torch.float64) * EXAMPLES[example]
    model = potluck.Model.from_torch(net, batches[0][0][:4], loss=loss, example_targets=first)
    plan = make_plan(
        model,
        (("local-1", "local-2"), (3, 1)),
        (("local-2",), (4,)),
        micro_batch=4,
        n_micro_batches=2,
    )
    run = home.deploy(plan, model, optimizer=potluck.SGD(LR)).wait()
    history, state = run.fit(batches).wait(), run.state_dict()
    run.close()
    alone = copy.deepcopy(net)
    optimizer, losses = torch.optim.SGD(alone.parameters(), LR), []
    for x, t in batches:
        optimizer.zero_grad()
        expected = loss(alone(x), t)
        expected.backward()
        optimizer.step()
        losses.append(expected.item())
    assert history.losses == pytest.approx(losses, rel=1e-12)
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-10, atol=1e-12)
