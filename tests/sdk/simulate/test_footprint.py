"""The closed forms of memory are never less, and never more, than the simulator finds, in any home
and for any plan.
"""

import random
from dataclasses import replace
from itertools import permutations

import pytest
from tests.sdk.simulate.test_direct_simulation import random_plan, random_problem, with_branches

from potluck.planning import predict
from potluck.planning.search.local_search import fits
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
from potluck.simulate.direct_simulation import Direct, in_flight
from potluck.simulate.equations import static_bytes
from potluck.simulate.footprint import (
    depth_that_fits,
    least_bytes,
    memory_bytes,
    plan_bytes,
    rows_that_fit,
)

N_SEEDS, N_HOMES = 40, 25


def random_home(rng, branches):
    """Layers with parameters of every size, some of which several operators read."""
    problem = random_problem(rng)
    problem = with_branches(rng, problem) if branches else problem
    layers = []
    for layer in problem.layers:
        widest = rng.choice([None, layer.parameter_bytes, layer.parameter_bytes // 2])
        layers.append(
            replace(
                layer,
                widest_parameter_bytes=widest,
                reused_bytes=rng.choice([0, 0, widest or 0]),
                working_bytes=rng.choice([0, 5 * layer.output_bytes]),
            )
        )
    return replace(problem, layers=tuple(layers))


def test_what_a_layer_works_on_counts_where_nothing_is_kept():
    problem = random_home(random.Random(0), branches=False)
    wide = replace(problem.layers[0], working_bytes=10**9)
    problem = replace(problem, layers=(wide, *problem.layers[1:]))
    asked = replace(problem, workload=Inference(batch=4))
    assert memory_bytes(CostTable(asked), 0, 1, 2, warm_up=1) >= 2 * 10**9
    learned = replace(problem, workload=Training(batch=4))
    assert memory_bytes(CostTable(learned), 0, 1, 2, warm_up=1) < 10**9


@pytest.mark.long
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("seed", range(N_SEEDS))
def test_the_simulated_peak_is_between_the_closed_forms(seed, branches):
    rng = random.Random(seed)
    for _ in range(N_HOMES):
        problem = random_home(rng, branches)
        table = CostTable(problem)
        direct, plan = Direct(problem, table), random_plan(rng, problem)
        peaks = direct.run(plan).peak_bytes()
        n_requests = in_flight(plan) if direct.streaming else 1
        closed = plan_bytes(table, plan.stages, n_requests)
        assert peaks.keys() == closed.keys()
        below = {name: (closed[name], peak) for name, peak in peaks.items() if closed[name] < peak}
        assert not below, (plan, below)
        least = least_bytes(table, plan.stages)
        assert peaks.keys() == least.keys()
        above = {name: (least[name], peak) for name, peak in peaks.items() if least[name] > peak}
        assert not above, (plan, above)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(N_SEEDS))
def test_what_is_said_to_fit_holds_by_the_simulator(seed):
    """What planners take for granted where there is memory in plenty."""
    rng = random.Random(seed)
    for _ in range(N_HOMES):
        problem = replace(
            random_home(rng, branches=rng.random() < 0.5), workload=Training(batch=8, micro_batch=2)
        )
        plan = random_plan(rng, problem)
        peaks = Direct(problem).run(plan).peak_bytes()
        devices = tuple(
            replace(device, memory_bytes=int(rng.uniform(0.5, 3) * peaks[device.name]) + 1)
            if device.name in peaks
            else device
            for device in problem.devices
        )
        tight = replace(problem, devices=devices)
        if fits(CostTable(tight), plan, plan.stages):
            assert all(
                peaks[device.name] <= device.memory_bytes
                for device in devices
                if device.name in peaks
            )


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(N_SEEDS))
def test_what_an_all_reduce_holds_is_the_same_whichever_replica_is_ahead(seed):
    """No device is exactly as quick as it was measured."""
    rng = random.Random(seed)
    names = [f"d{i}" for i in range(rng.randint(2, 4))]
    problem = replicated(rng, names)
    stage = Stage(
        start=0,
        stop=len(problem.layers),
        devices=tuple(names),
        shares=tuple(rng.randint(1, 3) for _ in names),
    )
    batch = 4 * sum(stage.shares)
    problem = replace(problem, workload=Training(batch=batch, micro_batch=batch // 4))
    plan = Plan(
        planner="by hand", model="m", stages=(stage,), micro_batch=batch // 4, n_micro_batches=4
    )
    expected = Direct(problem).run(plan).peak_bytes()
    for _ in range(20):
        other = slowed(rng, problem)
        assert Direct(other).run(plan).peak_bytes() == expected
        assert predict(other, plan).peak_bytes == expected


def replicated(rng, names):
    """Layers whose weights are what takes memory, on devices and links of every speed."""
    media = tuple(Medium(name=name, capacity_bytes_per_s=10 ** rng.uniform(5, 8)) for name in names)
    layers = tuple(
        Layer(
            name=f"l{i}",
            output_bytes=rng.choice([10, 1000]),
            parameter_bytes=4 * rng.randint(10**5, 10**6),
            activation_bytes=rng.choice([0, 500]),
        )
        for i in range(rng.randint(1, 4))
    )
    cost = LayerCost(rows=(1,), forward_s=(0.01,), backward_s=(0.02,))
    return Problem(
        model="m",
        workload=Training(batch=1),
        layers=layers,
        devices=tuple(Device(name=name, memory_bytes=10**9) for name in names),
        network=Network(
            media=media,
            paths={(a, b): Path(media=((a, 1), (b, 1))) for a, b in permutations(names, 2)},
        ),
        costs={name: tuple(cost for _ in layers) for name in names},
    )


def slowed(rng, problem):
    """The same, with devices that are up to a half slower or quicker."""

    def times(cost, factor):
        return replace(
            cost,
            forward_s=tuple(factor * s for s in cost.forward_s),
            backward_s=tuple(factor * s for s in cost.backward_s),
        )

    factors = {name: rng.uniform(0.67, 1.5) for name in problem.costs}
    return replace(
        problem,
        costs={
            name: tuple(times(cost, factors[name]) for cost in costs)
            for name, costs in problem.costs.items()
        },
    )


@pytest.mark.few(10)
@pytest.mark.parametrize("seed", range(N_SEEDS))
def test_rows_and_depths_that_fit_are_the_most_that_do(seed):
    rng = random.Random(seed)
    for _ in range(N_HOMES):
        problem = random_home(rng, branches=rng.random() < 0.5)
        table, n_layers = CostTable(problem), len(problem.layers)
        start = rng.randrange(n_layers)
        stop = rng.randint(start + 1, n_layers)
        shape = {"replicas": rng.randint(1, 3), "n_micro_batches": rng.choice([1, 2, 6])}
        rows, n = rng.randint(1, 8), shape["n_micro_batches"]

        def needed(rows, depth, table=table, start=start, stop=stop, shape=shape):
            return memory_bytes(table, start, stop, rows, warm_up=depth, **shape)

        budget = int(static_bytes(table, start, stop) + rng.uniform(-0.1, 2) * needed(rows, 1))
        most = rows_that_fit(table, start, stop, budget, warm_up=2, **shape)
        assert most == 0 or needed(most, 2) <= budget
        assert most >= 1 << 60 or needed(most + 1, 2) > budget
        depth = depth_that_fits(table, start, stop, rows, budget, **shape)
        assert 0 <= depth <= n
        assert depth == 0 or needed(rows, depth) <= budget
        assert depth == n or needed(rows, depth + 1) > budget
