"""A placement that follows the load: what stays, what gives way, and what is never lost."""

from random import Random

import pytest
from tests.sdk.serve.serving import server, service

from potluck.serve.scheduling.allocate import allocate_all
from potluck.serve.scheduling.live_placement import LivePlacement
from potluck.serve.scheduling.placement import place
from potluck.serve.scheduling.records import Replica

NAMES = ("a", "b", "c", "d")


def home(n_servers=4, n_processors=2):
    servers = [server(NAMES[n], n_processors) for n in range(n_servers)]
    services = [service(f"s{n}", memory_bytes=300, degrees=(1, 2, 4)) for n in range(5)]
    return servers, allocate_all(services, servers)


def test_nothing_moves_when_nothing_changes():
    servers, allocations = home()
    live = LivePlacement(servers, allocations, {("s0", "a"): 30.0})
    moves = live.update({("s0", "a"): 30.0})
    assert (moves.load, moves.unload) == ((), ())


def test_a_new_service_takes_free_room_and_nobody_gives_way():
    servers, allocations = home()
    live = LivePlacement(servers, allocations, {("s0", "a"): 30.0})
    moves = live.update({("s1", "b"): 20.0})
    assert {each.service for each in moves.load} == {"s1"}
    assert moves.unload == ()


def test_what_nobody_asks_for_any_more_gives_way():
    servers, allocations = home(n_servers=1, n_processors=1)
    live = LivePlacement(servers, allocations, {("s0", "a"): 500.0})
    moves = live.update({("s0", "a"): 0.0, ("s1", "a"): 500.0})
    assert {each.service for each in moves.unload} == {"s0"}
    assert {each.service for each in moves.load} == {"s1"}
    assert live.placement().satisfied_per_s > 60


def test_what_is_pinned_never_gives_way():
    servers, allocations = home(n_servers=1, n_processors=1)
    pinned = [Replica(service="s0", kind="gpu", processors=(("a", 0),))]
    live = LivePlacement(servers, allocations, {("s1", "a"): 500.0}, pinned=pinned)
    live.update({("s1", "a"): 0.0, ("s2", "a"): 900.0})
    assert pinned[0] in live.placement().replicas


def test_equals_do_not_displace_each_other():
    """Hysteresis: a little more of one service moves no model."""
    servers, allocations = home(n_servers=1, n_processors=1)
    demand = {(f"s{n}", "a"): 100.0 for n in range(5)}
    live = LivePlacement(servers, allocations, demand)
    moves = live.update({("s4", "a"): 105.0})
    assert (moves.load, moves.unload) == ((), ())


@pytest.mark.parametrize("seed", range(25))
def test_after_any_changes_it_is_legal_and_nearly_as_good_as_a_new_one(seed):
    rng = Random(seed)
    servers, allocations = home(rng.randint(1, 4), rng.randint(1, 3))
    where = [each.name for each in servers]
    demand = {(f"s{n}", name): rng.uniform(0, 60) for n in range(5) for name in where}
    live = LivePlacement(servers, allocations, demand)
    before = live.placement().replicas
    for _ in range(8):
        changes = {
            key: rng.choice((0.0, rng.uniform(0, 150)))
            for key in rng.sample([*demand], min(len(demand), 4))
        }
        demand |= changes
        moves = live.update(changes)
        now = live.placement()
        expected = sorted([*before, *moves.load], key=repr)
        assert expected == sorted([*now.replicas, *moves.unload], key=repr)
        before = now.replicas
        check_room(now.replicas, allocations)
    anew = place(servers, allocations, demand).satisfied_per_s
    assert now.satisfied_per_s >= 0.6 * anew
    # what is counted on the way is what a fresh count of the same replicas gives
    again = place([], allocations, {}) if not before else counted(servers, allocations, demand, now)
    assert now.satisfied_per_s == pytest.approx(again.satisfied_per_s)


def check_room(replicas, allocations):
    shares, sizes = {}, {}
    for replica in replicas:
        each = allocations[replica.service, replica.kind]
        for where in replica.processors:
            shares[where] = shares.get(where, 0.0) + each.share_frac
            sizes[where] = sizes.get(where, 0) + each.memory_bytes
    assert max(shares.values(), default=0) <= 1 + 1e-6
    assert max(sizes.values(), default=0) <= 1000


def counted(servers, allocations, demand, placement):
    most = {name: 0 for name, _ in allocations}
    return place(servers, allocations, demand, pinned=placement.replicas, max_replicas=most)
