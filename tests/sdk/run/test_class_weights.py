"""What a loss keeps beside its targets is of one moment: that at which the run got its weights."""

import copy

import pytest
from tests.sdk.run.conftest import make_data, make_net, make_plan

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

A, B = "local-1", "local-2"
OTHER = (0.1, 2.0, 3.0, 0.4)


class Masked(nn.Module):
    """Divides by weights that stand nowhere else."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.ones(4))

    def forward(self, output, target):
        each = functional.cross_entropy(output, target, reduction="none")
        return each.sum() / self.weight[target].sum()


class Focal(nn.Module):
    """Keeps a frozen parameter, a buffer, and a plain tensor."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("shift", torch.zeros(()))
        self.scale = torch.ones(())

    def forward(self, output, target):
        each = functional.cross_entropy(output, target, reduction="none")
        return (each * self.weight[target]).mean() * self.scale + self.shift


def of_a_closure():
    weight = torch.ones(4)

    def loss(output, target):
        return functional.cross_entropy(output, target, weight=weight)

    return loss, weight


def of(made, name="weight"):
    return made, getattr(made, name)


LOSSES = {
    "class weights": lambda: of(nn.CrossEntropyLoss(weight=torch.ones(4))),
    "of a likelihood": lambda: of(nn.NLLLoss(weight=torch.ones(4))),
    "divisor alone": lambda: of(Masked()),
    "frozen parameter": lambda: of(Focal()),
    "buffer": lambda: of(Focal(), "shift"),
    "plain tensor": lambda: of(Focal(), "scale"),
    "closure": of_a_closure,
}


def other(tensor):
    with torch.no_grad():
        tensor.copy_(torch.tensor(OTHER if tensor.ndim else 1.5))


def made(loss):
    net = make_net("mlp")
    x, y = make_data("mlp", 6)
    return net, potluck.Model.from_torch(net, x, loss=loss, example_targets=y)


def plan_of(model):
    return make_plan(model, ((A, B), (3, 2)), ((B,), (5,)), micro_batch=5, n_micro_batches=2)


def alone(net, loss, x, y, *, steps):
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
    for _ in range(steps):
        value = loss(net(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", LOSSES)
def test_what_they_are_at_deployment_counts_above_and_below(home, kind):
    loss, tensor = LOSSES[kind]()
    net, model = made(loss)
    x, y = make_data("mlp", 10)
    other(tensor)
    expected = alone(copy.deepcopy(net), loss, x, y, steps=2)
    run = home.deploy(plan_of(model), model, optimizer=potluck.SGD(0.1)).wait()
    assert run.fit([(x, y)] * 2).wait().losses == pytest.approx(expected, abs=1e-5)
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", LOSSES)
def test_changed_during_a_fit_they_end_it(home, kind):
    loss, tensor = LOSSES[kind]()
    net, model = made(loss)
    x, y = make_data("mlp", 10)
    expected = alone(copy.deepcopy(net), loss, x, y, steps=3)
    run = home.deploy(plan_of(model), model, optimizer=potluck.SGD(0.1)).wait()
    losses = []

    def changed(_, loss_now):
        losses.append(loss_now)
        other(tensor)

    with pytest.raises(ModelError, match=r"other values than when the run got.*[Dd]eploy"):
        run.fit([(x, y)] * 9, on_step=changed).wait()
    assert losses == pytest.approx(expected[: len(losses)], abs=1e-5)
    assert 1 <= len(losses) <= 2
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", LOSSES)
def test_changed_after_deployment_they_are_refused_until_it_is_deployed_again(home, kind):
    loss, tensor = LOSSES[kind]()
    net, model = made(loss)
    x, y = make_data("mlp", 10)
    run = home.deploy(plan_of(model), model, optimizer=potluck.SGD(0.1)).wait()
    before = tensor.detach().clone()
    other(tensor)
    with pytest.raises(ModelError, match=r"other values than when the run got.*[Dd]eploy"):
        run.fit([(x, y)])
    with torch.no_grad():
        tensor.copy_(before)
    run.fit([(x, y)]).wait()
    run.close()
    other(tensor)
    expected = alone(copy.deepcopy(net), loss, x, y, steps=1)
    run = home.deploy(plan_of(model), model, optimizer=potluck.SGD(0.1)).wait()
    assert run.fit([(x, y)]).wait().losses == pytest.approx(expected, abs=1e-5)
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", LOSSES)
def test_resumed_they_are_those_of_the_file(home, kind, tmp_path):
    loss, _ = LOSSES[kind]()
    net, model = made(loss)
    x, y = make_data("mlp", 10)
    expected = alone(copy.deepcopy(net), loss, x, y, steps=4)
    run = home.deploy(plan_of(model), model, optimizer=potluck.SGD(0.1)).wait()
    run.fit([(x, y)]).wait()
    run.save(tmp_path / "run")
    run.close()
    loss, tensor = LOSSES[kind]()
    other(tensor)
    net, model = made(loss)
    run = home.deploy(plan_of(model), model, resume=tmp_path / "run").wait()
    assert run.fit([(x, y)] * 2).wait().losses == pytest.approx(expected[1:3], abs=1e-5)
    run.load_into()  # which gives the loss the values of the file, too
    assert torch.equal(tensor, LOSSES[kind]()[1])
    assert run.fit([(x, y)]).wait().losses == pytest.approx(expected[3:], abs=1e-5)
    run.close()
