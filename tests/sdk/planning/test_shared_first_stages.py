"""What the search thinks of a shared first stage is what the simulator finds: home sends one
device's rows after the other's, and links carry rows of several devices at once.
"""

import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import every_plan, random_home
from tests.sdk.planning.test_home_data import with_home

from potluck.bench.optimality import best_s
from potluck.planning import make_plans
from potluck.planning.search.subset_dp import SubsetSearch
from potluck.records import Inference, Medium, Network, Path
from potluck.simulate.cost import CostTable
from potluck.simulate.direct import Direct


@pytest.mark.parametrize("seed", range(12))
def test_a_device_computes_while_home_sends_rows_to_the_next(seed):
    problem = with_home(random_home(seed, Inference(batch=7), devices=2, layers=3), seed)
    problem = replace(problem, input_bytes=40_000, result_bytes=0)
    table = CostTable(problem)
    search = SubsetSearch(table, 7, (0, len(problem.layers)), n_shares=20)
    simulator = Direct(problem, table)
    for label in search.run():
        plan = search.plan(label)
        turned = tuple(
            replace(s, devices=s.devices[::-1], shares=s.shares[::-1]) for s in plan.stages
        )
        found_s = [simulator.run(replace(plan, stages=s)).latency_s for s in (plan.stages, turned)]
        assert label.score == pytest.approx(min(found_s), rel=0.05)


@pytest.mark.parametrize("seed", range(8))
def test_rows_from_two_devices_arrive_at_once_over_links_of_their_own(seed):
    rng = random.Random(f"own links {seed}")
    home = random_home(seed, Inference(batch=6, streaming=True), devices=3, layers=3)
    pairs = home.network.paths
    media = tuple(
        Medium(name=f"{a}{b}", capacity_bytes_per_s=10 ** rng.uniform(3, 5)) for a, b in pairs
    )
    paths = {(a, b): Path(media=((f"{a}{b}", 1),), latency_s=1e-3) for a, b in pairs}
    problem = replace(home, network=Network(media=media, paths=paths))
    assert make_plans(problem).best.latency_s <= 1.01 * best_s(
        problem, Direct(problem), every_plan(problem)
    )
