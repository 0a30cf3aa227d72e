"""A module that does something across the rows of its batch is refused, and the operator named.
What is taken answers and learns on any division of the rows as on one machine.
"""

import copy

import pytest
import torch
from tests.sdk.run.conftest import make_plan
from torch import nn
from torch.nn import functional

import potluck
from potluck.errors import ModelError
from potluck.graph import Model
from potluck.testing.memory import memory_home

A, B = "local-1", "local-2"
# every batch of a device: one row, several, and unequal shares of one and more
DIVISIONS = {
    "one row": (((A,), (1,)), 1),
    "micro-batches": (((A,), (4,)), 4),
    "shares of one row": (((A, B), (1, 1)), 2),
    "unequal shares": (((A, B), (5, 1)), 6),
}


class Net(nn.Module):
    """Something between two layers; `n` counts the rows."""

    def __init__(self, between):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.between = between
        self.table = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return self.last(self.between(self, self.first(x), x.shape[0]))


def shifted(rows):
    """Each row sees the one so many before it."""
    return lambda net, h, n: h + functional.pad(h, (0, 0, rows, 0))[:n]


def convolved(rows):
    """Each row sees those so many before and behind it."""

    def between(net, h, n):
        kernel = torch.ones(4, 4, 3)
        return functional.conv1d(h.t()[None], kernel, padding=rows, dilation=rows)[0].t()

    return between


