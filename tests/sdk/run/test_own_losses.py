"""Losses as models have them: computed by the module itself, sums over rows, several parts; trained
over devices they teach what they teach on one machine.
"""

import copy

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
ROWS, MICRO = 8, 4
PLANS = {"pipeline": [((A,), (4,)), ((B,), (4,))], "replicas": [((A, B), (3, 1))]}


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


class Classifier(torch.nn.Module):
    """Takes its targets, as many do, and gives its loss with its answer."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.embed, self.inner = torch.nn.Embedding(12, 16), torch.nn.Linear(16, 16)
        self.side, self.head = torch.nn.Linear(16, 12), torch.nn.Linear(16, 12)

    def forward(self, ids, mask=None, labels=None):
        x = self.embed(ids).tanh()
        side = self.side(x)
        logits = self.head(self.inner(x).tanh())
        if mask is not None:
            logits = logits * mask[..., None]
        if labels is None:
            return {"logits": logits, "side": [side]}
        loss = self.loss(logits, labels) + 0.4 * self.loss(side, labels)
        if self.form == "tuple":
            return loss, logits
        return {"loss": loss, "logits": logits, "side": [side]}

    def loss(self, logits, labels):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batch_of(seed, rows=ROWS):
    torch.manual_seed(seed)
    labels = torch.randint(0, 12, (rows, 5))
    return {
        "ids": torch.randint(0, 12, (rows, 5)),
        "mask": torch.ones(rows, 5),
        # those that do not count are others in each batch, and their number differs
        "labels": torch.where(torch.rand(rows, 5) < 0.4, -100, labels),
    }


def learn(net, batches, part):
    """The losses of plain torch's steps on one machine."""
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
    for batch in batches:
        loss = net(**batch)[part]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.long
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("form", "part"), [("mapping", "loss"), ("tuple", 0)])
def test_a_module_that_computes_its_loss_learns_as_on_one_machine(pair, plan, form, part):
    net = Classifier(form)
    alone = copy.deepcopy(net)
    model = potluck.Model.from_torch(net, batch_of(0), loss=part)
    chosen = make_plan(model, *PLANS[plan], micro_batch=MICRO, n_micro_batches=ROWS // MICRO)
    run = pair.deploy(chosen, model).wait()
    batches = [batch_of(seed) for seed in range(6)]
    history = run.fit(batches, optimizer=torch.optim.SGD(net.parameters(), 0.1)).wait()
    assert history.losses == pytest.approx(learn(alone, batches, part), abs=1e-6)
    learned = run.state_dict()
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(learned[name], tensor, atol=1e-6)
    inputs = {name: tensor for name, tensor in batches[0].items() if name != "labels"}
    answer, expected = run(inputs), alone.eval()(**inputs)
    assert answer.keys() == expected.keys()
    assert torch.allclose(answer["side"][0], expected["side"][0], atol=1e-6)
    run.close()


class Weighted(torch.nn.Module):
    """Its loss divides by class weights: in a buffer, in a loss, or as a plain tensor."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        )
        weight = torch.tensor([1.0, 4.0, 0.25])
        if kind == "loss":
            self.loss = torch.nn.CrossEntropyLoss(weight=weight)
        elif kind == "buffer":
            self.register_buffer("weight", weight)
        else:
            self.weight = weight
        self.kind = kind

    def forward(self, x, labels=None):
        logits = self.layers(x)
        if labels is None:
            return {"logits": logits}
        if self.kind == "loss":
            return {"loss": self.loss(logits, labels), "logits": logits}
        function = torch.nn.functional.cross_entropy
        return {"loss": function(logits, labels, weight=self.weight), "logits": logits}


@pytest.mark.few(2)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", ["buffer", "loss", "tensor"])
def test_class_weights_of_a_module_divide_by_all_rows(pair, plan, kind):
    net = Weighted(kind)
    alone = copy.deepcopy(net)
    torch.manual_seed(1)
    batches = [
        {"x": torch.randn(rows, 6), "labels": torch.randint(0, 3, (rows,))}
        for rows in (ROWS, ROWS, 5)
    ]
    model = potluck.Model.from_torch(net, batches[0], loss="loss")
    chosen = make_plan(model, *PLANS[plan], micro_batch=MICRO, n_micro_batches=ROWS // MICRO)
    if kind == "buffer":  # those that count are of the moment of deployment
        for each in (net, alone):
            each.weight.copy_(torch.tensor([0.5, 1.0, 3.0]))
    run = pair.deploy(chosen, model, optimizer=potluck.SGD(0.1)).wait()
    history = run.fit(batches).wait()
    assert history.losses == pytest.approx(learn(alone, batches, "loss"), abs=1e-6)
    learned = run.state_dict()
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(learned[name], tensor, atol=1e-6)
    run.close()


OWN = {
    "no such part": ("nll", {}, "has no 'nll': it is a dict"),
    "no names of targets": ("loss", {"example_targets": torch.zeros(2, 5)}, "of which targets"),
    "another name": (
        "loss",
        {"example_targets": {"answers": torch.zeros(2, 5)}},
        "called answers; forward takes ids, mask, labels",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize(("part", "more", "says"), OWN.values(), ids=OWN)
def test_a_part_that_is_not_there_is_said(part, more, says):
    example = batch_of(0, 2)
    if more:
        del example["labels"]
    with pytest.raises(ModelError, match=says):
        potluck.Model.from_torch(Classifier("mapping"), example, loss=part, **more)


@pytest.mark.few(1)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("rows", [ROWS, 5])
def test_a_sum_over_rows_is_the_sum_over_all_devices(pair, plan, rows):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    alone, loss = copy.deepcopy(net), torch.nn.MSELoss(reduction="sum")
    x, y = torch.randn(4 * rows, 6), torch.randn(4 * rows, 3)
    model = potluck.Model.from_torch(net, x[:2], loss=loss, example_targets=y[:2])
    chosen = make_plan(model, *PLANS[plan], micro_batch=MICRO, n_micro_batches=ROWS // MICRO)
    run = pair.deploy(chosen, model).wait()
    batches = [(x[i : i + rows], y[i : i + rows]) for i in range(0, 4 * rows, rows)]
    history = run.fit(batches, optimizer=potluck.SGD(1e-2)).wait()
    optimizer, losses = torch.optim.SGD(alone.parameters(), 1e-2), []
    for inputs, targets in batches:
        total = loss(alone(inputs), targets)
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    assert history.losses == pytest.approx(losses, rel=1e-5)
    learned = run.state_dict()
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(learned[name], tensor, atol=1e-5)
    run.close()


@pytest.mark.long
def test_gpt2_trains_over_two_devices_with_its_tied_embedding(pair):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    net = transformers.GPT2LMHeadModel(config).train()
    alone, ids = copy.deepcopy(net), torch.randint(0, 50, (ROWS, 6))
    batch = {"input_ids": ids, "labels": torch.where(torch.rand(ROWS, 6) < 0.3, -100, ids)}
    model = potluck.Model.from_torch(net, batch, loss="loss")
    assert len(model.layers(True)) > 3
    plan = make_plan(model, *PLANS["pipeline"], micro_batch=MICRO, n_micro_batches=ROWS // MICRO)
    run = pair.deploy(plan, model).wait()
    made = torch.optim.AdamW(net.parameters(), 1e-3)
    history = run.fit([batch] * 3, optimizer=made, clip_norm=0.5).wait()
    optimizer, losses = torch.optim.AdamW(alone.parameters(), 1e-3), []
    for _ in range(3):
        loss = alone(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert history.losses == pytest.approx(losses, abs=1e-5)
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(run.state_dict()[name], tensor, atol=1e-5)
    assert run({"input_ids": ids}).logits.shape == (ROWS, 6, 50)
    run.close()
