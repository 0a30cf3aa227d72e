"""The queue of one service: whole traces of actions, and what must hold whatever comes."""

from heapq import heappop, heappush
from itertools import chain
from random import Random

import pytest
from tests.sdk.serve.serving import request

from potluck.serve.scheduling.batching import (
    CANNOT_MEET,
    QUEUE_FULL,
    TIMED_OUT,
    Batcher,
    GiveBack,
    QueueTick,
    ReplicaFree,
    ReplicaTurn,
    RequestQueued,
    Resized,
    StartBatch,
    WakeQueueAt,
)

BATCH_S = (0.0, 0.1, 0.15, 0.2, 0.25)  # of 1 to 4 requests


def numbers(actions):
    """What was started, as request numbers; what was given back, with its reason."""
    found = []
    for action in actions:
        if isinstance(action, StartBatch):
            found.append((action.replica, [each.id for each in action.requests]))
        elif isinstance(action, GiveBack):
            found.append((action.request.id, action.reason))
        else:
            found.append(round(action.at_s, 9))
    return found


def test_starts_at_once_when_it_may_not_wait():
    queue = Batcher(BATCH_S)
    assert queue.handle(RequestQueued(request(1)), 0.0) == [StartBatch(0, (request(1),), 0.1)]


def test_what_comes_meanwhile_goes_together():
    queue = Batcher(BATCH_S)
    queue.handle(RequestQueued(request(1)), 0.0)
    for number in (2, 3):
        assert queue.handle(RequestQueued(request(number, 0.01)), 0.01) == []
    assert numbers(queue.handle(ReplicaFree(0), 0.1)) == [(0, [2, 3])]


def test_rows_of_one_caller_go_together():
    queue = Batcher(BATCH_S, by_turns=True)
    for number in (1, 2, 3):
        assert queue.handle(RequestQueued(request(number)), 0.0) == []
    assert numbers(queue.handle(ReplicaTurn(0.0), 0.0)) == [(0, [1, 2, 3])]


def test_a_batch_is_made_up_at_its_turn_for_when_it_begins():
    """Who joins before is in it; who is late once it begins is not."""
    queue = Batcher(BATCH_S, by_turns=True)
    queue.handle(RequestQueued(request(0, limit_s=0.35)), 0.0)
    for number in (1, 2):
        queue.handle(RequestQueued(request(number, 0.1)), 0.1)
    assert queue.waiting(0.2).seconds == BATCH_S[3]
    assert numbers(queue.handle(ReplicaTurn(0.3), 0.2)) == [(0, CANNOT_MEET), (0, [1, 2])]
    queue.handle(RequestQueued(request(3, 0.25)), 0.25)
    assert not queue.waiting(0.25).may_begin
    assert queue.handle(ReplicaTurn(0.3), 0.25) == []  # its only replica computes
    assert queue.handle(ReplicaFree(0), 0.45) == []
    assert queue.waiting(0.45).may_begin
    assert numbers(queue.handle(ReplicaTurn(0.45), 0.45)) == [(0, [3])]
    assert queue.waiting(0.45) is None


def test_only_a_full_batch_may_follow_another_one():
    queue = Batcher(BATCH_S, by_turns=True)
    queue.handle(RequestQueued(request(0)), 0.0)
    queue.handle(ReplicaTurn(0.0), 0.0)
    for number in range(1, 4):
        queue.handle(RequestQueued(request(number, 0.05)), 0.05)
        assert not queue.waiting(0.05).may_begin
        assert queue.handle(ReplicaTurn(0.1), 0.05) == []
    for number in range(4, 9):
        queue.handle(RequestQueued(request(number, 0.05)), 0.05)
        assert queue.waiting(0.05).may_begin
    assert numbers(queue.handle(ReplicaTurn(0.1), 0.05)) == [(1, [1, 2, 3, 4])]
    assert queue.finish_s(0.06) == pytest.approx(0.1 + 3 * BATCH_S[4])  # the one before is on time
    assert not queue.waiting(0.05).may_begin  # two are there
    queue.handle(ReplicaFree(0), 0.1)
    assert numbers(queue.handle(ReplicaTurn(0.35), 0.1)) == [(0, [5, 6, 7, 8])]


