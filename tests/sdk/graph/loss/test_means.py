"""A loss that is divided among devices is a mean over rows: proven from its graph, tried, or
refused.
"""

import copy
import warnings
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.sdk.graph.test_equality import chain_step, loaded
from torch import nn
from torch.nn.functional import binary_cross_entropy, cross_entropy, kl_div, mse_loss, nll_loss

from potluck.errors import ModelError
from potluck.graph import Model
from potluck.graph.loss.dependence_rules import RULES

ROWS = 6


def rmse(y, t):
    return mse_loss(y, t).sqrt()


def balance(y, t):
    """The balance of a mixture of experts: how much each is asked, times how often."""
    odds = y.softmax(1)
    return (odds.mean(0) * (odds == odds.amax(1, keepdim=True)).float().mean(0)).sum()


def with_term(term, weight):
    return lambda y, *t: mse_loss(y, t[0]) + weight * term(y, *t)


def dice(y, t):
    return 1 - (2 * (y.sigmoid() * t).sum() + 1) / (y.sigmoid().sum() + t.sum() + 1)


def contrastive(y, t):
    return cross_entropy(y @ t.T, torch.arange(y.shape[0]))


def mean_of_first(y):
    """The mean of the first column, for each row."""
    return y[:, :1].mean(0).expand(y.shape[0], 1)


def variance(y, t):
    return (y - y.mean(0)).square().mean()


# name: (loss, the operator that is named)
MIXING = {
    "root of a mean": (rmse, "aten.sqrt"),
    "logarithm of a mean": (lambda y, t: mse_loss(y, t).log(), "aten.log"),
    "product of two means": (with_term(balance, 0.1), "aten.mul"),
    "small product of two means": (with_term(balance, 1e-7), "aten.mul"),
    "small variance of the batch": (with_term(variance, 1e-7), "aten.square"),
    "square of a mean": (with_term(lambda y, t: y.mean(0).square().mean(), 1e-7), "aten.square"),
    "dice": (dice, "aten.add"),
    "contrastive": (contrastive, "aten.matmul"),
    "pairwise": (lambda y, t: (y[:, None] - t[None]).square().mean(), "aten.sub"),
    "maximum": (lambda y, t: (y - t).abs().max(), "aten.max"),
    "norm": (lambda y, t: (y - t).norm(), "aten.linalg_vector_norm"),
    "softmax over the batch": (lambda y, t: (y.softmax(0) * t).mean(), "aten.softmax"),
    "logsumexp over the batch": (lambda y, t: y.logsumexp(0).mean(), "aten.logsumexp"),
    "sums of the rows before": (lambda y, t: y.cumsum(0).mean(), "aten.cumsum"),
    "the first row": (lambda y, t: mse_loss(y[0], t[0]), "aten.select"),
    "the next row": (lambda y, t: mse_loss(y, t.roll(1, 0)), "aten.roll"),
    "weighted by the output": (
        lambda y, t: (y.sigmoid() * (y - t)).sum() / y.sigmoid().sum(),
        "aten.div",
    ),
    "a mean of one row less": (lambda y, t: (y - t).square().sum() / (y.shape[0] - 1), "aten.div"),
    "a sum and one": (lambda y, t: ((y - t).square().sum() + 1) / y.numel(), "aten.add"),
    "copied from the next row": (
        lambda y, t: (y.index_copy(0, PLACES[:1], t[1:2]) - t).square().sum(),
        "aten.index_copy",
    ),
    "put beside sums": (lambda y, t: y.sum(0).index_fill(0, PLACES, 2.0).sum(), "aten.index_fill"),
    "filled with a mean": (
        lambda y, t: (y * torch.fill(t, 1.0) - torch.fill(t, y.mean())).square().mean(),
        "aten.square",
    ),
    "sorted across the rows": (lambda y, t: mse_loss(y.sort(0).values, t), "aten.sort"),
    "numbered rows": (lambda y, t: (y * torch.arange(y.shape[0])[:, None]).mean(), "aten.mul"),
    "differences, before them a mean": (
        lambda y, t: (y - t).diff(dim=1, prepend=mean_of_first(y)).square().mean(),
        "aten.square",
    ),
    "differences, behind them a mean": (
        lambda y, t: (y - t).diff(dim=1, append=mean_of_first(y)).square().mean(),
        "aten.square",
    ),
    "numbers subtracted times its rows": (
        lambda y, t: torch.rsub(y, 0, alpha=y.shape[0]).mean() + t.mean(),
        "aten.add",
    ),
    "a sum and a number": (lambda y, t: (y - t).square().sum() + 1, "aten.add"),
    "a sum of squares of sums": (lambda y, t: (y - t).sum().square(), "aten.square"),
    "a sum times its rows": (lambda y, t: (y - t).sum() * y.shape[0], "number of rows"),
    "divided twice": (lambda y, t: mse_loss(y, t) / y.shape[0], "number of rows"),
}
TARGETS = {"small": 1e-3, "usual": 1.0, "prices": 1e5}


