"""The engine's virtual time, by hand; what must hold for any task graph, by random ones."""

import random
from itertools import pairwise

import pytest

from potluck.errors import PlanError
from potluck.simulate import engine
from potluck.simulate.engine import COMPUTE, TaskGraph, run
from potluck.simulate.fairness import max_min_rates

from . import slow_engine


@pytest.mark.long
def test_a_lane_takes_the_smallest_priority_first_and_keeps_it():
    graph = TaskGraph()
    first = graph.add(0, 2.0, priority=5)  # alone at time 0
    gate = graph.add(1, 1.0)
    late = graph.add(0, 1.0, after=[gate], priority=1)  # ready at 1, must wait for the resource
    last = graph.add(0, 1.0, after=[gate], priority=9)
    times = run(graph)
    assert [times.start_s[task] for task in (first, gate, late, last)] == [0.0, 0.0, 2.0, 3.0]


def test_two_flows_share_a_medium_and_the_rest_goes_at_full_rate():
    graph = TaskGraph(capacity=[10.0])
    air = graph.add_route(((0, 1),), latency_s=0.5)
    short, long = graph.add(0, 10.0, route=air), graph.add(1, 30.0, route=air)
    times = run(graph)
    # Both at 5 until 2 s; then 20 bytes are left, at 10.
    assert (times.free_s[short], times.stop_s[short]) == (2.0, 2.5)
    assert (times.free_s[long], times.stop_s[long]) == (4.0, 4.5)


def test_wifi_through_an_access_point_costs_its_air_twice():
    graph = TaskGraph(capacity=[10.0])
    task = graph.add(0, 10.0, route=graph.add_route(((0, 2),)))
    assert run(graph).stop_s[task] == 2.0


def test_a_flow_over_no_medium_takes_its_latency_alone():
    graph = TaskGraph()
    task = graph.add(0, 1e9, route=graph.add_route((), latency_s=0.25))
    assert run(graph).stop_s[task] == 0.25


def test_a_sender_sends_one_after_the_other_while_latency_overlaps():
    graph = TaskGraph(capacity=[10.0])
    route = graph.add_route(((0, 1),), latency_s=1.0)
    tasks = [graph.add(0, 10.0, route=route) for _ in range(2)]
    assert [run(graph).stop_s[task] for task in tasks] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("chunk_bytes", "expected"),
    [(39.0, [(0, 6), (1, 3), (6, 7)]), (40.0, [(0, 4), (4, 6), (6, 7)])],
)
def test_a_transfer_of_several_chunks_gives_way_to_a_more_urgent_one_and_goes_on(
    chunk_bytes, expected
):
    graph = TaskGraph(capacity=[10.0], chunk_bytes=chunk_bytes)
    route = graph.add_route(((0, 1),))
    gate = graph.add(1, 1.0)
    bulky = graph.add(0, 40.0, route=route, priority=9)
    urgent = graph.add(0, 20.0, after=[gate], route=route, priority=1)
    later = graph.add(0, 10.0, after=[gate], route=route, priority=10)
    times = run(graph)
    assert [
        (times.start_s[task], times.stop_s[task]) for task in (bulky, urgent, later)
    ] == expected


def test_three_devices_of_a_host_with_two_cores_share_them():
    graph = TaskGraph(cores=[2.0], resource_host={0: 0, 1: 0, 2: 0})
    tasks = [graph.add(resource, seconds) for resource, seconds in enumerate((2.0, 2.0, 4.0))]
    elsewhere = graph.add(3, 4.0)  # a device of its own
    times = run(graph)
    # All at 2/3 of their speed until the short ones are done after 3 s; the long one then has 2 s
    # left, at full speed.
    assert [times.stop_s[task] for task in (*tasks, elsewhere)] == pytest.approx(
        [3.0, 3.0, 5.0, 4.0]
    )


