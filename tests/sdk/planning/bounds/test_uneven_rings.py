"""The bound of shared stages whose replicas send and get at very different rates: no plan is
below it.
"""

import random
from itertools import product

import pytest
from tests.sdk.planning.homes import later

from potluck.planning import judge
from potluck.planning.bounds.latency import lower_bound_s
from potluck.records import (
    HOME,
    Device,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    Stage,
    Training,
)
from potluck.simulate.cost import CostTable


def uneven_ring(seed):
    """One layer of large weights on devices of unlike speed, each way between two at a rate of its
    own, where sums take longer than computing."""
    rng = random.Random(seed)
    names = tuple(f"d{i}" for i in range(rng.choice((2, 3))))
    media, paths = [], {}
    for a, b in product((*names, HOME), repeat=2):
        if a != b:
            rate = 10 ** rng.uniform(5.5, 9) if HOME not in (a, b) else 1e12
            media.append(Medium(name=f"{a}-{b}", capacity_bytes_per_s=rate))
            paths[a, b] = Path(media=((f"{a}-{b}", 1),))
    costs = {}
    for name in names:
        row_s = 10 ** rng.uniform(-2, 0.5)
        costs[name] = (
            LayerCost(rows=(1, 2), forward_s=(row_s, 2 * row_s), backward_s=(row_s, 2 * row_s)),
        )
    return Problem(
        model="m",
        devices=tuple(Device(name=name, memory_bytes=10**9) for name in names),
        network=Network(media=tuple(media), paths=paths),
        layers=(
            Layer(name="l", parameter_bytes=rng.choice((40_000, 4_000_000)), activation_bytes=8),
        ),
        input_bytes=8,
        costs=costs,
        workload=Training(batch=6, micro_batch=6, optimizer_copies=0),
    )


@pytest.mark.parametrize("seed", [*range(6), 220, 270, 300, *later(range(6, 220))])
def test_no_plan_of_uneven_replicas_is_below_the_bound(seed):
    problem = uneven_ring(seed)
    names, n = tuple(d.name for d in problem.devices), len(problem.devices)
    bound_s = lower_bound_s(problem, CostTable(problem), float("inf"))
    for shares in product(range(1, 6), repeat=n):
        if sum(shares) == 6:
            stage = Stage(start=0, stop=1, devices=names, shares=shares)
            plan = Plan(planner="by hand", model="m", micro_batch=6, stages=(stage,))
            assert judge(problem, plan).latency_s >= bound_s * (1 - 1e-9), shares
