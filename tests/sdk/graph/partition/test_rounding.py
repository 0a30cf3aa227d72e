"""Layers that hand on smaller values: the same result wherever a plan cuts, what is handed on is
what was chosen, and nothing that is not finite is hidden.
"""

import copy
import random
from itertools import pairwise

import pytest
import torch
from tests.sdk.graph.families import FAMILIES, family
from tests.sdk.graph.models import CASES
from tests.sdk.graph.partition.test_branched_equality import Woven
from tests.sdk.graph.test_equality import chain_step, loaded
from torch import nn

from potluck import SGD
from potluck.errors import ModelError
from potluck.graph import Model
from potluck.records import Plan, Stage, Training
from potluck.testing.memory import memory_home

ANSWERS = ("bfloat16", "float16", "int8")
# of the largest answer: a rounding at each boundary of a few
CLOSE = {"bfloat16": 0.05, "float16": 0.01, "int8": 0.1}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def answers(model, bounds, fed):
    """The outputs of a chain of segments with these bounds."""
    values, state = dict(fed), model.state()
    outputs = ()
    for start, stop in pairwise(bounds):
        segment = loaded(model.segment(start, stop)[1], state)
        outputs = segment.forward([values[port.name] for port in segment.graph.inputs])
        values |= {p.name: y for p, y in zip(segment.graph.outputs, outputs, strict=True)}
    return outputs


@pytest.mark.few(1)
@pytest.mark.parametrize("code", ANSWERS)
@pytest.mark.parametrize("name", [*FAMILIES, *CASES])
def test_answers_are_the_same_wherever_a_plan_cuts_and_near_the_unrounded(name, code):
    if name in FAMILIES:
        net, x = family(name)
    else:
        net, x = CASES[name].make().eval(), CASES[name].inputs(3)
    model = Model.from_torch(net, x)
    made = model.rounded(code)
    n = len(made.layers())
    fed = {"input": x}
    reference = answers(made, (0, n), fed)
    for bounds in [*((0, cut, n) for cut in range(1, n)), tuple(range(n + 1))]:
        for got, expected in zip(answers(made, bounds, fed), reference, strict=True):
            assert torch.equal(got, expected), bounds
    for got, exact in zip(reference, answers(model, (0, n), fed), strict=True):
        assert (got - exact).abs().max() <= CLOSE[code] * exact.abs().max()


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_the_same_wherever_a_plan_cuts(name):
    case = CASES[name]
    made = Model.from_torch(
        case.make(), case.inputs(4), loss=case.loss, example_targets=case.targets(4)
    ).rounded("bfloat16")
    n, state = len(made.layers(True)), made.state()
    fed = made.fed(case.inputs(5), case.targets(5))
    reached = []
    for bounds in [(0, n), *((0, cut, n) for cut in range(1, n)), tuple(range(n + 1))]:
        parts = [loaded(made.segment(a, b, train=True)[1], state) for a, b in pairwise(bounds)]
        torch.manual_seed(1)
        (loss,) = chain_step(parts, fed)
        for part in parts:
            part.step(None, {"name": "sgd", "lr": 0.1})
        reached.append((loss, {n: part.read(n) for part in parts for n in part.names()}))
    (expected, weights), *others = reached
    for loss, found in others:
        assert torch.equal(loss, expected)
        assert all(torch.equal(found[name], weight) for name, weight in weights.items())


class Rounded(nn.Module):
    """What a boundary does, written by hand: its derivative rounds as well."""

    def forward(self, x):
        return x.to(torch.bfloat16).to(torch.float32)


def test_training_is_that_of_a_module_with_the_roundings_written_in():
    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)]
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    loss = nn.MSELoss()
    net = nn.Sequential(*copy.deepcopy(layers))
    model = Model.from_torch(net, x, loss=loss, example_targets=y)
    made = model.rounded("bfloat16")
    assert len(made.layers(True)) == 4
    by_hand = nn.Sequential(*(part for layer in layers for part in (layer, Rounded())))[:-1]
    graph = made.segment(0, 4, train=True)[1]
    segment = loaded(graph, made.state())
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-2)
    for _ in range(3):
        expected = loss(by_hand(x), y)
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
        (got,) = segment.forward(tuple(made.fed(x, y).values()), key="k", train=True)
        segment.backward("k")
        segment.step(None, {"name": "adamw", "lr": 1e-2})
        assert torch.equal(got, expected.detach())
    for name, parameter in zip(made.state(), by_hand.parameters(), strict=True):
        assert torch.equal(segment.read(name), parameter), name


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_any_plan_of_a_network_with_branches_trains_the_same(seed):
    rng = random.Random(seed)
    net, rows = Woven(rng), 8
    data = [torch.randn(rows, 6) for _ in range(net.n_inputs)], torch.randn(rows, 6)
    model = Model.from_torch(net, data[0], loss=nn.MSELoss(), example_targets=data[1], name="w")
    made = model.rounded("bfloat16")
    n = len(made.layers(True))
    reached = []
    with memory_home(3) as home:
        for n_cuts in (0, 1, 2):
            ends = sorted({0, n, *rng.sample(range(1, n), min(n_cuts, n - 1))})
            stages = tuple(
                Stage(start=a, stop=b, devices=(name,), shares=(4,), warm_up=1)
                for (a, b), name in zip(pairwise(ends), home.devices, strict=False)
            )
            plan = Plan(
                planner="by hand", model=made.name, stages=stages, micro_batch=4, n_micro_batches=2
            )
            run = home.deploy(plan, made, optimizer=SGD(lr=0.1), protect=False).wait()
            losses = run.fit([(tuple(data[0]), data[1])] * 3, adapt=False).wait().losses
            reached.append((losses, run.state_dict()))
            run.close()
    (losses, weights), *others = reached
    largest = max(weight.abs().max() for weight in weights.values())
    for other, found in others:
        # gradients of a value with three readers or more are summed in bfloat16, in another order
        assert other == pytest.approx(losses, rel=1e-2)
        assert all((found[k] - weights[k]).abs().max() <= 0.01 * largest for k in weights)


