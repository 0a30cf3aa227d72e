"""torch's control flow is written out turn by turn and gives what it gives on one machine, or is
refused by name.
"""

import copy
from importlib import import_module

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn
scan, while_loop = torch._higher_order_ops.scan, torch._higher_order_ops.while_loop
map_over = import_module("torch._higher_order_ops.map").map
ROWS, LENGTH = 4, 5
WIDTH = 6


class Net(nn.Module):
    """A layer, a function of what it gives and of a weight, and a layer."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.register_buffer("is_on", torch.tensor(True))
        self.turns = torch.tensor(3)
        self.function = function

    def forward(self, x):
        return self.last(self.function(self, self.first(x)))


def scanned(net, x, *, dim=1, reverse=False):
    """All states of a recurrent layer of one's own."""

    def step(state, now):
        state = torch.tanh(state @ net.weight + now)
        return state, state.clone()

    start = torch.zeros_like(x[:, 0])
    return scan(step, start, x, dim=dim, reverse=reverse)[1]


def backwards(net, x):
    return scanned(net, x, reverse=True)


def last_of_two(net, x):
    """Two states, two sequences, of which the first entry is the time; the last states alone."""

    def step(states, now):
        low, high = states
        low = low * now["gate"].sigmoid() + now["value"] @ net.weight
        return (low, high + low), now["gate"].sin()

    over = {"gate": x.transpose(0, 1), "value": x.transpose(0, 1).sin()}
    start = (torch.zeros_like(x[:, 0]), torch.ones_like(x[:, 0]))
    (low, high), gates = scan(step, start, over)
    return (low.tanh() * high.tanh())[:, None] + gates.transpose(0, 1)


def within(net, x):
    """A loop in a loop."""

    def inner(state, now):
        return state + now, (state * now).sin()

    def outer(state, now):
        state, parts = scan(inner, state, torch.stack([now, now @ net.weight]))
        return state, parts.sum(0)

    return scan(outer, torch.zeros_like(x[:, 0]), x, dim=1)[1]


def mapped_rows(net, x):
    return map_over(lambda row: (row @ net.weight).cumsum(0).sin(), x)


def mapped_places(net, x):
    """Over a dimension that is always as long."""
    return map_over(lambda at: at @ net.weight, x.transpose(0, 1)).transpose(0, 1)


def counted(net, x):
    def turn(number, state):
        return number + 1, torch.tanh(state @ net.weight) + number

    start = (torch.tensor(0), x)
    return while_loop(lambda number, state: number < 3, turn, start)[1]


def not_at_all(net, x):
    start = (torch.tensor(3), x)
    return while_loop(lambda number, _: number < 3, lambda number, y: (number + 1, y * 2), start)[1]


def chosen(net, x):
    return torch.cond(net.is_on, lambda y: (y @ net.weight).relu(), lambda y: y.tanh(), (x,))


def chosen_loop(net, x):
    return torch.cond(net.is_on, lambda y: counted(net, y), lambda y: scanned(net, y), (x,))


LEARNS = (scanned, backwards, last_of_two, within, mapped_rows, mapped_places)
ANSWERS = (*LEARNS, counted, not_at_all, chosen)


def stages(model, *, training):
    each = [((device,), (ROWS,)) for device in ("local-1", "local-2")]
    return make_plan(model, *each, micro_batch=ROWS, training=training)


@pytest.mark.long
@pytest.mark.parametrize("function", ANSWERS)
def test_answers_are_those_of_one_machine(function, home):
    torch.manual_seed(0)
    net, x = Net(function), torch.randn(3 * ROWS, LENGTH, WIDTH)
    model = potluck.Model.from_torch(net, x[:2])
    assert model.layers()
    run = home.deploy(stages(model, training=False), model).wait()
    assert torch.allclose(run(x), net(x), atol=1e-6)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("function", LEARNS)
def test_training_is_that_of_one_machine(function, home):
    torch.manual_seed(0)
    net = Net(function)
    x, y = torch.randn(2, 2 * ROWS, LENGTH, WIDTH)
    loss = nn.functional.mse_loss
    model = potluck.Model.from_torch(net, x[:2], loss=loss, example_targets=y[:2])
    alone = copy.deepcopy(net)
    run = home.deploy(stages(model, training=True), model, optimizer=potluck.SGD(0.1)).wait()
    losses = run.fit((x, y), epochs=2).wait().losses
    run.close()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    expected = []
    for part in (*range(2), *range(2)):
        rows = slice(part * ROWS, (part + 1) * ROWS)
        value = loss(alone(x[rows]), y[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        expected.append(value.item())
    assert losses == pytest.approx(expected, rel=1e-5)


def by_the_data(net, x):
    start = (x.sum(), x)
    return while_loop(lambda total, _: total < 3, lambda total, y: (total + 1, y * 2), start)[1]


def as_often_as_it_keeps(net, x):
    """A number that its owner may change."""
    start = (torch.tensor(0), x)
    return while_loop(lambda turn, _: turn < net.turns, lambda turn, y: (turn + 1, y * 2), start)[1]


def chosen_by_rows(net, x):
    return torch.cond(x.sum() > 0, lambda y: y.relu(), lambda y: y.tanh(), (x,))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (by_the_data, r"while_loop cannot be sent .*turns must not depend on the data"),
        (as_often_as_it_keeps, "while_loop cannot be sent"),
        (chosen_by_rows, "does not hold one result for each row"),
    ],
)
def test_what_the_data_decide_is_refused(function, text):
    with pytest.raises(ModelError, match=text):
        potluck.Model.from_torch(Net(function), torch.randn(ROWS, LENGTH, WIDTH))


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "text"), [(chosen, "write torch.where"), (counted, "write a loop of Python's")]
)
def test_what_has_other_gradients_written_out_is_refused_in_training(function, text):
    x = torch.randn(ROWS, LENGTH, WIDTH)
    loss = nn.functional.mse_loss
    with pytest.raises(ModelError, match=text):
        potluck.Model.from_torch(Net(function), x, loss=loss, example_targets=x)
