"""A module that was changed after its model was made is told so: devices would go on with what it
was then.
"""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn

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


@pytest.mark.few(1)
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


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_classes = nn.CrossEntropyLoss(weight=torch.ones(4))
        self.own, self.rate = nn.Parameter(torch.ones(())), 1.0

    def forward(self, output, target):
        return self.of_classes(output, target) * self.rate + self.own**2


class Net(nn.Module):
    """Keeps something of every kind."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.0)
        self.last = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
        self.rate = 1.0
        self.sizes = [16, 4]
        self.options = {"scale": 1.0, "shifts": (0.0, 0.5)}
        self.plain = torch.ones(4)
        self.activation = torch.tanh
        self.nothing = None
        self.config = SimpleNamespace(scale=1.0)
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("passing", torch.ones(4), persistent=False)

    def forward(self, x):
        hidden = self.activation(self.norm(self.drop(self.first(x))))
        scale = self.rate * self.options["scale"] * self.config.scale
        return self.last(hidden) * scale * self.plain * self.kept * self.passing


def shifted(net, _):
    net.options["shifts"] = (0.0, 3.0)


def hook(*_):
    return None


STRUCTURAL = {
    "a part in evaluation": (lambda net, _: net.norm.eval(), r"norm is in evaluation now"),
    "as a whole": (lambda net, _: net.eval(), r"evaluation as a whole.*net\.train\(\)"),
    "number of a part": (lambda net, _: setattr(net.norm, "eps", 0.5), r"norm\.eps is 0\.5 now"),
    "dropout": (lambda net, _: setattr(net.drop, "p", 0.5), r"drop\.p is 0\.5 now, and was 0\.0"),
    "number": (lambda net, _: setattr(net, "rate", 2.0), r"rate is 2\.0 now, and was 1\.0"),
    "in a list": (lambda net, _: net.sizes.append(3), r"sizes is another"),
    "in a mapping": (shifted, r"options is another"),
    "in an object": (lambda net, _: setattr(net.config, "scale", 2.0), r"config is another"),
    "something of nothing": (lambda net, _: setattr(net, "nothing", 3), r"nothing is 3 now"),
    "new": (lambda net, _: setattr(net, "more", 3), r"more is new"),
    "gone": (lambda net, _: delattr(net, "sizes"), r"sizes is gone"),
    "tensor": (lambda net, _: setattr(net, "plain", torch.zeros(4)), r"plain is another tensor"),
    "buffer": (lambda net, _: setattr(net, "kept", torch.zeros(4)), r"kept is another tensor"),
    "buffer in no file": (
        lambda net, _: setattr(net, "passing", torch.zeros(4)),
        r"passing is another tensor",
    ),
    "function": (lambda net, _: setattr(net, "activation", torch.relu), r"activation is another"),
    "part": (lambda net, _: net.last.__setitem__(1, nn.ReLU()), r"last\.1 has another class"),
    "part more": (lambda net, _: net.last.append(nn.ReLU()), r"last has other parts"),
    "forward": (lambda net, _: setattr(net.last[1], "forward", hook), r"last\.1\.forward is new"),
    "hook": (lambda net, _: net.last.register_forward_hook(hook), r"last has other hooks now"),
    "hook before": (
        lambda net, _: net.last.register_forward_pre_hook(hook),
        r"last has other hooks now",
    ),
    "hook backward": (
        lambda net, _: net.last.register_full_backward_hook(hook),
        r"last has other hooks on its gradients",
    ),
    "hook of a weight": (
        lambda net, _: net.first.weight.register_hook(hook),
        r"first\.weight has other hooks",
    ),
    "parametrization": (
        lambda net, _: nn.utils.parametrizations.orthogonal(net.first),
        r"first has another class",
    ),
    "loss: number": (lambda _, loss: setattr(loss, "rate", 2.0), r"the loss.*rate is 2\.0 now"),
    "loss: number of a part": (
        lambda _, loss: setattr(loss.of_classes, "ignore_index", 1),
        r"the loss.*of_classes\.ignore_index is 1 now, and was -100",
    ),
    "loss: class weights": (
        lambda _, loss: setattr(loss.of_classes, "weight", torch.zeros(4)),
        r"the loss.*of_classes\.weight is another tensor",
    ),
    "loss: frozen": (lambda _, loss: loss.own.requires_grad_(False), r"own is frozen now"),
    "loss: replaced": (
        lambda _, loss: setattr(loss, "own", nn.Parameter(torch.zeros(()))),
        r"own is another tensor",
    ),
    "loss: hook": (lambda _, loss: loss.register_forward_hook(hook), r"the loss.*other hooks"),
}
OF_TRAINING = {"a part in evaluation", "as a whole", "hook backward", "hook of a weight"}


def made_of_every_kind():
    torch.manual_seed(0)
    net, loss = Net(), Loss()
    x, y = make_data("mlp", 6)
    return net, loss, potluck.Model.from_torch(net, x, loss=loss, example_targets=y)


@pytest.mark.few(1)
@pytest.mark.parametrize("change", STRUCTURAL)
def test_no_change_of_what_was_traced_is_passed_over(home, change):
    net, loss, model = made_of_every_kind()
    run = home.deploy(plan_of(model), model).wait()
    alter, text = STRUCTURAL[change]
    alter(net, loss)
    with pytest.raises(ModelError, match=f"(?s){text}"):
        home.deploy(plan_of(model), model).wait()
    with pytest.raises(ModelError, match=f"(?s){text}"):
        run.fit(make_data("mlp", 8)).wait()
    if change.startswith("loss") or change in OF_TRAINING:
        home.deploy(plan_of(model, training=False), model).wait().close()
    else:
        with pytest.raises(ModelError, match=f"(?s){text}"):
            home.deploy(plan_of(model, training=False), model).wait()
    run.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("forward_hook", "has other hooks now"),
        ("forward_pre_hook", "has other hooks now"),
        ("full_backward_hook", "has other hooks on its gradients now"),
    ],
)
def test_hooks_of_all_modules_count_as_their_own(kind, text):
    _, _, model = made_of_every_kind()
    model.check_as_traced(train=True)
    handle = getattr(nn.modules.module, f"register_module_{kind}")(hook)
    try:
        with pytest.raises(ModelError, match=text):
            model.check_as_traced(train=True)
    finally:
        handle.remove()
    model.check_as_traced(train=True)


def test_a_hook_of_all_modules_that_was_traced_is_missed():
    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        _, _, model = made_of_every_kind()
    finally:
        handle.remove()
    with pytest.raises(ModelError, match="has other hooks now"):
        model.check_as_traced(train=False)


class Rated:
    """A loss that is no module."""

    def __init__(self):
        self.rate = 1.0

    def __call__(self, output, target):
        return nn.functional.cross_entropy(output, target) * self.rate


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "form",
    [lambda loss: loss, lambda loss: loss.__call__, lambda loss: partial(loss)],
    ids=["an object", "a method", "part of a call"],
)
def test_a_loss_that_is_no_module_is_looked_into(form):
    loss, (x, y) = Rated(), make_data("mlp", 6)
    model = potluck.Model.from_torch(Net(), x, loss=form(loss), example_targets=y)
    model.check_as_traced(train=True)
    loss.rate = 2.0
    with pytest.raises(ModelError, match=r"the loss.*rate is 2\.0 now, and was 1\.0"):
        model.check_as_traced(train=True)


@pytest.mark.long
def test_what_use_leaves_behind_is_no_change(home):
    net, loss, model = made_of_every_kind()
    run = home.deploy(plan_of(model), model).wait()
    net.eval()
    x, y = make_data("mlp", 9)
    net(x)
    net.train()
    loss(net(x), y).backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    net.zero_grad()
    net.requires_grad_(False)
    net.requires_grad_(True)
    net.norm.register_forward_hook(hook).remove()
    net.load_state_dict(copy.deepcopy(net.state_dict()))
    potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    run.fit(make_data("mlp", 8)).wait()
    run.load_into()
    run.fit(make_data("mlp", 8)).wait()
    home.deploy(plan_of(model), model).wait().close()
    run.close()


def test_evaluation_as_a_whole_says_nothing_where_it_makes_no_difference(home):
    torch.manual_seed(0)
    net, (x, y) = Net(), make_data("mlp", 8)
    net.norm.eval()
    loss = nn.functional.cross_entropy
    alone = copy.deepcopy(net).eval()
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    run = home.deploy(plan_of(model), model, optimizer=potluck.SGD(0.1)).wait()
    net.eval()
    (got,) = run.fit([(x, y)]).wait().losses
    assert got == pytest.approx(loss(alone(x), y).item(), abs=1e-6)
    net.train()
    with pytest.raises(ModelError, match=r"norm is in training now"):
        run.fit([(x, y)])
    run.close()


@pytest.mark.long
def test_weights_come_back_whatever_else_was_changed(home):
    net, _, model = made_of_every_kind()
    run = home.deploy(plan_of(model), model).wait()
    run.fit(make_data("mlp", 8)).wait()
    net.rate = 2.0
    run.load_into()
    assert all(torch.equal(net.state_dict()[k], v) for k, v in run.state_dict().items())
    run.close()


@pytest.mark.few(1)
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


def test_a_run_for_training_does_not_answer_as_it_was(home):
    net, model = made()
    run = home.deploy(plan_of(model), model).wait()
    replaced(net)
    with pytest.raises(ModelError, match=r"2\.weight.*is another tensor now"):
        run(make_data("mlp", 5)[0])
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


class Kept(nn.Module):
    """Keeps tensors in places that no state_dict shows."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 4), nn.BatchNorm1d(4)
        self.plain = torch.ones(4)
        self.listed = [torch.ones(4)]
        self.mapped = {"a": torch.ones(4)}
        self.nested, self.config = [[torch.ones(4)]], SimpleNamespace(scale=torch.ones(4))

    def forward(self, x):
        scale = self.plain * self.listed[0] * self.mapped["a"] * self.nested[0][0]
        return self.norm(self.layer(x)) * scale * self.config.scale


