"""Memory that is exactly what some plan needs as simulated, though closed forms say that it needs
more: that plan is found, or a better one.
"""

import random
from dataclasses import replace
from itertools import islice, product
from math import inf

import pytest
from tests.sdk.planning.homes import every_plan, later, random_home

from potluck.bench.optimality import best_s
from potluck.planning import make_plans
from potluck.planning.search.local_search import fits, neighbours
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
from potluck.simulate.footprint import memory_bytes


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(12), *later(range(12, 80))])
def test_what_a_plan_needs_as_simulated_is_enough_for_one_as_good(seed):
    """The best of a few plans of a random home; who has nothing to do there can hold nothing."""
    rng = random.Random(f"exact {seed}")
    workloads = [Training(batch=4), Training(batch=6), Inference(batch=4), Inference(batch=6)]
    problem = random_home(seed, workloads[seed % 4], devices=3, layers=4)
    layers = tuple(
        replace(
            layer,
            parameter_bytes=rng.choice([400, 4000, 40_000]),
            activation_bytes=layer.output_bytes * rng.choice([1, 3, 10]),
        )
        for layer in problem.layers
    )
    problem = replace(problem, layers=layers)
    simulator, plans = Direct(problem), [*islice(every_plan(problem), 20_000)]
    known = min(
        rng.sample(plans, min(40, len(plans))), key=lambda plan: simulator.run(plan).latency_s
    )
    outcome = simulator.run(known)
    peaks = outcome.peak_bytes()
    devices = tuple(
        replace(device, memory_bytes=peaks.get(device.name, min(peaks.values()) // 2))
        for device in problem.devices
    )
    assert make_plans(replace(problem, devices=devices)).best.latency_s <= outcome.latency_s * 1.01


def two_devices(memory_bytes, batch=6):
    """One that takes its time however many rows, one in proportion; the first layer is heavy, and
    only the second device holds it, one row at a time.
    """
    rows = tuple(range(1, batch + 1))
    names = ("flat", "steep")
    costs = {
        "flat": [[base] * batch for base in (0.26, 0.30, 0.27)],
        "steep": [[base * (0.8 + 0.2 * n) for n in rows] for base in (0.26, 0.33, 0.34)],
    }
    sizes = [(50_000, 400_000, 150_000), (1000, 40_000, 1000), (1000, 400, 1000)]
    return Problem(
        model="heavy first",
        workload=Training(batch=batch),
        devices=tuple(
            Device(name=name, memory_bytes=nbytes)
            for name, nbytes in zip(names, memory_bytes, strict=True)
        ),
        network=Network(
            media=(
                Medium(name="there", capacity_bytes_per_s=1.9e6),
                Medium(name="back", capacity_bytes_per_s=5.9e5),
            ),
            paths={
                names: Path(media=(("there", 1),), latency_s=0.02),
                names[::-1]: Path(media=(("back", 1),), latency_s=0.0),
            },
        ),
        layers=tuple(
            Layer(
                name=f"l{i}",
                parameter_bytes=weights,
                output_bytes=handed,
                gradient_bytes=handed,
                activation_bytes=kept,
            )
            for i, (handed, weights, kept) in enumerate(sizes)
        ),
        costs={
            name: tuple(
                LayerCost(rows=rows, forward_s=tuple(s), backward_s=tuple(2 * x for x in s))
                for s in layers
            )
            for name, layers in costs.items()
        },
    )


@pytest.mark.long
def test_sizes_whose_plans_do_not_hold_do_not_hide_those_that_do():
    """By closed forms larger micro-batches fit as soon as single rows do, and promise more."""
    problem = two_devices((1_199_079, 2_265_139))
    assert make_plans(problem).best.latency_s <= best_s(
        problem, Direct(problem), every_plan(problem)
    )


def plan_of(problem, *stages):
    return Plan(
        planner="potluck",
        model=problem.model,
        stages=stages,
        micro_batch=3,
        n_micro_batches=2,
        training=True,
    )


def shared(shares, *, recompute=False):
    return Stage(
        start=0, stop=3, devices=("flat", "steep"), shares=shares, recompute=recompute, warm_up=2
    )


def test_plans_next_to_one_that_holds_as_simulated_are_tried_though_closed_forms_refuse_it():
    ample = two_devices((1 << 40, 1 << 40))
    plan = plan_of(ample, shared((2, 1)))
    peaks = Direct(ample).run(plan).peak_bytes()
    problem = two_devices((peaks["flat"], 1 << 40))
    table = CostTable(problem)
    assert not fits(table, plan, plan.stages)
    tried = [other for other in neighbours(table, plan) if other.micro_batch == plan.micro_batch]
    assert {other.stages[0].shares for other in tried} >= {(2, 1), (1, 2)}


def test_a_stage_recomputes_where_a_move_gives_a_device_more_than_it_holds():
    ample = two_devices((1 << 40, 1 << 40))
    table = CostTable(ample)
    kept = [_needed(table, ample, shared((1, 2), recompute=again)) for again in (False, True)]
    assert kept[1] < kept[0]
    tight = two_devices((1 << 40, (kept[0] + kept[1]) // 2))
    tried = neighbours(CostTable(tight, recomputes=True), plan_of(tight, shared((2, 1))))
    assert any(other.stages[0] == shared((1, 2), recompute=True) for other in tried)


def _needed(table, problem, stage):
    """Bytes of the second device, by the closed form: the least for which the plan fits."""
    low, high = 0, 1 << 30
    while low < high:
        middle = (low + high) // 2
        limits = {"flat": 1 << 40, "steep": middle}
        fit = fits(table, plan_of(problem, stage), (stage,), limits=limits)
        low, high = (low, middle) if fit else (middle + 1, high)
    return low


def just_fits(seed):
    """Two devices that each hold 0.5 to 0.95 of the whole, with links on which a micro-batch waits
    longer than it is under way.
    """
    rng = random.Random(f"partly {seed}")
    home = random_home(seed, Training(batch=6, micro_batch=1), devices=2, layers=4, capacity=10**7)
    layers = tuple(
        replace(layer, activation_bytes=layer.output_bytes * rng.choice([1, 3, 8]))
        for layer in home.layers
    )
    slow = {
        pair: replace(path, latency_s=10 ** rng.uniform(-2.5, -0.5))
        for pair, path in home.network.paths.items()
    }
    network = Network(media=home.network.media, paths=slow)
    home = replace(home, layers=layers, network=network)
    most_bytes = memory_bytes(CostTable(home), 0, len(layers), 1, warm_up=1)
    devices = (
        replace(d, memory_bytes=int(most_bytes * rng.uniform(0.5, 0.95))) for d in home.devices
    )
    return replace(home, devices=tuple(devices))


def two_stages(problem):
    """Every plan of two stages, each of which computes activations again or not, at every depth
    from 1 to 4.
    """
    n_layers, names = len(problem.layers), [device.name for device in problem.devices]
    choices = range(1, n_layers), (names, names[::-1]), range(1, 5), *[(False, True)] * 2
    for cut, (a, b), depth, again, last in product(*choices):
        first = Stage(start=0, stop=cut, devices=(a,), shares=(1,), warm_up=depth, recompute=again)
        second = Stage(start=cut, stop=n_layers, devices=(b,), shares=(1,), recompute=last)
        yield Plan(
            planner="every",
            model=problem.model,
            stages=(first, second),
            micro_batch=1,
            n_micro_batches=problem.workload.batch,
        )


@pytest.mark.long
@pytest.mark.parametrize("seed", [34, 61, 83, *later(range(34))])
def test_some_stages_compute_again_and_some_do_not_where_just_that_fits(seed):
    problem = just_fits(seed)
    known_s = best_s(problem, Direct(problem), two_stages(problem))
    if known_s < inf:
        assert make_plans(problem).best.latency_s <= known_s * 1.01
