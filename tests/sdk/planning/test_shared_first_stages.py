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
from potluck.records import Inference, LayerCost, Medium, Network, Path
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct


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


@pytest.mark.long
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


@pytest.mark.long
def test_a_slow_device_takes_a_row_where_its_link_is_what_rows_wait_for():
    """Four rows of a stream take 0.28 s from the first device to the last; one of them on the
    second, which is twelve times slower, 0.21 s."""
    home = random_home(0, Inference(batch=4, streaming=True), devices=3, layers=3)
    seconds = {"a": (0.016, 0.08), "b": (0.19, 0.001), "c": (0.5, 0.001)}
    rates = {"ab": 5e4, "ac": 1.44e5, "ba": 5e4, "bc": 5.4e4, "ca": 5e4, "cb": 5e4}
    problem = replace(
        home,
        devices=tuple(replace(home.devices[0], name=name) for name in seconds),
        network=Network(
            media=tuple(Medium(name=n, capacity_bytes_per_s=r) for n, r in rates.items()),
            paths={(n[0], n[1]): Path(media=((n, 1),), latency_s=0.0) for n in rates},
        ),
        layers=tuple(replace(layer, output_bytes=10_000) for layer in home.layers[:2]),
        costs={
            name: tuple(LayerCost(rows=(1,), forward_s=(s,)) for s in each)
            for name, each in seconds.items()
        },
    )
    best_s_of_all = best_s(problem, Direct(problem), every_plan(problem))
    assert make_plans(problem).best.latency_s <= best_s_of_all * 1.001
