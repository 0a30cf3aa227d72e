"""Who computes next on a device that services share."""

from collections import deque
from random import Random

import pytest

from potluck.serve.scheduling.fair_queueing import FairQueue


def order(turns, n):
    """So many batches, each of which takes a second."""
    found = []
    for _ in range(n):
        batch = turns.next()
        found.append(batch)
        turns.done(batch[0], 1.0)
    return "".join(found)


def test_services_get_the_same_time_however_much_they_ask():
    turns = FairQueue[str](at_once=1)
    for _ in range(6):
        turns.offer("a", "a")
    turns.offer("b", "b")
    turns.offer("b", "b")
    assert order(turns, 8) == "ababaaaa"


def test_who_comes_back_has_saved_nothing():
    turns = FairQueue[str](at_once=1)
    for _ in range(4):
        turns.offer("a", "a")
    assert order(turns, 3) == "aaa"
    for _ in range(3):
        turns.offer("b", "b")
    turns.offer("a", "a")
    assert order(turns, 4) == "abab"


def test_the_more_urgent_goes_first():
    turns = FairQueue[str](at_once=1)
    turns.offer("a", "a", priority=0)
    turns.offer("b", "b", priority=1)
    assert turns.next() == "b"


def test_a_less_urgent_one_does_not_follow_what_is_more_urgent():
    turns = FairQueue[str](at_once=2)
    turns.offer("b", "b", priority=1)
    turns.offer("a", "a")
    assert [turns.next(), turns.next()] == ["b", None]
    turns.offer("b", "b", priority=1)
    assert turns.next() == "b"
    turns.done("b", 1.0)
    assert turns.next() is None
    turns.done("b", 1.0)
    assert turns.next() == "a"


def test_no_more_than_some_are_on_a_device():
    turns = FairQueue[str](at_once=2)
    for _ in range(3):
        turns.offer("a", "a")
    assert [turns.next() for _ in range(3)] == ["a", "a", None]
    assert turns.n == 3
    turns.done("a", 1.0)
    assert turns.next() == "a"


def test_all_that_wait_are_given_back():
    turns = FairQueue[str](at_once=1)
    for name in "aab":
        turns.offer(name, name)
    turns.next()
    assert turns.take_all() == ["a", "b"]
    assert turns.n == 1


@pytest.mark.parametrize("seed", range(8))
def test_services_that_ask_on_get_the_same_time_however_short_their_batches_are(seed):
    rng = Random(seed)
    seconds = {name: 10 ** rng.uniform(-2, 0) for name in "abc"}
    turns, there = FairQueue[str](), deque()
    used_s = dict.fromkeys(seconds, 0.0)

    def offer(name):
        turns.offer(name, name, seconds=seconds[name], is_followed=True)

    def go():
        while (batch := turns.next()) is not None:
            there.append(batch)

    for name in seconds:
        offer(name)
    go()
    for _ in range(2000):
        ended = there.popleft()
        used_s[ended] += seconds[ended]
        offer(ended)
        turns.done(ended, seconds[ended])
        go()
    assert max(used_s.values()) - min(used_s.values()) <= 4 * max(seconds.values())


def test_no_place_is_kept_for_who_asks_for_nothing_more():
    turns = FairQueue[str]()
    turns.offer("a", "a", seconds=1.0)
    assert turns.next() == "a"
    turns.offer("b", "b", seconds=9.0)
    assert turns.next() == "b"
    turns.offer("b", "b", seconds=9.0)
    turns.done("b", 9.0)
    assert turns.next() == "b"