def test_who_waits_says_until_when_a_full_batch_could_begin():
    queue = Batcher(BATCH_S, by_turns=True)
    queue.handle(RequestQueued(request(0, limit_s=1.0)), 0.0)
    waits = queue.waiting(0.0)
    assert (waits.service, waits.latest_s, waits.is_full) == ("birds", 0.75, False)
    for number in (1, 2, 3):
        queue.handle(RequestQueued(request(number)), 0.0)
    assert queue.waiting(0.0).is_full


@pytest.mark.parametrize(
    ("batch_s", "started"),
    [(BATCH_S, [(0, [0, 1]), (1, [2, 3])]), ((0.0, 0.1, 0.2, 0.2, 0.2), [(0, [0, 1, 2, 3])])],
)
def test_replicas_whose_turn_comes_at_once_share_what_is_done_sooner_so(batch_s, started):
    queue = Batcher(batch_s, 2, by_turns=True)
    for number in range(4):
        queue.handle(RequestQueued(request(number)), 0.0)
    found = [numbers(queue.handle(ReplicaTurn(0.0, n_sharing), 0.0)) for n_sharing in (2, 1)]
    assert [*chain(*found)] == started


def test_waits_for_a_full_batch_as_long_as_the_limit_allows():
    queue = Batcher(BATCH_S, wait_frac=1.0)
    # alone it must start at 1.0 - 0.1; with a second one at 1.0 - 0.15
    assert queue.handle(RequestQueued(request(1)), 0.0) == [WakeQueueAt(0.9)]
    assert numbers(queue.handle(RequestQueued(request(2, 0.5)), 0.5)) == [0.85]
    assert queue.handle(QueueTick(), 0.6) == [WakeQueueAt(0.85)]
    assert numbers(queue.handle(QueueTick(), 0.85)) == [(0, [1, 2])]


def test_a_full_batch_waits_for_nothing():
    queue = Batcher(BATCH_S, wait_frac=1.0)
    for number in range(3):
        queue.handle(RequestQueued(request(number)), 0.0)
    assert numbers(queue.handle(RequestQueued(request(3)), 0.0)) == [(0, [0, 1, 2, 3])]


def test_the_most_urgent_goes_first_and_priority_before_it():
    queue = Batcher(BATCH_S[:2])
    queue.handle(RequestQueued(request(0, limit_s=9.0)), 0.0)
    queue.handle(RequestQueued(request(1, limit_s=3.0)), 0.0)
    queue.handle(RequestQueued(request(2, limit_s=2.0)), 0.0)
    queue.handle(RequestQueued(request(3, limit_s=5.0, priority=1)), 0.0)
    order = [numbers(queue.handle(ReplicaFree(0), 0.1 * n))[0][1] for n in (1, 2, 3)]
    assert order == [[3], [2], [1]]


def test_gives_back_what_can_no_longer_be_met():
    queue = Batcher(BATCH_S)
    queue.handle(RequestQueued(request(0)), 0.0)
    queue.handle(RequestQueued(request(1, limit_s=0.15)), 0.0)
    assert numbers(queue.handle(ReplicaFree(0), 0.1)) == [(1, CANNOT_MEET)]


def test_without_early_drop_only_what_has_timed_out():
    queue = Batcher(BATCH_S, early_drop=False)
    queue.handle(RequestQueued(request(0)), 0.0)
    queue.handle(RequestQueued(request(1, limit_s=0.15)), 0.0)
    queue.handle(RequestQueued(request(2, limit_s=0.05)), 0.0)
    assert numbers(queue.handle(ReplicaFree(0), 0.1)) == [(2, TIMED_OUT), (0, [1])]


def test_a_batch_stays_small_enough_for_its_most_urgent():
    queue = Batcher(BATCH_S)
    queue.handle(RequestQueued(request(0)), 0.0)
    queue.handle(RequestQueued(request(1, limit_s=0.26)), 0.0)  # in a batch of two, not of three
    queue.handle(RequestQueued(request(2)), 0.0)
    queue.handle(RequestQueued(request(3)), 0.0)
    assert numbers(queue.handle(ReplicaFree(0), 0.1)) == [(0, [1, 2])]