@pytest.mark.few(2)
@pytest.mark.parametrize(("loss", "operator"), MIXING.values(), ids=MIXING)
@pytest.mark.parametrize("scale", TARGETS.values(), ids=TARGETS)
def test_a_loss_that_mixes_rows_is_refused_whatever_its_targets_and_the_operator_is_named(
    loss, operator, scale
):
    torch.manual_seed(0)
    x, t = torch.randn(ROWS, 3), torch.rand(ROWS, 4) * scale
    with pytest.raises(ModelError, match=f"no mean over rows: .*{operator}"):
        Model.from_torch(nn.Linear(3, 4), x, loss=loss, example_targets=t)


PLACES = torch.tensor([0, 3])
SUMS = {
    "of squares": nn.MSELoss(reduction="sum"),
    "by class": lambda y, t: cross_entropy(y, t.softmax(1), reduction="sum"),
    "of means": lambda y, t: (y - t).square().mean(1).sum(),
    "a mean times its rows": lambda y, t: mse_loss(y, t) * y.shape[0],
    "of windows": lambda y, t: (y.unfold(1, 2, 1) - t.unfold(1, 2, 1)).square().sum(),
    "copied into": lambda y, t: (y.index_copy(1, PLACES, t[:, :2]) - t).square().sum(),
    "added to": lambda y, t: (y.index_add(1, PLACES, t[:, :2], alpha=3) - t).square().sum(),
    "filled in": lambda y, t: (y.index_fill(1, PLACES, 0.5) - t).square().sum(),
    "scattered": lambda y, t: (y.scatter_add(1, t.argsort(1), y) - t).square().sum(),
    "of absolute values, weighted": lambda y, t: nn.functional.l1_loss(y, t, None, None, "sum", t),
    "of gradients": lambda y, t: torch.gradient(y - t, spacing=0.5, dim=1)[0].abs().sum(),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("loss", SUMS.values(), ids=SUMS)
def test_a_sum_over_rows_is_proven_and_told_from_a_mean(loss):
    x, t = torch.randn(ROWS, 3).double(), torch.rand(ROWS, 4).double()
    net = nn.Linear(3, 4).double()
    model = Model.from_torch(net, x, loss=loss, example_targets=t)
    segment, _ = model.segment(0, len(model.layers(True)), train=True)
    assert segment.sums_rows
    assert divided_alike(model, net, loss, (x, t))
    mean = Model.from_torch(net, x, loss=mse_loss, example_targets=t)
    assert not mean.segment(0, len(mean.layers(True)), train=True)[0].sums_rows


# other orders of the numbers of rows, or of the parts of two in each: they take rows of others
RENUMBERED = {
    "repeated": lambda n: torch.arange(n).repeat(2),
    "each repeated": lambda n: torch.arange(n).repeat_interleave(2),
    "given to two": lambda n: torch.arange(n)[None].expand(2, n).reshape(-1),
    "two of each in turns": lambda n: torch.arange(2 * n).view(-1, 2).flip(1).reshape(-1),
    "the other way": lambda n: torch.arange(2 * n).view(-1, 2).T.reshape(-1),
    "added up": lambda n: (
        torch.arange(2 * n).view(-1, 2).cumsum(1).diff(dim=1).repeat(1, 2).view(-1)
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("numbers", RENUMBERED.values(), ids=RENUMBERED)
@pytest.mark.parametrize(
    "twice",
    [lambda y: torch.cat([y, y.sin()]), lambda y: torch.stack([y, y.sin()], 1).flatten(0, 1)],
)
def test_rows_taken_by_numbers_in_another_order_are_those_of_others(numbers, twice):
    def loss(y, t):
        return twice(y - t)[numbers(y.shape[0])].view(-1, 2, 4).prod(1).mean()

    with pytest.raises(ModelError, match=r"no mean over rows: .* numbers the rows"):
        Model.from_torch(
            nn.Linear(3, 4), torch.randn(ROWS, 3), loss=loss, example_targets=torch.rand(ROWS, 4)
        )


def test_whole_targets_hide_nothing():
    torch.manual_seed(0)
    x, t = torch.randn(ROWS, 3), torch.randint(0, 9, (ROWS, 4))
    with pytest.raises(ModelError, match=r"no mean over rows: aten\.sqrt"):
        Model.from_torch(
            nn.Linear(3, 4), x, loss=lambda y, t: rmse(y, t.float()), example_targets=t
        )


class Experts(nn.Module):
    """A mixture of experts whose scores hold the balance of the whole batch."""

    def __init__(self, weight):
        super().__init__()
        self.gate = nn.Linear(3, 4)
        self.experts = nn.Linear(3, 4)
        self.weight = weight

    def forward(self, x):
        odds = self.gate(x).softmax(1)
        held = odds.mean(0).square().sum() if self.training else x.new_zeros(())
        return self.experts(x) * odds + self.weight * held


class Shifted(nn.Module):
    def forward(self, x):
        return x - 1e-6 * x.mean(0)


def test_a_term_over_the_batch_inside_the_model_is_refused():
    torch.manual_seed(0)
    x, t = torch.randn(ROWS, 3), torch.rand(ROWS, 4)
    with pytest.raises(ModelError, match=r"no mean over rows: aten\.square"):
        Model.from_torch(Experts(1e-7), x, loss=nn.MSELoss(), example_targets=t)


def test_a_small_share_of_other_rows_in_an_output_is_refused():
    net = nn.Sequential(nn.Linear(3, 3), Shifted())
    with pytest.raises(ModelError, match="one result for each row"):
        Model.from_torch(net, torch.randn(ROWS, 3))


# --- means ---


def _several():
    """Labels of each row, none, some or all of the classes; what follows -1 is none."""
    order = torch.rand(ROWS, 4).argsort(1)
    return torch.where(torch.arange(4) == torch.arange(ROWS)[:, None] % 5, -1, order)


def _labels():
    return torch.randint(0, 4, (ROWS,))


def _values():
    return torch.rand(ROWS, 4, dtype=torch.float64)


def _letters():
    """Padded by what is no class."""
    return torch.where(torch.arange(2) < _n_letters()[:, None], 1, -1)


def _n_letters():
    return torch.arange(ROWS) % 3


def _steps():
    return torch.full((ROWS,), 4) - torch.arange(ROWS) % 2


def along_time(y, letters, steps, n_letters):
    """Four steps of two classes; two equal letters do not fit into fewer than three."""
    logs = torch.stack([y.cumsum(1), y.sin()], 2).log_softmax(2)
    return nn.functional.ctc_loss(logs.transpose(0, 1), letters, steps, n_letters)


def _shares():
    return _values().softmax(1)


def _marks():
    return _values().round()


def _signs():
    return _values().sub(0.5).sign()


gaussian = nn.functional.gaussian_nll_loss


def by_number(y, t):
    return -y.log_softmax(1)[torch.arange(y.shape[0]), t].mean()


def by_numbers(y, t):
    """Two of each row, chosen by the targets."""
    rows = torch.arange(y.shape[0]).unsqueeze(1).expand(-1, 2)
    return y[rows, t.argsort(1)[:, :2]].square().mean()


def in_each(y, t):
    return ((y - t).square().mean(1) + 0.1 * (y - t).abs().mean()).mean()


MEANS = {
    "mse": (nn.MSELoss(), (_values,)),
    "l1": (nn.L1Loss(), (_values,)),
    "l1, weighted": (
        lambda y, t, w: nn.functional.l1_loss(y, t, weight=w),
        (_values, lambda: _values() + 0.1),
    ),
    "l1, weighted, in each": (
        lambda y, t: nn.functional.l1_loss(y, t, reduction="none", weight=t).mean(),
        (_values,),
    ),
    "huber": (nn.HuberLoss(), (_values,)),
    "smooth l1": (nn.SmoothL1Loss(), (_values,)),
    "binary cross-entropy": (lambda y, t: binary_cross_entropy(y.sigmoid(), t), (_marks,)),
    "... with logits": (nn.BCEWithLogitsLoss(), (_marks,)),
    "... of many labels": (nn.MultiLabelSoftMarginLoss(), (_marks,)),
    "cross-entropy": (nn.CrossEntropyLoss(), (_labels,)),
    "... weighted": (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0, 4.0]).double()), (_labels,)),
    "... of shares": (nn.CrossEntropyLoss(), (_shares,)),
    "log-likelihood": (lambda y, t: nll_loss(y.log_softmax(1), t), (_labels,)),
    "divergence": (lambda y, t: kl_div(y.log_softmax(1), t, reduction="batchmean"), (_shares,)),
    "counts": (nn.PoissonNLLLoss(full=True), (lambda: 5 * _values(),)),
    "counts, not as logarithms": (
        lambda y, t: nn.PoissonNLLLoss(log_input=False)(y.exp(), t),
        (_values,),
    ),
    "normal": (lambda y, t: gaussian(y[:, :2], t[:, :2], y[:, 2:].exp()), (_values,)),
    "normal, narrow": (  # some below the least variance
        lambda y, t: gaussian(y[:, :2], t[:, :2], y[:, 2:].square(), full=True, eps=0.05),
        (_values,),
    ),
    "normal, one width of each row": (
        lambda y, t: gaussian(y[:, :3], t[:, :3], y[:, 3].exp()),
        (_values,),
    ),
    "normal, one width of all": (nn.GaussianNLLLoss(), (_values, lambda: 1 + _values()[:, :1])),
    "soft margin": (nn.SoftMarginLoss(), (_signs,)),
    "margins of classes": (
        nn.MultiMarginLoss(p=2, weight=torch.tensor([1.0, 2.0, 3.0, 4.0]).double()),
        (_labels,),
    ),
    "margins of labels": (nn.MultiLabelMarginLoss(), (_several,)),
    "labels along time": (along_time, (_letters, _steps, _n_letters)),
    "hinge": (nn.HingeEmbeddingLoss(margin=2.0), (_signs,)),
    "ranking": (nn.MarginRankingLoss(0.1), (_values, _signs)),
    "triplets": (nn.TripletMarginLoss(swap=True), (_values, _marks)),
    "cosines": (lambda y, t: 1 - nn.functional.cosine_similarity(y, t).mean(), (_values,)),
    "cosines, by sign": (nn.CosineEmbeddingLoss(0.2), (_values, lambda: _signs()[:, 0])),
    "distances": (lambda y, t: nn.PairwiseDistance(p=1)(y, t).mean(), (_values,)),
    "gathered": (lambda y, t: -y.log_softmax(1).gather(1, t[:, None]).mean(), (_labels,)),
    "scattered": (
        lambda y, t: (y * 2).scatter(1, t[:, None], y[:, :1]).square().mean(),
        (_labels,),
    ),
    "a number scattered": (
        lambda y, t: mse_loss(y, torch.zeros_like(y).scatter(1, t[:, None], 1.0)),
        (_labels,),
    ),
    "scattered and added": (
        lambda y, t: y.scatter_add(1, t[:, None], y[:, 1:2] * 3).square().mean(),
        (_labels,),
    ),
    "numbered": (by_number, (_labels,)),
    "numbered, several of each": (by_numbers, (_values,)),
    "differences, before them a target": (
        lambda y, t: (y - t).diff(dim=1, prepend=t[:, :1]).square().mean(),
        (_values,),
    ),
    "masked": (
        lambda y, t, m: ((y - t).square() * m).sum() / m.sum().clamp(min=1),
        (_values, _marks),
    ),
    "a root in each row": (lambda y, t: (y - t).square().mean(1).sqrt().mean(), (_values,)),
    "a mean, added to each row": (in_each, (_values,)),
    "a product over rows": (lambda y, t: (y.flatten() @ t.flatten()) / y.shape[0], (_values,)),
    "a matrix over rows": (
        lambda y, t: torch.einsum("nc,nd->cd", y, t).sum() / y.shape[0],
        (_values,),
    ),
    "with dimensions of one": (
        lambda y, t: (y - t).abs().mean(0, keepdim=True).mean(1, keepdim=True),
        (_values,),
    ),
    "quantiles": (
        lambda y, t: torch.max(0.3 * (t - y), -0.7 * (t - y)).mean().reshape(1),
        (_values,),
    ),
    "two views": (lambda y, t: mse_loss(torch.cat([y, -y]), torch.cat([t, t * 2])), (_values,)),
    "filled": (lambda y, t: (y * torch.fill(t, 0.5) + torch.fill(y, 0.25)).mean(), (_values,)),
    "spectra": (
        lambda y, t: (torch.fft.rfft(y, dim=1) - torch.fft.rfft(t, dim=1)).abs().mean(),
        (_values,),
    ),
    "spectra and back": (
        lambda y, t: mse_loss(torch.fft.ifft(torch.fft.fft(y) * torch.fft.fft(t)).real, t),
        (_values,),
    ),
    "gated along the last dimension": (
        lambda y, t: nn.functional.glu(y).square().mean() + mse_loss(y, t),
        (_values,),
    ),
    "beside nothing": (lambda y, t: mse_loss(torch.cat([y.new_tensor([]), y]), t), (_values,)),
    "a part of what is made of all targets": (
        lambda y, t: (y - t.amax(0).sort().values).square().mean(),
        (_values,),
    ),
    "gradients": (
        lambda y, t: torch.gradient(y - t, dim=1, edge_order=2)[0].square().mean(),
        (_values,),
    ),
    "gradients of grids": (
        lambda y, t: sum(
            each.abs().mean()
            for each in torch.gradient((y - t).view(-1, 2, 2), spacing=(0.5, 2.0), dim=(1, 2))
        ),
        (_values,),
    ),
    "by position": (
        lambda y, t: (y.flatten() - t.T.reshape(4, -1).T.flatten()).abs().mean(),
        (_values,),
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize(("loss", "targets"), MEANS.values(), ids=MEANS)
def test_a_mean_over_rows_is_proven_and_divided_as_on_one_machine(loss, targets):
    torch.manual_seed(0)
    batch = (torch.randn(ROWS, 3, dtype=torch.float64), *(make() for make in targets))
    net = nn.Linear(3, 4).double()
    model = Model.from_torch(net, batch[0], loss=loss, example_targets=batch[1:])
    assert model.notes(train=True) == ()
    assert divided_alike(model, net, loss, batch)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda y, t: (y - t).abs(), r"of the shape \[rows, 4\]"),
        (lambda y, t: (y - t).abs().mean(1), r"of the shape \[rows\]"),
        (lambda y, t: (y - t).abs().mean(1, keepdim=True), r"of the shape \[rows, 1\]"),
        (lambda y, t: (y - t).abs().mean(0), r"of the shape \[4\]"),
        (lambda y, t: ((y - t).abs().mean(), (y - t).square().mean()), "2 of them"),
        (lambda y, t: ((y - t).abs().mean(),), "a tuple"),
        (lambda y, t: [(y - t).abs().mean()], "a list"),
        (lambda y, t: {"loss": (y - t).abs().mean()}, "a dict"),
        (lambda y, t: (), "0 of them"),
        (lambda y, t: {}, "0 of them"),
    ],
)
def test_a_loss_of_another_form_is_refused_with_what_it_is(loss, got):
    x, t = torch.randn(ROWS, 3), torch.rand(ROWS, 4)
    with pytest.raises(ModelError, match=f"one number, got {got}"):
        Model.from_torch(nn.Linear(3, 4), x, loss=loss, example_targets=t)


