"""Whose connection goes when a relay has too many, whose is taken, and how fast bytes may pass."""

import pytest

from potluck_agent.relay.joined_streams import BURST_S, Budget
from potluck_agent.relay.visits import MAX_COUNTED, ArrivalRate, Visit, Visits, origin
from potluck_wire.limits import (
    RELAY_MAX_ADMITTED,
    RELAY_MAX_ADMITTED_EACH,
    RELAY_MAX_PENDING,
    RELAY_MAX_PENDING_EACH,
)


def test_a_stranger_takes_places_of_its_own_only():
    visits = Visits()
    friend = Visit("key", "203.0.113.5")
    assert visits.arrive(friend) is None
    strangers = [Visit("key", "198.51.100.66") for _ in range(3 * RELAY_MAX_PENDING)]
    gone = []
    for stranger in strangers:
        if (cut := visits.arrive(stranger)) is not None:
            visits.leave(cut)
            gone.append(cut)
        # each takes the device two connections, which it has for others, too
        assert len(visits) <= 1 + RELAY_MAX_PENDING_EACH
    assert gone == strangers[: len(gone)]  # the oldest first
    assert visits.admit(friend)


def test_strangers_of_many_addresses_have_so_many_places_together():
    visits = Visits()
    for number in range(3 * RELAY_MAX_PENDING):
        gone = visits.arrive(Visit("key", f"198.51.100.{number // 3}"))
        if gone is not None:
            visits.leave(gone)
        assert len(visits) <= RELAY_MAX_PENDING


def test_one_device_does_not_take_all_places():
    visits = Visits()
    many = [Visit("a", "203.0.113.5") for _ in range(RELAY_MAX_ADMITTED_EACH + 1)]
    for visit in many:
        visits.arrive(visit)
    assert [visits.admit(visit) for visit in many] == [True] * RELAY_MAX_ADMITTED_EACH + [False]
    other = Visit("b", "203.0.113.5")
    visits.arrive(other)
    assert visits.admit(other)
    visits.leave(many[0])
    visits.leave(many[0])
    assert visits.admit(many[-1])


def test_of_one_address_so_many_a_second_are_taken_and_of_others_as_many():
    arrivals = ArrivalRate(per_s=2.0, at_once=3)
    assert [arrivals.admit("eve", 0.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert arrivals.admit("ada", 0.0)
    assert [arrivals.admit("eve", 0.5) for _ in range(2)] == [True, False]
    assert [arrivals.admit("eve", 100.0) for _ in range(5)] == [True] * 3 + [False] * 2


def test_addresses_without_end_take_bounded_memory():
    arrivals = ArrivalRate(per_s=1.0, at_once=1)
    for number in range(2 * MAX_COUNTED):
        assert arrivals.admit(f"{number}", 0.0)
        assert len(arrivals) <= MAX_COUNTED


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("203.0.113.5", "203.0.113.5"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_who_counts_as_one(address, counted):
    assert origin(address) == counted


def test_all_devices_together_have_so_many():
    visits, n_admitted = Visits(), 0
    for number in range(RELAY_MAX_ADMITTED + 10):
        visit = Visit(f"device {number // 10}", "203.0.113.5")
        visits.arrive(visit)
        n_admitted += visits.admit(visit)
    assert n_admitted == RELAY_MAX_ADMITTED


def test_a_budget_lets_pass_what_it_says_in_the_order_of_asking():
    budget = Budget(1000.0)
    # a burst is free; 100 bytes take 0.1 s from then on
    assert budget.take(int(1000 * BURST_S), 10.0) == 0.0
    assert abs(budget.take(100, 10.0) - 0.1) < 1e-9
    assert abs(budget.take(100, 10.0) - 0.2) < 1e-9
    assert abs(budget.take(100, 10.2) - 0.1) < 1e-9
    assert abs(budget.take(100, 20.0) - (0.1 - BURST_S)) < 1e-9


def test_a_budget_of_nothing_said_is_none():
    assert Budget(0.0).take(10**9, 0.0) == 0.0
