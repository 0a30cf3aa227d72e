"""A loss that depends on a bounded, or rounded, number of rows is no mean over rows, and is
refused.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from potluck.errors import ModelError
from potluck.graph import Model

ROWS = 6

BOUNDED = {
    "at least": lambda n, k: max(n, k),
    "at most": lambda n, k: min(n, k),
    "whole groups": lambda n, k: n // k * k + 1,
    "number of groups": lambda n, k: n // k,
    "rest": lambda n, k: n % k + 1,
    "groups begun": lambda n, k: -(-n // k),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "k",
    [
        *(2, ROWS, ROWS + 1, 10**6),
        *(pytest.param(k, marks=pytest.mark.long) for k in (ROWS - 1, 10, 1000)),
    ],
)
@pytest.mark.parametrize("number", BOUNDED.values(), ids=BOUNDED)
def test_a_number_of_rows_that_is_bounded_or_rounded_is_refused(number, k):
    def divided(y, t):
        n = number(y.shape[0], k)
        return (y - t).square().sum() / n

    def multiplied(y, t):
        return mse_loss(y, t) * number(y.shape[0], k)

    def by_ones(y, t):
        return (y - t).square().sum() / torch.ones(number(y.shape[0], k)).sum()

    for loss in (divided, multiplied, by_ones):
        with pytest.raises(ModelError, match=r"no mean over rows|size of batch|cannot be exported"):
            Model.from_torch(
                nn.Linear(4, 3),
                torch.randn(ROWS, 4),
                loss=loss,
                example_targets=torch.randn(ROWS, 3),
            )


def test_a_bound_that_no_batch_reaches_changes_nothing():
    def loss(y, t):
        return (y - t).square().sum() / max(y.shape[0], 1)

    model = Model.from_torch(
        nn.Linear(4, 3), torch.randn(ROWS, 4), loss=loss, example_targets=torch.randn(ROWS, 3)
    )
    assert not model.notes(train=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("k", [3, ROWS, ROWS + 1])
def test_a_branch_by_the_number_of_rows_is_refused(k):
    def loss(y, t):
        return mse_loss(y, t) * (2 if y.shape[0] >= k else 1)

    with pytest.raises(ModelError, match="size of batch"):
        Model.from_torch(
            nn.Linear(4, 3), torch.randn(ROWS, 4), loss=loss, example_targets=torch.randn(ROWS, 3)
        )
