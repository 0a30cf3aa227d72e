"""What a module asserts of its values is not computed with; what it branches on is refused."""

import pytest

from potluck.errors import ModelError
from potluck.graph import Model

torch = pytest.importorskip("torch")

from tests.sdk.graph.asserting_modules import Asserting, AssertingTruth, Branching, Computing  # noqa: E402 - of torch


@pytest.mark.parametrize("net", [Asserting(), AssertingTruth()])
def test_assertions_are_no_part_of_the_graph(net):
    operators = Model.from_torch(net, torch.randn(3, 5)).operators()
    names = [str(node) for layer in operators for node in layer]
    assert any("mul" in name for name in names)
    assert not any("item" in name or "assert" in name for name in names)


@pytest.mark.parametrize(
    ("net", "why"),
    [(Branching(), "control flow depends on the data"), (Computing(), "depends on the data|data")],
)
def test_what_is_computed_from_a_number_of_the_data_is_refused(net, why):
    with pytest.raises(ModelError, match=why):
        Model.from_torch(net, torch.randn(3, 5))
