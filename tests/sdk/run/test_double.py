"""A network in float64 is trained in float64, by replicas and by those that take over as well."""

import copy

import pytest
from tests.sdk.run.conftest import make_plan, more_steps, train_alone

import potluck

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
SHAPES = {
    "two stages": [((A,), (4,)), ((B,), (4,))],
    "replicated": [((A, B), (3, 1))],
    "replicated, then one": [((A, B), (2, 2)), ((A,), (4,))],
}
ROWS, EXACT = 24, 1e-12  # float32 would leave 1e-7


class Mixed(nn.Module):
    """Its head computes in float64, what is before in float32."""

    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(8, 8), nn.Linear(8, 4).double()

    def forward(self, x):
        return self.head(torch.tanh(self.trunk(x.float())).double())


def plain():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4)).double()


def case(make):
    torch.manual_seed(0)
    net = make()
    x, y = torch.randn(ROWS, 8, dtype=torch.float64), torch.randint(0, 4, (ROWS,))
    model = potluck.Model.from_torch(
        net, x[:6], loss=nn.functional.cross_entropy, example_targets=y[:6]
    )
    return net, x, y, model


def differences(run, net):
    state = run.state_dict()
    return {
        name: (tensor - state[name]).abs().max().item() / tensor.abs().max().item()
        for name, tensor in net.state_dict().items()
        if tensor.dtype is torch.float64
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [plain, Mixed])
def test_as_exact_as_on_one_machine(home, make, shape):
    net, x, y, model = case(make)
    plan = make_plan(model, *SHAPES[shape], micro_batch=4, n_micro_batches=2)
    run = home.deploy(plan, model, optimizer=potluck.SGD(0.1, momentum=0.9)).wait()
    losses = run.fit((x, y), epochs=3).wait().losses
    alone = copy.deepcopy(net)
    expected = train_alone(
        alone,
        x,
        y,
        batch=8,
        micro_batch=4,
        epochs=3,
        make_optimizer=lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9),
    )
    # the float32 part of `Mixed` is only as exact as float32 is, wherever it is added up
    exact = EXACT if make is plain else 1e-5
    assert losses == pytest.approx(expected, rel=exact)
    assert max(differences(run, alone).values()) < exact
    assert {t.dtype for t in run.state_dict().values()} == {p.dtype for p in net.parameters()}
    run.close()


@pytest.mark.long
def test_who_takes_over_while_it_trains_has_lost_no_digit(home):
    net, x, y, model = case(plain)
    run = home.deploy(
        make_plan(model, ((A, B), (4, 4)), micro_batch=8), model, optimizer=potluck.SGD(0.1)
    ).wait()
    epochs = 40
    training = run.fit((x, y), epochs=epochs)
    more_steps(run, training, 2)
    run.switch(make_plan(model, ((B,), (8,)), micro_batch=8)).wait()
    losses = training.wait().losses
    alone = copy.deepcopy(net)
    expected = train_alone(
        alone,
        x,
        y,
        batch=8,
        micro_batch=8,
        epochs=epochs,
        make_optimizer=lambda ps: torch.optim.SGD(ps, 0.1),
    )
    assert losses == pytest.approx(expected, rel=EXACT)
    assert max(differences(run, alone).values()) < EXACT
    run.close()