@torch.no_grad()
def halved(tensor):
    tensor.mul_(0.5)


def trained(net):
    net(torch.randn(3, 8)).square().sum().backward()
    torch.optim.SGD(net.parameters(), 0.1).step()


def other():
    return torch.zeros(4)


AFTERWARDS = {
    "weight in place": lambda net: halved(net.layer.weight),
    "weight loaded": lambda net: net.load_state_dict(copy.deepcopy(net.state_dict())),
    "weight assigned": assigned,
    "weight by data": lambda net: setattr(net.layer.weight, "data", torch.zeros(4, 8)),
    "weight replaced": lambda net: setattr(net.layer, "bias", nn.Parameter(other())),
    "trained": lambda net: trained(net),
    "statistics": lambda net: net.train()(torch.randn(3, 8)),
    "buffer in place": lambda net: halved(net.norm.running_mean),
    "attribute in place": lambda net: halved(net.plain),
    "list in place": lambda net: halved(net.listed[0]),
    "mapping in place": lambda net: halved(net.mapped["a"]),
    "object in place": lambda net: halved(net.config.scale),
    "attribute replaced": lambda net: setattr(net, "plain", other()),
    "list replaced": lambda net: net.listed.__setitem__(0, other()),
    "mapping replaced": lambda net: net.mapped.update(a=other()),
    "nested list replaced": lambda net: net.nested[0].__setitem__(0, other()),
    "object replaced": lambda net: setattr(net.config, "scale", other()),
    "number": lambda net: setattr(net.norm, "eps", 0.5),
    "a part in training": lambda net: net.eval().norm.train(),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("change", AFTERWARDS)
def test_a_run_for_inference_never_answers_as_the_module_was(home, change):
    torch.manual_seed(0)
    net, x = Kept().eval(), torch.randn(5, 8)
    model = potluck.Model.from_torch(net, x)
    stage = ((A,), (5,))
    run = home.deploy(make_plan(model, stage, micro_batch=5, training=False), model).wait()
    torch.testing.assert_close(run(x), net(x).detach())
    AFTERWARDS[change](net)
    with pytest.raises(ModelError, match="changed"):
        run(x)
    assert run.is_open
    run.close()


def test_what_is_only_looked_at_or_loaded_back_is_no_change(home):
    net, x = Kept().eval(), torch.randn(5, 8)
    model = potluck.Model.from_torch(net, x)
    plan = make_plan(model, ((A,), (5,)), micro_batch=5, training=False)
    run = home.deploy(plan, model).wait()
    net(x).sum().backward()
    net.train().eval().requires_grad_(False)
    run.load_into()
    torch.testing.assert_close(run(x), net(x).detach())
    halved(net.layer.weight)
    again = home.deploy(plan, model).wait()
    torch.testing.assert_close(again(x), net(x).detach())
    run.close()
    again.close()


def test_a_run_that_was_resumed_answers_and_tells_the_weights_of_its_file(home, tmp_path):
    net, model = made()
    x, _ = make_data("mlp", 5)
    run = home.deploy(plan_of(model), model).wait()
    run.fit(make_data("mlp", 8)).wait()
    run.save(tmp_path / "saved")
    saved = run.state_dict()
    run.close()
    halved(net[2].weight)
    run = home.deploy(plan_of(model, training=False), model, resume=tmp_path / "saved").wait()
    halved(net[2].weight)
    answer = run(x)
    assert all(torch.equal(run.state_dict()[name], tensor) for name, tensor in saved.items())
    run.load_into()
    torch.testing.assert_close(answer, net(x).detach())
    run.close()


RATE = 1.0
OPTIONS = SimpleNamespace(power=1.0, unread=0)
TABLE = {"offset": 0.0, "unread": 0}
N_CALLS = 0


def scaled(x):
    return RATE * x


class Outward(nn.Module):
    """Reads numbers of this file."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        global N_CALLS
        N_CALLS += 1
        return scaled(self.linear(x)) ** OPTIONS.power + TABLE["offset"]


OUTWARD = {
    "in a function that it calls": (lambda: globals().update(RATE=2.0), "RATE .read by"),
    "of a plain object": (lambda: vars(OPTIONS).update(power=2.0), r"OPTIONS\.power .read by"),
    "of a mapping": (lambda: TABLE.update(offset=1.0), r"TABLE\['offset'\] .read by"),
}


def loss_with(kept):
    return lambda output, target: nn.functional.mse_loss(output, target) * kept[0]


@pytest.fixture
def as_before():
    yield
    globals().update(RATE=1.0)
    vars(OPTIONS).update(power=1.0)
    TABLE.update(offset=0.0)


@pytest.mark.usefixtures("as_before")
@pytest.mark.few(1)
@pytest.mark.parametrize(("change", "says"), OUTWARD.values(), ids=OUTWARD)
def test_numbers_that_a_module_reads_from_outside_are_not_passed_over(change, says):
    net, x = Outward(), torch.randn(4, 8)
    model = potluck.Model.from_torch(net, x)
    net(x)
    OPTIONS.unread, TABLE["unread"] = 1, 1
    model.check_as_traced(train=False)
    change()
    with pytest.raises(ModelError, match=f"{says} Outward.forward"):
        model.check_as_traced(train=False)


def test_numbers_that_a_loss_encloses_are_not_passed_over():
    kept = [1.0]
    model = potluck.Model.from_torch(
        nn.Linear(8, 4), torch.randn(4, 8), loss=loss_with(kept), example_targets=torch.randn(4, 4)
    )
    model.check_as_traced(train=True)
    kept[0] = 2.0
    with pytest.raises(ModelError, match=r"the loss was changed .* kept .read by"):
        model.check_as_traced(train=True)


def rated(net, loss):
    global RATE
    RATE = 0.5
    del net, loss


WITHIN = {
    "a number of the loss": (lambda _, loss: setattr(loss, "rate", 2.0), r"rate is 2\.0 now"),
    "a number of the module": (lambda net, _: setattr(net, "rate", 2.0), r"rate is 2\.0 now"),
    "a number outside": (rated, r"RATE \(read by.*is 0\.5 now, and was 1\.0"),
    "values of the loss": (lambda _, loss: halved(loss.of_classes.weight), "has other values"),
    "many values of the loss": (lambda _, loss: halved(loss.many), "many has other values"),
    "frozen": (lambda net, _: net.last[0].requires_grad_(False), "is frozen now"),
}


class RatedOutside(Loss):
    """Reads a number from outside, and many of its own."""

    def __init__(self):
        super().__init__()
        self.many = torch.ones(1 << 15, 4)

    def forward(self, output, target):
        return super().forward(output * self.many.sum(0) / self.many.shape[0], target) * RATE


@pytest.mark.few(2)
@pytest.mark.parametrize("by", ["on_step", "on_epoch", "log", "data"])
@pytest.mark.parametrize("change", WITHIN)
def test_a_change_while_a_fit_goes_on_ends_it(home, monkeypatch, change, by):
    monkeypatch.setattr(f"{__name__}.RATE", 1.0)
    torch.manual_seed(0)
    net, loss = Net(), RatedOutside()
    x, y = make_data("mlp", 8)
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    run = home.deploy(plan_of(model), model).wait()
    alter, text = WITHIN[change]

    def altered(*_, **__):
        alter(net, loss)

    def batches():
        for _ in range(2):
            yield x, y
        altered()
        yield x, y

    given = {by: SimpleNamespace(log=altered) if by == "log" else altered} if by != "data" else {}
    data = batches() if by == "data" else [(x, y)] * 4
    with pytest.raises(ModelError, match=f"(?s){text}"):
        run.fit(data, epochs=1 if by == "data" else 2, **given).wait()
    assert run.is_open
    assert 2 <= run.step <= 4
    run.close()