def divided_alike(model, net, loss, batch, divisions=((6,), (1, 5), (3, 3), (2, 1, 3))) -> bool:
    """Whether loss and gradients of shares add up to those of one machine."""
    alone = copy.deepcopy(net)
    expected = loss(alone(batch[0]), *batch[1:])
    expected.backward()
    gradients = torch.cat([p.grad.flatten() for p in alone.parameters()])
    fed = model.fed(*batch)
    is_sum = model.segment(0, len(model.layers(True)), train=True)[0].sums_rows
    for shares in divisions:
        segment = loaded(model.segment(0, len(model.layers(True)), train=True)[1], model.state())
        total = 0.0
        for start, stop in pairwise(accumulate(shares, initial=0)):
            frac = 1.0 if is_sum else (stop - start) / ROWS
            (part,) = chain_step(
                [segment], {name: tensor[start:stop] for name, tensor in fed.items()}, scale=frac
            )
            total += part * frac
        if not (
            _near(total, expected.detach(), 1e-9) and _near(segment.gradients(), gradients, 1e-9)
        ):
            return False
    return True


def _near(a, b, tolerance) -> bool:
    return torch.allclose(
        a, b, rtol=tolerance, atol=tolerance * max(float(b.abs().max()), 1e-9), equal_nan=True
    )


