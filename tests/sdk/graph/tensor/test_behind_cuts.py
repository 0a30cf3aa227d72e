"""Whatever operator stands behind columns or channels that are cut, and however many dimensions its
operand has, the answer in pieces is the whole one.
"""

import pytest
import torch
from tests.sdk.graph.divisible_modules import Case, answer_in_pieces, gradients_in_pieces
from torch import nn
from torch.nn import functional

from potluck.errors import ModelError
from potluck.graph import Model

WIDE, NARROW = 8, 2  # of narrow ones each device has one
N_ROWS = 5
# first product, and an operand for it: cut along the last dimension, or along channels
STARTS = {
    "columns": lambda n: (nn.Linear(6, n), torch.randn(N_ROWS, 6)),
    "columns of positions": lambda n: (nn.Linear(6, n), torch.randn(N_ROWS, 4, 6)),
    "columns of a picture": lambda n: (nn.Linear(6, n), torch.randn(N_ROWS, 4, 4, 6)),
    "channels": lambda n: (nn.Conv1d(6, n, 3, padding=1), torch.randn(N_ROWS, 6, 8)),
    "channels of a picture": lambda n: (
        nn.Conv2d(6, n, 3, padding=1),
        torch.randn(N_ROWS, 6, 8, 8),
    ),
}
OPERATORS = {
    "max_pool1d": lambda v: functional.max_pool1d(v, 3, 1, 1),
    "avg_pool1d": lambda v: functional.avg_pool1d(v, 3, 1, 1),
    "max_pool1d to half": lambda v: functional.max_pool1d(v, 2),
    "max_pool2d": lambda v: functional.max_pool2d(v, 3, 1, 1),
    "avg_pool2d": lambda v: functional.avg_pool2d(v, 3, 1, 1),
    "avg_pool2d to half": lambda v: functional.avg_pool2d(v, 2),
    "adaptive_avg_pool1d": lambda v: functional.adaptive_avg_pool1d(v, v.shape[-1]),
    "adaptive_avg_pool1d to two": lambda v: functional.adaptive_avg_pool1d(v, 2),
    "adaptive_avg_pool2d": lambda v: functional.adaptive_avg_pool2d(v, (2, 2)),
    "adaptive_max_pool2d": lambda v: functional.adaptive_max_pool2d(v, (4, 2)),
    "nearest": lambda v: functional.interpolate(v, scale_factor=2.0),
    "bilinear": lambda v: functional.interpolate(v, scale_factor=2.0, mode="bilinear"),
    "pad": lambda v: functional.pad(v, (1, 1), value=0.5),
    "pad twice": lambda v: functional.pad(v, (1, 0, 0, 1), value=0.5),
    "squeeze": lambda v: v.squeeze(-1),
    "squeeze one": lambda v: v.squeeze(1),
    "squeeze two": lambda v: v.squeeze((1, -1)),
    "repeat_interleave": lambda v: v.repeat_interleave(2, -1),
    "repeat_interleave told": lambda v: v.repeat_interleave(2, 1, output_size=2 * v.shape[1]),
    "type_as": lambda v: v * (v[:, :1] > 0).type_as(v),
    "softmax": lambda v: v.softmax(-1),
    "softmax of one": lambda v: v.softmax(1),
    "glu": lambda v: functional.glu(v, 1),
    "chunk": lambda v: v.chunk(2, 1)[1],
    "sum": lambda v: v + v.sum(1, keepdim=True),
    "mean": lambda v: v + v.mean(-1, keepdim=True),
    "norm": lambda v: functional.layer_norm(v, v.shape[-1:]),
    "select": lambda v: v.select(1, 1).unsqueeze(1),
    "topk": lambda v: v.topk(2, 1)[0],
    "cat": lambda v: torch.cat([v, v.tanh()], 1),
    "product": lambda v: v @ v.transpose(-1, -2),
}  # fmt: skip

QUICK = ("max_pool1d", "squeeze")
# by torch's own word, or as the operator mixes rows
REFUSED = ("nothing of it can be divided", "for each row of the batch", "one size of batch")


class Behind(nn.Module):
    """A product, an operator, and a product with all that it gives."""

    def __init__(self, first, operator, x):
        super().__init__()
        self.first, self.operator = first, operator
        self.last = nn.Linear(operator(first(x)).shape[-1], 3)

    def forward(self, x):
        return self.last(self.operator(self.first(x)))


def made(start, width, name):
    """The network and its operand; none where torch does not take such an operand."""
    torch.manual_seed(0)
    first, x = STARTS[start](width)
    try:
        return Behind(first, OPERATORS[name], x).eval(), x
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return None


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in OPERATORS]
)
def test_the_answer_in_pieces_is_the_whole_one(name):
    tried = 0
    for start in STARTS:
        for width in (WIDE, NARROW):
            case = made(start, width, name)
            if case is None:
                continue
            net, x = case
            tried += 1
            try:
                divided = Model.from_torch(net, x).divided((1, 1))
            except ModelError as error:
                assert any(words in str(error) for words in REFUSED), (start, width)  # noqa: PT017
                continue
            answer, expected = answer_in_pieces(divided, x), net(x)
            assert answer.shape == expected.shape, (start, width)
            assert torch.allclose(answer, expected, atol=1e-5), (start, width)
    assert tried


class Twice(nn.Module):
    """Weights that are cut with the columns, and then read as a whole, along the other axis."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.randn(6))


class Scaled(Twice):
    def forward(self, x):
        scaled = (self.first(x) * self.scale).transpose(1, 2) * self.scale
        return self.last(scaled.transpose(1, 2))


class Mixed(Twice):
    def forward(self, x):
        return self.last(self.first(self.first(x).transpose(1, 2)).transpose(1, 2)) * self.scale[:3]


@pytest.mark.parametrize("make", [Scaled, Mixed])
def test_a_weight_that_is_read_in_pieces_and_as_a_whole_stays_whole(make):
    torch.manual_seed(0)
    net, loss = make(), functional.mse_loss
    case = Case(net, torch.randn(5, 6, 6), torch.randn(5, 6, 3), loss)
    model = Model.from_torch(net, case.x, loss=loss, example_targets=case.y)
    try:
        divided = model.divided((1, 1))
    except ModelError as error:
        assert REFUSED[0] in str(error)  # noqa: PT017
        return
    assert torch.allclose(answer_in_pieces(divided, case.x), net(case.x), atol=1e-5)
    _, gradients = gradients_in_pieces(divided, case)
    loss(net(case.x), case.y).backward()
    for name, parameter in net.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, atol=1e-5), name
