"""A module that was changed after its model was made is told so: devices would go on with what it
was then.
"""

import copy

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")

A, B = "local-1", "local-2"


def replaced(net):
    net[2].weight = torch.nn.Parameter(net[2].weight.detach() * 2)


def assigned(net):
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)


CHANGES = {
    "frozen": (lambda net: net[2].requires_grad_(False), r"2\.weight.*is frozen now"),
    "thawed": (lambda net: net[0].requires_grad_(True), r"0\.weight.*is trained now"),
    "replaced": (replaced, r"2\.weight.*is another tensor now"),
    "assigned": (assigned, r"0\.weight.*is another tensor now"),
    "converted": (lambda net: net.double(), r"0\.weight is float64 now.*float32"),
}


def made():
    net, _ = make_model("mlp")
    net[0].requires_grad_(False)
    x, y = make_data("mlp", 6)
    loss = torch.nn.functional.cross_entropy
    return net, potluck.Model.from_torch(net, x, loss=loss, example_targets=y)


def plan_of(model, *, training=True):
    return make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, training=training)


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_not_trained_as_it_was(home, change):
    net, model = made()
    run = home.deploy(plan_of(model), model).wait()
    alter, text = CHANGES[change]
    alter(net)
    with pytest.raises(ModelError, match=f"(?s){text}.*from_torch"):
        home.deploy(plan_of(model), model).wait()
    with pytest.raises(ModelError, match=text):
        run.fit(make_data("mlp", 8)).wait()
    assert run.is_open
    run.close()


@pytest.mark.parametrize("change", ["replaced", "assigned", "converted"])
def test_it_does_not_answer_as_it_was_nor_get_weights_that_it_would_not_see(home, change):
    net, model = made()
    run = home.deploy(plan_of(model), model).wait()
    alter, text = CHANGES[change]
    alter(net)
    with pytest.raises(ModelError, match=text):
        home.deploy(plan_of(model, training=False), model).wait()
    with pytest.raises(ModelError, match=text):
        run.load_into()
    run.close()


@pytest.mark.parametrize("change", ["frozen", "thawed"])
def test_what_is_trained_is_nothing_to_answers(home, change):
    net, model = made()
    CHANGES[change][0](net)
    run = home.deploy(plan_of(model, training=False), model).wait()
    x, _ = make_data("mlp", 5)
    assert torch.allclose(run(x), net(x), atol=1e-6)
    run.close()


def test_other_values_in_the_same_tensors_are_taken(home):
    net, model = made()
    with torch.no_grad():
        net[2].weight.mul_(2)
    net.load_state_dict({name: tensor + 1 for name, tensor in net.state_dict().items()})
    run = home.deploy(plan_of(model), model).wait()
    x, _ = make_data("mlp", 5)
    assert torch.allclose(run(x), net(x), atol=1e-5)
    run.close()
