"""What its user froze stays as it is in training: modules in evaluation, and weights without a
gradient.
"""

import copy
from functools import cache

import pytest
from tests.sdk.run.conftest import make_plan, train_alone

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
SHAPES = {
    "one device": [((A,), (4,))],
    "two stages": [((A,), (4,)), ((B,), (4,))],
    "replicated": [((A, B), (3, 1))],
}


class Block(nn.Module):
    """As in ResNet: two normalised convolutions beside what comes in."""

    def __init__(self):
        super().__init__()
        self.first, self.norm_1 = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.second, self.norm_2 = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x):
        h = torch.relu(self.norm_1(self.first(x)))
        return torch.relu(x + self.norm_2(self.second(h)))


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(48, 48)

    def forward(self, x):
        return nn.functional.dropout(self.inner(x), 0.5, self.training)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 8, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x):
        return self.lstm(x.flatten(2))[0][:, -1]


def head(width=48):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 4))


def statistics(net):
    """Running statistics as after some training: not those of these data."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return net


def frozen_norms(trained):
    net = nn.Sequential(Block(), Block(), head())
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval().requires_grad_(trained)
    return net


def backbone():
    net = nn.Sequential(nn.Sequential(Block(), nn.Dropout(), Block(), nn.Dropout2d()), head())
    net[0].eval().requires_grad_(False)
    return net


def only_the_head():
    net = nn.Sequential(Block(), nn.Dropout(), head()).eval()
    net[2].train()
    return net


def one_of_two_dropouts():
    net = nn.Sequential(
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(48, 8), nn.Dropout(0.0), nn.Linear(8, 4)
    )
    net[1].eval()
    return net


def transformer():
    encoder = (
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
        .eval()
        .requires_grad_(False)
    )
    return nn.Sequential(nn.Flatten(2), encoder, head())


FROZEN = {
    "batch norm": lambda: frozen_norms(trained=True),
    "batch norm without gradient": lambda: frozen_norms(trained=False),
    "backbone": backbone,
    "only the head in training": only_the_head,
    "dropout": one_of_two_dropouts,
    "dropout as a function": lambda: nn.Sequential(nn.Flatten(), Functional().eval(), head()),
    "recurrent": lambda: nn.Sequential(Recurrent().eval(), head(8)),
    "transformer": transformer,
}


@cache
def case(frozen):
    """A network, its data and its model: tracing it takes longest."""
    torch.manual_seed(0)
    net = statistics(FROZEN[frozen]())
    x, y = torch.randn(24, 3, 4, 4), torch.randint(0, 4, (24,))
    model = potluck.Model.from_torch(
        net, x[:6], loss=nn.functional.cross_entropy, example_targets=y[:6]
    )
    return net, x, y, model


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("frozen", FROZEN)
def test_what_is_frozen_stays_and_all_else_is_trained_as_on_one_machine(home, frozen, shape):
    traced, x, y, model = case(frozen)
    net = copy.deepcopy(traced)
    before, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    kept = {name for name, p in net.named_parameters() if not p.requires_grad} | dict(
        net.named_buffers()
    ).keys()
    plan = make_plan(model, *SHAPES[shape], micro_batch=4, n_micro_batches=2)
    run = home.deploy(plan, model, optimizer=potluck.AdamW(0.01)).wait()
    history = run.fit((x, y), epochs=2).wait()
    alone = copy.deepcopy(net)
    losses = train_alone(
        alone,
        x,
        y,
        batch=8,
        micro_batch=4,
        epochs=2,
        make_optimizer=lambda ps: torch.optim.AdamW([p for p in ps if p.requires_grad], 0.01),
    )
    assert history.losses == pytest.approx(losses, rel=1e-5)
    state = run.state_dict()
    assert state.keys() == before.keys()
    for name, tensor in alone.state_dict().items():
        assert (
            torch.equal(state[name], before[name])
            if name in kept
            else torch.allclose(state[name], tensor, atol=1e-5)
        )
    run.load_into(net)
    assert [module.training for module in net.modules()] == modes
    assert all(
        torch.allclose(tensor, alone.state_dict()[name], atol=1e-5)
        for name, tensor in net.state_dict().items()
    )
    with torch.no_grad():
        assert torch.allclose(run(x), alone.eval()(x), atol=1e-5)
    run.close()


def test_a_frozen_norm_trains_on_one_row_at_a_time(home):
    """By running statistics, a row does not see the others: neither do shares and micro-batches of
    one.
    """
    torch.manual_seed(0)
    net = statistics(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)))
    net[1].eval()
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    model = potluck.Model.from_torch(net, x, loss=nn.functional.cross_entropy, example_targets=y)
    run = home.deploy(
        make_plan(model, ((A, B), (1, 1)), micro_batch=2, n_micro_batches=3), model
    ).wait()
    loss = run.fit((x, y)).wait().losses[0]
    assert loss == pytest.approx(nn.functional.cross_entropy(net(x), y).item(), rel=1e-6)
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("net", "what"),
    [
        (
            lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 4)),
            r"dropout in the module 1",
        ),
        (
            lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)),
            r"batch_norm in the module 1",
        ),
        (lambda: nn.Sequential(Functional(), nn.Linear(48, 4)), r"dropout in the module 0"),
    ],
)
def test_a_module_that_is_in_evaluation_as_a_whole_is_not_trained_by_guess(net, what):
    made = net().eval()
    width = made[0].in_features if isinstance(made[0], nn.Linear) else 48
    example = {"loss": nn.functional.cross_entropy, "example_targets": torch.tensor([0, 1])}
    with pytest.raises(ModelError, match=rf"in evaluation as a whole.*{what}.*net\.train\(\)"):
        potluck.Model.from_torch(made, torch.randn(2, width), **example)
    assert not any(module.training for module in made.modules())
    assert potluck.Model.from_torch(made.train(), torch.randn(2, width), **example).trains
    assert not potluck.Model.from_torch(made.eval(), torch.randn(2, width)).trains


def test_where_nothing_behaves_otherwise_a_module_in_evaluation_is_trained():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0), nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    model = potluck.Model.from_torch(
        net,
        torch.randn(2, 8),
        loss=nn.functional.cross_entropy,
        example_targets=torch.tensor([0, 1]),
    )
    assert model.trains
