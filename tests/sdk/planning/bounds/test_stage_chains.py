"""Bounds that price devices, air and time together: no plan is below them, and they say what is
plain by hand.
"""

import random
from dataclasses import replace
from math import inf

import pytest
from tests.sdk.planning.homes import WORKLOADS, every_plan, every_returning_plan, later, random_home
from tests.sdk.planning.test_large import small

from potluck.bench.large_homes import KINDS, NETWORKS, LargeHome
from potluck.bench.large_homes import WORKLOADS as LARGE_WORKLOADS
from potluck.planning import make_plans
from potluck.planning.bounds.latency import lower_bound_s, quick_bound_s
from potluck.planning.bounds.row_routes import routes_s
from potluck.planning.bounds.stage_chains import chains_bound_s
from potluck.records import (
    Device,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Problem,
    Training,
)
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

NAMES = ("a", "b", "c", "d")


def chain(workload, speeds, *, layers=3, rate=1e12, sent=10, weights=0):
    """Layers that take one second for a row, whatever their rows are, on devices at one air."""
    names = NAMES[: len(speeds)]
    return Problem(
        model="chain",
        workload=workload,
        layers=tuple(
            Layer(name=f"l{i}", output_bytes=sent, gradient_bytes=sent, parameter_bytes=weights)
            for i in range(layers)
        ),
        devices=tuple(Device(name=n, memory_bytes=10**9, overhead_s=0.0) for n in names),
        network=Network(
            media=(Medium(name="air", capacity_bytes_per_s=rate),),
            paths={(a, b): Path(media=(("air", 1),)) for a in names for b in names if a != b},
        ),
        costs={
            name: tuple(
                LayerCost(rows=(1, 4), forward_s=(s, 4 * s), backward_s=(s, 4 * s))
                for s in [1 / speed] * layers
            )
            for name, speed in zip(names, speeds, strict=True)
        },
    )


def bound_s(problem, high_s=inf):
    table = CostTable(problem)
    low_s = max(quick_bound_s(problem), routes_s(table))
    return chains_bound_s(table, low_s, high_s, lambda: False)


def test_a_layer_of_a_stream_of_single_rows_is_on_one_device():
    # of three layers one device has two; the work is 1.5 s
    assert bound_s(chain(Inference(batch=1, streaming=True), [1, 1])) == pytest.approx(2, rel=0.01)


def test_a_stream_that_has_to_be_shared_takes_the_air():
    # alone 3 s; two devices pass on a row of 25 bytes in 2.5 s
    stream = chain(Inference(batch=1, streaming=True), [1, 1], rate=10.0, sent=25)
    assert bound_s(stream) == pytest.approx(2.5, rel=0.01)


def test_a_request_stays_where_devices_are_fast():
    # four rows take 12 / 8 s on the fast one alone, one row of them 3 s on another
    assert bound_s(chain(Inference(batch=4), [8, 1, 1, 1])) == pytest.approx(1.5, rel=0.01)


def test_replicas_that_learn_sum_their_gradients_over_the_air():
    # two rows, each 3 s on its own device and 3 s back; 3 x 40 bytes pass twice at 40 bytes per
    # second, three quarters of them behind the gradients; one device alone takes 12 s
    training = Training(batch=2, micro_batch=2)
    slow = chain(training, [1, 1], rate=40.0, sent=10**6, weights=40)
    assert 8 < bound_s(slow) < 12.01
    quick = chain(training, [1, 1], sent=10**6, weights=40)
    assert bound_s(quick) == pytest.approx(6, rel=0.01)


def varied(seed):
    """A small home; in some links are slow, weights heavy, memory short, or more rows faster."""
    rng = random.Random(f"chains {seed}")
    workload = rng.choice([*WORKLOADS, Training(batch=4), Inference(batch=6), Inference(batch=1)])
    problem = random_home(seed, workload, layers=4, capacity=10 ** rng.uniform(3, 7))
    heavy = rng.choice([1, 1, 100])
    layers = tuple(
        replace(layer, parameter_bytes=layer.parameter_bytes * heavy) for layer in problem.layers
    )
    costs = problem.costs
    if rng.random() < 0.3:
        costs = {
            name: tuple(
                replace(
                    cost,
                    rows=(1, 3, 8),
                    forward_s=tuple(rng.uniform(0.5, 2) * cost.forward_s[0] for _ in range(3)),
                    backward_s=tuple(rng.uniform(0.5, 2) * cost.backward_s[0] for _ in range(3)),
                )
                for cost in rows
            )
            for name, rows in costs.items()
        }
    return replace(problem, layers=layers, costs=costs)


@pytest.mark.parametrize("seed", [*range(6), *later(range(6, 60))])
def test_no_plan_of_a_small_home_is_below_the_bounds(seed):
    problem = varied(seed)
    direct = Direct(problem)
    plans = [*every_plan(problem)]
    plans = plans[:: max(1, len(plans) // 2000)]
    assert bound_s(problem) <= min(direct.run(plan).latency_s for plan in plans) * (1 + 1e-9)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(12))
def test_nor_is_one_that_comes_back_to_a_device_below_that_of_routes(seed):
    problem = varied(seed)
    problem = replace(
        problem,
        layers=problem.layers[:3],
        costs={name: rows[:3] for name, rows in problem.costs.items()},
    )
    direct = Direct(problem)
    plans = [*every_returning_plan(problem)]
    plans = plans[:: max(1, len(plans) // 1500)]
    least_s = min(direct.run(plan).latency_s for plan in plans)
    assert routes_s(CostTable(problem)) <= least_s * (1 + 1e-9)


@pytest.mark.few(3)
@pytest.mark.parametrize("workload", LARGE_WORKLOADS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_plan_that_a_search_ever_simulates_is_below_the_bound(
    kind, network, workload, monkeypatch
):
    problem = small(LargeHome(12, kind, network, workload, 5))
    seen, run = list[float](), Direct.run

    def seeing(direct, plan, *args, **kwargs):
        outcome = run(direct, plan, *args, **kwargs)
        seen.append(outcome.latency_s)
        return outcome

    monkeypatch.setattr(Direct, "run", seeing)
    best = make_plans(problem).best
    assert seen
    assert min(seen) >= best.latency_s * (1 - best.gap_frac) * (1 - 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("network", NETWORKS)
def test_of_many_devices_the_bound_is_far_above_work_and_way(network):
    problem = small(LargeHome(24, "alike", network, "streaming", 11), n_layers=30)
    best = make_plans(problem).best
    table = CostTable(problem)
    bound = lower_bound_s(problem, table, best.latency_s, closely=False)
    assert bound > 1.05 * quick_bound_s(problem)
