"""Whose connection goes when a relay has too many, and how fast bytes may pass."""

from potluck_agent.relay.joined_streams import BURST_S, Budget
from potluck_agent.relay.visits import Visit, Visits
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
