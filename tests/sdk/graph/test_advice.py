"""What cannot be trained is refused in words: what it is, what was expected, and what to write
instead.
"""

from functools import partial
from types import BuiltinFunctionType

import pytest

from potluck import Model
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
X = torch.randn(6, 8)
CLASSES = torch.randint(0, 4, (6,))
NUMBERS = torch.randn(6, 4)
NODES = []  # are gone, with their hooks, where nobody keeps them


def made(net, loss=F.cross_entropy, target=CLASSES):
    return Model.from_torch(net, X, loss=loss, example_targets=target)


@pytest.mark.few(1)
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_a_norm_that_averages_over_all_batches_is_named(norm):
    shape = (8,) if norm is nn.BatchNorm1d else (8, 1, 1)
    net = nn.Sequential(
        nn.Unflatten(1, shape), norm(8, momentum=None), nn.Flatten(), nn.Linear(8, 4)
    )
    with pytest.raises(
        ModelError, match=r"Norm\dd \(the module 1\) .*\(momentum=None\).*such as 0\.1.*eval\(\)"
    ):
        made(net)
    assert not Model.from_torch(net, X).trains
    net[1].eval()
    assert made(net).trains  # frozen, it keeps its statistics


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: (o - t).pow(2).sum() / int(t.shape[0]),
        lambda o, t: (o - t).pow(2).sum() / float(len(t)),
        lambda o, t: sum((o[i] - t[i]).pow(2).sum() for i in range(len(t))) / len(t),
        lambda o, t: (o - t).pow(2).mean() * (1 if len(t) > 3 else 2),
    ],
)
def test_a_loss_that_fixes_the_number_of_rows_is_told_what_follows_it(loss):
    with pytest.raises(ModelError, match=r"x\.shape\[0\] and len\(x\) follow the batch"):
        made(nn.Linear(8, 4), loss, NUMBERS)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: (o - t).pow(2).sum() / t.shape[0],
        lambda o, t: (o - t).pow(2).sum() / (o.size(0) * 2),
        lambda o, t: (o - t).pow(2).sum() / t.numel(),
        lambda o, t: (o - t).pow(2).sum() / len(t),
        lambda o, t: (o - t).pow(2).sum() / torch.tensor(len(t)),
        lambda o, t: (o - t).pow(2).view(len(o), -1).sum(1).mean(),
    ],
)
def test_a_loss_that_divides_by_shape_or_length_is_taken(loss):
    assert made(nn.Linear(8, 4), loss, NUMBERS).trains


def test_the_length_of_a_tensor_is_python_s_again_afterwards():
    with pytest.raises(ModelError):
        made(nn.Linear(8, 4), lambda o, t: (o - t).pow(2).sum() / float(len(t)), NUMBERS)
    assert isinstance(len, BuiltinFunctionType)


def test_a_fraction_of_the_number_of_rows_is_told_how_to_be_written():
    with pytest.raises(
        ModelError,
        match=r"a fraction of the number of rows.*divide the tensor.*2 \* x\.sum\(\) / n",
    ):
        made(nn.Linear(8, 4), lambda o, t: (o - t).pow(2).sum() * (0.5 / o.shape[0]), NUMBERS)


def test_class_weights_that_are_to_learn_are_told_what_can():
    with pytest.raises(
        ModelError, match=r"no derivative by its weight.*requires_grad_\(False\).*weight\[target\]"
    ):
        made(nn.Linear(8, 4), nn.CrossEntropyLoss(weight=nn.Parameter(torch.ones(4))))


LINEAR = nn.Linear(4, 4)
WEIGHT = nn.Parameter(torch.eye(4))
TENSOR = torch.eye(4, requires_grad=True)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("stranger", "loss"),
    [
        (LINEAR, lambda o, t: F.cross_entropy(LINEAR(o), t)),
        (WEIGHT, lambda o, t: F.cross_entropy(o @ WEIGHT, t)),
        (TENSOR, lambda o, t: F.cross_entropy(o @ TENSOR, t)),
    ],
    ids=["module", "parameter", "tensor"],
)
def test_a_weight_that_no_module_has_is_not_left_untrained_without_a_word(stranger, loss):
    with pytest.raises(
        ModelError, match=r"reaches a tensor \[4.*belongs to no module.*requires_grad_\(False\)"
    ):
        made(nn.Linear(8, 4), loss)
    stranger.requires_grad_(False)
    assert made(nn.Linear(8, 4), loss).trains


