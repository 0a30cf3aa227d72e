"""Inference over real agents equals the unsplit model, for any number of rows."""

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"


@pytest.mark.parametrize(
    "stages", [[((A,), (4,))], [((A,), (4,)), ((B,), (4,))], [((A, B), (3, 1)), ((B,), (4,))]], ids=["1", "2", "shared"]
)
def test_equals_the_unsplit_model(home, stages):
    net, model = make_model("cnn")
    run = home.deploy(make_plan(model, *stages, micro_batch=4, training=False), model).wait(60)
    for rows in (4, 1, 3, 11):
        x, _ = make_data("cnn", rows)
        with torch.no_grad():
            assert (run(x) - net(x)).abs().max().item() <= 1e-6
    run.close()


def test_a_wrong_shape_is_explained_and_the_run_goes_on(home):
    _, model = make_model("mlp")
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4, training=False), model).wait(60)
    with pytest.raises(potluck.errors.ModelError, match="expected"):
        run(torch.zeros(2, 9))
    x, _ = make_data("mlp", 2)
    assert run(x).shape == (2, 4)
    run.close()


def test_it_cannot_be_trained(home):
    _, model = make_model("mlp")
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4, training=False), model).wait(60)
    with pytest.raises(potluck.errors.PlanError, match="inference"):
        run.fit(make_data("mlp", 4))
    run.close()
