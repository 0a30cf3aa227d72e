"""What is said to work entry by entry does: an operator called with all entries gives what it gives
for each of them alone.
"""

import pytest
import torch
from tests.security.legal_calls import LEGAL, Given
from torch import nn

from potluck.errors import ModelError
from potluck.graph import Model
from potluck_wire.graph import Dtype
from potluck_wire.operators import KINDS

N = 7
ALONG_A_DIMENSION = ("softmax", "log_softmax", "_softmax", "_log_softmax", "glu", "prelu")
# as the tables of rules take them: dependence, division by tensor, and shared rows
OPERATORS = sorted(
    op
    for kind in ("activation", "arithmetic", "comparison")
    for op in KINDS[kind]
    if op.split(".")[1] not in ALONG_A_DIMENSION
)


def drawn(given):
    """A line of entries of that type, other ones for each argument; a number stays one."""
    dtype, shape = getattr(torch, given.dtype), (N,) if given.shape else ()
    if dtype.is_floating_point:
        return (torch.rand(shape) if given.layout == "probabilities" else torch.randn(shape)).to(
            dtype
        )
    return torch.randint(0, max(given.below, 1), shape).to(dtype)


def legal_call(op):
    """The operator with entries in place of its tensors, and its words."""
    *args, last = LEGAL[op][0]
    named = last if isinstance(last, dict) else {}
    values = [
        drawn(arg)
        if isinstance(arg, Given)
        else getattr(torch, arg.name)
        if isinstance(arg, Dtype)
        else arg
        for arg in (args if named else (*args, last))
    ]
    space, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), overload), values, named


@pytest.mark.few(8)
@pytest.mark.parametrize("op", OPERATORS)
def test_an_entry_alone_gives_what_it_gives_among_others(op):
    torch.manual_seed(0)
    called, values, named = legal_call(op)
    together = called(*values, **named)
    for i in range(N):
        own = [
            value[i : i + 1] if isinstance(value, torch.Tensor) and value.ndim else value
            for value in values
        ]
        torch.testing.assert_close(
            called(*own, **named), together[i : i + 1], equal_nan=True, rtol=1e-4, atol=1e-5
        )


def test_an_operator_is_of_one_kind():
    """The rules are made kind by kind: of two, it would have the wrong one."""
    names = [name for kind in KINDS.values() for name in kind]
    assert sorted(names) == sorted(set(names))


class Looks(nn.Module):
    """Answers by what it finds of one input in another, or in a table."""

    def __init__(self, find):
        super().__init__()
        self.linear, self.find = nn.Linear(4, 4), find
        self.register_buffer("table", torch.tensor([1, 3, 8]))

    def forward(self, x, ids, others):
        return self.linear(x) * (1 + self.find(self.table, ids, others))[:, None]


# none of these is found, so that no trial shows who else is looked at
GIVEN = torch.randn(6, 4), torch.arange(6), torch.arange(100, 106)


def test_a_value_that_is_looked_for_in_those_of_other_rows_is_refused():
    def find(table, ids, others):
        return torch.isin(ids, others)

    with pytest.raises(ModelError, match=r"aten\.isin\.Tensor_Tensor .*pairs rows"):
        Model.from_torch(Looks(find), GIVEN)


@pytest.mark.parametrize(
    "find",
    [
        lambda table, ids, others: torch.isin(ids, table),
        lambda table, ids, others: torch.bucketize(ids, table),
        lambda table, ids, others: torch.searchsorted(table, ids),
    ],
    ids=["isin", "bucketize", "searchsorted"],
)
def test_a_value_that_is_looked_for_in_a_table_is_proven_to_be_of_its_row(find):
    model = Model.from_torch(Looks(find), GIVEN)
    assert not [note for note in model.notes() if "not proven" in note]
