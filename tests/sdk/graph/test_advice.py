"""What cannot be trained is refused in words: what it is, what was expected, and what to write
instead.
"""

import pytest

from potluck import Model
from potluck.errors import ModelError

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
X = torch.randn(6, 8)
CLASSES = torch.randint(0, 4, (6,))
NUMBERS = torch.randn(6, 4)


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
        lambda o, t: (o - t).pow(2).sum() / len(t),
        lambda o, t: (o - t).pow(2).sum() * (0.5 / len(o)),
        lambda o, t: (o - t).pow(2).sum() / float(len(t)),
        lambda o, t: (o - t).pow(2).sum() / torch.tensor(len(t)),
    ],
)
def test_a_loss_that_divides_by_len_is_told_of_shape(loss):
    with pytest.raises(
        ModelError, match=r"x\.shape\[0\] for the number of rows: len\(x\) is a plain number"
    ):
        made(nn.Linear(8, 4), loss, NUMBERS)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: (o - t).pow(2).sum() / t.shape[0],
        lambda o, t: (o - t).pow(2).sum() / (o.size(0) * 2),
        lambda o, t: (o - t).pow(2).sum() / t.numel(),
    ],
)
def test_a_loss_that_divides_by_shape_is_taken(loss):
    assert made(nn.Linear(8, 4), loss, NUMBERS).trains


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


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("make", "where"),
    [
        (Hooked, "a tensor of the forward pass"),
        (lambda: hooked_weight("register_hook"), "weight"),
        (lambda: hooked_weight("register_post_accumulate_grad_hook"), "weight"),
    ],
)
def test_hooks_on_gradients_are_not_lost_without_a_word(make, where):
    with pytest.raises(ModelError, match=rf"a hook is on the gradient of .*{where}"):
        made(make())


def test_a_gradient_that_counts_over_the_batch_is_refused():
    net = nn.Sequential(nn.Embedding(10, 8, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(8, 4))
    with pytest.raises(ModelError, match="scale_grad_by_freq"):
        Model.from_torch(net, CLASSES[:, None], loss=F.cross_entropy, example_targets=CLASSES)
