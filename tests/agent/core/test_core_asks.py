"""Requests for services between devices: what is served, handed on and answered."""

import pytest
from tests.agent.core.core_cluster import (
    ARENA_BYTES,
    LIMIT_S,
    PAIRS_S,
    RUN_S,
    SERVICE,
    CoreCluster,
    X,
    floats,
    may,
)

from potluck_agent.core.events import MemberLost, MustLeave, WorkerDied
from potluck_agent.core.resource_usage import ResourceUsage
from potluck_wire import messages as m


def full(cluster, name, n_asks=10):
    """A device whose worker answers nothing, with as many requests as it takes in time."""
    cluster.workers[name].answers = False
    for _ in range(n_asks):
        cluster.ask(name)


def test_an_idle_device_answers_by_itself():
    cluster = CoreCluster().grant_all()
    ended, output = cluster.answer(cluster.ask("a", 1.0, 2.0))
    assert (ended.code, ended.path, output) == ("", ("a",), floats(2.0, 4.0))
    assert cluster.workers["b"].n_computed == 0


def test_a_busy_device_hands_on_and_the_answer_tells_where_it_was():
    cluster = CoreCluster().grant_all()
    full(cluster, "a")
    ended, output = cluster.answer(cluster.ask("a", 3.0, 4.0))
    assert (ended.code, ended.path, output) == ("", ("a", "b"), floats(6.0, 8.0))
    assert len(ended.hops_s) == 2
    assert cluster.workers["b"].n_computed == 1


def test_hop_times_are_those_from_having_it_to_its_end():
    cluster = CoreCluster().grant_all()
    full(cluster, "a")
    cluster.workers["b"].answers = False
    held = []
    cluster.lost = lambda sender, to, message: (
        isinstance(message, m.Value) and to == "b" and not held.append((sender, to, message))
    )
    number = cluster.ask("a", 1.0, 1.0, left_s=0.9)
    cluster.lost = lambda *_: False
    cluster.workers["b"].answers = True
    cluster.tick(0.25)
    (sender, to, value), *_ = held
    cluster.post.append((sender, to, value, (floats(1.0, 1.0),)))
    cluster.deliver()
    ended, _ = cluster.answer(number)
    assert ended.hops_s == pytest.approx((0.25, 0.25))


def test_an_entrance_without_the_model_is_none():
    cluster = CoreCluster("abc", serves="ab")
    answer = cluster.grant("c", may("a"))
    assert (answer.code, answer.about) == (m.RefusalCode.UNKNOWN_RUN, 28)


def test_a_request_goes_on_until_somebody_has_time():
    cluster = CoreCluster("abc").grant_all()
    full(cluster, "a")
    full(cluster, "b")
    # a has not heard yet that b is full, and b knows of c alone
    cluster.grant("a", may("b"), may("c", hands_on=False))
    ended, output = cluster.answer(cluster.ask("a", 5.0, 6.0))
    assert (ended.code, ended.path, output) == ("", ("a", "b", "c"), floats(10.0, 12.0))


def test_where_nobody_has_time_it_is_refused_and_nothing_waits():
    cluster = CoreCluster().grant_all()
    full(cluster, "a")
    full(cluster, "b")
    n_computed = cluster.n_computed
    ended, output = cluster.answer(cluster.ask("a"))
    assert (ended.code, output) == (m.RefusalCode.INSUFFICIENT, None)
    assert cluster.n_computed == n_computed


def test_nobody_is_handed_what_was_not_heard_of_for_long():
    cluster = CoreCluster().grant_all()
    full(cluster, "a")
    cluster.lost = lambda sender, to, message: isinstance(message, m.Standing)
    for _ in range(6):
        cluster.tick(1.0)
    full(cluster, "a")
    ended, _ = cluster.answer(cluster.ask("a"))
    assert ended.code == m.RefusalCode.INSUFFICIENT