def test_a_bounded_queue_refuses_at_once():
    queue = Batcher(BATCH_S, max_queue=1)
    queue.handle(RequestQueued(request(0)), 0.0)
    queue.handle(RequestQueued(request(1)), 0.0)
    assert numbers(queue.handle(RequestQueued(request(2)), 0.0)) == [(2, QUEUE_FULL)]


def test_a_batch_takes_as_long_as_its_longest_request():
    queue = Batcher(BATCH_S)
    queue.handle(RequestQueued(request(0)), 0.0)
    queue.handle(RequestQueued(request(1, work=2.0)), 0.0)
    queue.handle(RequestQueued(request(2)), 0.0)
    (start,) = queue.handle(ReplicaFree(0), 0.1)
    assert start.seconds == pytest.approx(0.3)


def test_expects_the_latest_that_can_happen():
    queue = Batcher(BATCH_S)
    queue.handle(RequestQueued(request(0)), 0.0)
    assert queue.finish_s(0.0) == pytest.approx(0.35)  # after the first, in a full batch
    for number in range(1, 5):
        queue.handle(RequestQueued(request(number)), 0.0)
    # the first ends at 0.1, four at 0.35, then the next one
    assert queue.finish_s(0.0) == pytest.approx(0.6)
    assert queue.queue_s(0.05) == pytest.approx(0.3)


def test_fewer_replicas_end_what_they_compute_and_start_nothing():
    queue = Batcher(BATCH_S[:2], n_replicas=2)
    queue.handle(RequestQueued(request(0)), 0.0)
    queue.handle(RequestQueued(request(1)), 0.0)
    queue.handle(RequestQueued(request(2)), 0.0)
    queue.handle(Resized(1), 0.0)
    assert queue.handle(ReplicaFree(1), 0.1) == []
    assert numbers(queue.handle(ReplicaFree(0), 0.1)) == [(0, [2])]
    queue.handle(Resized(0), 0.1)
    assert queue.finish_s(0.1) == float("inf")


def test_everything_that_waits_can_be_taken_away():
    queue = Batcher(BATCH_S[:2])
    for number, limit_s in enumerate((1.0, 3.0, 2.0)):
        queue.handle(RequestQueued(request(number, limit_s=limit_s)), 0.0)
    assert [each.id for each in queue.take_all()] == [2, 1]
    assert queue.n_queued == 0


@pytest.mark.parametrize("seed", range(40))
def test_every_request_leaves_once_and_none_is_started_that_cannot_be_met(seed):
    """Random arrivals, limits, priorities, sizes and replicas; batches may end late."""
    rng = Random(seed)
    batch_s = [0.0]
    for _ in range(rng.randint(1, 8)):
        batch_s.append(batch_s[-1] + rng.uniform(0.001, 0.1))
    n_replicas = rng.randint(1, 3)
    queue = Batcher(batch_s, n_replicas, wait_frac=rng.choice((0.0, 0.5, 1.0)), max_queue=20)
    now_s = 0.0
    ends = {}
    handled = []
    due = []
    for number in range(200):
        now_s += rng.expovariate(20)
        for replica, end_s in sorted(ends.items(), key=lambda pair: pair[1]):
            if end_s <= now_s:
                del ends[replica]
                take(queue.handle(ReplicaFree(replica), end_s), end_s, ends, handled, due)
        event = RequestQueued(
            request(number, now_s, rng.uniform(0.01, 1.0), priority=rng.randint(0, 1))
        )
        take(queue.handle(event, now_s), now_s, ends, handled, due)
    while ends or queue.n_queued:
        if ends:
            replica, now_s = min(ends.items(), key=lambda pair: pair[1])
            del ends[replica]
            take(queue.handle(ReplicaFree(replica), now_s), now_s, ends, handled, due)
        else:
            now_s = max(now_s, due[-1])
            take(queue.handle(QueueTick(), now_s), now_s, ends, handled, due)
    assert sorted(handled) == [*range(200)]


