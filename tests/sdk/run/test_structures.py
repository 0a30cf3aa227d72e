"""An answer has the structure that the module gives it, from a run and from an accelerated model
alike.
"""

from collections import OrderedDict, namedtuple

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError, PlanError

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
Pair = namedtuple("Pair", "scores hidden")


def output_of_transformers(y, z):
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return outputs.SequenceClassifierOutput(logits=y, hidden_states=(z,))


STRUCTURES = {
    "tensor": lambda y, z: y,
    "tuple": lambda y, z: (y, z),
    "tuple of one": lambda y, z: (y,),
    "list": lambda y, z: [z, y],
    "dict": lambda y, z: {"z": z, "a": y},
    "ordered": lambda y, z: OrderedDict([("z", z), ("a", y)]),
    "named tuple": lambda y, z: Pair(y, z),
    "nested": lambda y, z: {"both": [y, (z, {"y": y * 2})], "z": z},
    "twice": lambda y, z: {"a": y, "b": y, "c": (z, y)},
    "of transformers": output_of_transformers,
}


class Answering(nn.Module):
    def __init__(self, structure):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 2, 1)
        self.structure = structure

    def forward(self, x):
        z = torch.relu(self.conv(x))
        return self.structure(self.last(z), z)


def equal(found, expected):
    from torch.utils import _pytree as pytree

    (ours, ours_as), (theirs, theirs_as) = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    assert ours_as == theirs_as
    assert type(found) is type(expected)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", STRUCTURES)
def test_an_answer_has_the_structure_of_the_modules(home, name):
    net, x = Answering(STRUCTURES[name]), torch.randn(5, 3, 6, 6)
    with torch.no_grad():
        expected = net(x)
    model = potluck.Model.from_torch(net, x)
    run = home.deploy(
        make_plan(model, ((A,), (2,)), ((A, B), (1, 1)), micro_batch=2, training=False), model
    ).wait()
    equal(run(x), expected)
    run.close()
    for given in (net, model):
        with potluck.accelerate(given, x, helper=home[B], bandwidths=(0.0, 1e8)).wait() as fast:
            equal(fast(x), expected)
            equal(fast({"x": x}), expected)
            equal(fast(x=x), expected)


def test_a_run_for_training_answers_and_scores_in_the_structure_that_its_loss_takes(home):
    net = Answering(STRUCTURES["nested"])
    x = torch.randn(4, 3, 6, 6)
    y = torch.randn(4, 2, 6, 6)

    def loss(answer, wanted):
        return nn.functional.mse_loss(answer["both"][0], wanted)

    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    run = home.deploy(make_plan(model, ((A,), (2,)), ((B,), (2,)), micro_batch=2), model).wait()
    with torch.no_grad():
        equal(run(x), net(x))
        assert run.evaluate((x, y), loss) == pytest.approx(loss(net(x), y).item(), rel=1e-5)
    run.close()


class Two(nn.Module):
    def forward(self, picture, time):
        return picture * time


@pytest.mark.parametrize(
    "example",
    [
        (torch.ones(1, 3, 4, 4), torch.ones(1, 1, 1, 1)),
        {"time": torch.ones(1, 1), "picture": torch.ones(1, 4)},
    ],
)
def test_accelerate_says_that_it_takes_one_input_and_what_takes_several(home, example):
    says = (
        r"requests of one input; here are 2 \((picture, time|time, picture|input 0, input "
        r"1)\).*home\.deploy"
    )
    with pytest.raises(ModelError, match=says):
        potluck.accelerate(Two(), example, helper=home[B])
    with pytest.raises(ModelError, match=says):
        potluck.accelerate(potluck.Model.from_torch(Two(), example), example, helper=home[B])
    with pytest.raises(ModelError, match=says):
        potluck.accelerate(potluck.Model.from_torch(Two(), example), helper=home[B])


def test_the_input_of_an_accelerated_model_may_be_named_in_its_example_too(home):
    net, x = Answering(STRUCTURES["dict"]), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        expected = net(x)
    with potluck.accelerate(net, {"x": x}, helper=home[B], bandwidths=(0.0, 1e8)).wait() as fast:
        equal(fast(x), expected)
        with pytest.raises(
            potluck.errors.UserError, match=r"holds y, which is none of the model's. Inputs are x"
        ):
            fast(y=x)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["onnx", "as torch", "torch"])
def test_planning_to_train_what_has_no_loss_says_so_and_what_would_do(home, tmp_path, kind):
    net, x = nn.Linear(4, 2), torch.randn(2, 4)
    if kind == "torch":
        model, says = potluck.Model.from_torch(net, x), "has no loss.*Pass loss= to from_torch"
    else:
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
        torch.onnx.export(
            net,
            (x,),
            tmp_path / "linear.onnx",
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )
        model, says = (
            potluck.Model.from_onnx(tmp_path / "linear.onnx"),
            r"ONNX .*not trained.*from_torch\(.*loss=",
        )
        if kind == "as torch":
            model = model.as_torch()
    profile = home.profile(model, rows=(1, 2), repeats=1)
    with pytest.raises(PlanError, match=says):
        potluck.plan(profile, potluck.Training(batch=2))
    assert potluck.plan(profile, potluck.Inference()).best
    with pytest.raises(ModelError, match=says):
        model.layers(train=True)


def test_planning_to_train_what_was_measured_for_inference_alone_says_how_to_measure(home):
    x, y = torch.randn(2, 4), torch.tensor([0, 1])
    model = potluck.Model.from_torch(
        nn.Linear(4, 2), x, loss=nn.functional.cross_entropy, example_targets=y
    )
    profile = home.profile(model, train=False, rows=(1, 2), repeats=1)
    with pytest.raises(
        PlanError,
        match=r"not measured for training. Measure it: home\.profile\(model, train=True\)",
    ):
        potluck.plan(profile, potluck.Training(batch=2))


@pytest.mark.few(1)
@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_a_table_of_positions_is_read_up_to_its_end(home, length):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(20, 8)
            self.places = nn.Embedding(16, 8)
            self.last = nn.Linear(8, 3)
            self.register_buffer("ids", torch.arange(16)[None])

        def forward(self, words):
            return self.last(self.words(words) + self.places(self.ids[:, : words.shape[1]]))

    net = Positions()
    model = potluck.Model.from_torch(net, torch.randint(0, 20, (2, 5)), sequence_dims=(1,))
    run = home.deploy(
        make_plan(model, ((A,), (2,)), ((B,), (2,)), micro_batch=2, training=False), model
    ).wait()
    words = torch.randint(0, 20, (3, length))
    with torch.no_grad():
        assert torch.allclose(run(words), net(words), atol=1e-6)
    with pytest.raises(ModelError, match="a sequence of 17 is given; the model takes 1 to 16"):
        run(torch.zeros(3, 17, dtype=torch.int64))
    run.close()