def test_it_is_handed_on_by_idle_goodput():
    cluster = CoreCluster("abc").grant_all()
    for _ in range(5):  # of b, a part of what is possible was used, by the notebook's own steps
        cluster.step("b")
        cluster.tick(RUN_S)
    cluster.tick(0.75)
    statuses = [each for s, _, each in cluster.said if s == "b" and isinstance(each, m.Standing)]
    assert statuses[-1].idle_per_s == pytest.approx((1 - 0.5 / 1.25) / RUN_S)
    full(cluster, "a")
    tried = []

    def is_lost(sender, to, message):
        if isinstance(message, m.Ask):
            tried.append(to)
        return isinstance(message, m.Ask | m.Value)

    cluster.lost = is_lost
    for _ in range(120):
        cluster.ask("a")
        cluster.tick(LIMIT_S / 200)
    assert set(tried) == {"b", "c"}
    assert tried.count("c") > tried.count("b")


def test_what_is_late_ends_and_leaves_nothing():
    cluster = CoreCluster().grant_all()
    full(cluster, "a")
    cluster.lost = lambda sender, to, message: isinstance(message, m.Ask | m.Value)
    number = cluster.ask("a")
    cluster.lost = lambda *_: False
    cluster.tick(LIMIT_S)
    ended, output = cluster.answer(number)
    assert (ended.code, output) == (m.RefusalCode.LATE, None)
    assert cluster.cores["b"].held == ResourceUsage()
    assert cluster.cores["a"].held.n_asks == 0


def test_time_that_is_over_is_said_at_once():
    cluster = CoreCluster().grant_all()
    ended, _ = cluster.answer(cluster.ask("a", left_s=0.0))
    assert ended.code in (m.RefusalCode.LATE, m.RefusalCode.INSUFFICIENT)
    assert cluster.n_computed == 0


def test_no_request_has_more_time_than_its_service():
    cluster = CoreCluster().grant_all()
    cluster.workers["a"].answers = False
    number = cluster.ask("a", left_s=1000.0)
    cluster.tick(LIMIT_S)
    assert cluster.answer(number)[0].code == m.RefusalCode.LATE


@pytest.mark.parametrize(
    ("grace_s", "after_s", "code"),
    [
        (0.0, 0.6, m.RefusalCode.LATE),
        (0.3, 0.6, ""),
        (0.3, 0.9, m.RefusalCode.LATE),
        (1e9, 0.5 + LIMIT_S, m.RefusalCode.LATE),  # never longer than all of its time again
        (-1e9, 0.4, ""),
        (-1e9, 0.5, m.RefusalCode.LATE),
    ],
)
def test_a_late_answer_is_of_use_for_as_long_as_was_said(grace_s, after_s, code):
    cluster = CoreCluster().grant_all()
    number = cluster.number()
    cluster.tell("a", m.Ask(number=number, service=SERVICE, left_s=0.5, grace_s=grace_s))
    cluster.tick(after_s)
    cluster.tell("a", cluster.value(number), floats(3.0, 4.0))
    assert cluster.answer(number)[0].code == code


def test_what_is_handed_on_may_be_as_late_there():
    cluster = CoreCluster().grant_all()
    full(cluster, "a")
    number = cluster.number()
    cluster.tell("a", m.Ask(number=number, service=SERVICE, left_s=0.5, grace_s=1e9))
    handed_on = [x for _, to, x in cluster.said if isinstance(x, m.Ask) and to == "b"]
    assert [(x.left_s, x.grace_s) for x in handed_on] == [pytest.approx((0.5, LIMIT_S))]


def test_what_the_worker_is_at_counts_though_its_time_is_over():
    cluster = CoreCluster().grant_all()
    cluster.workers["a"].answers = False
    number = cluster.ask("a", 1.0, 2.0, left_s=RUN_S)
    cluster.tick(RUN_S)
    assert cluster.answer(number)[0].code == m.RefusalCode.LATE
    ended, output = cluster.answer(cluster.ask("a", 3.0, 4.0, left_s=1.5 * RUN_S))
    assert (ended.path, output) == (("a", "b"), floats(6.0, 8.0))


