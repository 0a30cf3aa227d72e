"""An answer is what the module gives, each part of it in the mode that its user left it in; random
numbers and statistics of the rows at hand are refused.
"""

import copy

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
A, B = "local-1", "local-2"


class Doubled(nn.Module):
    """Does in training what no operator shows."""

    def forward(self, x):
        return x * 2 if self.training else x


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def attended(x):
    q = x.view(-1, 2, 4)
    return functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5).flatten(1)


def recurrent(n_layers, dropout):
    lstm = nn.LSTM(2, 8, n_layers, dropout=dropout, batch_first=True).train()
    made = Called(lambda x: made.lstm(x.view(-1, 4, 2))[0][:, -1])
    made.lstm = lstm
    return made


def norm_of(kind, **more):
    norm = kind(8, **more).train()
    norm.running_mean.uniform_(-1, 1)
    return norm


SAME = {
    "Python by the mode": lambda: Doubled().train(),
    "a dropout of nothing": lambda: nn.Dropout(0.0).train(),
    "one recurrent layer": lambda: recurrent(1, 0.0),
    "recurrent layers without dropout": lambda: recurrent(2, 0.0),
    "a function that drops nothing": lambda: Called(lambda x: functional.dropout(x, 0.0)),
    "a norm of each row": lambda: nn.LayerNorm(8).train(),
}
REFUSED = {
    "batch statistics": (lambda: norm_of(nn.BatchNorm1d), "batch_norm in the module 1"),
    "a function of batch statistics": (
        lambda: Called(
            lambda x: functional.batch_norm(x, torch.zeros(8), torch.ones(8), training=True)
        ),
        "batch_norm in the module 1",
    ),
    "dropout": (lambda: nn.Dropout().train(), "dropout in the module 1"),
    "features": (
        lambda: nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Dropout1d().train(), nn.Flatten()),
        "feature_dropout in the module 1.1",
    ),
    "a function that drops": (
        lambda: Called(lambda x: functional.dropout(x, 0.5)),
        "dropout in the module 1",
    ),
    "in place": (
        lambda: Called(lambda x: functional.dropout(x * 2, 0.5, inplace=True)),
        "dropout in the module 1",
    ),
    "attention": (lambda: Called(attended), "scaled_dot_product_attention in the module 1"),
    "recurrent layers": (lambda: recurrent(2, 0.5), r"dropout in the module 1\.lstm"),
}


def in_evaluation(part):
    """A module in evaluation around a part that stays in its own modes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Identity(), nn.Linear(8, 4)).eval()
    net[1] = part
    return net


@pytest.mark.few(2)
@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_a_part_in_training_inside_a_module_in_evaluation_answers_so(home, make):
    net = in_evaluation(make())
    modes, x = [module.training for module in net.modules()], torch.randn(6, 8)
    model = potluck.Model.from_torch(net, x)
    assert [module.training for module in net.modules()] == modes
    plan = make_plan(model, ((A, B), (2, 1)), micro_batch=3, training=False)
    run = home.deploy(plan, model).wait()
    with torch.no_grad():
        assert torch.allclose(run(x), net(x), atol=1e-6)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("with_loss", [False, True])
@pytest.mark.parametrize(("make", "what"), REFUSED.values(), ids=REFUSED)
def test_an_answer_of_several_rows_together_is_refused_by_name(make, what, with_loss):
    net = in_evaluation(make())
    x, before = torch.randn(6, 8), copy.deepcopy(net.state_dict())
    more = (
        {"loss": functional.cross_entropy, "example_targets": torch.zeros(6, dtype=torch.int64)}
        if with_loss
        else {}
    )
    with pytest.raises(ModelError, match=rf"when it answers: {what}.* is as in training.*eval\(\)"):
        potluck.Model.from_torch(net, x, **more)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "make", [lambda: nn.Dropout(), lambda: norm_of(nn.BatchNorm1d)], ids=["dropout", "batch norm"]
)
def test_a_module_in_training_answers_as_in_evaluation(home, make):
    net = nn.Sequential(nn.Linear(8, 8), make(), nn.Linear(8, 4))
    x = torch.randn(6, 8)
    model = potluck.Model.from_torch(net, x)
    assert all(module.training for module in net.modules())
    plan = make_plan(model, ((A, B), (2, 1)), micro_batch=3, training=False)
    run = home.deploy(plan, model).wait()
    with torch.no_grad():
        assert torch.allclose(run(x), copy.deepcopy(net).eval()(x), atol=1e-6)
    run.close()