def test_what_goes_from_device_to_device_inside_a_host_is_work_for_its_processor():
    graph = TaskGraph(capacity=[10.0], cores=[1.0], resource_host={0: 0, 2: 0})
    route = graph.add_route(((0, 1),), latency_s=1.0, host=0)
    computing = graph.add(0, 4.0)
    # 1 s of copying and encrypting, then 1 s of handing over
    transfer = graph.add(1, 10.0, route=route)
    behind = graph.add(2, 1.0, after=[transfer])
    times = run(graph)
    # All at half speed: the bytes are gone after 2 s and there after 4 s; the task behind them ends
    # at 6 s, when the other one has 1 s left.
    assert (times.free_s[transfer], times.stop_s[transfer]) == (2.0, 4.0)
    assert (times.stop_s[behind], times.stop_s[computing]) == (6.0, 7.0)


def test_what_an_ended_task_leaves_to_others_takes_the_processor_and_delays_nobody_else():
    graph = TaskGraph(cores=[1.0], resource_host={0: 0}, handling_s={0: 1.0})
    first = graph.add(0, 2.0)
    behind, elsewhere = graph.add(0, 2.0, after=[first]), graph.add(1, 3.0, after=[first])
    times = run(graph)
    # From 2 s on at half speed beside what was left, which is done at 4 s.
    assert [times.stop_s[task] for task in (first, behind, elsewhere)] == [2.0, 5.0, 5.0]


def test_a_computing_task_keeps_its_lane_on_a_shared_processor_too():
    graph = TaskGraph(cores=[1.0], resource_host={0: 0, 1: 0})
    long, gate = graph.add(0, 3.0, priority=9), graph.add(1, 1.0)
    urgent = graph.add(0, 1.0, after=[gate], priority=1)
    times = run(graph)
    assert (times.stop_s[gate], times.stop_s[long], times.start_s[urgent]) == (2.0, 4.0, 4.0)


@pytest.mark.parametrize("seed", range(60))
def test_a_shared_processor_only_slows_and_does_no_more_than_it_can(seed):
    graph = TaskGraph(cores=[1.5], resource_host=dict.fromkeys(range(4), 0))
    rng = random.Random(seed)
    for task in range(20):
        after = rng.sample(range(task), min(task, rng.randint(0, 2)))
        graph.add(rng.randrange(4), rng.uniform(0.1, 3), after=after, priority=rng.randrange(3))
    times = run(graph)
    for task, work in enumerate(graph.work):
        assert times.stop_s[task] - times.start_s[task] >= work * (1 - 1e-9)
    for now_s in times.start_s:  # what ended by then, begun when it began, fits into the cores
        done = sum(
            work for work, stop_s in zip(graph.work, times.stop_s, strict=True) if stop_s <= now_s
        )
        assert done <= 1.5 * now_s * (1 + 1e-9)
    assert max(times.stop_s) >= sum(graph.work) / 1.5


def test_tasks_that_wait_for_each_other_are_an_error():
    graph = TaskGraph()
    a = graph.add(0, 1.0)
    b = graph.add(0, 1.0, after=[a])
    graph.wait(a, b)
    with pytest.raises(PlanError, match="2 of 2 tasks wait for each other"):
        run(graph)


def test_max_min_rates_by_hand():
    flows = {0: ((0, 1),), 1: ((0, 1), (1, 1)), 2: ((1, 1),), 3: ()}
    assert max_min_rates(flows, [10.0, 4.0]) == {3: float("inf"), 1: 2.0, 2: 2.0, 0: 8.0}


def random_graph(rng, *, hosts=False):
    graph = TaskGraph(
        capacity=[rng.uniform(1, 20) for _ in range(3)], chunk_bytes=rng.choice([0.0, 4.0])
    )
    if hosts:
        graph.cores = [1.0, 1.5]
        graph.resource_host = {resource: rng.randrange(2) for resource in range(rng.randint(1, 4))}
        graph.handling_s = {
            at: rng.uniform(0.1, 1) for at in graph.resource_host if rng.random() < 0.5
        }
    routes = [
        graph.add_route(
            tuple((m, rng.randint(1, 2)) for m in rng.sample(range(3), rng.randint(1, 3))),
            rng.choice([0, 0, 0.3]),
            rng.choice([-1, 0, 1]) if hosts else -1,
        )
        for _ in range(5)
    ]
    for task in range(rng.randint(5, 40)):
        after = rng.sample(range(task), min(task, rng.randint(0, 3)))
        sends = rng.random() < 0.5
        graph.add(
            rng.randrange(4) + (4 if sends else 0),
            rng.choice([0.0, rng.uniform(0.1, 9)]),
            after=after,
            priority=rng.randrange(5),
            route=rng.choice(routes) if sends else COMPUTE,
        )
    return graph