@pytest.mark.parametrize("side", ["asks", "serves"])
def test_a_new_connection_ends_what_is_under_way_and_nothing_else(side):
    cluster = CoreCluster().grant_all()
    full(cluster, "a", 9)
    own = cluster.ask("a")
    cluster.workers["b"].answers = False
    number = cluster.ask("a")
    assert cluster.cores["b"].held.n_asks == 1
    cluster.reset(*(("a", "b") if side == "asks" else ("b", "a")))
    assert cluster.answer(number)[0].code == m.FailureCause.PEER_LOST
    cluster.tick(1.0)
    assert cluster.cores["b"].held.n_asks == 0
    assert cluster.answer(own)[0].code == m.RefusalCode.LATE  # its own worker says nothing


def test_it_goes_on_after_a_new_connection():
    cluster = CoreCluster().grant_all()
    cluster.reset("a", "b")
    cluster.reset("b", "a")
    cluster.tick(1.0)
    full(cluster, "a")
    assert cluster.answer(cluster.ask("a"))[0].path == ("a", "b")


def test_a_worker_that_dies_ends_requests_by_name():
    cluster = CoreCluster().grant_all()
    cluster.workers["a"].answers = False
    number = cluster.ask("a")
    cluster.happen("a", WorkerDied(m.FailureCause.CRASHED, "SIGSEGV"))
    assert cluster.answer(number)[0].code == m.FailureCause.CRASHED
    assert cluster.answer(cluster.ask("a"))[0].code == m.RefusalCode.UNKNOWN_RUN


def test_requests_of_several_rows_are_answered_and_handed_on():
    cluster = CoreCluster().grant_all()
    ended, output = cluster.answer(cluster.ask("a", 1.0, 2.0, 3.0, 4.0))
    assert (ended.path, output) == (("a",), floats(2.0, 4.0, 6.0, 8.0))
    full(cluster, "a")
    ended, output = cluster.answer(cluster.ask("a", 1.0, 2.0, 3.0, 4.0))
    assert (ended.path, output) == (("a", "b"), floats(2.0, 4.0, 6.0, 8.0))


def test_rows_go_where_there_is_a_program_for_them():
    cluster = CoreCluster("abc").grant_all()
    cluster.grant("a", may("b", rows=1), may("c"))
    cluster.tick(1.0)
    full(cluster, "a")
    for _ in range(8):
        ended, _ = cluster.answer(cluster.ask("a", 1.0, 2.0, 3.0, 4.0))
        assert ended.path == ("a", "c")


def test_what_waits_counts_by_its_rows():
    cluster = CoreCluster().grant_all()
    cluster.workers["b"].answers = False
    for _ in range(4):
        cluster.ask("b", 1.0, 2.0, 3.0, 4.0)
    cluster.tick(1.0 - 4 * PAIRS_S)
    cluster.ask("b")
    statuses = [each for _, to, each in cluster.said if to == "a" and isinstance(each, m.Standing)]
    assert statuses[-1].queue_s == pytest.approx(0.0)  # as of the last interval
    cluster.tick(0.6)
    statuses = [each for _, to, each in cluster.said if to == "a" and isinstance(each, m.Standing)]
    assert statuses[-1].queue_s == pytest.approx(2 * PAIRS_S + RUN_S)  # the worker has two still


# --- one that refuses, or is lost -----------------------------------------------------------------


def handed(cluster):
    """Whom requests were handed on to, in order."""
    return [to for _, to, message in cluster.said if isinstance(message, m.Ask)]


def leave(cluster, name):
    cluster.happen(name, MustLeave(reason="the battery", within_s=60.0))


def test_what_one_refuses_another_answers():
    cluster = CoreCluster("abc").grant_all()
    full(cluster, "a")
    leave(cluster, "b")
    seen = set()
    for _ in range(20):
        ended, output = cluster.answer(cluster.ask("a", 3.0, 4.0))
        assert (ended.code, ended.path, output) == ("", ("a", "c"), floats(6.0, 8.0))
        seen.add(len(handed(cluster)))
    assert "b" in handed(cluster)  # it was asked, and said no


