"""What a table of costs says of a problem that cannot be."""

from dataclasses import replace

import pytest
from tests.sdk.planning.homes import random_home

from potluck.errors import UserError
from potluck.records import SharedWeight
from potluck.simulate.cost import CostTable


def test_a_shared_weight_learns_in_all_of_its_layers_or_in_none():
    problem = random_home(3)
    weight = SharedWeight(name="embedding", nbytes=400, summed_bytes=400)
    cut, *others = problem.layers
    layers = [replace(cut, shared=(weight,), gradient_bytes=0), *others]
    alone = replace(problem, layers=tuple(layers))
    CostTable(alone)  # in one layer alone it is not summed
    layers[-1] = replace(layers[-1], shared=(weight,))
    with pytest.raises(UserError, match=rf"share the weight embedding.*to {cut.name}\."):
        CostTable(replace(problem, layers=tuple(layers)))