@pytest.mark.parametrize("seed", range(60))
def test_invariants_of_any_run(seed):
    graph = random_graph(random.Random(seed))
    times = run(graph)
    n_tasks, makespan = len(graph.resource), max(times.stop_s)
    for task in range(n_tasks):
        assert times.stop_s[task] >= times.free_s[task] >= times.start_s[task] >= 0
        for follower in graph.followers[task]:
            assert times.start_s[follower] >= times.stop_s[task]
        if graph.route[task] == COMPUTE:
            assert times.stop_s[task] - times.start_s[task] == pytest.approx(graph.work[task])
    for resource in range(4):  # the computing ones: transfers may give way
        spans = sorted(
            (times.start_s[t], times.free_s[t])
            for t in range(n_tasks)
            if graph.resource[t] == resource
        )
        assert all(b[0] >= a[1] - 1e-9 for a, b in pairwise(spans)), "one task at a time"
    for medium, capacity in enumerate(graph.capacity):
        load = sum(
            graph.work[t] * dict(graph.routes[graph.route[t]]).get(medium, 0)
            for t in range(n_tasks)
            if graph.route[t] != COMPUTE
        )
        assert load <= capacity * makespan * (1 + 1e-9), "no medium above its capacity"
    computing = [0.0] * 8
    for task in range(n_tasks):
        if graph.route[task] == COMPUTE:
            computing[graph.resource[task]] += graph.work[task]
    assert makespan >= max(computing) - 1e-9
    again = run(graph)
    assert again.start_s == times.start_s


@pytest.mark.parametrize("seed", range(20))
def test_no_medium_is_overbooked_at_any_moment(seed):
    rng = random.Random(seed)
    capacity = [rng.uniform(1, 9) for _ in range(3)]
    flows = {
        f: tuple((m, rng.randint(1, 2)) for m in rng.sample(range(3), rng.randint(1, 3)))
        for f in range(6)
    }
    rates = max_min_rates(flows, capacity)
    used = [sum(rates[f] * dict(route).get(m, 0) for f, route in flows.items()) for m in range(3)]
    assert all(use <= limit * (1 + 1e-9) for use, limit in zip(used, capacity, strict=True))
    for route in flows.values():  # max-min: every flow crosses a full medium
        assert any(used[m] >= capacity[m] * (1 - 1e-9) for m, _ in route)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("few", [engine.FEW, 0], ids=["all at once", "by islands"])
def test_the_engine_agrees_with_its_slow_form(seed, hosts, few, monkeypatch):
    monkeypatch.setattr(engine, "FEW", few)
    graph = random_graph(random.Random(seed), hosts=hosts)
    fast, slow = run(graph), slow_engine.run(graph)
    assert fast.start_s == pytest.approx(slow.start_s, rel=1e-9)
    assert fast.free_s == pytest.approx(slow.free_s, rel=1e-9)
    assert fast.stop_s == pytest.approx(slow.stop_s, rel=1e-9)


@pytest.mark.parametrize("n", [8, 64])
def test_rates_of_devices_with_cables_of_their_own_are_worked_out_once_per_cable(n, monkeypatch):
    """Transfers that share nothing are no state of the home together: else there are 2^n of
    them.
    """
    graph, looked_at = TaskGraph(capacity=[1.0] * 2 * n, chunk_bytes=1e9), []
    monkeypatch.setattr(engine, "FEW", 0)
    monkeypatch.setattr(
        engine,
        "max_min_rates",
        lambda routes, c: looked_at.append(routes) or max_min_rates(routes, c),
    )
    rng = random.Random(n)
    routes = [graph.add_route(((2 * i, 1), (2 * ((i + 1) % n) + 1, 1))) for i in range(n)]
    for i, route in enumerate(routes):
        for _ in range(20):
            graph.add(i, rng.uniform(0.1, 9), route=route)
    run(graph)
    assert len(looked_at) == n
    assert all(len(found) == 1 for found in looked_at)
