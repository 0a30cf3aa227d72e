"""Devices whose time goes in steps of many rows, and links that hold rows up: shares that no speed
tells are found, as brute force over all rows finds them.
"""

import random
from dataclasses import replace
from itertools import product
from math import ceil

import pytest
from tests.sdk.planning.homes import every_plan, later

from potluck.bench.optimality import best_s
from potluck.planning import make_plans
from potluck.planning.building_blocks.row_levels import edges_of, level, levelled, most_rows
from potluck.planning.search.local_search import neighbours
from potluck.records import (
    Device,
    Inference,
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
from potluck.simulate.direct_simulation import Direct

KINDS = {"single": Inference, "training": Training, "streaming": Inference}


def tiled(batch, tiles, kind="single", *, n_layers=1, rows=None, capacity=1e9):
    """Devices d0, d1, ... on one medium, whose time goes in steps: (rows of a tile, seconds)."""
    names = [f"d{i}" for i in range(len(tiles))]
    rows = rows or tuple(range(1, batch + 1))
    costs = {
        name: (
            LayerCost(
                rows=rows,
                forward_s=tuple(seconds * ceil(n / tile) for n in rows),
                backward_s=tuple(2 * seconds * ceil(n / tile) for n in rows),
            ),
        )
        * n_layers
        for name, (tile, seconds) in zip(names, tiles, strict=True)
    }
    streams = {"streaming": True} if kind == "streaming" else {}
    return Problem(
        model="tiles",
        workload=KINDS[kind](batch=batch, **streams),
        devices=tuple(Device(name=name, memory_bytes=1 << 40) for name in names),
        network=Network(
            media=(Medium(name="air", capacity_bytes_per_s=capacity),),
            paths={
                (a, b): Path(media=(("air", 1),), latency_s=1e-4)
                for a, b in product(names, names)
                if a != b
            },
        ),
        layers=tuple(
            Layer(
                name=f"l{i}",
                parameter_bytes=400,
                output_bytes=100,
                gradient_bytes=100,
                activation_bytes=100,
            )
            for i in range(n_layers)
        ),
        costs=costs,
    )


def brute_s(problem):
    return best_s(problem, Direct(problem), every_plan(problem))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("batch", "tiles"),
    [
        (24, [(16, 1.0), (8, 1.0)]),
        (40, [(32, 1.0), (8, 1.9)]),
        (28, [(16, 1.0), (4, 0.5)]),
        (24, [(16, 1.0), (8, 1.9)]),
        (56, [(32, 1.0), (8, 0.5)]),
    ],
)
def test_shares_end_where_steps_do(batch, tiles, kind):
    problem = tiled(batch, tiles, kind)
    assert make_plans(problem, borrow=False).best.latency_s <= brute_s(problem) * 1.01


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(12), *later(range(12, 60))])
def test_random_steps_are_planned_as_brute_force_plans_them(seed):
    rng = random.Random(f"steps {seed}")
    n = rng.choice([2, 2, 3])
    batch = rng.choice([12, 16, 20, 24, 32] if n == 2 else [8, 10, 12])
    tiles = [(rng.choice([2, 3, 4, 5, 8, 16]), 10 ** rng.uniform(-1, 0.3)) for _ in range(n)]
    capacity = 10 ** rng.uniform(3, 8)
    n_layers = rng.choice([1, 2]) if n == 2 else 1
    problem = tiled(batch, tiles, rng.choice([*KINDS]), n_layers=n_layers, capacity=capacity)
    assert make_plans(problem).best.latency_s <= brute_s(problem) * 1.01


def test_steps_between_measured_sizes_alone_are_met_as_well():
    """A profile has few sizes; the edge of a step is one of them, or nobody knows it."""
    problem = tiled(48, [(32, 1.0), (16, 1.0)], rows=(1, 15, 16, 17, 31, 32, 33, 48))
    assert make_plans(problem).best.stages[0].shares == (32, 16)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*range(6), *later(range(6, 40))])
