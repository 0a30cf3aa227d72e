"""Our planner against every plan there is, its bound, its clock, and what must not change its
answer.
"""

import gc
import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import WORKLOADS, later, optimum_s, random_home

from potluck.bench.small_homes import random_problem
from potluck.planning import check_plan, make_plans
from potluck.planning.anytime import plan_anytime
from potluck.planning.bounds.latency import lower_bound_s, together, work_s
from potluck.planning.building_blocks.device_classes import alike, members, patterns
from potluck.planning.evaluate import judge
from potluck.planning.exhaustive import plan_exhaustive
from potluck.planning.feasibility import breaches
from potluck.planning.registry import BASELINES
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.local_search import neighbours
from potluck.records import Inference, Medium, Network, Path, QoE, Training
from potluck.simulate import footprint
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct, StepOutcome


@pytest.mark.long
@pytest.mark.parametrize("workload", WORKLOADS, ids=["training", "request", "streaming"])
@pytest.mark.parametrize("seed", range(12))
def test_finds_the_optimum_of_small_homes(seed, workload):
    problem = random_home(seed, workload)
    best = make_plans(problem).best
    check_plan(best, problem)
    assert best.latency_s <= optimum_s(problem) * 1.01


@pytest.mark.few(1)
@pytest.mark.parametrize("workload", WORKLOADS[:2], ids=["training", "request"])
@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_below_the_bound(seed, workload):
    problem = random_home(seed, workload)
    table = CostTable(problem)
    direct = Direct(problem, table)
    latencies = [direct.run(plan).latency_s for plan in plan_exhaustive(problem, table)]
    bound = lower_bound_s(problem, table, float("inf"))
    assert 0 < bound <= min(latencies) * (1 + 1e-9)
    best = make_plans(problem).best
    assert 0 <= best.gap_frac < 1
    assert best.latency_s * (1 - best.gap_frac) <= min(latencies) * (1 + 1e-9)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(30))