def test_layers_hand_on_half_and_a_quarter_of_the_bytes():
    net = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(64, 64), nn.ReLU())))
    model = Model.from_torch(net, torch.randn(2, 64))
    usual = [layer.output_bytes for layer in model.layers()]
    for code, item_bytes, more in (("bfloat16", 2, 0), ("float16", 2, 0), ("int8", 1, 4)):
        handed = [layer.output_bytes for layer in model.rounded(code).layers()]
        assert handed == [*(n // 4 * item_bytes + more for n in usual[:-1]), usual[-1]]


@pytest.mark.parametrize("code", ANSWERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(code, value):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    made = Model.from_torch(net, torch.randn(2, 4)).rounded(code)
    x = torch.randn(3, 4)
    x[1, 2] = value
    (found,) = answers(made, (0, len(made.layers())), {"input": x})
    assert not found[1].isfinite().any()
    assert found[[0, 2]].isfinite().all()  # each row has a scale of its own


def test_rows_answer_alone_as_they_do_together():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    made = Model.from_torch(net, torch.randn(2, 8)).rounded("int8")
    x = torch.randn(5, 8) * torch.tensor([[1.0], [100.0], [0.01], [0.0], [1e6]])
    n = len(made.layers())
    (together,) = answers(made, (0, n), {"input": x})
    for row in range(5):
        (alone,) = answers(made, (0, n), {"input": x[row : row + 1]})
        assert torch.allclose(alone[0], together[row], rtol=1e-5, atol=0)


def test_integers_between_layers_stay_as_they_are():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(2000, 4), nn.Linear(4, 2)

        def forward(self, ids):
            moved = ids * 2 + 1  # above what a half float tells apart
            return self.out(self.table(moved))

    net, ids = Counted(), torch.randint(0, 999, (3, 5))
    made = Model.from_torch(net, ids).rounded("float16")
    (found,) = answers(made, (0, len(made.layers())), {"input": ids})
    assert torch.allclose(found, net(ids), atol=1e-2)


@pytest.mark.long
def test_a_rounded_model_is_saved_and_loaded(tmp_path):
    case = CASES["encoder"]
    made = Model.from_torch(
        case.make(), case.inputs(4), loss=case.loss, example_targets=case.targets(4)
    ).rounded("bfloat16")
    made.save(tmp_path / "model")
    assert Model.load(tmp_path / "model").signature == made.signature


def plain(**how):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return Model.from_torch(net, torch.randn(2, 4), **how)


def test_what_cannot_be_rounded_is_refused_with_what_can():
    training = {"loss": nn.MSELoss(), "example_targets": torch.randn(2, 4)}
    with pytest.raises(ModelError, match=r"as 'int4'.*bfloat16, float16, int8"):
        plain().rounded("int4")
    with pytest.raises(ModelError, match=r"gradients as float16.*int8"):
        plain(**training).rounded("float16")
    with pytest.raises(ModelError, match="is one layer"):
        Model.from_torch(nn.Linear(4, 4), torch.randn(2, 4)).rounded("int8")
    with pytest.raises(ModelError, match="divided model"):
        plain().divided((1, 1)).rounded("bfloat16")


def test_a_rounded_model_can_be_divided():
    block = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    net = nn.Sequential(*(copy.deepcopy(block) for _ in range(3)))
    model = Model.from_torch(net, torch.randn(2, 8)).rounded("bfloat16")
    divided = model.divided((1, 1))
    x = torch.randn(3, 8)
    (expected,) = answers(model, (0, len(model.layers())), {"input": x})
    reference = loaded(divided.segment(0, len(divided.layers()))[1], divided.state())
    (found,) = reference.forward((x,))
    assert torch.allclose(found, expected, atol=0.02)


@pytest.mark.long
def test_plans_count_the_smaller_transfers():
    with memory_home(2) as home:
        net = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(8, 8), nn.ReLU())))
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        model = Model.from_torch(net, x, loss=nn.MSELoss(), example_targets=y)
        sizes = []
        for each in (model, model.rounded("bfloat16")):
            profile = home.profile(each, rows=(4, 8), repeats=1).wait()
            sizes.append(
                [layer.output_bytes for layer in profile.problem(Training(batch=8)).layers]
            )
        exact, half = sizes
        assert half[:-1] == [size // 2 for size in exact[:-1]]


@pytest.mark.few(1)
@pytest.mark.parametrize("code", ["float16", "int8"])
def test_devices_with_onnx_round_alike(code):
    pytest.importorskip("onnxruntime")
    from tests.sdk.graph.onnx.test_onnx_export import through

    net, x = CASES["cnn"].make().eval(), CASES["cnn"].inputs(5)
    made = Model.from_torch(net, x).rounded(code)
    n = len(made.layers())
    (expected,) = answers(made, (0, n), {"input": x})
    for kinds in (["onnx"] * n, ["aten", "onnx"] * n):
        (found,) = through(made, tuple(range(n + 1)), kinds[:n], x)
        # a rounding apart at the most, where a sum comes in another order
        assert (found - expected).abs().max() <= CLOSE[code] * expected.abs().max()