def test_rows_go_where_links_are_where_these_hold_a_stream_up(seed):
    """Every pair has a slow link of its own: a device that computes slowly may send for another."""
    rng = random.Random(f"links {seed}")
    problem = tiled(
        rng.choice([2, 3, 4, 5]),
        [(1, 10 ** rng.uniform(-2.5, -0.5)) for _ in range(3)],
        rng.choice(["streaming", "streaming", "single", "training"]),
        n_layers=2,
    )
    costs = {
        name: tuple(_times(cost, 10 ** rng.uniform(-1, 1)) for cost in each)
        for name, each in problem.costs.items()
    }
    media = tuple(
        Medium(name=f"{a} to {b}", capacity_bytes_per_s=10 ** rng.uniform(3, 5))
        for a, b in problem.network.paths
    )
    paths = {
        (a, b): Path(media=((f"{a} to {b}", 1),), latency_s=rng.choice([0.0, 0.001, 0.1]))
        for a, b in problem.network.paths
    }
    problem = replace(problem, costs=costs, network=Network(media=media, paths=paths))
    assert make_plans(problem).best.latency_s <= brute_s(problem) * 1.01


def _times(cost, factor):
    return replace(
        cost,
        forward_s=tuple(factor * seconds for seconds in cost.forward_s),
        backward_s=tuple(factor * seconds for seconds in cost.backward_s),
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_level_of_rows_is_the_lowest_there_is(seed):
    """Against all ways to share rows over three devices."""
    rng = random.Random(seed)
    curves = [_steps(rng, 14) for _ in range(3)]
    worst = (12, 1, 1)
    found = level(curves, worst)
    assert sum(found) == 14
    assert min(found) >= 1
    least = min(
        max(dict(curve)[n] for curve, n in zip(curves, (a, b, 14 - a - b), strict=True))
        for a, b in product(range(1, 13), repeat=2)
        if a + b < 14
    )
    assert max(dict(c)[n] for c, n in zip(curves, found, strict=True)) <= least * 1.002


def _steps(rng, most):
    tile, seconds = rng.randint(1, 8), rng.uniform(0.1, 1)
    return tuple((n, seconds * ceil(n / tile) + 0.01 * n) for n in range(1, most + 1))


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.5, 9.0])
def test_what_a_time_buys_is_the_last_number_of_rows_within_it(seconds):
    curve = _steps(random.Random(7), 20)
    within = [n for n, needed in curve if needed <= seconds]
    assert most_rows(curve, seconds) == max(within, default=0)


def test_a_device_that_gains_by_more_rows_has_no_edges():
    problem = tiled(16, [(1, 1.0), (8, 1.0)])
    concave = LayerCost(rows=(1, 4, 16), forward_s=(1.0, 2.0, 4.0), backward_s=(1.0, 2.0, 4.0))
    problem = replace(problem, costs={**problem.costs, "d0": (concave,)})
    table = CostTable(problem)
    assert edges_of(table) == {"d0": (), "d1": (8,)}
    assert levelled(table, 0, 1, ["d0", "d0"], (10, 6), (16, 16)) == (10, 6)


def test_no_device_gets_more_rows_than_it_has_room_for():
    table = CostTable(tiled(24, [(16, 1.0), (8, 1.0)]))
    assert levelled(table, 0, 1, ["d0", "d1"], (14, 10), (24, 24)) == (16, 8)
    assert levelled(table, 0, 1, ["d0", "d1"], (14, 10), (15, 24)) == (14, 10)


def test_rows_move_to_the_edges_of_steps_in_one_go():
    problem = tiled(24, [(16, 1.0), (8, 1.0)])
    stage = Stage(start=0, stop=1, devices=("d0", "d1"), shares=(13, 11))
    plan = Plan(
        planner="potluck",
        model="tiles",
        stages=(stage,),
        micro_batch=24,
        n_micro_batches=1,
        training=False,
    )
    tried = {other.stages[0].shares for other in neighbours(CostTable(problem), plan)}
    assert (16, 8) in tried
