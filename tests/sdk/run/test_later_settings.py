"""Settings that no step can be made with and that come while a run trains: it is told which before
the step is sent, and the run goes on from the last whole step.
"""

import copy
import math

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import UserError
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
RATE = 0.01
N_GOOD = 2  # steps before the one that cannot be taken
NUMBERS = {
    "beyond float32": 1e42,
    "beyond float64": 10**400,
    "not a number": math.nan,
    "infinite": math.inf,
    "negative": -1.0,
    "a negative tensor": torch.tensor([-1.0]),
}
NO_NUMBERS = {
    "none": None,
    "a text": "0.5",
    "a list": [],
    "complex": 1j,
    "a tensor of two": torch.ones(2),
}
GIVEN = NUMBERS | NO_NUMBERS


@pytest.fixture(scope="module")
def pair():
    with memory_home(2) as home:
        yield home


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


@pytest.fixture(scope="module")
def batch():
    torch.manual_seed(1)
    return torch.randn(8, 8), torch.randint(0, 4, (8,))


@pytest.fixture
def run(pair, net, batch):
    x, y = batch
    loss = torch.nn.functional.cross_entropy
    model = potluck.Model.from_torch(net, x[:4], loss=loss, example_targets=y[:4])
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    run = pair.deploy(plan, model).wait()
    yield run
    run.close()


def given_later(value):
    """A function of a step that gives this from step N_GOOD on."""
    return lambda step: value if step >= N_GOOD else 1.0


def raising(step):
    if step >= N_GOOD:
        raise ZeroDivisionError("own words")
    return 1.0


def by_function(net, value):
    return {"optimizer": potluck.SGD(RATE), "schedule": given_later(value)}


def by_scheduler(net, value):
    made = torch.optim.AdamW(net.parameters(), RATE)
    rates = torch.optim.lr_scheduler.LambdaLR(made, given_later(value))
    return {"optimizer": made, "schedule": rates}


def by_hand(net, value):
    made = torch.optim.SGD(net.parameters(), RATE)

    def change(step, loss):
        made.param_groups[0]["lr"] = value

    return {"optimizer": made, "on_step": change}


WAYS = {
    by_function: r"schedule\(2\)",
    by_scheduler: r"step 2 .*lr|LambdaLR.step\(\) after step 1 ",
    by_hand: r"step 2 .*lr",
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("way", WAYS)
def test_a_rate_that_comes_later_and_no_step_can_be_made_with_ends_a_fit_alone(
    run, net, batch, way, given
):
    options = way(net, GIVEN[given])
    with pytest.raises(UserError, match=WAYS[way]):
        run.fit([batch] * 9, **options).wait()
    n_taken, left = run.step, run.state_dict()
    assert N_GOOD <= n_taken <= N_GOOD + 1
    expected = weights_after(net, batch, type(options["optimizer"]).__name__, n_taken)
    for name, tensor in expected.items():
        assert torch.allclose(left[name], tensor, atol=1e-5)
    run.fit([batch], optimizer=potluck.SGD(RATE)).wait()
    assert run.step == n_taken + 1


def weights_after(net, batch, made, n_steps):
    """On one machine, at the rate from before."""
    alone = copy.deepcopy(net)
    optimizer = getattr(torch.optim, made)(alone.parameters(), RATE)
    for _ in range(n_steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(alone(batch[0]), batch[1]).backward()
        optimizer.step()
    return alone.state_dict()


@pytest.mark.parametrize("by", ["function", "scheduler"])
def test_what_a_schedule_raises_is_told_with_its_step(run, net, batch, by):
    made = torch.optim.SGD(net.parameters(), RATE)
    rates = torch.optim.lr_scheduler.LambdaLR(made, raising) if by == "scheduler" else raising
    with pytest.raises(UserError, match=r"[12]\b.*ZeroDivisionError: own words") as told:
        run.fit([batch] * 9, optimizer=made, schedule=rates).wait()
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    run.fit([batch], optimizer=potluck.SGD(RATE)).wait()


def test_a_later_rate_of_updates_that_come_late_is_looked_at_before_any_is_sent(run, net, batch):
    with pytest.raises(UserError, match=r"step 2 .*cannot be taken"):
        run.fit([batch] * 8, one_step_late=4, **by_function(net, math.nan)).wait()
    assert run.step == 0
    run.fit([batch], optimizer=potluck.SGD(RATE)).wait()


@pytest.mark.parametrize("setting", ["weight_decay", "eps", "betas"])
@pytest.mark.parametrize("given", [*NO_NUMBERS, "not a number", "negative"])
def test_other_settings_are_told_by_name(run, net, batch, setting, given):
    made, value = torch.optim.AdamW(net.parameters(), RATE), GIVEN[given]
    made_of = (value, 0.9) if setting == "betas" else value

    def change(step, loss):
        made.param_groups[0][setting] = made_of

    with pytest.raises(UserError, match=rf"step 2 .*{setting}"):
        run.fit([batch] * 9, optimizer=made, on_step=change).wait()
    run.fit([batch], optimizer=potluck.SGD(RATE)).wait()


@pytest.mark.parametrize("made", ["Adam", "AdamW"])
@pytest.mark.parametrize("when", ["while it trains", "between fits"])
def test_a_decay_that_comes_to_be_decoupled_or_coupled_is_refused(run, net, batch, made, when):
    """In torch, Adam and AdamW are one class, which this setting tells apart."""
    optimizer = getattr(torch.optim, made)(net.parameters(), RATE, weight_decay=0.5)

    def change(*_):
        optimizer.param_groups[0]["decoupled_weight_decay"] = made == "Adam"

    def train():
        if when == "while it trains":
            run.fit([batch] * 9, optimizer=optimizer, on_step=change).wait()
        else:
            run.fit([batch], optimizer=optimizer).wait()
            change()
            run.fit([batch], optimizer=optimizer).wait()

    with pytest.raises(UserError, match="optimizer was changed"):
        train()