class Hooked(nn.Module):
    """A hook on the gradient of a value of the forward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 0.1)
        return self.second(hidden)


def hooked_weight(name):
    net = nn.Linear(8, 4)
    getattr(net.weight, name)(lambda tensor: None)
    return net


def hooked_sum(name, hook):
    """On the node that sums up the gradients of a weight; a module lists no such hook."""
    net = nn.Linear(8, 4)
    node = net.weight.view_as(net.weight).grad_fn.next_functions[0][0]
    getattr(node, name)(partial(hook, net.weight))
    NODES.append(node)
    return net


def halved(_, gradients):
    return (gradients[0] * 0.5,)


def limited(_, gradients):
    return (gradients[0].clamp(-10, 10),)


def scaled_afterwards(weight, *_):
    weight.grad.mul_(2)


def stepped(weight, *_):
    weight.data.sub_(weight.grad)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: hooked_sum("register_prehook", halved), "weight"),
        (lambda: hooked_sum("register_prehook", limited), "weight"),
        (lambda: hooked_sum("register_hook", scaled_afterwards), "weight"),
        (lambda: hooked_sum("register_hook", stepped), "weight"),
        (Hooked, "a tensor of the forward pass"),
        (lambda: hooked_weight("register_hook"), "weight"),
        (lambda: hooked_weight("register_post_accumulate_grad_hook"), "weight"),
    ],
)
def test_hooks_on_gradients_are_not_lost_without_a_word(make, where):
    with pytest.raises(ModelError, match=rf"a hook is on the gradient of .*{where}"):
        made(make())


def test_a_node_that_sums_up_gradients_and_has_no_hook_is_left_as_it_was():
    net = nn.Linear(8, 4)
    output = net(torch.ones(2, 8))
    before = net.weight.detach().clone()
    assert made(net).trains
    assert net.weight.grad is None
    assert torch.equal(net.weight, before)
    output.sum().backward()
    assert torch.equal(net.weight.grad, torch.full((4, 8), 2.0))


def test_a_gradient_that_counts_over_the_batch_is_refused():
    net = nn.Sequential(nn.Embedding(10, 8, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(8, 4))
    with pytest.raises(ModelError, match="scale_grad_by_freq"):
        Model.from_torch(net, CLASSES[:, None], loss=F.cross_entropy, example_targets=CLASSES)


class Odd(nn.Module):
    """Two layers, and whatever is done between them."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.between = between
        self.table, self.cell = nn.Embedding(9, 8, max_norm=1.0), nn.LSTM(8, 8)

    def forward(self, x):
        return self.last(self.between(self, x))


def clamped(net, x):
    with torch.no_grad():
        net.first.weight.clamp_(-1, 1)
    return net.first(x)


ODD = {
    "a weight in place": (clamped, X, r"a weight, which only the optimizer changes.*parametrize"),
    "max_norm": (lambda net, x: net.table(x), CLASSES, "Leave max_norm out"),
    "a complex factor": (
        lambda net, x: (net.first(x) * (1 + 1j)).real,
        X,
        r"type complex.*in Odd\.forward.*torch\.complex\(real, imaginary\)",
    ),
    "complex inputs": (
        lambda net, x: net.first(x.abs()),
        X + 1j,
        r"complex64, which does not travel.*view_as_real",
    ),
    "batch second": (
        lambda net, x: net.cell(x[:, None].expand(-1, 3, -1))[0].mean(1),
        X,
        "batch_first=True",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("between", "x", "says"), ODD.values(), ids=ODD)
def test_what_is_refused_does_not_send_in_a_circle(between, x, says):
    with pytest.raises(ModelError, match=says):
        Model.from_torch(Odd(between), x)


@pytest.mark.long
def test_a_decoder_that_has_labels_alone_is_told_what_answers_need():
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(
        vocab_size=9, decoder_start_token_id=0, use_cache=False, dropout_rate=0.0, **sizes
    )
    ids = torch.randint(3, 9, (4, 5))
    net, batch = transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}
    with pytest.raises(ModelError, match=r"without its targets\?.*decoder_input_ids"):
        Model.from_torch(net, batch, loss="loss")
    assert Model.from_torch(net, {**batch, "decoder_input_ids": ids}, loss="loss").trains


def test_what_torch_cannot_export_although_it_runs_is_not_laid_to_the_module():
    class Slopes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, x):
            return torch.func.vmap(torch.func.jacrev(self.inner))(x)

    assert Slopes()(X).shape == (6, 4, 8)
    with pytest.raises(ModelError, match=r"torch\.export fails at it by itself"):
        Model.from_torch(Slopes(), X)
    with pytest.raises(ModelError, match=r"Does net\(example\) run"):
        Model.from_torch(Misspelt(), X)


class Misspelt(nn.Module):
    def forward(self, x):
        return x.std_mean(1)  # torch has it as a function alone
