"""Models as somebody in a hurry, or who means no good, brings them: each works, or says what to
do.
"""

import pytest
import torch
from torch import nn

from potluck.errors import ModelError
from potluck.graph import Model
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.segment import loads


class Does(nn.Module):
    """A linear layer, a buffer, and whatever is done with them."""

    def __init__(self, forward):
        super().__init__()
        self.linear, self._forward = nn.Linear(4, 4), forward
        self.register_buffer("count", torch.zeros(4))

    def forward(self, *tensors):
        return self._forward(self, *tensors)


class Summed(torch.autograd.Function):
    """Doubles, with the gradient of something else."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum(1, keepdim=True).expand_as(gradient)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        return self.head(self.tokens(tokens))


def counting(self, x):
    self.count += 1
    return self.linear(x) + self.count


def counting_calls(self, x):
    if self.training:
        self.count += 1
    return self.linear(x)


def counting_rows(self, x):
    if self.training:
        self.count += x.shape[0]
    return self.linear(x)


def under_autocast(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        return self.linear(x)


def index_from_floats(self, x):
    return self.linear(x).gather(1, x.abs().long())


def checkpointed(self, x):
    return torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)


torch.manual_seed(0)
X = torch.rand(4, 4)
IMAGES = torch.rand(2, 2, 5, 5)
TOKENS = torch.tensor([[1, 2], [3, 8]])

WORKING = {
    "an index computed from floats": (Does(index_from_floats), X),
    "indices as they are": (nn.Embedding(9, 4), TOKENS),
    "changed in place": (nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), X),
    "instance normalisation without statistics": (
        nn.Sequential(nn.Conv2d(2, 2, 3), nn.InstanceNorm2d(2)),
        IMAGES,
    ),
    "tied weights": (Tied(), TOKENS),
    "a dictionary comes out": (Does(lambda self, x: {"y": self.linear(x)}), X),
    "indices come out": (Does(lambda self, x: self.linear(x).argmax(1)), X),
    "an input comes out": (Does(lambda self, x: (self.linear(x), x)), X),
    "no weights": (nn.ReLU(), X),
    "one row for batch normalisation": (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), X[:1]),
    "half precision": (nn.Linear(4, 4).half(), X.half()),
    "on several processors": (nn.DataParallel(nn.Linear(4, 4)), X),
}


def check(net, x, plain):
    """It gives what `plain` does on one machine."""
    net.eval()
    model = Model.from_torch(net, (tensor for tensor in [x]))
    part = TrainingSegment(loads(model.document(0, len(model.layers()))))
    for name in part.names():
        part.write(name, model.state()[name])
    expected = plain(x)
    outputs = list(expected.values()) if isinstance(expected, dict) else expected
    for got, wanted in zip(
        part.forward((x,)), outputs if isinstance(outputs, list | tuple) else [outputs], strict=True
    ):
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)


@pytest.mark.few(3)
@pytest.mark.parametrize(("net", "x"), WORKING.values(), ids=WORKING)
def test_gives_what_one_machine_gives(net, x):
    check(net, x, net)


@pytest.mark.long
def test_one_that_is_compiled_gives_what_it_gave_before():
    plain = nn.Linear(4, 4)
    check(torch.compile(plain), X, plain)  # to compare with a compiled one would take a minute


def quantised():
    return torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, dtype=torch.qint8
    )


REFUSED = {
    "nothing to do": (nn.Sequential, X, "computes nothing"),
    "hands on": (nn.Identity, X, "computes nothing"),
    "weights come out": (lambda: Does(lambda self, x: self.linear.weight), X, "computes nothing"),
    "as many ones as rows": (
        lambda: Does(lambda self, x: torch.ones(x.shape[0], 2).cumsum(1)),
        X,
        "computes nothing from the values",
    ),
    "a weight for each row": (
        lambda: Does(lambda self, x: self.linear.weight[:1].expand(x.shape[0], 4)),
        X,
        "computes nothing from the values",
    ),
    "a mean over the batch": (
        lambda: Does(lambda self, x: self.linear(x).mean(0)),
        X,
        "each row.*aten.mean",
    ),
    "a number": (lambda: Does(lambda self, x: self.linear(x).sum()), X, "each row.*aten.sum"),
    "the batch last": (
        lambda: Does(lambda self, x: self.linear(x).t()),
        X,
        "each row.*aten.t.default",
    ),
    "rows that look at each other": (
        lambda: Does(lambda self, x: x.cumsum(0)),
        X,
        "each row.*aten.cumsum",
    ),
    "statistics of the batch": (
        lambda: nn.BatchNorm1d(4, track_running_stats=False),
        X,
        "each row.*batch_norm",
    ),
    "None comes out": (
        lambda: Does(lambda self, x: (self.linear(x), None)),
        X,
        "output_1 is None.*Leave it out",
    ),
    "counting requests": (lambda: Does(counting), X, "in place.*outside the model"),
    "complex numbers": (lambda: Does(lambda self, x: torch.fft.fft(x)), X, "view_as_real"),
    "autocast": (lambda: Does(under_autocast), X, r"torch\.autocast.*convert yourself"),
    "an index out of range": (
        lambda: nn.Embedding(3, 4),
        TOKENS,
        "aten.embedding.*out of range.*differ",
    ),
    "scripted": (lambda: torch.jit.script(nn.Linear(4, 4)), X, "scripted.*made from"),
    "without shapes": (
        lambda: nn.Sequential(nn.LazyLinear(4)),
        X,
        r"in the module 0\).*net\(example\) once",
    ),
    "quantised": (quantised, X, "quantised.*as it was"),
    "not a module": (lambda: torch.relu, X, "torch.nn.Module is expected"),
    "no input": (nn.ReLU, None, "NoneType; a tensor"),
    "None as well": (nn.ReLU, (X, None), "example input 1 is a NoneType"),
    "a dictionary goes in": (nn.ReLU, {"x": X}, "lacks input.*wrap the module"),
    "a sparse input": (nn.ReLU, X.to_sparse(), "sparse; a dense tensor"),
}


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("make", "example", "text"), REFUSED.values(), ids=REFUSED)
def test_says_why_it_is_refused_and_what_to_do(make, example, text):
    with pytest.raises(ModelError, match=text):
        Model.from_torch(make(), example)


UNTAUGHT = {
    "a backward of one's own": (
        Does(lambda self, x: Summed.apply(self.linear(x))),
        "Summed is Python.*operators",
    ),
    "detached": (Does(lambda self, x: self.linear(x).detach()), "no weight learns.*detach"),
    "frozen": (nn.Linear(4, 4).requires_grad_(False), "no weight learns"),
    "no weights": (nn.ReLU(), "no weight learns"),
    # a step takes several micro-batches, which one machine does not know
    "counting calls": (Does(counting_calls), "in place.*outside the model"),
    "counting rows": (Does(counting_rows), "in place.*outside the model"),
    "statistics of instances": (
        nn.Sequential(
            nn.Linear(4, 4),
            nn.Unflatten(1, (2, 2)),
            nn.InstanceNorm1d(2, track_running_stats=True),
            nn.Flatten(),
        ),
        r"running statistics.*\(in the module 2\).*track_running_stats=False",
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize(("net", "text"), UNTAUGHT.values(), ids=UNTAUGHT)
def test_training_that_would_teach_nothing_or_something_else_is_refused(net, text):
    Model.from_torch(net, X)
    with pytest.raises(ModelError, match=text):
        Model.from_torch(net, X, loss=nn.MSELoss(), example_targets=X)


LEARNING = {
    "checkpointed": (Does(checkpointed), X),
    "sparse gradients": (nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4)), TOKENS),
}


@pytest.mark.parametrize(("net", "x"), LEARNING.values(), ids=LEARNING)
def test_gradients_are_those_of_one_machine(net, x):
    targets = torch.ones_like(net(x)).detach()
    model = Model.from_torch(net, x, loss=nn.MSELoss(), example_targets=targets)
    part = TrainingSegment(loads(model.document(0, len(model.layers(True)), train=True)))
    for name in part.names():
        part.write(name, model.state()[name])
    part.forward((x, targets), key="k", train=True)
    part.backward("k")
    nn.functional.mse_loss(net(x), targets).backward()
    assert torch.equal(
        part.gradients(), torch.cat([p.grad.to_dense().flatten() for p in net.parameters()])
    )


def test_looking_at_a_loss_changes_neither_statistics_nor_random_numbers():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    drawn = torch.get_rng_state()
    Model.from_torch(net, X, loss=nn.MSELoss(), example_targets=X)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(parameter.grad is None for parameter in net.parameters())
