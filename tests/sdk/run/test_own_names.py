"""What a user finds after training: the module's state by its own names, and the weights of the
loss in the loss.
"""

import copy
from collections import OrderedDict

import pytest
from tests.sdk.run.conftest import make_plan

import potluck

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
BATCH, ROWS = 8, 24


class Scored(nn.Module):
    """A loss that learns: a temperature, and a weight for each class."""

    def __init__(self):
        super().__init__()
        self.temperature, self.bias = nn.Parameter(torch.tensor(1.5)), nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, output, target):
        return nn.functional.cross_entropy(
            self.bias(output * self.scale) / self.temperature, target
        )


class Odd(nn.Module):
    """With tied weights, a constant in forward, a buffer that is not saved, and a layer that nobody
    calls.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)
        self.never = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        x = torch.tanh(self.norm(self.second(torch.tanh(self.first(x)))))
        return self.head(x) * self.hidden + torch.tensor([1.0, 0.0, 2.0, 0.0])


def make():
    torch.manual_seed(0)
    net, loss = Odd(), Scored()
    x, y = torch.randn(ROWS, 8), torch.randint(0, 4, (ROWS,))
    return net, loss, potluck.Model.from_torch(net, x[:6], loss=loss, example_targets=y[:6]), x, y


def train_alone(net, loss, x, y):
    optimizer = torch.optim.AdamW([*net.parameters(), *loss.parameters()], 0.01)
    for start in range(0, ROWS, BATCH):
        loss(net(x[start : start + BATCH]), y[start : start + BATCH]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, loss


def trained(home, model, x, y, *stages):
    run = home.deploy(
        make_plan(model, *stages, micro_batch=BATCH), model, optimizer=potluck.AdamW(0.01)
    ).wait()
    run.fit((x, y)).wait()
    return run


def check_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=1e-5), name


@pytest.mark.few(1)
@pytest.mark.parametrize("stages", [[((A,), (8,))], [((A,), (8,)), ((B,), (8,))]])
def test_the_model_and_the_loss_get_their_weights_back(home, stages):
    net, loss, model, x, y = make()
    before = copy.deepcopy(loss.state_dict())
    alone, alone_loss = train_alone(copy.deepcopy(net), copy.deepcopy(loss), x, y)
    run = trained(home, model, x, y, *stages)
    check_same(run.state_dict(), alone.state_dict())
    fresh = Odd()
    fresh.load_state_dict(run.state_dict(), strict=True)
    other = Odd()
    run.load_into(other)
    check_same(other.state_dict(), alone.state_dict())
    check_same(loss.state_dict(), before)  # the weights of another module are no reason to touch it
    run.load_into(net)
    check_same(net.state_dict(), alone.state_dict())
    check_same(loss.state_dict(), alone_loss.state_dict())
    with torch.no_grad():
        assert torch.allclose(run(x), net.eval()(x), atol=1e-5)
    run.close()


@pytest.mark.long
def test_a_saved_run_goes_on_with_what_its_loss_had_learned(home, tmp_path):
    net, loss, model, x, y = make()
    alone, alone_loss = copy.deepcopy(net), copy.deepcopy(loss)
    run = trained(home, model, x, y, ((A,), (8,)))
    run.save(tmp_path / "saved")
    losses = run.fit((x, y)).wait().losses
    run.close()
    resumed = home.deploy(
        make_plan(model, ((B,), (8,)), micro_batch=BATCH), model, resume=tmp_path / "saved"
    ).wait()
    assert resumed.fit((x, y)).wait().losses == pytest.approx(losses, rel=1e-6)
    resumed.load_into()
    optimizer = torch.optim.AdamW([*alone.parameters(), *alone_loss.parameters()], 0.01)
    for start in [*range(0, ROWS, BATCH)] * 2:
        alone_loss(alone(x[start : start + BATCH]), y[start : start + BATCH]).backward()
        optimizer.step()
        optimizer.zero_grad()
    check_same(loss.state_dict(), alone_loss.state_dict())
    resumed.close()


class Holds(nn.Module):
    """A loss that has the network itself as a part: its weights go by two names."""

    def __init__(self, net):
        super().__init__()
        self.net, self.rate = net, nn.Parameter(torch.tensor(0.5))

    def forward(self, output, target):
        return (
            nn.functional.cross_entropy(output, target)
            + self.rate.sigmoid() * self.net.head.weight.pow(2).mean()
        )


@pytest.mark.long
def test_weights_that_the_loss_holds_too_are_one_and_the_same(home):
    net, _, _, x, y = make()
    loss = Holds(net)
    model = potluck.Model.from_torch(net, x[:6], loss=loss, example_targets=y[:6])
    alone_loss = copy.deepcopy(loss)
    alone = alone_loss.net
    run = trained(home, model, x, y, ((A,), (8,)))
    optimizer = torch.optim.AdamW(alone_loss.parameters(), 0.01)
    for start in range(0, ROWS, BATCH):
        alone_loss(alone(x[start : start + BATCH]), y[start : start + BATCH]).backward()
        optimizer.step()
        optimizer.zero_grad()
    check_same(run.state_dict(), alone.state_dict())
    with torch.no_grad():
        assert torch.allclose(run(x), alone.eval()(x), atol=1e-5)
    run.load_into()
    check_same(loss.state_dict(), alone_loss.state_dict())
    run.close()


@pytest.mark.long
def test_a_run_that_only_answers_has_the_names_of_the_module(home):
    net, _, model, _, _ = make()
    run = home.deploy(
        make_plan(model, ((A,), (8,)), micro_batch=BATCH, training=False), model
    ).wait()
    check_same(run.state_dict(), net.state_dict())
    run.close()


LONG = ["层" * 60, "层" * 59 + "é", "a" * 300, "a" * 150 + "b" + "a" * 149]
NAMES = ["é", "ü", "a b", "a_b", "a:b", "-a", "_", "_:e9:", "层", *LONG]


class Strange(nn.Module):
    """Parts whose names no device would take."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(8, 8) for name in NAMES})
        self.add_module("é", nn.Linear(8, 4))

    def forward(self, x):
        for part in self.parts.values():
            x = x + torch.tanh(part(x))
        return self._modules["é"](x)


