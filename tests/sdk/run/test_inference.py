"""Inference over real agents equals the unsplit model, for any number of rows."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import random_home
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.errors import RequestFailed
from potluck.records import Inference, Plan, Stage
from potluck.run.requests import requests_at_once
from potluck.testing.internals import engine_of

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"


@pytest.mark.parametrize(
    "stages",
    [[((A,), (4,))], [((A,), (4,)), ((B,), (4,))], [((A, B), (3, 1)), ((B,), (4,))]],
    ids=["1", "2", "shared"],
)
def test_equals_the_unsplit_model(home, stages):
    net, model = make_model("cnn")
    run = home.deploy(make_plan(model, *stages, micro_batch=4, training=False), model).wait()
    for rows in (4, 1, 3, 11):
        x, _ = make_data("cnn", rows)
        with torch.no_grad():
            assert (run(x) - net(x)).abs().max().item() <= 1e-6
    run.close()


def test_a_wrong_shape_is_explained_and_the_run_goes_on(home):
    _, model = make_model("mlp")
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4, training=False), model).wait()
    with pytest.raises(potluck.errors.ModelError, match="expected"):
        run(torch.zeros(2, 9))
    x, _ = make_data("mlp", 2)
    assert run(x).shape == (2, 4)
    run.close()


def test_it_cannot_be_trained(home):
    _, model = make_model("mlp")
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4, training=False), model).wait()
    with pytest.raises(potluck.errors.PlanError, match="inference"):
        run.fit(make_data("mlp", 4))
    run.close()


class Picked(torch.nn.Module):
    """What a row of the table is, is computed: nobody can see beforehand that there is no such
    row.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(8, 16)
        self.out = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.table((x * 2).to(torch.int64)))


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_a_request_that_fails_ends_alone_and_the_others_are_answered(home, order):
    net = Picked().eval()
    good, bad = torch.arange(4.0), torch.full((4,), 99.0)
    model = potluck.Model.from_torch(net, good)
    plan = make_plan(model, *((((name,), (4,))) for name in order), micro_batch=4, training=False)
    run, expected = home.deploy(plan, model).wait(), net(good).detach()

    def ask(number):
        if number % 3:
            return torch.equal(run(good), expected)
        with pytest.raises(RequestFailed, match=r"local-.: .*look at the inputs"):
            run(bad)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(24)))
    assert engine_of(run).failed is None
    run.close()


@pytest.mark.parametrize(
    ("workload", "expected"),
    [(Inference(batch=4), 4), (Inference(batch=4, streaming=True), 6), (None, 4)],
)
def test_of_a_stream_as_many_requests_are_under_way_as_its_plan_was_judged_with(workload, expected):
    """Its pace and memory were: two a stage. What was not made for a stream has four."""
    stages = [Stage(start=i, stop=i + 1, devices=(f"d{i}",), shares=(4,)) for i in range(3)]
    plan = Plan(planner="test", model="chain", stages=tuple(stages), micro_batch=4, training=False)
    problem = None if workload is None else random_home(1, workload)
    assert requests_at_once(replace(plan, problem=problem)) == expected