# --- what is not known ---


@pytest.fixture
def without_roots(monkeypatch):
    """As if nothing were known of square roots."""
    monkeypatch.delitem(RULES, "aten.sqrt.default")


@pytest.mark.few(1)
@pytest.mark.parametrize("scale", TARGETS.values(), ids=TARGETS)
def test_what_is_not_known_is_tried_and_told(without_roots, scale):
    torch.manual_seed(0)
    x, t = torch.randn(ROWS, 3), torch.rand(ROWS, 4) * scale
    with pytest.warns(UserWarning, match=r"not proven.*aten\.sqrt"):
        model = Model.from_torch(
            nn.Linear(3, 4),
            x,
            loss=lambda y, t: (y - t).square().mean(1).sqrt().mean(),
            example_targets=t,
        )
    (note,) = model.notes(train=True)
    assert "aten.sqrt.default" in note
    assert model.notes() == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("weight", [1.0, 1e-5])
@pytest.mark.parametrize("scale", TARGETS.values(), ids=TARGETS)
def test_trials_find_a_root_of_a_mean_in_small_terms_and_whole_targets(
    without_roots, scale, weight
):
    torch.manual_seed(0)
    x, t = torch.randn(ROWS, 3), (torch.rand(ROWS, 4) * 3 * scale).round().long()
    with pytest.raises(ModelError, match=r"no mean over rows: .*Look at aten\.sqrt"):
        Model.from_torch(
            nn.Linear(3, 4),
            x,
            example_targets=t,
            loss=lambda y, t: mse_loss(y, t.float()) + weight * rmse(y, t.float()),
        )


