"""Who computes next on a device that services share."""

from collections import deque
from dataclasses import replace
from random import Random

import pytest

from potluck.serve.scheduling.fair_queueing import MORE, FairQueue, WaitingBatch


def waits(name, **changes):
    return WaitingBatch(service=name, **{"seconds": 1.0, **changes})


def order(turns, waiting, n):
    """So many batches, each of which takes a second; all that wait go on waiting."""
    found = []
    for _ in range(n):
        batch = turns.next(waiting, 0.0)
        turns.begun(batch)
        found.append(batch.service)
        turns.done(batch.service, 1.0)
    return "".join(found)


def test_services_get_the_same_time_however_much_they_ask():
    turns = FairQueue(at_once=1)
    assert order(turns, [waits("a"), waits("b")], 6) == "ababab"
    assert order(turns, [waits("a")], 2) == "aa"


def test_who_comes_back_has_saved_nothing():
    turns = FairQueue(at_once=1)
    assert order(turns, [waits("a")], 3) == "aaa"
    assert order(turns, [waits("a"), waits("b")], 4) == "abab"


def test_the_more_urgent_gets_more_of_the_time_and_nobody_gets_nothing():
    turns = FairQueue(at_once=1)
    found = order(turns, [waits("a"), waits("b", priority=1)], 9 * 4)
    assert found.count("b") == MORE * found.count("a")
    assert found.startswith("ba")


@pytest.mark.parametrize("priority", [-(10**30), -1000, 1000, 10**30])
def test_any_whole_number_is_a_priority(priority):
    turns = FairQueue(at_once=1)
    found = order(turns, [waits("a"), waits("b", priority=priority)], 9)
    assert found.count("b") == (1 if priority < 0 else 8)


def test_no_more_than_some_are_on_a_device():
    turns, waiting = FairQueue(at_once=2), [waits("a")]
    for _ in range(2):
        turns.begun(turns.next(waiting, 0.0))
    assert turns.next(waiting, 0.0) is None
    assert turns.n_under_way == 2
    turns.done("a", 1.0)
    assert turns.next(waiting, 0.0) is waiting[0]


def test_who_can_wait_for_a_fuller_batch_lets_full_ones_and_urgent_ones_go_first():
    turns = FairQueue(at_once=1)
    first = waits("a", priority=1, latest_s=1.5)
    full, urgent = waits("b", latest_s=9.0, is_full=True), waits("c", latest_s=0.5)
    assert turns.next([first, replace(full, is_full=False)], 0.0) is first  # neither has to go
    assert turns.next([first, full], 0.0) is full
    assert turns.next([first, urgent], 0.0) is urgent
    assert turns.next([first, full], 0.6) is first  # after the other one it would be too late
    assert turns.next([first, full, waits("d", latest_s=9.0)], 0.0) is first  # after both of them


def test_those_whom_another_one_lets_go_first_take_turns_with_each_other():
    first = waits("a", priority=1, latest_s=99.0)
    full = [waits(name, latest_s=99.0, is_full=True) for name in "bcd"]
    assert order(FairQueue(at_once=1), [first, *full[:2]], 6) == "bcbcbc"
    assert order(FairQueue(at_once=1), [first, *full], 6) == "bcdbcd"


def test_who_follows_another_one_is_full_and_has_as_much_time_left_as_it_takes():
    full = waits("a", latest_s=3.0, is_full=True)
    assert full.can_follow(2.0)
    assert not full.can_follow(2.1)
    assert full.can_follow(1.0, [2.0, 9.0])
    assert not full.can_follow(1.1, [9.0, 2.0])  # another one could not be met after it
    assert not replace(full, is_full=False).can_follow(0.0)
    assert not waits("text", is_full=True).can_follow(0.0)


def test_who_gains_nothing_by_waiting_takes_turns_with_all_others():
    """As texts do, which are written token by token."""
    text, full = waits("text"), waits("b", latest_s=9.0, is_full=True)
    assert order(FairQueue(at_once=1), [text, full], 4).count("b") == 2
    small = waits("b", latest_s=9.0)
    assert order(FairQueue(at_once=1), [text, small], 4).count("b") == 2


@pytest.mark.parametrize("seed", range(8))
def test_services_that_ask_on_get_the_same_time_however_short_their_batches_are(seed):
    rng = Random(seed)
    seconds = {name: 10 ** rng.uniform(-2, 0) for name in "abc"}
    turns, there = FairQueue(), deque()
    used_s = dict.fromkeys(seconds, 0.0)

    def waiting():
        return [
            waits(name, seconds=each, may_begin=name not in there) for name, each in seconds.items()
        ]

    for _ in range(2000):
        while (batch := turns.next(waiting(), 0.0)) is not None:
            turns.begun(batch)
            there.append(batch.service)
        ended = there.popleft()
        used_s[ended] += seconds[ended]
        turns.done(ended, seconds[ended])
    assert max(used_s.values()) - min(used_s.values()) <= 4 * max(seconds.values())


def test_no_place_is_kept_for_who_asks_for_nothing_more():
    turns = FairQueue()
    turns.begun(turns.next([waits("a")], 0.0))
    long = waits("b", seconds=9.0)
    turns.begun(turns.next([long], 0.0))
    turns.done("a", 1.0)
    assert turns.next([long], 0.0) is long


def test_who_asks_for_little_is_not_put_behind_the_next_long_batch():
    turns = FairQueue()
    long, short = waits("a"), waits("b", seconds=0.1)
    turns.begun(turns.next([long], 0.0))
    assert turns.next([replace(long, may_begin=False), short], 1.0) is short
    turns.begun(short)
    turns.done("a", 1.0)
    assert turns.next([long, replace(short, may_begin=False)], 0.1) is None
    turns.done("b", 0.1)
    assert turns.next([long, short], 0.0) is short
