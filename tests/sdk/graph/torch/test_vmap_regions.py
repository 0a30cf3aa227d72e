"""Functions under torch.vmap are written out as what they come down to, or refused in words."""

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")

ROWS, WIDTH = 4, 5


class Net(torch.nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = torch.nn.Linear(WIDTH, WIDTH), function
        self.last = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.last(self.function(self.layer(x)))


def causal(x):
    """Attention whose mask is made index by index, as transformers does."""

    def sees(row, query, key):
        return (query >= key) & (key > query - 3)

    every = torch.vmap(sees, in_dims=(None, None, 0))
    every = torch.vmap(every, in_dims=(None, 0, None))
    every = torch.vmap(every, in_dims=(0, None, None))
    places = torch.arange(WIDTH)
    mask = every(torch.arange(x.shape[0]), places, places)
    scores = x.unsqueeze(2) * x.unsqueeze(1)
    return scores.masked_fill(~mask, -1e9).softmax(-1).sum(1)


def by_rows(x):
    return torch.vmap(lambda row: row * row.sum() + row.roll(1, 0))(x)


def by_columns(x):
    return torch.vmap(torch.tanh, in_dims=1, out_dims=1)(x)


def with_constants(x):
    """What the function makes is the same for all rows."""
    scale = x.sum(1, keepdim=True)
    return torch.vmap(lambda y, by: y * by * torch.arange(WIDTH))(x, scale)


def twice(x):
    return by_rows(by_rows(x).tanh())


def in_place(x):
    def changed(row):
        made = row.clone()
        made += 1.0
        return made * row

    return torch.vmap(changed)(x)


@pytest.mark.long
@pytest.mark.parametrize("function", [causal, by_rows, by_columns, with_constants, twice, in_place])
def test_a_function_under_vmap_gives_what_it_gives_on_one_machine(function, home):
    torch.manual_seed(0)
    net = Net(function)
    x = torch.randn(ROWS, WIDTH)
    y = torch.randn(ROWS, WIDTH)
    loss_of = torch.nn.functional.mse_loss
    model = potluck.Model.from_torch(net, x, loss=loss_of, example_targets=y)
    stages = [((device,), (ROWS,)) for device in ("local-1", "local-2")]
    run = home.deploy(make_plan(model, *stages, micro_batch=ROWS, training=False), model).wait()
    got = run(x)
    run.close()
    assert torch.allclose(got, net(x), atol=1e-6)
    plan = make_plan(model, *stages, micro_batch=ROWS)
    run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
    losses = run.fit((x, y), epochs=2).wait().losses
    run.close()
    assert losses == pytest.approx(_trained(net, x, y), rel=1e-5)


def _trained(net, x, y):
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
    for _ in range(2):
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.long
def test_rows_that_vmap_mixes_are_refused():
    def mixed(x):
        return torch.vmap(lambda column: column * column.sum())(x.T).T

    with pytest.raises(ModelError, match="does not hold one result for each row"):
        potluck.Model.from_torch(Net(mixed), torch.randn(ROWS, WIDTH))


def test_a_function_that_cannot_be_written_out_is_refused_in_words():
    def drawn(x):
        return torch.vmap(lambda row: row + torch.rand(WIDTH), randomness="different")(x)

    with pytest.raises(ModelError, match=r"random|torch\.vmap could not be written out"):
        potluck.Model.from_torch(Net(drawn), torch.randn(ROWS, WIDTH))
