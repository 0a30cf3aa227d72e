"""Who is let in at the entrance, and who makes room."""

import random

from potluck.serve.gateway.connection_limit import ConnectionLimit


def who(number, address="a"):
    return address, number


def test_whoever_asks_nothing_for_long_has_to_leave():
    limit = ConnectionLimit(head_s=10.0)
    limit.come(who(1), 0.0)
    limit.come(who(2), 5.0)
    limit.ask(who(2))
    assert limit.overdue(10.0) == ()
    assert limit.overdue(100.0) == (who(1),)
    limit.answer(who(2), 100.0)
    assert limit.overdue(109.0) == (who(1),)
    assert limit.overdue(110.1) == (who(1), who(2))


def test_when_it_is_full_the_longest_without_a_request_makes_room():
    limit = ConnectionLimit(max_open=3)
    assert [limit.come(who(n), float(n)) for n in range(3)] == [None] * 3
    limit.ask(who(0))
    assert limit.come(who(3), 3.0) == who(1)
    limit.answer(who(0), 4.0)
    assert limit.come(who(4), 5.0) == who(2)
    assert limit.come(who(5), 6.0) == who(3)
    assert limit.come(who(6), 7.0) == who(0)


def test_when_all_have_asked_a_new_one_leaves():
    limit = ConnectionLimit(max_open=2)
    for n in range(2):
        limit.come(who(n), 0.0)
        limit.ask(who(n))
    assert limit.come(who(2), 1.0) == who(2)
    limit.leave(who(0))
    assert limit.come(who(2), 1.0) is None


def test_one_address_takes_no_more_than_its_part():
    limit = ConnectionLimit(max_open=10, max_of_address=3)
    for n in range(50):
        limit.come(who(n), float(n))
    assert len(limit) == 3
    assert [limit.come(who(n, "b"), 99.0) for n in range(3)] == [None] * 3
    assert limit.come(who(3, "b"), 99.0) == who(0, "b")


def test_two_requests_of_a_connection_are_both_waited_for():
    limit = ConnectionLimit(head_s=1.0)
    limit.come(who(1), 0.0)
    limit.ask(who(1))
    limit.ask(who(1))  # the next one comes before the first is done with
    limit.answer(who(1), 1.0)
    assert limit.overdue(99.0) == ()
    limit.answer(who(1), 2.0)
    assert limit.overdue(99.0) == (who(1),)


def test_whatever_comes_and_goes_the_bounds_hold_and_nothing_is_left():
    rng = random.Random(0)
    for _ in range(200):
        limit = ConnectionLimit(max_open=6, max_of_address=3, head_s=2.0)
        connected = set()
        for now in range(100):
            one = who(rng.randrange(6), rng.choice("abc"))
            kind = rng.choice(["come", "ask", "answer", "leave"])
            if kind == "come":  # under an address and port of one that is still there, too
                leaves = limit.come(one, float(now))
                connected = (connected | {one}) - {leaves}
            elif kind == "leave":
                limit.leave(one)
                connected.discard(one)
            elif kind == "ask":
                limit.ask(one)
            elif kind == "answer":  # one that was there before may be answered late
                limit.answer(one, float(now))
            assert len(limit) == len(connected) <= 6
            assert all(sum(each[0] == a for each in connected) <= 3 for a in "abc")
            assert set(limit.overdue(1e9)) <= connected
        for one in connected:
            limit.leave(one)
        assert [limit.come(who(n), 0.0) for n in range(3)] == [None] * 3
        for _ in range(9):
            limit.ask(who(0))
            limit.answer(who(0), 1.0)
        assert limit.overdue(1e9) == (who(1), who(2), who(0))
