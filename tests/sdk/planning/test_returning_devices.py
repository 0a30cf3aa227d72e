"""Chains that come back to a device, or in which it helps with another stage: found where they are
much faster or alone fit, and what is certified says so.
"""

from dataclasses import replace
from math import inf

import pytest
from tests.sdk.planning.homes import every_returning_plan, later, random_home

from potluck.bench import small_homes
from potluck.bench.optimality import best_s
from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.bounds.latency import quick_bound_s
from potluck.planning.evaluate import judge
from potluck.planning.explain import explain
from potluck.planning.feasibility import breaches
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
from potluck.simulate.direct_simulation import Direct

MB = 10**6


def chain(seconds, memory, parameters, workload):
    """Devices a and b on cables; `seconds` per row of each layer, by device."""
    names = "a", "b"
    media = tuple(
        Medium(name=f"{n} {way}", capacity_bytes_per_s=1e8) for n in names for way in ("up", "down")
    )
    return Problem(
        model="chain",
        devices=tuple(Device(name=name, memory_bytes=memory[name]) for name in names),
        network=Network(
            media=media,
            paths={
                (a, b): Path(media=((f"{a} up", 1), (f"{b} down", 1)), latency_s=5e-4)
                for a, b in (names, names[::-1])
            },
        ),
        layers=tuple(
            Layer(
                name=f"l{i}",
                parameter_bytes=nbytes,
                output_bytes=1000,
                gradient_bytes=1000,
                activation_bytes=1000,
            )
            for i, nbytes in enumerate(parameters)
        ),
        costs={
            name: tuple(
                LayerCost(rows=(1, 8), forward_s=(s, 8 * s), backward_s=(2 * s, 16 * s))
                for s in seconds[name]
            )
            for name in names
        },
        workload=workload,
    )


def returning(problem, first, last):
    n_layers, rows = len(problem.layers), problem.workload.batch
    spans = ((0, first, "a"), (first, last, "b"), (last, n_layers, "a"))
    stages = tuple(Stage(start=i, stop=j, devices=(name,), shares=(rows,)) for i, j, name in spans)
    plan = Plan(
        planner="hand",
        model="chain",
        stages=stages,
        micro_batch=rows,
        training=isinstance(problem.workload, Training),
    )
    return judge(problem, plan)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "workload", [Inference(batch=1), Training(batch=2), Inference(batch=4)], ids=str
)
@pytest.mark.parametrize(
    ("n_layers", "first", "last"), [(6, 1, 5), (5, 2, 4), (20, 1, 19), (24, 3, 17)]
)
def test_a_device_that_is_fast_at_both_ends_takes_both(workload, n_layers, first, last):
    seconds = {
        "a": [0.02 if first <= i < last else 0.001 for i in range(n_layers)],
        "b": [0.001 if first <= i < last else 0.02 for i in range(n_layers)],
    }
    problem = chain(seconds, {"a": 10**10, "b": 10**10}, [MB] * n_layers, workload)
    assert make_plans(problem).best.latency_s <= returning(problem, first, last).latency_s * 1.01


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", [1, 4])
def test_where_only_one_device_holds_both_ends_a_plan_is_found(batch):
    parameters = [100 * MB, *[30 * MB] * 4, 100 * MB]
    seconds = {"a": [0.001] * 6, "b": [0.001] * 6}
    problem = chain(seconds, {"a": 210 * MB, "b": 125 * MB}, parameters, Inference(batch=batch))
    assert breaches(problem, returning(problem, 1, 5)) == []
    assert breaches(problem, make_plans(problem).best) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_what_is_certified_of_a_chain_is_said_of_plans_with_one_stage_per_device(seed):
    best = make_plans(random_home(seed, Training(batch=8, micro_batch=2))).best
    said = (
        "no plan with at most one stage per device, micro-batches of one size and whole backwards"
    )
    assert said in repr(explain(best, improvements=False))
    assert best.latency_s >= quick_bound_s(best.problem) * (1 - 1e-9)


def test_a_plan_that_comes_back_is_none_that_the_bound_forbids():
    problem = replace(
        chain(
            {"a": [0.001, 0.02, 0.001], "b": [0.02, 0.001, 0.02]},
            {"a": 10**9, "b": 10**9},
            [MB] * 3,
            Inference(),
        )
    )
    best = make_plans(problem).best
    assert [stage.devices for stage in best.stages] == [("a",), ("b",), ("a",)]
    assert best.gap_frac == 0
    assert quick_bound_s(problem) <= best.latency_s


@pytest.mark.long
@pytest.mark.parametrize(
    ("workload", "rows_of_a"),
    [
        (Inference(batch=8), 4),
        (Inference(batch=8, streaming=True), 2),
        (Training(batch=8, micro_batch=8), 4),
    ],
    ids=["one", "stream", "training"],
)
def test_a_device_shares_the_first_layers_though_it_alone_has_room_for_the_last(
    workload, rows_of_a
):
    seconds = {"a": [0.01] * 3, "b": [0.01] * 3}
    problem = chain(seconds, {"a": 10**9, "b": 60 * MB}, [MB // 100, MB // 100, 100 * MB], workload)
    shared = Stage(start=0, stop=2, devices=("a", "b"), shares=(rows_of_a, 8 - rows_of_a))
    alone = Stage(start=2, stop=3, devices=("a",), shares=(8,))
    by_hand = Plan(
        planner="hand",
        model="chain",
        stages=(shared, alone),
        micro_batch=8,
        training=isinstance(workload, Training),
    )
    assert make_plans(problem).best.latency_s <= judge(problem, by_hand).latency_s * 1.01


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [*later([1]), 2, 3])
@pytest.mark.parametrize(
    "workload", [Inference(batch=4), Training(batch=4, micro_batch=4)], ids=["one", "training"]
)
@pytest.mark.parametrize("kind", ["plain", "tight"])
def test_a_device_that_has_a_stage_helps_another_where_that_pays_or_alone_fits(
    kind, workload, seed
):
    """Within 10 % of brute force over plans in which any devices share any stage."""
    problem = small_homes.draw(kind, f"helps {seed}", {"devices": 2, "layers": 4})
    problem = replace(problem, workload=workload)
    try:
        ours_s = make_plans(problem).best.latency_s
    except Infeasible:
        ours_s = inf
    assert ours_s <= best_s(problem, Direct(problem), every_returning_plan(problem)) * 1.1