def test_parts_of_long_names_are_told_apart_and_deployed(home):
    """Their names come with those of segments, devices and what an optimizer keeps."""
    torch.manual_seed(0)
    net = nn.Sequential(OrderedDict((name, nn.Linear(8, 8)) for name in LONG))
    x, y = torch.randn(BATCH, 8), torch.randint(0, 8, (BATCH,))
    model = potluck.Model.from_torch(net, x, loss=nn.CrossEntropyLoss(), example_targets=y)
    run = trained(home, model, x, y, ((A,), (8,)), ((B,), (8,)))
    alone = train_once(copy.deepcopy(net), x, y)
    check_same(run.state_dict(), alone.state_dict())
    run.close()


def train_once(net, x, y):
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    return net


@pytest.mark.long
def test_parts_of_any_name_are_told_apart(home, tmp_path):
    torch.manual_seed(0)
    net = Strange()
    x = torch.randn(BATCH, 8)
    y = torch.randint(0, 4, (BATCH,))
    alone = copy.deepcopy(net)
    loss = nn.functional.cross_entropy
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    plan = make_plan(model, ((A, B), (5, 3)), ((B,), (8,)), micro_batch=BATCH)
    run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
    run.fit([(x, y)] * 3).wait()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(alone(x), y).backward()
        optimizer.step()
    state = run.state_dict()
    assert state.keys() == alone.state_dict().keys()
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(state[name], tensor, atol=1e-6), name
    run.save(tmp_path / "run")
    run.close()
    run = home.deploy(plan, model, resume=tmp_path / "run").wait()
    assert torch.allclose(run(x), alone(x), atol=1e-5)
    run.close()
