"""Arguments of the wrong kind are answered with what was expected, and what to write instead."""

import pytest

import potluck
from potluck.errors import UserError

np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model():
    net = torch.nn.Linear(4, 2)
    return potluck.Model.from_torch(
        net, torch.zeros(2, 4), loss=torch.nn.CrossEntropyLoss(), example_targets=torch.zeros(2, dtype=torch.int64)
    )


@pytest.fixture(scope="module")
def plans(home, model):
    return potluck.plan(home.profile(model, rows=(1, 4), repeats=1), potluck.Training(batch=4))


@pytest.fixture(scope="module")
def run(home, plans):
    deployed = home.deploy(plans.best).wait(60)
    yield deployed
    deployed.close()


DATA = (torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda home, run: home.profile(torch.nn.Linear(1, 1)), "a potluck.Model is profiled, got Linear"),
        (lambda home, run: potluck.plan(torch.nn.Linear(1, 1), potluck.Training(batch=4)), "made from a profile"),
        (lambda home, run: home.deploy("plan"), "one plan is deployed, got str"),
        (lambda home, run: home.deploy(run.plan, refine_s=-1).wait(60), "refine_s is a number of seconds, 0 or"),
        (lambda home, run: run.fit(3), "training takes batches, got int"),
        (lambda home, run: run.fit(DATA, epochs=1.5), "epochs is a whole number of 1 or more, got 1.5"),
        (lambda home, run: run.fit(DATA, epochs=-1), "epochs is a whole number of 1 or more, got -1"),
        (lambda home, run: run.fit(DATA, optimizer="adam"), "the optimizer is one of potluck's, got str"),
        (lambda home, run: run.load_into(torch.nn.Sequential(torch.nn.Linear(4, 2))), "none of this model's weights"),
        (lambda home, run: potluck.Training(batch="64"), "batch must be a number, got '64'"),
        (lambda home, run: potluck.Home(peers="192.168.1.7"), "peers is a list of addresses"),
    ],
)  # fmt: skip
def test_says_what_was_expected(home, run, call, text):
    with pytest.raises(UserError, match=text):
        call(home, run)


def test_a_request_takes_arrays_and_refuses_no_rows(run):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    assert torch.equal(run(x), run(torch.from_numpy(x)))
    with pytest.raises(UserError, match="one row or more"):
        run(torch.zeros(0, 4))