def test_no_plan_of_any_micro_batch_size_is_below_the_bound_even_where_memory_is_short(seed):
    rng = random.Random(seed)
    workloads = [
        Training(batch=6),
        Training(batch=12),
        Inference(batch=6),
        Inference(batch=6, streaming=True),
    ]
    problem = random_home(seed + 100, workloads[seed % 4], layers=4)
    scarce = tuple(
        replace(d, memory_bytes=rng.choice([40_000, 100_000, 10**9])) for d in problem.devices
    )
    problem = replace(problem, devices=scarce)
    table = CostTable(problem)
    direct, plans = Direct(problem, table), list(plan_exhaustive(problem, table))
    plans += [
        other for plan in plans[:: max(1, len(plans) // 10)] for other in neighbours(table, plan)
    ]
    if plans:
        least_s = min(direct.run(plan).latency_s for plan in plans)
        assert 0 < lower_bound_s(problem, table, float("inf")) <= least_s * (1 + 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(24))
def test_no_plan_is_below_the_bound_on_cables_and_air(seed):
    """Slow links, so that what they carry decides."""
    problem = random_problem(random.Random(f"bound {seed}"), {"devices": 3, "layers": 4})
    slow = tuple(
        replace(m, capacity_bytes_per_s=m.capacity_bytes_per_s / 30) for m in problem.network.media
    )
    problem = replace(problem, network=replace(problem.network, media=slow))
    table = CostTable(problem)
    direct, plans = Direct(problem, table), list(plan_exhaustive(problem, table))
    plans += [
        other for plan in plans[:: max(1, len(plans) // 5)] for other in neighbours(table, plan)
    ]
    least_s = min(direct.run(plan).latency_s for plan in plans)
    assert 0 < lower_bound_s(problem, table, float("inf")) <= least_s * (1 + 1e-9)


def test_paths_that_share_a_cable_carry_no_more_than_it():
    ends = {"a": 10.0, "b": 4.0, "c": 4.0}
    media = [
        Medium(name=f"{n} {way}", capacity_bytes_per_s=rate)
        for n, rate in ends.items()
        for way in ("up", "down")
    ]
    paths = {
        (x, y): Path(media=((f"{x} up", 1), (f"{y} down", 1))) for x in ends for y in ends if x != y
    }
    network = Network(media=tuple(media), paths=paths)
    assert together(network, [("a", "b"), ("a", "c")]) == 8.0  # each brings 4, a could send 10
    assert together(network, [("b", "a"), ("b", "c")]) == 4.0  # b sends 4 at most
    assert together(network, [("b", "a"), ("c", "a")]) == 8.0


def test_the_work_bound_by_hand():
    assert work_s(8, [[1.0], [3.0]]) == pytest.approx(8 * 3 / 4)  # 6 rows and 2 rows, 6 s each
    # Each layer on the device that does it well: 2 s of work per row, in parallel 1 s.
    assert 0.9 <= work_s(1, [[1.0, 9.0], [9.0, 1.0]]) <= 1.0


def test_one_device_alone_is_certified():
    problem = random_home(3)
    alone = replace(problem, devices=problem.devices[:1])
    assert make_plans(alone).best.gap_frac == pytest.approx(0.0, abs=0.35)


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(3), *later([3, 4, 5])])
def test_is_never_slower_than_any_baseline(seed):
    problem = random_home(seed, Training(batch=8), devices=4, layers=7)
    table = CostTable(problem)
    best = make_plans(problem).best
    for name, planner in BASELINES.items():
        plans = sorted(planner(problem, table), key=lambda plan: plan.latency_s)[:8]
        judged = [judge(problem, plan, table) for plan in plans]
        fitting = [plan.latency_s for plan in judged if not breaches(problem, plan)]
        assert best.latency_s <= min(fitting, default=float("inf")) * (1 + 1e-6), name


@pytest.mark.long
def test_plans_come_ever_better_and_always_the_same():
    problem = random_home(5, Training(batch=16), devices=4)
    found = [plan.latency_s for plan in plan_anytime(problem)]
    assert found == sorted(found, reverse=True)
    assert found == [plan.latency_s for plan in plan_anytime(problem)]


@pytest.mark.long
def test_a_clock_that_has_run_out_still_leaves_a_plan():
    problem = random_home(5, Training(batch=16), devices=4)
    ticks = iter(range(10**9))
    hurried = make_plans(problem, clock=lambda: float(next(ticks)), budget_s=1.0).best
    check_plan(hurried, problem)
    assert hurried.latency_s >= make_plans(problem).best.latency_s


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_names_of_devices_change_nothing(seed):
    a = make_plans(random_home(seed, prefix="d")).best
    b = make_plans(random_home(seed, prefix="z")).best
    assert a.latency_s == pytest.approx(b.latency_s, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_more_bandwidth_or_a_faster_device_never_hurts_the_optimum(seed):
    slow = optimum_s(random_home(seed, capacity=3e4))
    assert optimum_s(random_home(seed, capacity=3e5)) <= slow * (1 + 1e-9)
    assert make_plans(random_home(seed, capacity=3e5)).best.latency_s <= slow * 1.01
    assert make_plans(random_home(seed, capacity=3e4, speedup=2.0)).best.latency_s <= slow * 1.01


@pytest.mark.long
def test_a_latency_that_is_met_leaves_energy_to_decide():
    problem = random_home(2, devices=3)
    fastest = make_plans(problem).best
    thrifty = make_plans(replace(problem, qoe=QoE(latency_s=fastest.latency_s * 3))).best
    assert thrifty.energy_j <= fastest.energy_j
    assert thrifty.latency_s <= fastest.latency_s * 3


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(4), *later([4, 5])])
def test_a_latency_that_some_plan_reaches_can_be_asked_for(seed):
    problem = random_home(seed, Training(batch=16), devices=4, layers=7)
    fastest_s = make_plans(problem).best.latency_s
    limited = replace(problem, qoe=QoE(latency_s=fastest_s, lambda_j_per_s=1e-3))
    assert make_plans(limited).best.latency_s <= fastest_s


@pytest.mark.long
def test_an_energy_limit_is_held_even_if_the_fastest_plans_break_it():
    problem = random_home(2, devices=3)
    least = min(plan.energy_j for plan in make_plans(problem))
    plans = make_plans(replace(problem, qoe=QoE(energy_j=least * 1.001)))
    assert all(plan.energy_j <= least * 1.001 for plan in plans)


def test_every_unused_device_has_its_reason():
    problem = random_home(4, capacity=100.0)  # links too slow for anything
    best = make_plans(problem).best
    assert len(best.devices) == 1
    assert set(best.unused) == {device.name for device in problem.devices} - set(best.devices)


# --- alike devices --------------------------------------------------------------------------------


def twins(**changes):
    problem = random_home(0, devices=2)
    a, b = problem.devices[0], problem.devices[1]
    costs = {a.name: problem.costs[a.name], b.name: problem.costs[a.name]}
    return replace(problem, devices=(a, replace(b, **changes)), costs=costs)


def test_equal_devices_are_alike_and_others_are_not():
    assert alike(twins()) == [[0, 1]]
    assert alike(twins(memory_bytes=5)) == [[0], [1]]
    assert alike(random_home(0, devices=2)) == [[0], [1]]
    problem = twins()
    one_way = {**problem.network.paths, ("d0", "d1"): Path(media=(("air", 2),))}
    assert alike(replace(problem, network=replace(problem.network, paths=one_way))) == [[0], [1]]


def test_a_plan_is_simulated_once_for_all_that_alike_devices_could_do_in_it():
    problem = twins()
    table = CostTable(problem)
    simulator, plan = (
        Direct(problem, table),
        next(p for p in plan_exhaustive(problem, table) if len(p.stages) > 1),
    )
    other = {plan.devices[0]: plan.devices[1], plan.devices[1]: plan.devices[0]}
    stages = tuple(
        replace(stage, devices=tuple(other[name] for name in stage.devices))
        for stage in plan.stages
    )
    pool = CandidatePool(problem, table, simulator)
    score = pool.score(plan)
    assert pool.knows(replace(plan, stages=stages))
    assert (
        pool.score(replace(plan, stages=stages))
        == score
        == simulator.run(replace(plan, stages=stages)).latency_s
    )
    apart = CandidatePool(twins(memory_bytes=5), CostTable(twins(memory_bytes=5)), simulator)
    apart.score(plan)
    assert not apart.knows(replace(plan, stages=stages))


def test_of_plans_that_differ_only_in_which_of_alike_devices_does_what_one_is_told():
    plans = make_plans(twins())
    assert [plan.devices for plan in plans if len(plan.devices) == 1] == [("d0",)]
    assert all(plan.stages[0].devices[0] == "d0" for plan in plans)


def test_devices_on_equal_cables_of_their_own_are_alike():
    problem = replace(random_home(0, devices=2), costs=twins().costs)
    names = ("d0", "d1")
    media = tuple(
        Medium(name=f"{name} {way}", capacity_bytes_per_s=9.0)
        for name in names
        for way in ("up", "down")
    )
    paths = {
        (a, b): Path(media=((f"{a} up", 1), (f"{b} down", 1)))
        for a in names
        for b in names
        if a != b
    }
    assert alike(replace(problem, network=Network(media=media, paths=paths))) == [[0, 1]]
    slower = (replace(media[0], capacity_bytes_per_s=8.0), *media[1:])
    assert alike(replace(problem, network=Network(media=slower, paths=paths))) == [[0], [1]]


def test_patterns_take_alike_devices_in_order():
    problem = twins()
    assert patterns(problem, [[0, 1]], [1.0, 1.0]) == [(1,), (2,)]
    assert members((1,), [[0, 1]], [1]) == (1,)


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [9, 12, pytest.param(64, marks=pytest.mark.long)])
def test_a_home_of_many_devices_gets_a_plan(n):
    problem = random_home(1, Training(batch=8, micro_batch=4), devices=2, layers=5)
    names = [f"d{i}" for i in range(n)]
    first, second = problem.costs["d0"], problem.costs["d1"]
    devices = tuple(replace(problem.devices[0], name=name) for name in names)
    paths = {(a, b): Path(media=(("air", 1),)) for a in names for b in names if a != b}
    many = replace(
        problem,
        devices=devices,
        network=replace(problem.network, paths=paths),
        costs={name: (first if i % 3 else second) for i, name in enumerate(names)},
    )
    best = make_plans(many).best
    check_plan(best, many)
    assert best.latency_s <= make_plans(problem).best.latency_s * 1.01
    assert set(best.unused) == set(names) - set(best.devices)


