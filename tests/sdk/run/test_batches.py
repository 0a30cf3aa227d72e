"""Batches of every form train, answer and are scored as plain torch does with the same names."""

import copy
from collections import UserDict, namedtuple

import numpy
import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import UserError
from potluck.run.batches import as_tuple
from potluck.run.device_group import DeviceGroup

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
ROWS = 24


class Reader(nn.Module):
    """Ids, mask and types have the same shape and type: nothing but their names tells one from the
    other.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 8)
        self.types = nn.Embedding(2, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, ids, mask, types):
        h = torch.tanh(self.words(ids) + self.types(types)) * mask[..., None]
        return self.out(h.sum(1) / mask.sum(1, keepdim=True))


def encoded(rows=ROWS):
    """As a tokenizer gives it: in another order than `forward` takes it."""
    torch.manual_seed(1)
    mask = torch.ones(rows, 6, dtype=torch.int64)
    mask[:, 4:] = torch.randint(0, 2, (rows, 2))
    return {
        "ids": torch.randint(0, 20, (rows, 6)),
        "types": torch.randint(0, 2, (rows, 6)),
        "mask": mask,
    }


def part(mapping, start, stop):
    return {name: tensor[start:stop] for name, tensor in mapping.items()}


Fields = namedtuple("Fields", "types labels ids mask")
X, Y = encoded(), torch.randint(0, 4, (ROWS,), generator=torch.Generator().manual_seed(2))
FORMS = {
    "labels inside": lambda x, y: {"labels": y, **x},
    "mapping and labels": lambda x, y: (x, y),
    "other mapping": lambda x, y: UserDict({**x, "label": y}),
    "two mappings": lambda x, y: [UserDict(x), {"target": y}],
    "nested": lambda x, y: {"text": UserDict(x), "y": y},
    "named tuple": lambda x, y: Fields(labels=y, **x),
    "lists and arrays": lambda x, y: {
        "labels": y.tolist(),
        **{name: t.numpy() for name, t in x.items()},
    },
    "in order": lambda x, y: (x["ids"], x["mask"], x["types"], y),
}


@pytest.fixture(scope="module")
def model():
    x = part(X, 0, 6)
    return potluck.Model.from_torch(
        Reader(), x, loss=nn.functional.cross_entropy, example_targets=Y[:6]
    )


@pytest.fixture(scope="module")
def expected():
    """The losses of four steps of one machine, and its weights after them."""
    net, losses = Reader(), []
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    for start in range(0, ROWS, 6):
        loss = nn.functional.cross_entropy(net(**part(X, start, start + 6)), Y[start : start + 6])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, net


def deployed(home, model, **more):
    plan = make_plan(model, ((A,), (6,)), ((B,), (6,)), micro_batch=6, **more)
    return home.deploy(plan, model, optimizer=potluck.SGD(0.5) if plan.training else None).wait()


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unsplit", [False, True], ids=["batches", "unsplit"])
def test_training_is_that_of_one_machine_whatever_the_form(home, model, expected, form, unsplit):
    losses, net = expected
    make = FORMS[form]
    data = [make(part(X, start, start + 6), Y[start : start + 6]) for start in range(0, ROWS, 6)]
    if unsplit:
        data = make(X, Y)
        if form == "two mappings":
            data = (UserDict(X), Y)  # a list of two mappings is a list of batches
    run = deployed(home, model)
    assert run.fit(data).wait().losses == pytest.approx(losses, abs=1e-6)
    state = run.state_dict()
    assert all(
        torch.allclose(state[name], tensor, atol=1e-6) for name, tensor in net.state_dict().items()
    )
    run.close()


@pytest.mark.parametrize("form", ["labels inside", "in order", "arrays"])
def test_a_loader_may_fill_the_same_tensors_again(home, model, expected, form, monkeypatch):
    """As readers do that save memory: what was yielded changes while its step is in flight."""
    make = FORMS.get(form, lambda x, y: {**{k: t.numpy() for k, t in x.items()}, "y": y.numpy()})
    x, y = {name: tensor.clone() for name, tensor in part(X, 0, 6).items()}, Y[:6].clone()
    handed_out = []

    def loader():
        for start in range(0, ROWS, 6):
            for name, tensor in x.items():
                tensor.copy_(X[name][start : start + 6])
            y.copy_(Y[start : start + 6])
            yield make(x, y)
            for tensor in (*x.values(), y):
                tensor.zero_()

    execute = DeviceGroup.execute

    def seen(self, epoch, compiled, number, *, batch=None, **more):
        handed_out.extend([batch] if batch else [])
        return execute(self, epoch, compiled, number, batch=batch, **more)

    monkeypatch.setattr(DeviceGroup, "execute", seen)
    run = deployed(home, model)
    assert run.fit(loader()).wait().losses == pytest.approx(expected[0], abs=1e-6)
    for start, batch in zip(range(0, ROWS, 6), handed_out, strict=True):  # it may be read late
        right = (X["ids"], X["mask"], X["types"], Y)
        taken = zip(batch.values(), right, strict=False)  # behind them, what the loss divides by
        assert all(torch.equal(tensor, all_rows[start : start + 6]) for tensor, all_rows in taken)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("training", [True, False])
def test_requests_and_scores_are_those_of_one_machine_whatever_the_form(home, model, training):
    run, net = deployed(home, model, training=training), Reader()
    with torch.no_grad():
        right = net(**X)
        score = nn.functional.cross_entropy(right, Y).item()
    for answer in (
        run(X),
        run(UserDict(X)),
        run(**X),
        run(X["ids"], types=X["types"], mask=X["mask"]),
        run({"text": X}),
    ):
        assert torch.allclose(answer, right, atol=1e-6)
    for make in FORMS.values():
        data = [
            make(part(X, start, start + 7), Y[start : start + 7]) for start in range(0, ROWS, 7)
        ]
        assert run.evaluate(data, nn.functional.cross_entropy) == pytest.approx(score, abs=1e-6)
        assert run.evaluate(
            data, lambda outputs, labels: (outputs.argmax(-1) == labels).float().mean()
        ) == pytest.approx((right.argmax(-1) == Y).float().mean().item())
    assert run.evaluate({**X, "labels": Y}, nn.CrossEntropyLoss()) == pytest.approx(score, abs=1e-6)
    with pytest.raises(UserError, match="holds labels, which is none of the model's"):
        run({**X, "labels": Y})
    with pytest.raises(UserError, match="lacks mask"):
        run(ids=X["ids"], types=X["types"])
    run.close()


def test_a_bad_batch_is_refused_and_training_goes_on(home, model, expected):
    run = deployed(home, model)
    for bad, says in (
        ({"ids": X["ids"], "types": X["types"], "labels": Y}, "lacks mask"),
        ({**X, "labels": Y, "text": ["a"] * ROWS}, "holds text"),
        ({**X}, "lacks target.*targets are target or labels"),
    ):
        with pytest.raises(UserError, match=says):
            run.fit([bad]).wait()
    assert run.step == 0
    assert run.fit((X, Y)).wait().losses == pytest.approx(expected[0], abs=1e-6)
    run.close()


@pytest.mark.long
def test_what_tokenizers_and_collators_of_transformers_give_is_taken(home):
    """Its ids, types, mask in the tokenizer's order into `forward(input_ids, attention_mask,
    token_type_ids, ...)`.
    """
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    net = transformers.BertForSequenceClassification(config)
    names = {"ids": "input_ids", "types": "token_type_ids", "mask": "attention_mask"}
    batch = transformers.BatchEncoding({names[name]: tensor for name, tensor in X.items()})
    model = potluck.Model.from_torch(
        net,
        batch,
        loss=lambda answer, labels: nn.functional.cross_entropy(answer.logits, labels),
        example_targets=Y,
        sequence_dims=dict.fromkeys(names.values(), 1),
    )
    batch["labels"] = Y
    run = home.deploy(
        make_plan(model, ((A,), (ROWS,)), ((B,), (ROWS,)), micro_batch=ROWS), model
    ).wait()
    rows = [{name: batch[name][i] for name in batch} for i in range(ROWS)]
    loader = torch.utils.data.DataLoader(rows, ROWS, collate_fn=transformers.DefaultDataCollator())
    alone = copy.deepcopy(net)(**batch)
    assert run.fit(loader).wait().losses == pytest.approx([alone.loss.item()], abs=1e-6)
    fresh = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4, training=False), model).wait()
    del batch["labels"]
    answer = fresh(batch)
    assert type(answer) is type(alone)
    assert torch.allclose(answer.logits, alone.logits, atol=1e-5)
    for answer in (fresh(**batch), fresh({name: tensor[:, :4] for name, tensor in batch.items()})):
        assert answer["logits"].shape == (ROWS, 4)
    for opened in (run, fresh):
        opened.close()


@pytest.mark.long
def test_an_onnx_model_takes_its_inputs_by_name(home, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")

    class Two(nn.Module):
        def forward(self, a, b):
            return a - 2 * b

    a = torch.randn(5, 3)
    b = torch.randn(5, 3)
    path = tmp_path / "two.onnx"
    torch.onnx.export(
        Two(),
        (a, b),
        path,
        dynamo=False,
        input_names=["left", "right"],
        output_names=["y"],
        dynamic_axes={name: {0: "batch"} for name in ("left", "right", "y")},
    )
    for model in (potluck.Model.from_onnx(path), potluck.Model.from_onnx(path).as_torch()):
        run = home.deploy(
            make_plan(model, ((A,), (4,)), micro_batch=4, training=False), model
        ).wait()
        for answer in (run({"right": b, "left": a}), run(right=b, left=a), run(a, b)):
            assert torch.allclose(answer, a - 2 * b, atol=1e-6)
        with pytest.raises(
            UserError, match=r"holds b, which is none of the model's. Inputs are left, right"
        ):
            run(left=a, b=b)
        run.close()


WITHOUT_ROWS = {
    "lists": ([[1.0, 2.0], [3.0, 4.0]], "begins with a single number"),
    "numbers": (1.0, "begins with a single number"),
    "a tensor without dimensions": (torch.tensor(1.0), "begins with a single number"),
    "nothing": ((), "holds nothing"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize(("batch", "says"), WITHOUT_ROWS.values(), ids=WITHOUT_ROWS)
def test_a_batch_without_rows_is_refused_whoever_takes_it(home, model, batch, says):
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    with pytest.raises(UserError, match=f"a batch {says}"):
        run.fit([batch]).wait()
    with pytest.raises(UserError, match=f"a batch {says}"):
        run.evaluate([batch], nn.functional.cross_entropy)
    run.close()


def test_a_nested_tensor_is_told_what_to_do(home, model):
    ids = torch.nested.nested_tensor([torch.zeros(n) for n in (2, 3)], layout=torch.jagged)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    for ask in (lambda: run(ids), lambda: run.fit([(ids, Y[:2])]).wait()):
        with pytest.raises(UserError, match=r"holds a nested tensor.*to_padded_tensor"):
            ask()
    run.close()


NO_TENSORS = {
    "byte order": lambda: numpy.zeros((6, 4), ">f4"),
    "stride": lambda: numpy.zeros((6, 4), "f4")[::-1],
    "numpy.object_": lambda: numpy.full((6, 4), None),
    "numpy.datetime64": lambda: numpy.zeros((6, 4), "datetime64[s]"),
}


@pytest.mark.parametrize("why", NO_TENSORS)
@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: {"input": x}])
def test_an_array_of_which_torch_makes_no_tensor_is_told_what_of_it(why, form):
    model = potluck.Model.from_torch(nn.Linear(4, 3), torch.randn(6, 4))
    array = NO_TENSORS[why]()
    with pytest.raises(UserError, match=why) as refused:
        as_tuple(form(array), model.arguments)
    assert f"of {array.dtype}, of which torch makes no tensor" in str(refused.value)
    assert "newbyteorder" in str(refused.value)
