"""Layers that no gradient reaches cost no backward and no update, whatever was measured alone."""

import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import every_plan, later, random_home

from potluck.bench.optimality import best_s
from potluck.planning import make_plans
from potluck.records import Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct
from potluck.simulate.equations import update_s


def half_trained(seed, update=0.05):
    """A random chain of which a cut passes no gradient back; the profile has its backward all the
    same, as a device that measures each layer alone reports it."""
    rng = random.Random(seed)
    problem = random_home(seed, Training(batch=rng.choice((2, 3, 4, 5))), layers=4)
    still = rng.randrange(1, len(problem.layers))
    costs = {
        name: tuple(replace(cost, update_s=update) for cost in layers)
        for name, layers in problem.costs.items()
    }
    layers = (
        *problem.layers[: still - 1],
        replace(problem.layers[still - 1], gradient_bytes=0),
        *problem.layers[still:],
    )
    return replace(problem, layers=layers, costs=costs), still


@pytest.mark.parametrize("update", [None, 0.05], ids=["unmeasured", "measured"])
@pytest.mark.parametrize("seed", range(4))
def test_no_plan_takes_time_for_what_no_gradient_reaches(seed, update):
    problem, still = half_trained(seed, update)
    n_layers, table = len(problem.layers), CostTable(problem)
    for device in problem.devices:
        assert table.backward_s(device.name, 0, still, 2) == 0
        assert table.backward_s(device.name, 0, n_layers, 2) == pytest.approx(
            table.backward_s(device.name, still, n_layers, 2)
        )
        assert update_s(table, device, 0, still) == device.overhead_s
        assert update_s(table, device, 0, n_layers) == update_s(table, device, still, n_layers) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(4), *later(range(4, 40))])
def test_our_plan_is_within_1_percent_of_brute_force_where_a_cut_passes_no_gradient(seed):
    problem, _ = half_trained(seed)
    least_s = best_s(problem, Direct(problem), every_plan(problem))
    assert make_plans(problem).best.latency_s <= least_s * 1.01