@pytest.mark.parametrize("what", [m.Ask, m.Value, m.AskEnded], ids=lambda kind: kind.__name__)
def test_what_one_has_when_it_is_lost_another_answers(what):
    """It is lost after all that is not lost on the way from there on: nothing of its answer came,
    or all of it.
    """
    cluster = CoreCluster("abc").grant_all()
    full(cluster, "a")
    heard = []

    def is_lost(sender, to, message):
        if isinstance(message, m.Ask):
            heard.append(to)
        return isinstance(message, what) or (what is m.Ask and sender == "a")

    cluster.lost = is_lost
    number = cluster.ask("a", 3.0, 4.0)
    cluster.lost = lambda *_: False
    (first,) = heard
    cluster.happen("a", MemberLost(key=cluster.keys[first]))
    ended, output = cluster.answer(number)
    if what is m.AskEnded:  # its outputs have gone on
        assert ended.code == m.FailureCause.PEER_LOST
    else:
        other = "c" if first == "b" else "b"
        assert (ended.code, ended.path, output) == ("", ("a", other), floats(6.0, 8.0))
    cluster.tick(LIMIT_S)
    assert cluster.cores["a"].held.n_asks == 0


def test_what_one_computes_when_it_is_lost_another_does():
    cluster = CoreCluster("abc").grant_all()
    full(cluster, "a")
    cluster.workers["b"].answers = cluster.workers["c"].answers = False
    number = cluster.ask("a", 3.0, 4.0)
    (first,) = handed(cluster)
    assert cluster.workers[first].n_computed == 1
    other = "c" if first == "b" else "b"
    cluster.workers[other].answers = True
    cluster.happen("a", MemberLost(key=cluster.keys[first]))
    ended, output = cluster.answer(number)
    assert (ended.code, ended.path, output) == ("", ("a", other), floats(6.0, 8.0))


@pytest.mark.parametrize("code", [m.RefusalCode.MEMORY, m.RefusalCode.UNKNOWN_RUN])
def test_what_one_takes_no_input_of_another_answers(code):
    cluster = CoreCluster("abc").grant_all()
    full(cluster, "a")
    sent = []

    def is_lost(sender, to, message):
        if sender != "a" or (sent and to != sent[0][0]):
            return False
        sent.append((to, message))
        return True

    cluster.lost = is_lost
    number = cluster.ask("a", 3.0, 4.0)
    (first, value) = next(pair for pair in sent if isinstance(pair[1], m.Value))
    cluster.lost = lambda *_: False
    cluster.as_member(first, "a", m.Rejected(transfer=value.transfer, code=code))
    ended, output = cluster.answer(number)
    other = "c" if first == "b" else "b"
    assert (ended.code, ended.path, output) == ("", ("a", other), floats(6.0, 8.0))
    cluster.tick(LIMIT_S)
    assert cluster.cores["a"].held.n_asks == 0


def test_a_request_ends_where_one_of_its_inputs_has_no_room():
    cluster = CoreCluster("ab")
    cluster.grant("a", may("b"), inputs=[{**X, "shape": [ARENA_BYTES]}], sizes=[])
    number, nbytes = cluster.number(), 4 * ARENA_BYTES
    cluster.tell("a", m.Ask(number=number, service=SERVICE, left_s=LIMIT_S))
    value = cluster.value(number, shape=(ARENA_BYTES,), nbytes=nbytes, chunk_bytes=ARENA_BYTES)
    cluster.tell("a", value, bytes(ARENA_BYTES))
    ended, output = cluster.answer(number)
    assert (ended.code, ended.path, output) == (m.RefusalCode.MEMORY, ("a",), None)
    assert cluster.cores["a"].held == ResourceUsage()