# The rows that touch each other are far apart where a number is far from those that are tried.
MIXING = {
    "column and row": (lambda net, h, n: h * (h[:, :1] + h[:, 0]).mean(1)[:, None], "add"),
    "diagonal of pairs": (lambda net, h, n: h * (h[:, :1] * h[:, 0]).diagonal()[:, None], "mul"),
    "a sum of as many as there are rows": (
        lambda net, h, n: h + net.table[:1].expand(n, -1).sum(0),
        "add",
    ),
    "std": (lambda net, h, n: h * h.std(), "std"),
    "cdist": (lambda net, h, n: h * torch.cdist(h, h).mean(1, keepdim=True), "cdist"),
    "gram": (lambda net, h, n: (h @ h.t()).softmax(1) @ h, r"aten\.(t|matmul)\b"),
    "outer": (lambda net, h, n: torch.outer(h[:, 0], h[:, 1]) @ h, r"outer|aten\.mul"),
    "einsum of pairs": (lambda net, h, n: torch.einsum("bi,ci->bc", h, h) @ h, "einsum"),
    "einsum of the rest": (lambda net, h, n: h * torch.einsum("...i,...i->i", h, h), "einsum"),
    "cumsum": (lambda net, h, n: h.cumsum(0), "cumsum"),
    "sort": (lambda net, h, n: h.sort(0).values, "sort"),
    "flip": (lambda net, h, n: h.flip(0), "flip"),
    **{f"roll {k}": (lambda net, h, n, k=k: h.roll(k, 0), "roll") for k in (1, 6, 60)},
    "first row": (lambda net, h, n: h + h[0], "select"),
    "every other row": (lambda net, h, n: h + h[::2].mean(0), "slice|__getitem__"),
    "all but the first": (lambda net, h, n: h + h[1:].mean(0), "slice|__getitem__"),
    "topk": (lambda net, h, n: h + h.topk(1, dim=0).values, "topk"),
    "softmax": (lambda net, h, n: h.softmax(0), "softmax"),
    "normalize": (lambda net, h, n: functional.normalize(h, dim=0), "norm"),
    "mean": (lambda net, h, n: h - h.mean(), "mean"),
    "a small mean": (lambda net, h, n: h - 1e-7 * h.mean(0), "a sum over all rows"),
    "a maximum that is not reached": (
        lambda net, h, n: torch.where(h.abs().max() > 1e6, h * 0, h),
        "max",
    ),
    "numbers of rows": (lambda net, h, n: h + torch.arange(n)[:, None], "add"),
    **{
        f"a view that moves rows {k}": (
            lambda net, h, n, k=k: h.view(k, -1, 4).transpose(0, 1).reshape(-1, 4),
            "view",
        )
        for k in (2, 3)
    },
    **{
        f"{what} {k}": (make(k), named)
        for k in (1, 4, 60)
        for what, make, named in (
            ("shifted", shifted, "pad"),
            ("convolved", convolved, "conv1d|aten.t"),
            (
                "behind constants",
                lambda k: lambda net, h, n: h + torch.cat([torch.zeros(k, 4), h])[:n],
                "cat",
            ),
            ("triangle", lambda k: lambda net, h, n: h.triu(-k), "triu"),
            (
                "band",
                lambda k: lambda net, h, n: h + torch.ones(n, n).tril(-k) @ h,
                "ones|tril|matmul",
            ),
            (
                "a part of repeated rows",
                lambda k: lambda net, h, n: h.repeat(9, 1)[6 * k : 6 * k + n],
                "slice|__getitem__",
            ),
            (
                "groups of rows from one on",
                lambda k: lambda net, h, n: h * (1 + torch.arange(1, n + 1) // (8 * k))[:, None],
                "arange",
            ),
            ("at least", lambda k: lambda net, h, n: torch.add(h, h, alpha=max(n, 8 * k)), "add"),
            ("roll by rows", lambda k: lambda net, h, n: h.roll(n // (8 * k), 1), "roll"),
            ("select by rows", lambda k: lambda net, h, n: h + h[:, n // (99 * k), None], "select"),
            ("times the rows", lambda k: lambda net, h, n: h * max(n // (8 * k), 1), "mul"),
        )
    },
    # of zeros no order shows
    "two groups of rows": (
        lambda net, h, n: torch.stack([(h - 1e3).relu(), (h - 1e2).relu()]).view(-1, 4),
        "stack",
    ),
    "two groups side by side": (
        lambda net, h, n: torch.cat([(h - 1e3).relu(), (h - 1e2).relu()]),
        "cat",
    ),
    "groups of two layouts": (
        lambda net, h, n: (
            torch.cat([(h - 1e2).relu(), (h - 1e2).relu().repeat(2, 1)]).view(-1, 3, 4).sum(1)
        ),
        "repeat|cat",
    ),
    "attention": (lambda net, h, n: functional.scaled_dot_product_attention(h, h, h), "attention"),
    "attention of zeros": (
        lambda net, h, n: functional.scaled_dot_product_attention(*3 * [(h - 1e2).relu()]),
        "attention",
    ),
    "a number of rows baked in": (lambda net, h, n: h + torch.zeros(6, 1), "add"),
    "a plain number of rows": (lambda net, h, n: h * int(n), "plain number"),
    "one row after the other": (lambda net, h, n: torch.stack([r * 2 for r in h]), "unbind|iter"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", MIXING)
def test_what_mixes_rows_is_refused_by_its_name(case):
    between, named = MIXING[case]
    torch.manual_seed(0)  # of several that mix rows another one may be named for other values
    with pytest.raises(ModelError, match=named):
        Model.from_torch(Net(between), torch.randn(6, 4))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.first = kind(4, 4, **options)

    def forward(self, x):
        return self.first(x)[0]


SEQUENCES = {
    "GRU": (lambda: Recurrent(nn.GRU), "gru"),
    "LSTM": (lambda: Recurrent(nn.LSTM), "lstm"),
    "layer": (lambda: nn.TransformerEncoderLayer(4, 2, 8), "transpose"),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", SEQUENCES)
def test_a_sequence_that_comes_first_is_refused(kind):
    make, named = SEQUENCES[kind]
    with pytest.raises(ModelError, match=named):
        Model.from_torch(make(), torch.randn(6, 3, 4))


@pytest.mark.long
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_a_recurrent_layer_is_taken_without_a_word(kind):
    x = torch.randn(6, 3, 4)
    loss = functional.mse_loss
    Model.from_torch(Recurrent(kind, batch_first=True), x, loss=loss, example_targets=x)


APART = {
    "expand": lambda net, h, n: h + net.table[:1].expand(n, -1),
    "expand as": lambda net, h, n: h * net.table[0].expand_as(h),
    "repeat": lambda net, h, n: h + net.table[:1].repeat(n, 1),
    "the first of rows that are alike": lambda net, h, n: (
        h + net.table[:1].expand(n, -1)[:1].repeat(n, 1)
    ),
    "repeated rows": lambda net, h, n: h.repeat(2, 1).view(2, n, 4).sum(0),
    "part of repeated rows": lambda net, h, n: h.repeat(2, 1)[n:],
    "side by side": lambda net, h, n: torch.cat([h, h * 3]).view(2, n, 4)[1],
    "numbered": lambda net, h, n: h[torch.arange(n), h.argmax(1)][:, None] * h,
    "weights against rows": lambda net, h, n: (net.table @ h.t()).t() @ net.table,
    "einsum": lambda net, h, n: torch.einsum("bi,ci->bc", h, net.table) @ net.table,
    "einsum of the rest": lambda net, h, n: (
        torch.einsum("...i,ji->...j", h, net.table[:, :4]) @ net.table
    ),
    "diagonal": lambda net, h, n: (h[:, :, None] * h[:, None]).diagonal(dim1=1, dim2=2),
    "normalize": lambda net, h, n: functional.normalize(h),
    "the only part": lambda net, h, n: h * h[:, :1].chunk(2, -1)[0],
    "a convolution of each row": lambda net, h, n: functional.conv1d(
        h.reshape(1, -1, 1), (h[:, :, None] * h[:, None]).reshape(-1, 4, 1), groups=n
    ).view(-1, 4),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:that .* not proven")
@pytest.mark.parametrize("case", APART)
def test_what_is_taken_is_that_of_one_machine_on_any_division(case):
    torch.manual_seed(0)
    net, loss = Net(APART[case]), functional.mse_loss
    x, y = torch.randn(9, 4), torch.randn(9, 4)
    model = Model.from_torch(net, x[:6], loss=loss, example_targets=y[:6], name="t")
    alone = copy.deepcopy(net)
    optimizer, losses = torch.optim.SGD(alone.parameters(), 0.05), []
    for rows in (9, 8):
        losses.append(loss(alone(x[:rows]), y[:rows]))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    with memory_home(2) as home:
        for stage, micro_batch in DIVISIONS.values():
            plan = make_plan(model, stage, micro_batch=micro_batch, training=False)
            run = home.deploy(plan, model).wait()
            for rows in (1, 9):
                torch.testing.assert_close(run(x[:rows]), net(x[:rows]).detach())
            run.close()
            plan = make_plan(model, stage, micro_batch=micro_batch, n_micro_batches=2)
            run = home.deploy(plan, model, optimizer=potluck.SGD(0.05)).wait()
            found = run.fit([(x, y), (x[:8], y[:8])]).wait().losses
            assert found == pytest.approx([loss.item() for loss in losses], rel=1e-4)
            for name, tensor in run.state_dict().items():
                torch.testing.assert_close(tensor, alone.state_dict()[name], rtol=1e-4, atol=1e-5)
            run.close()
