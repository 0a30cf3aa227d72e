"""The greedy placement: its guarantee against the optimum, lazy against eager, and the steps."""

from itertools import product
from random import Random

import pytest
from tests.sdk.serve.serving import GPU, allocation, server, service

from potluck.errors import Infeasible
from potluck.serve.scheduling.allocate import allocate_all
from potluck.serve.scheduling.placement import guarantee, place, place_best
from potluck.serve.scheduling.records import (
    BatchTimes,
    Latency,
    Processor,
    Replica,
    ServiceSpec,
    Variant,
)


def simple(name, share_degree, rate_per_s, memory_bytes=1):
    """A service whose replica takes 1/share_degree of a processor and does `rate_per_s`."""
    seconds = BatchTimes(items=(1,), seconds=(1 / rate_per_s,))
    slow = BatchTimes(items=(1,), seconds=(1e9,))
    variant = Variant(kind="gpu", memory_bytes=memory_bytes, times={1: slow, share_degree: seconds})
    return ServiceSpec(name=name, slo=Latency(2.1 / rate_per_s), variants=(variant,))


def satisfied(demand, replicas, allocations, remote_frac):
    """phi by its definition: requests one by one to where they are served, locally first."""
    total = 0.0
    for name in {each for each, _ in allocations}:
        capacity = {}
        for replica in replicas:
            if replica.service == name:
                rate = allocations[name, "gpu"].rate_per_s
                capacity[replica.server] = capacity.get(replica.server, 0.0) + rate
        demanded = {where: per_s for (each, where), per_s in demand.items() if each == name}
        local = {where: min(per_s, capacity.get(where, 0.0)) for where, per_s in demanded.items()}
        waiting = sum(demanded.values()) - sum(local.values())
        spare = sum(capacity.values()) - sum(local.values())
        total += sum(local.values()) + remote_frac * min(waiting, spare)
    return total


def optimum(servers, allocations, demand, remote_frac):
    """Every number of replicas of every service on every processor."""
    names = sorted({service for service, _ in allocations})
    fillings = [
        counts
        for counts in product(*(range(allocations[n, "gpu"].replicas + 1) for n in names))
        if sum(c * allocations[n, "gpu"].share_frac for c, n in zip(counts, names, strict=True))
        <= 1 + 1e-9
        and sum(c * allocations[n, "gpu"].memory_bytes for c, n in zip(counts, names, strict=True))
        <= GPU.memory_bytes
    ]
    best = 0.0
    for each in product(fillings, repeat=len(servers)):
        replicas = [
            Replica(service=name, kind="gpu", processors=((where.name, 0),))
            for where, counts in zip(servers, each, strict=True)
            for count, name in zip(counts, names, strict=True)
            for _ in range(count)
        ]
        best = max(best, satisfied(demand, replicas, allocations, remote_frac))
    return best


def random_case(seed):
    """Up to three servers of one processor, up to three services, any demand and memory."""
    rng = Random(seed)
    servers = [server(f"n{n}") for n in range(rng.randint(1, 3))]
    services = [
        simple(
            f"s{n}",
            rng.choice((1, 2, 4)),
            rng.uniform(1, 20),
            rng.choice((1, 200, 400, 600)) if rng.random() < 0.5 else 1,
        )
        for n in range(rng.randint(1, 3))
    ]
    kept = [each for each in services if fits(each)]
    allocations = allocate_all(kept, [server("any", 9)]) if kept else {}
    demand = {
        (each.name, where.name): rng.uniform(0, 40)
        for each in kept
        for where in servers
        if rng.random() < 0.7
    }
    return servers, allocations, demand, rng.choice((0.0, 0.5, 0.9, 1.0))


def fits(each):
    variant = each.variants[0]
    return max(variant.times) * variant.memory_bytes <= GPU.memory_bytes


@pytest.mark.few(15)
@pytest.mark.parametrize("seed", range(60))
def test_reaches_the_guarantee_of_equation_3(seed):
    servers, allocations, demand, remote_frac = random_case(seed)
    if not allocations:
        return
    best = optimum(servers, allocations, demand, remote_frac)
    for per_share in (False, True):
        found = place(servers, allocations, demand, remote_frac=remote_frac, per_share=per_share)
        by_hand = satisfied(demand, found.replicas, allocations, remote_frac)
        assert found.satisfied_per_s == pytest.approx(by_hand)
    found = place(servers, allocations, demand, remote_frac=remote_frac)
    assert found.satisfied_per_s >= guarantee(allocations.values()) * best - 1e-6
    ours = place_best(servers, allocations, demand, remote_frac=remote_frac)
    assert ours.satisfied_per_s >= found.satisfied_per_s - 1e-9
    assert ours.satisfied_per_s <= best + 1e-6


def test_ours_is_near_the_optimum_on_the_whole():
    """Of 60 random cases: the part of the optimum that both reach."""
    ours, papers = [], []
    for seed in range(60):
        servers, allocations, demand, remote_frac = random_case(seed)
        best = optimum(servers, allocations, demand, remote_frac) if allocations else 0.0
        if best > 0:
            arguments = (servers, allocations, demand)
            found = place_best(*arguments, remote_frac=remote_frac).satisfied_per_s
            ours.append(found / best)
            papers.append(place(*arguments, remote_frac=remote_frac).satisfied_per_s / best)
    assert sum(ours) / len(ours) > 0.98
    assert sum(ours) >= sum(papers)


