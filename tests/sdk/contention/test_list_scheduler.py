"""Transfers one at a time: whole runs by hand, and what must hold for any graph."""

import random
from itertools import pairwise

import pytest
from tests.sdk.simulate.test_engine import random_graph

from potluck.contention.list_scheduler import chunked, insert, run, tails
from potluck.simulate import engine
from potluck.simulate.engine import COMPUTE, TaskGraph


def test_the_more_urgent_transfer_has_the_air_for_itself():
    graph = TaskGraph(capacity=[10.0])
    air = graph.add_route(((0, 1),), latency_s=0.5)
    later, first = (
        graph.add(0, 30.0, route=air, priority=2),
        graph.add(1, 10.0, route=air, priority=1),
    )
    times = run(graph)
    assert (times.start_s[first], times.free_s[first], times.stop_s[first]) == (0.0, 1.0, 1.5)
    assert (times.start_s[later], times.stop_s[later]) == (1.0, 4.5)


def test_urgency_is_the_way_to_the_end():
    graph = TaskGraph(capacity=[10.0])
    air = graph.add_route(((0, 1),))
    a, b = graph.add(0, 10.0, route=air), graph.add(1, 10.0, route=air)
    graph.add(2, 1.0, after=[a])
    graph.add(3, 5.0, after=[b])
    assert tails(graph) == [2.0, 6.0, 1.0, 5.0]
    assert max(run(graph).stop_s) == 7.0
    assert max(run(graph, tails(graph)).stop_s) == 6.0


def test_between_chunks_more_urgent_transfers_get_in():
    graph = TaskGraph(capacity=[10.0])
    air = graph.add_route(((0, 1),))
    gate = graph.add(2, 1.0)
    bulky = graph.add(0, 40.0, route=air, priority=9)
    urgent = graph.add(1, 10.0, after=[gate], route=air, priority=1)
    assert run(graph).stop_s[urgent] == 5.0
    cut, parts = chunked(graph, 10.0)
    times = run(cut)
    assert times.stop_s[parts[urgent][1]] == 2.0
    assert times.stop_s[parts[bulky][1]] == 5.0


@pytest.mark.parametrize("seed", range(60))
def test_no_medium_carries_two_transfers_and_nothing_is_lost(seed):
    rng = random.Random(seed)
    graph = random_graph(rng)
    if seed % 2:
        graph, _ = chunked(graph, rng.uniform(1, 5))
    times = (
        insert(graph, tails(graph))
        if seed % 5 == 0
        else run(graph, tails(graph) if seed % 3 else None)
    )
    n_tasks = len(graph.resource)
    for task in range(n_tasks):
        for follower in graph.followers[task]:
            assert times.start_s[follower] >= times.stop_s[task]
    for medium in range(len(graph.capacity)):
        spans = sorted(
            (times.start_s[task], times.free_s[task])
            for task in range(n_tasks)
            if graph.route[task] != COMPUTE
            and medium in dict(graph.routes[graph.route[task]])
            and graph.work[task]
        )
        assert all(b[0] >= a[1] - 1e-9 for a, b in pairwise(spans))
    for resource in range(8):
        mine = (
            t
            for t in range(n_tasks)
            if graph.resource[t] == resource and times.free_s[t] > times.start_s[t]
        )
        spans = sorted((times.start_s[t], times.free_s[t]) for t in mine)
        assert all(b[0] >= a[1] - 1e-9 for a, b in pairwise(spans))
    assert run(graph).start_s == run(graph).start_s


@pytest.mark.parametrize("seed", range(60))
def test_transfers_that_never_meet_take_as_long_as_under_fair_sharing(seed):
    rng, graph = random.Random(seed), TaskGraph()
    for task in range(40):
        resource, after = rng.randrange(6), rng.sample(range(task), min(task, rng.randint(0, 3)))
        work, priority = rng.choice([0.0, 1.0, rng.uniform(0.1, 5.0)]), rng.randrange(4)
        if resource < 3:
            graph.add(resource, work, after=after, priority=priority)
            continue
        graph.capacity.append(rng.uniform(1.0, 20.0))  # a medium for each
        route = graph.add_route(
            ((len(graph.capacity) - 1, rng.randint(1, 2)),), rng.choice([0.0, 0.3])
        )
        graph.add(resource, work, after=after, priority=priority, route=route)
    graph.chunk_bytes = 10.0  # no transfer gives way
    alone, shared = run(graph), engine.run(graph)
    assert alone.start_s == pytest.approx(shared.start_s)
    assert alone.free_s == pytest.approx(shared.free_s)
    assert alone.stop_s == pytest.approx(shared.stop_s)


def test_a_medium_is_kept_free_for_what_is_more_urgent_and_not_ready_yet():
    graph = TaskGraph(capacity=[10.0])
    air = graph.add_route(((0, 1),))
    gate = graph.add(2, 1.0)
    bulky = graph.add(0, 40.0, route=air)
    urgent = graph.add(1, 10.0, after=[gate], route=air)
    graph.add(3, 9.0, after=[urgent])
    assert max(run(graph, tails(graph)).stop_s) == 14.0
    times = insert(graph, tails(graph))
    assert (times.start_s[urgent], times.start_s[bulky], max(times.stop_s)) == (1.0, 2.0, 11.0)


@pytest.mark.parametrize("seed", range(30))
def test_chunks_carry_every_byte(seed):
    graph = random_graph(random.Random(seed))
    cut, parts = chunked(graph, 2.0)
    for task, (first, last) in enumerate(parts):
        assert sum(cut.work[first : last + 1]) == pytest.approx(graph.work[task])
        if graph.route[task] != COMPUTE:
            assert max(cut.work[first : last + 1]) <= 2.0 + 1e-9
