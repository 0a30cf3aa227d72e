"""What a table of costs says of a problem that cannot be, and what it may share with others."""

from dataclasses import replace

import pytest
from tests.sdk.planning.homes import random_home

from potluck.errors import UserError
from potluck.records import Inference, SharedWeight, Training
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


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("workload", [Training(batch=8, micro_batch=2), Inference(batch=8)])
def test_a_table_shares_no_times_that_are_others_for_it(workload, recomputes):
    problem = random_home(4, Training(batch=8))
    device, *_ = problem.devices
    asked = device.name, 0, len(problem.layers), 4
    slower = {
        name: tuple(
            replace(
                cost,
                forward_s=tuple(3 * s for s in cost.forward_s),
                backward_s=tuple(5 * s for s in cost.backward_s),
            )
            for cost in costs
        )
        for name, costs in problem.costs.items()
    }
    known = CostTable(problem)
    known.compute_s(*asked)
    for other in (problem, replace(problem, costs=slower)):
        other = replace(other, workload=workload)
        alone, sharing = (CostTable(other, recomputes=recomputes) for _ in range(2))
        sharing.share_times(known)
        assert sharing.compute_s(*asked) == alone.compute_s(*asked)
