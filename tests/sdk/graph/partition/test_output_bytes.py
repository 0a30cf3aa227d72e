"""How many bytes the outputs of a request have, where sequences may be of any length: as many as
torch makes.
"""

import pytest
import torch

import potluck


class Tagger(torch.nn.Module):
    """A label per token, and the products of every two of them."""

    def __init__(self):
        super().__init__()
        self.embed, self.label = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3)

    def forward(self, x):
        made = self.embed(x)
        return self.label(made), made @ made.transpose(1, 2)


@pytest.fixture(scope="module")
def model():
    x = torch.zeros(2, 6, dtype=torch.int64)
    return potluck.Model.from_torch(Tagger(), x, sequence_dims=(1,))


@pytest.mark.parametrize("length", [1, 6, 31])
@pytest.mark.parametrize("rows", [1, 3])
def test_they_are_as_many_as_torch_makes(model, rows, length):
    x = torch.zeros(rows, length, dtype=torch.int64)
    found = model.traced_line().traced.output_bytes([x])
    assert list(found.values()) == [tensor.nbytes for tensor in Tagger()(x)]
    assert list(found) == [
        tensor.name for tensor in model.segment(0, len(model.layers()))[0].outputs
    ]


def test_where_plans_know_them_nobody_has_to_be_asked():
    fixed = potluck.Model.from_torch(torch.nn.Linear(4, 3), torch.zeros(2, 4))
    assert fixed.traced_line().traced.output_bytes([torch.zeros(5, 4)]) == {}