def test_only_two_are_handed_a_request_and_it_is_answered_once():
    cluster = CoreCluster("abcde").grant_all()
    full(cluster, "a")
    for name in "bcde":
        leave(cluster, name)
    ended, output = cluster.answer(cluster.ask("a"))
    assert (ended.code, output) == (m.RefusalCode.LEAVING, None)
    assert len({*handed(cluster)}) == len(handed(cluster)) == 2
    cluster.tick(LIMIT_S)
    assert [cluster.cores[name].held for name in "bcde"] == [ResourceUsage()] * 4
    assert cluster.cores["a"].held.n_asks == 0


def test_who_has_it_from_a_member_hands_it_to_nobody_else():
    cluster = CoreCluster("abcd").grant_all()
    full(cluster, "a")
    full(cluster, "b")
    cluster.grant("a", may("b"), may("c", hands_on=False), may("d", hands_on=False))
    leave(cluster, "c")
    leave(cluster, "d")
    ended, _ = cluster.answer(cluster.ask("a"))
    assert ended.code == m.RefusalCode.LEAVING
    assert len(handed(cluster)) == 2  # to b, and from there to one


def test_a_request_that_is_wrong_is_tried_nowhere_else():
    cluster = CoreCluster("abc").grant_all()
    full(cluster, "a")
    asked = []
    cluster.lost = lambda sender, to, message: to in "bc" and not asked.append((to, message))
    number = cluster.ask("a")
    cluster.lost = lambda *_: False
    to, message = asked[0]
    failed = m.AskEnded(number=message.number, code="arithmetic", text="1/0", path=(to,))
    cluster.as_member(to, "a", failed)
    ended, _ = cluster.answer(number)
    assert ended.code == "arithmetic"
    assert handed(cluster) == []


def test_inputs_that_have_no_room_are_not_handed_on():
    """Half of the arena is kept for answers: of so large inputs, two are handed on at once."""
    cluster = CoreCluster().grant_all()
    size = ARENA_BYTES // 16  # numbers of a quarter of it
    for name in "ab":
        other = "b" if name == "a" else "a"
        inputs = [{**X, "shape": [size]}]
        cluster.grant(name, may(other), inputs=inputs, sizes=[])
    cluster.tick(1.0)
    cluster.workers["a"].answers = False
    cluster.workers["b"].answers = False
    for _ in range(10):
        cluster.tell("a", m.Ask(number=cluster.number(), service=SERVICE, left_s=LIMIT_S))
    numbers = [cluster.number() for _ in range(3)]
    for number in numbers:
        cluster.tell("a", m.Ask(number=number, service=SERVICE, left_s=LIMIT_S))
    assert len(handed(cluster)) == 2
    assert cluster.answer(numbers[2])[0].code == m.RefusalCode.INSUFFICIENT


def test_a_device_that_leaves_takes_no_more():
    cluster = CoreCluster().grant_all()
    cluster.happen("b", MustLeave(reason="the battery", within_s=60.0))
    full(cluster, "a")
    assert cluster.answer(cluster.ask("a"))[0].code == m.RefusalCode.LEAVING


def test_the_notebook_s_own_steps_go_on_beside_requests():
    cluster = CoreCluster().grant_all()
    cluster.tell("a", m.Execute(run="r-a", epoch=0, program="p", step=0))
    number = cluster.ask("a", 1.0, 1.0)
    value = cluster.value(0, run="r-a", program="p", step=0)
    cluster.tell("a", value, floats(4.0, 5.0))
    answers = [b[0] for _, msg, b in cluster.home if isinstance(msg, m.Value) and msg.run]
    assert answers == [floats(8.0, 10.0)]
    assert cluster.answer(number)[1] == floats(2.0, 2.0)
    assert any(isinstance(message, m.Done) for _, message, _ in cluster.home)


def test_standing_tells_how_busy_a_service_is():
    cluster = CoreCluster().grant_all()
    full(cluster, "b", 3)
    cluster.tick(1.0)
    statuses = [each for _, to, each in cluster.said if to == "a" and isinstance(each, m.Standing)]
    assert statuses[-1].service == SERVICE
    assert statuses[-1].capacity_per_s == pytest.approx(1 / RUN_S)
