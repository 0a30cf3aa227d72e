"""Small problems against every plan there is, also where devices share stages and come back."""

import random
from dataclasses import replace
from itertools import product

import pytest
from tests.sdk.planning.homes import every_returning_plan, later, random_branches, random_home

from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.evaluate import judge
from potluck.planning.feasibility import breaches, with_more_memory
from potluck.planning.search.best_first import BestFirst
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.local_search import floor_s
from potluck.planning.search.work_budget import WorkBudget
from potluck.records import Inference, Plan, Stage, Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct
from potluck.simulate.footprint import memory_bytes


def uneven(problem, seed):
    """The problem on devices that are good at different layers."""
    rng = random.Random(f"uneven {seed}")
    costs = {
        name: tuple(
            replace(
                layer,
                forward_s=tuple(times * s for s in layer.forward_s),
                backward_s=tuple(times * s for s in layer.backward_s),
            )
            for layer in layers
            for times in (rng.choice([1, 1, rng.uniform(0.3, 3)]),)
        )
        for name, layers in problem.costs.items()
    }
    return replace(problem, costs=costs)


def fastest_s(problem, plans, enough_s):
    """The least simulated seconds of those plans that hold, as far as they are below `enough_s`."""
    table = CostTable(problem)
    simulator, best_s = Direct(problem, table), enough_s
    for plan in plans:
        if floor_s(table, plan) < best_s:
            judged = judge(problem, plan, table, simulator)
            if not breaches(problem, judged):
                best_s = min(best_s, judged.latency_s)
    return best_s


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", [2, 4])
@pytest.mark.parametrize("seed", [0, 5, *later(range(1, 24))])
def test_a_stream_over_two_uneven_devices_is_as_fast_as_the_fastest_of_all_plans(seed, batch):
    home = random_home(seed, Inference(batch=batch, streaming=True), devices=2, layers=4)
    home = uneven(home, seed)
    found_s = ours_s(home)
    assert fastest_s(home, every_returning_plan(home), found_s) >= 0.99 * found_s


def every_plan_by_layers(problem, size):
    """Every layer on either of two devices, or shared by both; flat, and as deep as usual."""
    first, second = (device.name for device in problem.devices)
    groups = [((first,), (size,)), ((second,), (size,)), ((first, second), (size // 2,) * 2)]
    n_layers, n = len(problem.layers), problem.workload.batch // size
    for chosen in product(groups, repeat=n_layers):
        for depth in {1, min(n, 2)}:
            stages = tuple(
                Stage(start=i, stop=i + 1, devices=names, shares=shares, warm_up=depth)
                for i, (names, shares) in enumerate(chosen)
            )
            yield Plan(
                planner="every",
                model=problem.model,
                stages=stages,
                micro_batch=size,
                n_micro_batches=n,
            )


def ours_s(problem):
    """Seconds of our best plan; endless where we say that there is none."""
    try:
        return make_plans(problem).best.latency_s
    except Infeasible:
        return float("inf")


def branches_that_just_fit(seed):
    """Two devices that each hold a part of what all branches take on one."""
    home = random_branches(seed, Training(batch=4, micro_batch=2), devices=2)
    rng = random.Random(f"tight {seed}")
    layers = tuple(
        replace(layer, activation_bytes=rng.choice([300, 3000, 30_000])) for layer in home.layers
    )
    home = replace(home, layers=layers)
    n_layers = len(layers)
    most_bytes = memory_bytes(CostTable(home), 0, n_layers, 2, warm_up=1, n_micro_batches=2)
    devices = tuple(
        replace(device, memory_bytes=int(most_bytes * rng.uniform(0.45, 1.0)))
        for device in home.devices
    )
    return replace(home, devices=devices)


@pytest.mark.long
@pytest.mark.parametrize("seed", [6, 10, 14, *later(range(6)), *later(range(15, 24))])
def test_branches_that_just_fit_are_planned_as_well_as_by_looking_at_every_plan(seed):
    home = branches_that_just_fit(seed)
    found_s = ours_s(home)
    best_s = fastest_s(home, every_plan_by_layers(home, 2), found_s)
    assert best_s == found_s or best_s >= 0.99 * found_s


@pytest.mark.long
@pytest.mark.parametrize("seed", [10, *later(range(10)), *later(range(11, 20))])
def test_no_plan_next_to_the_best_is_better_and_fits_whatever_closed_forms_say(seed):
    home = branches_that_just_fit(seed)
    if ours_s(home) == float("inf"):
        return
    best = make_plans(home).best
    table = CostTable(with_more_memory(home, float("inf")))
    near_s = fastest_s(home, StagePlacements(table).ranked(table, best), best.latency_s)
    assert near_s >= (1 - 1e-4) * best.latency_s


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_plans_come_by_what_their_busiest_device_takes_the_least_of_all_first(seed, size):
    home = random_home(seed, Inference(batch=4), devices=2, layers=4, capacity=1e15)
    home, table = uneven(home, seed), CostTable(uneven(home, seed))
    search = BestFirst(table, size, table.budgets, WorkBudget())
    found = [floor_s(table, plan) for plan in search.plans(float("inf"))]
    assert found == sorted(found)
    every = [floor_s(table, p) for p in every_returning_plan(home) if p.micro_batch == size]
    assert found[0] == pytest.approx(min(every))
    assert len(found) > 10


def test_no_plan_comes_that_takes_as_long_as_what_is_known_or_that_no_device_holds():
    home = random_home(1, Inference(batch=4), devices=2, layers=4)
    table = CostTable(home)
    search = BestFirst(table, 4, table.budgets, WorkBudget())
    least_s = min(floor_s(table, plan) for plan in search.plans(float("inf")))
    assert [*search.plans(least_s)] == []
    nothing = dict.fromkeys(table.budgets, 0)
    assert [*BestFirst(table, 4, nothing, WorkBudget()).plans(float("inf"))] == []


def test_of_alike_devices_the_first_comes_first_and_no_plan_twice():
    home = random_home(1, Inference(batch=4), devices=3, layers=3)
    costs = dict.fromkeys(home.costs, next(iter(home.costs.values())))
    home = replace(home, costs=costs)
    table = CostTable(home)
    found = [plan.stages for plan in BestFirst(table, 2, table.budgets, WorkBudget()).plans(1e9)]
    assert len(found) == len({*found}) > 5
    for stages in found:
        devices = [name for stage in stages for name in stage.devices]
        assert [*dict.fromkeys(devices)] == [d.name for d in home.devices[: len({*devices})]]
