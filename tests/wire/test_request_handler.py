"""The handler's steps in the paper's order, eq. (1), and what it must never do."""

from collections import Counter
from random import Random

import pytest
from tests.sdk.serve.serving import request

from potluck_wire.request_handler import (
    CandidateServer,
    HandlerRules,
    LocalOption,
    Offload,
    Refuse,
    Serve,
    ServeRefusal,
    Way,
    by_idle_goodput,
    by_spare_finish,
    decide,
)


def candidate(name, idle_per_s=1.0, queue_s=0.0, delay_s=0.1, **changes):
    return CandidateServer(
        server=name,
        idle_per_s=idle_per_s,
        queue_s=queue_s,
        delay_s=delay_s,
        **{"capacity_per_s": 10.0, **changes},
    )


def decision_on(each, local=(), others=(), now_s=0.0, choose=by_idle_goodput, rules=None, seed=0):
    return decide(each, local, lambda: others, now_s, Random(seed), choose, rules or HandlerRules())


ENOUGH = LocalOption(Way.ALONE, 0.5)
LATE = LocalOption(Way.ALONE, 1.5)
FAR = request(path=("a", "b", "c", "d", "e", "f"))

STEPS = {
    "timed out comes before all else": (
        {"each": request(), "local": [ENOUGH], "now_s": 1.1},
        Refuse(ServeRefusal.TIMED_OUT),
    ),
    "what is here comes before the others": (
        {"each": request(path=("a",)), "local": [ENOUGH], "others": [candidate("b")]},
        Serve(Way.ALONE),
    ),
    "here counts even after five hops": ({"each": FAR, "local": [ENOUGH]}, Serve(Way.ALONE)),
    "five hops are the most": (
        {"each": FAR, "local": [LATE], "others": [candidate("z")]},
        Refuse(ServeRefusal.OFFLOADED_TOO_OFTEN),
    ),
    "four are not": (
        {"each": request(path=("a", "b", "c", "d", "e")), "others": [candidate("z")]},
        Offload("z"),
    ),
    "else it is handed on": (
        {"each": request(path=("a",)), "local": [LATE], "others": [candidate("b")]},
        Offload("b"),
    ),
    "never to a server on its path": (
        {"each": request(path=("b", "a")), "others": [candidate("a"), candidate("b")]},
        Refuse(ServeRefusal.INSUFFICIENT),
    ),
    "never where the queue is longer than delay and limit": (
        {"each": request(path=("a",)), "others": [candidate("b", queue_s=1.11)]},
        Refuse(ServeRefusal.INSUFFICIENT),
    ),
    "but where it just is not": (
        {"each": request(path=("a",)), "others": [candidate("b", queue_s=1.09)]},
        Offload("b"),
    ),
    "never where nothing is idle": (
        {"each": request(path=("a",)), "others": [candidate("b", idle_per_s=0.0)]},
        Refuse(ServeRefusal.INSUFFICIENT),
    ),
    "alone, then across servers, then edge devices": (
        {
            "each": request(path=("a",)),
            "local": [LATE, LocalOption(Way.ACROSS, 0.9), LocalOption(Way.EDGE_DEVICE, 0.1)],
        },
        Serve(Way.ACROSS),
    ),
    "nobody has it": ({"each": request(path=("a",))}, Refuse(ServeRefusal.INSUFFICIENT)),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_of_section_3_2(step):
    arguments, decision = STEPS[step]
    assert decision_on(**arguments) == decision


STREAM = request(fps=30.0, path=("a",))


def test_a_stream_is_served_whole_where_it_can_be():
    assert decision_on(STREAM, [LocalOption(Way.ALONE, 0.0, 45.0)]) == Serve(Way.ALONE, 30.0)
    ways = [LocalOption(Way.ALONE, 0.0, 20.0), LocalOption(Way.EDGE_DEVICE, 0.0, 30.0)]
    assert decision_on(STREAM, ways) == Serve(Way.EDGE_DEVICE, 30.0)


def test_a_stream_gets_a_part_here_and_the_rest_elsewhere():
    part = [LocalOption(Way.ALONE, 0.0, 12.0)]
    assert decision_on(STREAM, part, [candidate("b")]) == Offload("b", 12.0)
    assert decision_on(STREAM, part) == Serve(Way.ALONE, 12.0)


def test_a_stream_that_may_not_be_divided_goes_where_it_gets_more():
    part, unsplit = [LocalOption(Way.ALONE, 0.0, 12.0)], HandlerRules(splits=False)
    assert decision_on(STREAM, part, [candidate("b", 20.0)], rules=unsplit) == Offload("b")
    assert decision_on(STREAM, part, [candidate("b", 5.0)], rules=unsplit) == Serve(Way.ALONE, 12.0)


def test_equation_1():
    """10,000 draws: each server by its idle goodput, within four standard deviations."""
    others = [candidate("b", 1.0), candidate("c", 3.0), candidate("d", 0.0)]
    rng, n = Random(1), 10_000
    drawn = Counter(
        by_idle_goodput(request(path=("a",)), others, 0.0, rng).server for _ in range(n)
    )
    assert drawn["d"] == 0
    assert abs(drawn["b"] / n - 0.25) < 4 * (0.25 * 0.75 / n) ** 0.5


def test_the_same_numbers_give_the_same_decision():
    others = [candidate(name, 1.0) for name in "bcdefgh"]
    drawn = {decision_on(request(path=("a",)), (), others, seed=4) for _ in range(20)}
    assert len(drawn) == 1


def test_candidates_are_asked_for_only_when_needed():
    def never():
        raise AssertionError

    for each, local in ((request(path=("a",)), [ENOUGH]), (FAR, [])):
        decide(each, local, never, 0.0, Random(0), by_idle_goodput)


def test_ours_asks_nobody_who_would_be_late():
    busy = candidate("b", 10.0, queue_s=0.8, delay_s=0.0, transfer_s=0.1, batch_s=0.2)
    soon = candidate("c", 0.1, queue_s=0.5, delay_s=0.0, transfer_s=0.1, batch_s=0.2)
    slow = candidate("d", 10.0, delay_s=0.0, transfer_s=0.1, batch_s=0.95)
    others = [busy, soon, slow]
    drawn = {
        decision_on(request(path=("a",)), (), others, choose=by_spare_finish, seed=n)
        for n in range(20)
    }
    assert drawn == {Offload("c")}
    assert decision_on(request(path=("a",)), (), [slow], choose=by_spare_finish) == Refuse(
        ServeRefusal.INSUFFICIENT
    )


def test_ours_asks_somebody_all_the_same_where_nobody_seems_to_have_time():
    """What is known is old: a queue of a second may be gone by now."""
    full = candidate("b", 10.0, queue_s=0.95, delay_s=0.0, batch_s=0.2)
    assert decision_on(request(path=("a",)), (), [full], choose=by_spare_finish) == Offload("b")


def test_ours_counts_what_it_sent_and_what_has_drained():
    # queues of 0.8 s a second ago, half of the rate idle: 0.3 s now; or 0.6 s with what was sent
    drained = candidate("b", 5.0, queue_s=0.8, delay_s=1.0, batch_s=0.5)
    filled = candidate("c", 5.0, queue_s=0.8, delay_s=1.0, batch_s=0.5, sent=3.0)
    others = [drained, filled]
    drawn = {
        decision_on(request(path=("a",)), (), others, choose=by_spare_finish, seed=n)
        for n in range(20)
    }
    assert drawn == {Offload("b")}


def test_ours_gives_a_stream_to_one_that_has_room_for_all_of_it():
    others = [candidate("b", 29.0), candidate("c", 31.0), candidate("d", 90.0, sent=80.0)]
    drawn = {decision_on(STREAM, (), others, choose=by_spare_finish, seed=n) for n in range(20)}
    assert drawn == {Offload("c")}


def test_ours_asks_somebody_for_a_stream_all_the_same_where_nobody_seems_to_have_room():
    """What is known is old: a stream may have ended since."""
    others = [candidate("b", 0.0), candidate("c", 0.0)]
    drawn = {decision_on(STREAM, (), others, choose=by_spare_finish, seed=n) for n in range(20)}
    assert drawn == {Offload("b"), Offload("c")}
    assert decision_on(STREAM, (), [], choose=by_spare_finish) == Refuse(ServeRefusal.INSUFFICIENT)


@pytest.mark.parametrize("choose", [by_idle_goodput, by_spare_finish])
@pytest.mark.parametrize("seed", range(50))
def test_whatever_the_numbers_a_request_goes_only_where_it_may(choose, seed):
    rng = Random(seed)
    names = [chr(ord("a") + n) for n in range(12)]
    path = tuple(rng.sample(names, rng.randint(1, 7)))
    others = [
        candidate(
            name,
            rng.choice((0.0, rng.uniform(0, 100))),
            queue_s=rng.uniform(0, 3),
            delay_s=rng.uniform(0, 2),
            batch_s=rng.uniform(0, 1),
            sent=rng.uniform(0, 20),
        )
        for name in names
    ]
    each = request(path=path, fps=rng.choice((0.0, 25.0)))
    local = (
        [LocalOption(Way.ALONE, rng.uniform(0, 2), rng.uniform(0, 30))]
        if rng.random() < 0.7
        else []
    )
    decision = decision_on(each, local, others, rng.uniform(0, 1.2), choose, seed=seed)
    if isinstance(decision, Offload):
        chosen = next(one for one in others if one.server == decision.server)
        assert chosen.server not in path
        assert chosen.queue_s <= chosen.delay_s + 1.0
        assert each.n_offloads < 5