def test_a_profile_measured_for_inference_alone_is_enough():
    problem = random_home(3, Inference(batch=2))
    bare = {
        name: tuple(replace(c, backward_s=()) for c in costs)
        for name, costs in problem.costs.items()
    }
    assert make_plans(replace(problem, costs=bare)).best.stages == make_plans(problem).best.stages


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_the_deepest_warm_up_that_fits_is_found_without_trying_all(seed):
    rng = random.Random(seed)
    problem = random_home(seed, rng.choice([Training(batch=24), Inference(batch=24)]))
    table, last = CostTable(problem), len(problem.layers)
    for _ in range(60):
        start = rng.randrange(last)
        rows = rng.randint(1, 4)
        n = rng.choice([1, 2, 3, 6, 24])
        stop, replicas = rng.randint(start + 1, last), rng.choice([1, 2])
        budget = rng.randrange(1000, 3_000_000)

        def needs(depth, start=start, stop=stop, rows=rows, n=n, replicas=replicas):
            return footprint.memory_bytes(
                table, start, stop, rows, warm_up=depth, replicas=replicas, n_micro_batches=n
            )

        every = [depth for depth in range(1, n + 1) if needs(depth) <= budget]
        found = footprint.depth_that_fits(
            table, start, stop, rows, budget, replicas=replicas, n_micro_batches=n
        )
        assert found == max(every, default=0)


def test_nothing_of_a_search_stays_behind():
    def costs():
        gc.collect()
        kinds = CostTable, Direct, StepOutcome
        return sum(issubclass(type(each), kinds) for each in gc.get_objects())

    before = costs()
    plans = make_plans(random_home(1, Training(batch=8)))
    assert plans.best
    assert costs() <= before