def test_trials_compare_gradients(without_roots):
    """The value of such a loss is a mean over rows; what it teaches is none."""
    torch.manual_seed(0)

    def loss(y, t):
        mean = mse_loss(y, t)
        return mean + 1e-3 * (mean.sqrt() - mean.sqrt().detach())

    with pytest.raises(ModelError, match=r"no mean over rows: .*gradient of .*aten\.sqrt"):
        Model.from_torch(
            nn.Linear(3, 4), torch.randn(ROWS, 3), loss=loss, example_targets=torch.rand(ROWS, 4)
        )


# --- any loss ---

_OF_ONE = {
    "square": torch.square,
    "abs": torch.abs,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "neg": torch.neg,
    "root": lambda v: (v.square() + 1).sqrt(),
    "half": lambda v: v * 0.5,
    "one more": lambda v: v + 1,
    "mean": torch.mean,
    "sum": torch.sum,
    "mean of rows": lambda v: v.mean(0),
    "mean in each": lambda v: v.mean(-1),
    "sum of rows": lambda v: v.sum(0, keepdim=True),
    "sum in each": lambda v: v.sum(-1, keepdim=True),
    "largest of rows": lambda v: v.amax(0),
    "largest in each": lambda v: v.amax(-1, keepdim=True),
    "softmax of rows": lambda v: v.softmax(0),
    "softmax in each": lambda v: v.softmax(-1),
    "logsumexp": lambda v: v.logsumexp(-1),
    "running sum of rows": lambda v: v.cumsum(0),
    "running sum in each": lambda v: v.cumsum(-1),
    "flat": torch.flatten,
    "flat by column": lambda v: v.transpose(0, -1).flatten(),
    "paired": lambda v: v.view(-1, 2),
    "turned": lambda v: v.transpose(0, -1),
    "first": lambda v: v[0],
    "first in each": lambda v: v[..., :1],
    "twice": lambda v: torch.cat([v, 2 * v]),
    "side by side": lambda v: torch.stack([v, v.tanh()], -1),
    "detached": torch.detach,
    "like ones": torch.ones_like,
    "filled": lambda v: v.masked_fill(v > 0, 0.0),
    "windows in each": lambda v: v.unfold(-1, 2, 1),
    "windows of rows": lambda v: v.unfold(0, 2, 1),
    "one place in each": lambda v: v.index_fill(-1, PLACES[:1], 0.5),
}
_OF_TWO = {
    "plus": torch.add,
    "minus": torch.sub,
    "times": torch.mul,
    "by": lambda a, b: a / (b.square() + 1),
    "just by": torch.div,
    "product": torch.matmul,
    "turned product": lambda a, b: a.transpose(0, -1) @ b,
    "product with turned": lambda a, b: a @ b.transpose(0, -1),
    "chosen": lambda a, b: torch.where(a > 0, a, b),
    "put in each": lambda a, b: a.index_copy(-1, PLACES[:1], b[..., 1:2]),
    "put in rows": lambda a, b: a.index_copy(0, PLACES[:1], b[1:2]),
    "added in each": lambda a, b: a.scatter_add(-1, b.argsort(-1), b),
    "joined": lambda a, b: torch.cat([a, b], -1),
    "compared": lambda a, b: mse_loss(a, b.expand_as(a)),
}
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(_OF_ONE)), st.integers(0, 3)),
        st.tuples(st.sampled_from(sorted(_OF_TWO)), st.integers(0, 3), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=5,
)
_ENDS = {
    "mean": torch.mean,
    "sum by rows": lambda v, n: v.sum() / n,
    "sum": torch.sum,
    "largest": torch.amax,
    "root of mean": lambda v: v.square().mean().sqrt(),
    "of rows, then in each": lambda v: v.mean(0).sum(),
}