def test_lazy_evaluation_finds_what_looking_at_all_gains_finds():
    """Of 60 random cases; ties are arbitrary in both, so single cases differ."""
    parts = []
    for seed in range(60):
        servers, allocations, demand, remote_frac = random_case(seed)
        known = eager(servers, allocations, demand, remote_frac) if allocations else 0.0
        if known > 0:
            found = place(servers, allocations, demand, remote_frac=remote_frac).satisfied_per_s
            parts.append(found / known)
    assert min(parts) > 0.8
    assert sum(parts) / len(parts) > 0.99


def eager(servers, allocations, demand, remote_frac):
    """Algorithm 2 as printed: every gain worked out anew in every round."""
    replicas, now = [], 0.0
    share = {where.name: 1.0 for where in servers}
    free = {where.name: GPU.memory_bytes for where in servers}
    while True:
        best = None
        for (name, _), each in allocations.items():
            for where in share:
                if share[where] < each.share_frac - 1e-9 or free[where] < each.memory_bytes:
                    continue
                one = Replica(service=name, kind="gpu", processors=((where, 0),))
                value = satisfied(demand, [*replicas, one], allocations, remote_frac)
                if value > now + 1e-9 and (best is None or value > best[0] + 1e-9):
                    best = value, one, each
        if best is None:
            return now
        now, one, each = best
        replicas.append(one)
        share[one.server] -= each.share_frac
        free[one.server] -= each.memory_bytes


def test_goes_where_the_requests_are():
    two = [server("a"), server("b")]
    allocations = allocate_all([service()], [server("any", 9)])
    found = place(two, allocations, {("birds", "b"): 10.0})
    assert [each.server for each in found.replicas] == ["b"]


def test_nobody_asks_nothing_is_placed():
    assert place([server("a")], allocate_all([service()], [server("any", 9)]), {}).replicas == ()


def test_where_nothing_may_be_handed_on_only_local_requests_count():
    two = [server("a"), server("b", memory_bytes=10)]
    allocations = allocate_all([service()], [server("any", 9)])
    assert place(two, allocations, {("birds", "b"): 5.0}, remote_frac=0.0).replicas == ()
    assert len(place(two, allocations, {("birds", "b"): 5.0}).replicas) == 1


def test_what_is_pinned_stays_and_takes_room():
    pinned = Replica(service="rare", kind="gpu", processors=(("a", 0),))
    each = [service("rare"), service("common")]
    allocations = allocate_all(each, [server("any", 9)])
    found = place([server("a")], allocations, {("common", "a"): 5.0}, pinned=[pinned])
    assert found.replicas == (pinned,)


def test_split_services_take_processors_of_one_server_before_those_of_several():
    def split(across):
        times = {1: BatchTimes(items=(1,), seconds=(0.5,))}
        return Variant(kind="gpu", memory_bytes=900, n_processors=2, across=across, times=times)

    large = ServiceSpec(name="large", slo=Latency(1.0), variants=(split(False),))
    wide = ServiceSpec(name="large", slo=Latency(1.0), variants=(split(True),))
    homes = [server("a"), server("b", 2), server("c")]
    within = place(homes, allocate_all([large], [server("any", 9)]), {("large", "a"): 1.0})
    assert [each.processors for each in within.replicas] == [(("b", 0), ("b", 1))]
    apart = [server("a"), server("c")]
    with pytest.raises(Infeasible):
        allocate_all([large], apart)
    across = place(apart, allocate_all([wide], apart), {("large", "a"): 1.0})
    assert [each.processors for each in across.replicas] == [(("a", 0), ("c", 0))]
    assert across.replicas[0].is_across


def test_kinds_of_processors_are_not_mixed_up():
    cpu = Processor(kind="cpu", memory_bytes=1000)
    home = [server("a"), type(server("a"))(name="b", processors=(cpu,))]
    found = place(home, allocate_all([service()], home), {("birds", "b"): 500.0})
    assert {each.processors for each in found.replicas} == {(("a", 0),)}


@pytest.mark.parametrize("seed", range(30))
def test_no_processor_is_ever_overfilled(seed):
    rng = Random(seed)
    servers = [server(f"n{n}", rng.randint(1, 8)) for n in range(rng.randint(1, 12))]
    services = [
        service(
            f"s{n}",
            degrees=(1, 2, 4),
            memory_bytes=rng.randint(1, 200),
            n_processors=rng.choice((1, 1, 2, 3)),
            across=rng.random() < 0.3,
        )
        for n in range(5)
    ]
    allocations = allocate_all(services, [server("any", 9)])
    demand = {
        (each.name, where.name): rng.uniform(0, 500) for each in services for where in servers
    }
    shares, sizes = {}, {}
    for replica in place_best(servers, allocations, demand).replicas:
        each = allocations[replica.service, replica.kind]
        assert len({*replica.processors}) == each.variant.n_processors
        for where in replica.processors:
            shares[where] = shares.get(where, 0.0) + each.share_frac
            sizes[where] = sizes.get(where, 0) + each.memory_bytes
    assert max(shares.values()) <= 1 + 1e-6
    assert max(sizes.values()) <= GPU.memory_bytes


def test_the_guarantee_by_hand():
    # shares 1 and 1/4, memory 100 and 250: P = 4 + 3
    each = allocation(service())
    small = type(each)(
        service="b",
        category=each.category,
        variant=each.variant,
        batch=each.batch,
        replicas=4,
        batch_s=each.batch_s,
        memory_bytes=250,
    )
    assert guarantee([each, small]) == pytest.approx(1 / 8)