def take(actions, now_s, ends, handled, due):
    """Follow the actions; what was started must hold its deadline as predicted."""
    for action in actions:
        if isinstance(action, StartBatch):
            assert action.replica not in ends
            for each in action.requests:
                assert now_s + action.seconds <= each.deadline_s + 1e-6
            ends[action.replica] = now_s + action.seconds
            handled += [each.id for each in action.requests]
        elif isinstance(action, GiveBack):
            handled.append(action.request.id)
        else:
            due.append(action.at_s)


def test_a_batch_shrinks_only_where_it_would_be_too_late_with_nothing_beside_it():
    """Three rows take 0.2 s beside others and 0.12 s alone; the most urgent has 0.15 s."""
    urgent = [request(1, limit_s=0.65), request(2, limit_s=9.0), request(3, limit_s=9.0)]

    def started(**alone):
        queue = Batcher(BATCH_S, **alone)
        queue.handle(RequestQueued(request(0, limit_s=9.0)), 0.0)
        for each in urgent:
            queue.handle(RequestQueued(each), 0.1)
        return numbers(queue.handle(ReplicaFree(0), 0.5))

    assert started() == [(0, [1, 2])]
    assert started(alone_s=(0.0, 0.1, 0.11, 0.12, 0.13)) == [(0, [1, 2, 3])]


def test_the_urgent_of_a_higher_priority_are_not_given_up_for_many_others():
    batch_s = (0.0, *(0.1 + 0.01 * n for n in range(1, 17)))
    queue = Batcher(batch_s)
    queue.handle(RequestQueued(request(0, limit_s=9.0)), 0.0)
    queue.handle(RequestQueued(request(1, limit_s=0.23, priority=1)), 0.0)
    for number in range(2, 40):
        queue.handle(RequestQueued(request(number, limit_s=0.38)), 0.0)
    started = numbers(queue.handle(ReplicaFree(0), 0.11))
    assert started == [(0, [1, 2])]  # not 16 of the others


@pytest.mark.parametrize("seed", range(24))
def test_goodput_stays_in_overload_though_batches_take_longer_than_expected(seed):
    """Random batches, replicas and limits; each batch takes up to 2 to 30 % longer."""
    rng = Random(seed)
    largest, row_s = rng.choice((4, 8, 16, 32, 64)), 10 ** rng.uniform(-3.5, -1)
    whole_s = row_s * 10 ** rng.uniform(-1, 1.5)
    batch_s = (0.0, *(whole_s + row_s * n for n in range(1, largest + 1)))
    longer, n_replicas = rng.choice((0.02, 0.1, 0.3)), rng.randint(1, 4)
    limit_s = batch_s[-1] * rng.uniform(2.2, 8)
    most_per_s = n_replicas * largest / batch_s[-1] / (1 + longer / 2)
    for load in (1.5, 6.0):
        queue = Batcher(batch_s, n_replicas)
        in_time_per_s = overload(queue, load * most_per_s, limit_s, longer, rng)
        assert in_time_per_s > 0.85 * most_per_s  # 0.93 and more over longer times


def overload(queue, per_s, limit_s, longer, rng):
    """Requests per second that are in time; who cannot be is refused as they come."""
    lasts_s = 40 * queue.batch_s[-1]
    coming, number = [], 0
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(per_s)) < lasts_s:
        heappush(coming, (at_s, number, None))
        number += 1
    start_s, n_in_time = {}, 0
    while coming:
        now_s, which, start = heappop(coming)
        if start is not None:
            n_in_time += sum(each.deadline_s >= now_s for each in start.requests)
            event = ReplicaFree(start.replica, now_s - start_s[which], start.seconds)
        elif queue.finish_s(now_s) > now_s + limit_s:
            continue
        else:
            event = RequestQueued(request(which, now_s, limit_s))
        for action in queue.handle(event, now_s):
            if isinstance(action, StartBatch):
                number += 1
                start_s[number] = now_s
                end_s = now_s + action.seconds * (1 + rng.uniform(0, longer))
                heappush(coming, (end_s, number, action))
    return n_in_time / lasts_s
