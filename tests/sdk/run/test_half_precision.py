"""Half precision, of whole modules and under autocast, is that of one machine."""

import copy

import pytest
from tests.sdk.graph.models import CASES
from tests.sdk.graph.test_equality import loaded
from tests.sdk.run.conftest import make_plan, train_alone

import potluck
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
SHAPES = {
    "two stages": [((A,), (4,)), ((B,), (4,))],
    "replicated": [((A, B), (3, 1))],
    "replicated, then one": [((A, B), (2, 2)), ((A,), (4,))],
}
ROWS = 24
# Of the largest number. Products of other numbers of rows may round otherwise: half of the last of
# 8 or 11 binary digits, some of them on top of each other.
ERRORS = {"bfloat16": 2e-2, "float16": 4e-3}
HALVES = ("bfloat16", "float16")


def mlp():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def data():
    torch.manual_seed(1)
    return torch.randn(ROWS, 8), torch.randint(0, 4, (ROWS,))


def error(found, expected):
    """Of the largest number that is expected."""
    found, expected = found.detach().float(), expected.detach().float()
    return ((found - expected).abs().max() / expected.abs().max()).item()


class Casting(nn.Module):
    """A module as it is under autocast: the reference on one machine."""

    def __init__(self, net, dtype):
        super().__init__()
        self.net, self.dtype = net, getattr(torch, dtype)

    def forward(self, *inputs):
        with torch.autocast("cpu", dtype=self.dtype):
            return self.net(*inputs)


def segment_of(model, train):
    return model.segment(0, len(model.layers(train)), train=train)[1]


# --- autocast: the graph has the conversions of torch ---------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_torch_under_autocast(name):
    torch.manual_seed(0)
    case = CASES[name]
    net, (x, y) = case.make().train(), (case.inputs(6), case.targets(6))
    model = potluck.Model.from_torch(net, x, loss=case.loss, example_targets=y, autocast="bfloat16")
    graph = segment_of(model, train=True)
    made = loaded(graph, model.state())
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        expected = case.loss(net(x), y)
    expected.backward()
    torch.manual_seed(1)
    (found,) = made.forward(tuple(model.fed(x, y).values()), key="k", train=True)
    made.backward("k")
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)
    own = dict(net.named_parameters(remove_duplicate=False))
    grads = [own[p.name].grad for p in graph.parameters if p.trainable]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    assert torch.equal(made.gradients()[: len(flat)], flat)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_training_under_autocast_is_that_of_one_machine(home, shape):
    net, (x, y) = mlp(), data()
    loss = nn.functional.cross_entropy
    model = potluck.Model.from_torch(
        net, x[:6], loss=loss, example_targets=y[:6], autocast="bfloat16"
    )
    plan = make_plan(model, *SHAPES[shape], micro_batch=4, n_micro_batches=2)
    run = home.deploy(plan, model, optimizer=potluck.AdamW(0.01)).wait()
    losses = run.fit((x, y), epochs=3).wait().losses
    alone = copy.deepcopy(net)
    # a cache would keep the weights of the first step
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        expected = train_alone(
            alone,
            x,
            y,
            batch=8,
            micro_batch=4,
            epochs=3,
            make_optimizer=lambda ps: torch.optim.AdamW(ps, 0.01),
        )
    assert losses == pytest.approx(expected, rel=ERRORS["bfloat16"])
    state = run.state_dict()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    for name, tensor in alone.state_dict().items():
        moved = error(state[name] - net.state_dict()[name], tensor - net.state_dict()[name])
        assert moved < 0.1, name
    run.close()