def composed(steps, end):
    """A loss that computes these steps, each of values made before it (counted from the last), and
    then an end.
    """

    def loss(y, t):
        values = [t, y.mean(1), y - t, y]
        for name, *places in steps:
            made = _OF_ONE.get(name) or _OF_TWO[name]
            values.append(made(*(values[-1 - place] for place in places)))
        last = values[-1] + 0 * y.mean() if steps else y
        return _ENDS[end](last, y.shape[0]) if end == "sum by rows" else _ENDS[end](last)

    return loss


@pytest.mark.long
@settings(max_examples=min(settings().max_examples // 10, 1_000))
@given(steps=_STEPS, end=st.sampled_from(sorted(_ENDS)))
def test_what_is_proven_of_any_loss_is_so(steps, end):
    torch.manual_seed(0)
    net, loss = nn.Linear(3, 4).double(), composed(steps, end)
    batch = (
        torch.randn(ROWS, 3, dtype=torch.float64),
        10 * torch.randn(ROWS, 4, dtype=torch.float64),
    )
    try:
        assume(bool(torch.isfinite(loss(net(batch[0]), batch[1]))))
    except (RuntimeError, IndexError):
        assume(False)  # shapes that do not meet
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model = Model.from_torch(net, batch[0], loss=loss, example_targets=batch[1])
    except (ModelError, UserWarning):
        return  # nothing is claimed
    assert divided_alike(model, net, loss, batch)
