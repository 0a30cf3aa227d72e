"""A model in a file: the same graphs and weights, and nothing of the user's code."""

import copy
import json
import random
import sys
import warnings

import pytest
from tests.sdk.graph.models import CASES
from tests.sdk.profile.test_profile_file import spoil
from tests.sdk.run.conftest import make_model, make_plan

from potluck import Model, estimate
from potluck.errors import FileError, ModelError, PotluckError
from potluck.graph.model_file import with_reductions
from potluck.tensor_file import read_tensors, write_tensors
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"


class Named(nn.Module):
    """Inputs by name, a dictionary as its answer, a weight that is tied, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor([0.5]))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, ids, weight):
        x = self.norm(self.embedding(ids).mean(1) * weight * self.scale)
        return {"logits": self.head(x), "features": x}


def named_case():
    torch.manual_seed(0)
    inputs = {"weight": torch.rand(6, 1) + 0.5, "ids": torch.randint(0, 12, (6, 5))}
    loss = nn.CrossEntropyLoss(weight=torch.arange(1.0, 13.0))
    return Named(), inputs, (lambda out, y: loss(out["logits"], y)), torch.randint(0, 12, (6,))


def kept(model, tmp_path):
    path = tmp_path / "model.safetensors"
    model.save(path)
    return Model.load(path)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_comes_back_is_the_same_model(case, tmp_path):
    torch.manual_seed(0)
    net = case.make()
    x = case.inputs(6)
    y = case.targets(6)
    model = Model.from_torch(net, x, loss=case.loss, example_targets=y, max_layers=5, name="it")
    again = kept(model, tmp_path)
    assert again.signature == model.signature
    assert again.name == "it"
    assert repr(again) == repr(model)
    for train in (False, True):
        assert again.layers(train) == model.layers(train)
        n = len(model.layers(train))
        assert again.document(0, n, train=train) == model.document(0, n, train=train)
    state = again.state_dict(again.state())
    assert list(state) == list(net.state_dict())
    for name, tensor in net.state_dict().items():
        assert torch.equal(state[name], tensor)


@pytest.mark.long
def test_it_answers_and_trains_as_the_model_that_it_was_made_of(tmp_path):
    net, inputs, loss, y = named_case()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the loss is tried, not proven
        model = Model.from_torch(net, inputs, loss=loss, example_targets=y)
    again = kept(model, tmp_path)
    ids, weight = inputs["ids"], inputs["weight"]
    with memory_home(2) as home:
        found = []
        for one, batch in (
            (model, (ids, weight, y)),
            (again, with_reductions(model, (ids, weight, y))),
        ):
            plan = make_plan(one, ((A, B), (2, 2)), micro_batch=4)
            run = home.deploy(plan, one).wait()
            history = run.fit([batch] * 3).wait()
            answers = run(ids=ids, weight=weight)
            found.append((history.losses, run.state_dict(), answers))
            run.close()
    assert found[0][0] == found[1][0]
    for was, is_now in ((found[0][1], found[1][1]), (found[0][2], found[1][2])):
        assert list(was) == list(is_now)
        assert all(torch.equal(was[name], is_now[name]) for name in was)


@pytest.mark.parametrize("given", [("x", "y"), ("x",), {"input": "x", "labels": "y"}], ids=str)
def test_who_leaves_out_what_the_loss_makes_of_a_batch_is_told_where_it_comes_from(given, tmp_path):
    tensors = {"x": torch.rand(4, 3), "y": torch.randint(0, 5, (4,))}
    loss = nn.CrossEntropyLoss(ignore_index=2)
    model = Model.from_torch(nn.Linear(3, 5), tensors["x"], loss=loss, example_targets=tensors["y"])
    again = kept(model, tmp_path)
    batch = (
        {key: tensors[name] for key, name in given.items()}
        if isinstance(given, dict)
        else tuple(tensors[name] for name in given)
    )
    with memory_home(1) as home:
        run = home.deploy(make_plan(again, ((A,), (4,)), micro_batch=4), again).wait()
        with pytest.raises(PotluckError, match=r"reduction.*with_reductions.*from_torch"):
            run.fit([batch]).wait()
        run.close()


def test_a_file_that_is_no_model_is_named(tmp_path):
    case = CASES["cnn"]
    path = tmp_path / "model.safetensors"
    with pytest.raises(FileError, match="cannot read "):
        Model.load(path)
    model = Model.from_torch(case.make(), case.inputs(4))
    model.save(path)
    spoiled = bytearray(path.read_bytes())
    spoiled[-3] ^= 1
    path.write_bytes(spoiled)
    with pytest.raises(FileError, match="not as it was written"):
        Model.load(path)
    path.write_bytes(spoiled[:100])
    with pytest.raises(FileError, match="cannot read"):
        Model.load(path)
    with pytest.raises(FileError, match="there is no folder"):
        model.save(tmp_path / "nowhere" / "model.safetensors")


def test_a_model_of_a_file_of_its_own_is_not_written_again(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            nn.Linear(3, 2),
            (torch.randn(4, 3),),
            path,
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
    with pytest.raises(ModelError, match="is that file"):
        Model.from_onnx(path).save(tmp_path / "model.safetensors")


def test_what_a_file_says_is_checked_though_its_checksum_is_right(tmp_path):
    """Whoever spoils one may write its checksum, too."""
    _, model = make_model("mlp")
    model.save(tmp_path / "whole")
    tensors, metadata = read_tensors(tmp_path / "whole", "")
    document = json.loads(metadata["model"])
    rng = random.Random(0)
    n_held = 0
    for part in ("inference", "training"):
        document[part]["graph"] = json.loads(document[part]["graph"])
    for _ in range(400):
        other = copy.deepcopy(document)
        spoil(other, rng)
        for part in ("inference", "training"):
            if isinstance(other.get(part), dict) and isinstance(other[part].get("graph"), dict):
                other[part]["graph"] = json.dumps(other[part]["graph"])
        spoiled = {"format": metadata["format"], "model": json.dumps(other)}
        write_tensors(tmp_path / "spoiled", tensors, spoiled)
        try:
            loaded = Model.load(tmp_path / "spoiled")
            estimate("robot-indoors", loaded)
            n_held += 1
        except PotluckError:
            pass
    assert 0 < n_held < 350


def numbers(document, at=()):
    """Where the numbers are, but for those in graphs, and of types one each."""
    if isinstance(document, bool | int | float):
        yield at
    elif isinstance(document, dict | list):
        inside = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in inside:
            if at[-1:] != ("types",) or key == 0:
                yield from numbers(value, (*at, key))


@pytest.mark.long
@pytest.mark.parametrize("number", [10**12, 2**62, -3, 0.5, float("inf"), float("nan"), True])
def test_no_number_in_a_file_makes_its_reader_wait_or_fall(tmp_path, number):
    _, model = make_model("mlp")
    model.save(tmp_path / "whole")
    tensors, metadata = read_tensors(tmp_path / "whole", "")
    document = json.loads(metadata["model"])
    places = list(numbers(document))
    assert ("training", "n_reductions") in places
    for at in places:
        other = copy.deepcopy(document)
        inner = other
        for key in at[:-1]:
            inner = inner[key]
        inner[at[-1]] = number
        write_tensors(
            tmp_path / "spoiled",
            tensors,
            {"format": metadata["format"], "model": json.dumps(other)},
        )
        try:
            loaded = Model.load(tmp_path / "spoiled")
        except FileError:
            continue
        graph = loaded.laid_out(True).line.traced.graph
        assert len(loaded.arguments.labels) == len(graph.inputs)


def node(kind, context, *below):
    return {"type": kind, "context": json.dumps(context), "children_spec": list(below)}


LEAF = {"type": None, "context": None, "children_spec": []}
ENUM = {"__enum__": True, "fqn": "wave:Wave_read", "name": "x"}


@pytest.mark.long
@pytest.mark.parametrize(
    "structure",
    [
        [1, node("builtins.dict", ENUM)],
        [1, node("builtins.dict", [ENUM], LEAF)],
        [1, node("builtins.list", None, node("builtins.dict", ENUM))],
        [1, node("collections.defaultdict", ["wave", "Wave_read", []])],
        [1, node("collections.namedtuple", "wave.params")],
        [1, node("builtins.dict", ["a", "b"], LEAF)],
        [1, {**LEAF, "fqn": "wave"}],
        [1, "wave"],
        {"__enum__": True, "fqn": "wave:Wave_read", "name": "x"},
    ],
)
def test_a_structure_of_answers_imports_nothing(tmp_path, structure):
    """Torch's own reader of structures imports the module that a file names."""
    net, inputs, loss, y = named_case()
    Model.from_torch(net, inputs, loss=loss, example_targets=y).save(tmp_path / "m")
    tensors, metadata = read_tensors(tmp_path / "m", "")
    document = json.loads(metadata["model"])
    document["inference"]["structure"] = json.dumps(structure)
    kept = {name: text for name, text in metadata.items() if name != "sha256"}
    write_tensors(tmp_path / "m", tensors, {**kept, "model": json.dumps(document)})
    sys.modules.pop("wave", None)
    with pytest.raises(FileError):
        Model.load(tmp_path / "m")
    assert "wave" not in sys.modules
