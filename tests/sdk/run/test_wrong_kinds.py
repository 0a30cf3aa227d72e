"""Arguments of the wrong kind are refused by their names, whatever kind it is."""

import math

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import UserError
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
NOT_NUMBERS = ("x", -1, math.nan, 10**400, [], {}, True, object())
NOT_FLAGS = ("x", -1, 0, 1, math.nan, 10**400, [], {}, object())
OF_FIT = {
    **dict.fromkeys(("epochs", "accumulate", "one_step_late"), NOT_NUMBERS),
    **dict.fromkeys(("clip_norm", "norm_order", "clip_value", "ema", "deadline_s"), NOT_NUMBERS),
    **dict.fromkeys(("resume", "adapt"), NOT_FLAGS),
}
OF_DEPLOY = {
    **dict.fromkeys(("refine_s", "patience_s", "seed"), NOT_NUMBERS),
    "order_transfers": NOT_FLAGS,
    "profile": NOT_FLAGS,
}
OF_TRAINING = {
    **dict.fromkeys(("batch", "optimizer_copies"), NOT_NUMBERS),
    **dict.fromkeys(("clipped", "bfloat16_moments"), NOT_FLAGS),
}


def each_of(table):
    return [pytest.param(name, value) for name, values in table.items() for value in values]


@pytest.fixture(scope="module")
def home():
    with memory_home(2) as home:
        yield home


@pytest.fixture(scope="module")
def batch():
    return torch.randn(8, 8), torch.randint(0, 4, (8,))


@pytest.fixture(scope="module")
def model(batch):
    x, y = batch
    net, loss = torch.nn.Linear(8, 4), torch.nn.functional.cross_entropy
    return potluck.Model.from_torch(net, x[:4], loss=loss, example_targets=y[:4])


@pytest.fixture(scope="module")
def plan(model):
    return make_plan(model, (("local-1",), (4,)), micro_batch=4, n_micro_batches=2)


@pytest.fixture(scope="module")
def run(home, plan, model):
    run = home.deploy(plan, model).wait()
    yield run
    run.close()


def refused(name, value):
    """Far beyond every float are ten to the 400 epochs alone, which may be."""
    if name == "epochs" and value == 10**400:
        pytest.skip("a whole number")
    return pytest.raises(UserError, match=name)


@pytest.mark.parametrize(("name", "value"), each_of(OF_FIT))
def test_fit(run, batch, name, value):
    with refused(name, value):
        run.fit([batch], **{name: value}).wait()
    assert run.is_open


@pytest.mark.parametrize(("name", "value"), each_of(OF_DEPLOY))
def test_deploy(home, plan, model, name, value):
    with refused(name, value):
        home.deploy(plan, model, **{name: value}).wait()


@pytest.mark.parametrize(("name", "value"), each_of(OF_TRAINING))
def test_training(name, value):
    with refused(name, value):
        potluck.Training(**({"batch": 8} | {name: value}))