@pytest.mark.long
def test_what_is_sent_and_reckoned_under_autocast_has_the_type_that_it_has():
    x, y = data()
    plain, cast = (
        potluck.Model.from_torch(
            nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)),
            x,
            loss=nn.functional.cross_entropy,
            example_targets=y,
            autocast=autocast,
        )
        for autocast in ("", "bfloat16")
    )
    sent = [model.layers(True)[0].output_bytes for model in (plain, cast)]
    assert sent[1] == sent[0] / 2
    weights = [
        sum(layer.parameter_bytes for layer in model.layers(True)) for model in (plain, cast)
    ]
    assert weights[0] == weights[1]


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", HALVES)
def test_answers_under_autocast_are_those_of_one_machine(home, dtype):
    net, (x, _) = mlp().eval(), data()
    model = potluck.Model.from_torch(net, x[:6], autocast=dtype)
    stages = SHAPES["replicated, then one"]
    run = home.deploy(make_plan(model, *stages, micro_batch=4, training=False), model).wait()
    with torch.no_grad():
        expected = Casting(net, dtype)(x[:4])
    answer = run(x[:4])
    assert answer.dtype is expected.dtype is getattr(torch, dtype)
    assert error(answer, expected) < ERRORS[dtype]
    run.close()


class Partly(nn.Module):
    """Its middle is left out of autocast; its last product is an einsum; some is without
    gradients.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        y = self.first(x)
        with torch.autocast("cpu", enabled=False):
            y = self.middle(y.float())
        with torch.no_grad():
            z = self.first(x)
        return self.last(torch.einsum("ri,ji->rj", y, self.middle.weight) + z)


def test_what_the_module_leaves_out_of_autocast_stays_as_it_is(home):
    torch.manual_seed(0)
    net, (x, _) = Partly().eval(), data()
    model = potluck.Model.from_torch(net, x[:6], autocast="bfloat16")
    graph = segment_of(model, train=False)
    n_products = sum(
        node.op in ("aten.linear.default", "aten.einsum.default") for node in graph.nodes
    )
    assert n_products == 5
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4, training=False), model).wait()
    with torch.no_grad():
        assert torch.equal(run(x[:4]), Casting(net, "bfloat16")(x[:4]))
    run.close()


BAD = [
    ({"autocast": "float8"}, r"autocast='float8' is not offered.*bfloat16, float16"),
    ({"autocast": "bf16"}, r"not offered"),
]


@pytest.mark.parametrize(("options", "why"), BAD)
def test_a_type_that_is_not_offered_is_refused(options, why):
    with pytest.raises(ModelError, match=f"(?s){why}"):
        potluck.Model.from_torch(mlp(), data()[0], **options)


@pytest.mark.long
def test_an_operator_that_converts_a_part_of_itself_is_refused_with_its_name():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]

    with pytest.raises(ModelError, match=r"aten\.lstm\.input.*lstm.*(?s:.)*enabled=False"):
        potluck.Model.from_torch(Recurrent(), torch.randn(4, 3, 8), autocast="bfloat16")


# --- whole modules --------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_a_module_in_half_precision_answers_as_on_one_machine(home, name, dtype):
    torch.manual_seed(0)
    case = CASES[name]
    net = case.make().eval().to(getattr(torch, dtype))
    x = case.inputs(4)
    x = x.to(getattr(torch, dtype)) if x.is_floating_point() else x
    model = potluck.Model.from_torch(net, x)
    stages = SHAPES["two stages"]
    run = home.deploy(make_plan(model, *stages, micro_batch=4, training=False), model).wait()
    with torch.no_grad():
        expected = net(x)
    answer = run(x)
    assert answer.dtype is getattr(torch, dtype)
    assert error(answer, expected) < ERRORS[dtype]
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", HALVES)
def test_weights_and_values_in_half_precision_are_planned_with_half_of_the_bytes(dtype):
    net, (x, _) = mlp().eval(), data()
    full = potluck.Model.from_torch(net, x).layers(False)
    half = potluck.Model.from_torch(
        copy.deepcopy(net).to(getattr(torch, dtype)), x.to(getattr(torch, dtype))
    ).layers(False)
    for name in ("parameter_bytes", "output_bytes"):
        sums = [sum(getattr(layer, name) for layer in layers) for layers in (full, half)]
        assert sums[1] * 2 == sums[0]
