"""Executions that fail, by tables of events: what ends with them, whom is told, and which cause is
named.
"""

import pytest
from tests.sdk.sessions.controller_driver import FEED, STATEMENT, Play, finish, join, place

from potluck.errors import (
    DeviceGone,
    OutOfMemory,
    PlanError,
    ProtocolError,
    RequestFailed,
    WorkerFailed,
)
from potluck.sessions.controller import OWED_S, PEER_LOST_GRACE_S
from potluck.sessions.events import (
    CancelExecution,
    ConnectionLost,
    Notification,
    RequestAll,
    Resolve,
    StartExecution,
    Tick,
)
from potluck.sessions.pending_requests import AT_HAND_S, LEAST_BYTES_PER_S
from potluck_wire import messages as m
from potluck_wire.limits import CHUNK_BYTES, MAX_CHUNK_BYTES, MIB

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.mark.parametrize(
    ("cause", "error"),
    [("worker-crashed", WorkerFailed), ("out-of-memory", OutOfMemory), ("bad-input", WorkerFailed)],
)
def test_a_failure_ends_the_run_everywhere_with_its_cause(cause, error):
    play = Play("a", "b")
    play.launch(ticket=1)
    play.launch(ticket=2, step=1)
    play.receive("b", m.Failed(**place(), instruction=4, cause=cause, text="why"))
    ended = play.ended()
    assert set(ended) == {1, 2}
    assert all(
        isinstance(x.error, error) and x.error.device == "b" and "why" in str(x.error)
        for x in ended.values()
    )
    assert {device for device, _ in play.sent(m.Drop)} == {"a", "b"}


@pytest.mark.parametrize("cause", ["arithmetic", "bad-input"])
def test_a_request_that_fails_over_its_values_ends_alone(cause):
    play = Play("a", "b", "c")
    devices = "a", "b", "c"
    play.launch(
        ticket=1, devices=devices, request=True, feeds={"a": {"x": FEED}}, expects={"c": {"y": 8}}
    )
    play.launch(ticket=2, devices=devices, request=True, step=1)
    finish(play, "a")
    play.receive("b", m.Failed(**place(), instruction=4, cause=cause, text="why"))
    assert set(play.ended()) == {1}
    error = play.ended()[1].error
    assert (type(error), error.device, error.facts["instruction"]) == (RequestFailed, "b", 4)
    assert play.sent(m.Abort) == [("b", m.Abort(**place())), ("c", m.Abort(**place()))]  # a is done
    assert not play.sent(m.Drop)
    assert not play.receive("c", m.Failed(**place(), cause="cancelled", text="it was aborted"))
    play.receive(
        "c", m.Value(transfer=1, **place(), name="y", shape=(), nbytes=4, chunk_bytes=64), bytes(4)
    )
    assert [x.code for _, x in play.sent(m.Rejected)] == ["unknown-run"]
    for device in devices:
        finish(play, device, step=1)
    assert isinstance(play.ended()[2], Resolve)


@pytest.mark.parametrize(
    ("minor", "request_", "cause"),
    [
        (2, True, "arithmetic"),
        (3, False, "arithmetic"),
        (3, True, "out-of-memory"),
        (3, True, "worker-crashed"),
    ],
    ids=["a device does not know Abort", "a step of training", "no memory", "a crash"],
)
def test_any_other_failure_ends_the_run(minor, request_, cause):
    play = join("a", "b", minor=minor)
    for ticket, step in ((1, 0), (2, 1)):
        play.launch(ticket=ticket, step=step, request=request_)
    play.receive("b", m.Failed(**place(), cause=cause, text="why"))
    assert set(play.ended()) == {1, 2}
    assert not any(isinstance(action.error, RequestFailed) for action in play.ended().values())
    assert not play.sent(m.Abort)
    assert {device for device, _ in play.sent(m.Drop)} == {"a", "b"}


@pytest.mark.parametrize(("dropped", "over"), [(-1, {1, 2}), (0, {1}), (3, {2})])
def test_what_is_dropped_while_it_is_executed_is_waited_for_no_more(dropped, over):
    """A failed request ends the run with a drop.

    A request of the plan before must not wait for ever.
    """
    play = Play("a", "b")
    play.launch(ticket=1)
    play.do(StartExecution(ticket=2, run="r", epoch=3, program="p", step=1, devices=("b",)))
    play.do(StartExecution(ticket=3, run="other", epoch=0, program="p", step=0, devices=("b",)))
    play.do(RequestAll(ticket=4, requests={"b": (m.Drop(run="r", epoch=dropped), ())}))
    ended = play.ended()
    assert set(ended) == over
    assert all(isinstance(action.error, PlanError) for action in ended.values())


def test_one_that_is_cancelled_ends_the_others_of_its_plan():
    play = Play("a")
    play.launch(ticket=1, devices=("a",))
    play.launch(ticket=2, devices=("a",), step=1)
    play.do(CancelExecution(ticket=1))
    assert isinstance(play.ended()[2].error, PlanError)


def test_one_that_a_device_has_cancelled_is_waited_for_no_more_and_a_better_cause_comes_first():
    play = Play("a", "b")
    for is_lost, cause in ((False, WorkerFailed), (True, DeviceGone)):
        play.launch(ticket=1)
        assert not play.ended(
            play.receive("a", m.Failed(**place(), cause="cancelled", text="its plan was dropped"))
        )
        if is_lost:
            play.do(
                ConnectionLost(device="b", error=DeviceGone("the connection broke.", device="b"))
            )
        ended = (
            play.ended()
            if is_lost
            else play.ended(play.tick(PEER_LOST_GRACE_S + 0.5, answer=("a", "b")))
        )
        assert isinstance(ended[1].error, cause)


def test_what_waits_behind_one_that_failed_begins():
    play = Play("a")
    play.launch(ticket=1, devices=("a",), stream="train")
    play.do(
        StartExecution(
            ticket=2, run="r", epoch=1, program="p", step=1, devices=("a",), stream="train"
        )
    )
    play.receive("a", m.Failed(**place(), cause="bad-input", text="why"))
    assert play.sent(m.Execute, play.tick(0.2, answer=("a",))) == [
        ("a", m.Execute(**place(epoch=1, step=1)))
    ]


def test_a_lost_device_fails_its_executions_and_the_others_drop_them():
    play = Play("a", "b", "c")
    play.launch(ticket=1)
    play.do(StartExecution(ticket=2, run="other", epoch=0, program="p", step=0, devices=("c",)))
    play.do(ConnectionLost(device="b", error=DeviceGone("the connection broke.", device="b")))
    assert set(play.ended()) == {1}
    assert {device for device, _ in play.sent(m.Drop)} == {"a"}
    assert any(isinstance(action, Notification) and action.device == "b" for action in play.actions)


def test_a_device_that_misses_its_neighbour_is_not_blamed_where_the_neighbour_is_found_dead():
    play = Play("a", "b")
    play.launch(ticket=1)
    assert not play.ended(
        play.receive("a", m.Failed(**place(), cause="peer-lost", text="b is gone"))
    )
    play.do(ConnectionLost(device="b", error=DeviceGone("the connection broke.", device="b")))
    assert play.ended()[1].error.device == "b"


def test_a_lost_neighbour_that_still_talks_to_us_is_told_after_a_while():
    play = Play("a", "b")
    play.launch(ticket=1)
    play.receive("a", m.Failed(**place(), cause="peer-lost", text="no way to b"))
    ended = play.ended(play.tick(PEER_LOST_GRACE_S + 0.5, answer=("a", "b")))
    assert isinstance(ended[1].error, DeviceGone)
    assert "no way to b" in str(ended[1].error)


def test_what_nobody_waits_for_is_dropped_and_refused():
    play = Play("a")
    play.launch(ticket=1, devices=("a",), expects={"a": {"y": 8}})
    play.do(CancelExecution(ticket=1))
    assert play.sent(m.Drop)
    play.receive(
        "a", m.Value(transfer=1, **place(), name="y", shape=(), nbytes=4, chunk_bytes=64), bytes(4)
    )
    assert [x.code for _, x in play.sent(m.Rejected)] == ["unknown-run"]
    assert not play.ended(finish(play, "a"))


@pytest.mark.parametrize(
    ("message", "buffers"),
    [
        (
            m.Value(transfer=1, **place(), name="y", shape=(9,), nbytes=4, chunk_bytes=64),
            (bytes(4),),
        ),
        (m.Value(transfer=1, **place(), name="y", shape=(), nbytes=4, chunk_bytes=64), (bytes(3),)),
        (m.Done(**place()), (b"[[",)),
        (m.Done(**place()), (b'[["x", 1]]',)),
        (m.Done(**place()), (b"[[1, 1, 2]]",)),
        (m.Execute(**place()), ()),
        (m.Welcome(major=1), (STATEMENT,)),
    ],
    ids=[
        "shape and size differ",
        "short chunk",
        "cut timeline",
        "wrong timeline",
        "timeline of what it was not to do",
        "not its to say",
        "welcome twice",
    ],
)
def test_a_device_that_breaks_the_rules_is_cut_off(message, buffers):
    play = Play("a")
    play.launch(ticket=1, devices=("a",), expects={"a": {"y": 8}}, instructions={"a": 1})
    play.receive("a", message, *buffers)
    assert isinstance(play.ended()[1].error, ProtocolError)
    assert play.controller.session("a") is None


def test_a_refused_value_fails_the_step():
    play = Play("a")
    play.launch(ticket=1, devices=("a",), feeds={"a": {"x": FEED}})
    ((_, value),) = play.sent(m.Value)
    play.receive("a", m.Rejected(transfer=value.transfer, code="memory", text="full"))
    assert isinstance(play.ended()[1].error, OutOfMemory)


# --- values that were promised --------------------------------------------------------------------


def done_without_its_value():
    """Both devices have said that they are done, and the value of b is not here."""
    play = Play("a", "b")
    play.tick(1.0, answer=("a", "b"))
    play.launch(ticket=1, expects={"b": {"y": 64 * MIB}})
    finish(play, "a")
    finish(play, "b")
    return play


def test_a_value_that_was_promised_and_does_not_come_ends_the_step_by_name():
    play = done_without_its_value()
    assert not play.ended(play.tick(OWED_S - 1.0, answer=("a", "b")))
    ended = play.ended(play.tick(2.0, answer=("a", "b")))
    assert (type(ended[1].error), ended[1].error.device) == (ProtocolError, "b")
    assert "'y'" in str(ended[1].error)
    assert play.controller.session("b") is not None


def test_a_value_that_stops_half_way_or_that_nobody_wants_is_no_progress():
    play = done_without_its_value()
    play.receive(
        "b", m.Value(transfer=1, **place(), name="y", shape=(2,), nbytes=8, chunk_bytes=4), bytes(4)
    )
    play.tick(OWED_S - 1.0, answer=("a", "b"))
    play.receive(
        "b", m.Value(transfer=2, **place(), name="y", shape=(2,), nbytes=8, chunk_bytes=8), bytes(8)
    )
    play.receive("b", m.Chunk(transfer=9, index=1), bytes(4))
    assert play.ended(play.tick(2.0, answer=("a", "b")))[1].error.device == "b"


@pytest.mark.parametrize("chunk_bytes", [CHUNK_BYTES, MAX_CHUNK_BYTES])
def test_a_large_value_on_a_slow_link_has_all_the_time_it_needs(chunk_bytes):
    play = done_without_its_value()
    nbytes = 64 * MIB
    link_bytes_per_s = 1e6  # 8 Mbit/s
    value = m.Value(
        transfer=1,
        **place(),
        name="y",
        shape=(nbytes // 4,),
        nbytes=nbytes,
        chunk_bytes=chunk_bytes,
    )
    chunks = [
        value,
        *(m.Chunk(transfer=1, index=index) for index in range(1, nbytes // chunk_bytes)),
    ]
    for chunk in chunks:
        assert not play.ended(play.tick(chunk_bytes / link_bytes_per_s, answer=("a", "b")))
        play.receive("b", chunk, bytes(chunk_bytes))
    assert isinstance(play.ended()[1], Resolve)


def test_our_own_standstill_is_not_held_against_who_owes_a_value():
    play = done_without_its_value()
    play.now_s += 3600.0
    assert not play.ended(play.do(Tick()))


def test_a_device_that_is_not_done_owes_nothing():
    play = Play("a")
    play.tick(1.0, answer=("a",))
    play.launch(ticket=1, devices=("a",), expects={"a": {"y": 8}})
    assert not play.ended(play.tick(2 * OWED_S, answer=("a",), busy=True))


def test_a_device_that_is_idle_when_all_others_are_done_owes_the_word_that_it_is():
    play = Play("a", "b")
    play.tick(1.0, answer=("a", "b"))
    play.launch(ticket=1)
    assert not play.ended(play.tick(2 * OWED_S, answer=("a", "b")))  # they may wait for each other
    finish(play, "b")
    assert not play.ended(play.tick(OWED_S - 1, answer=("a", "b")))
    (failed,) = play.ended(play.tick(2, answer=("a", "b"))).values()
    assert (failed.error.device, type(failed.error)) == ("a", ProtocolError)
    assert "step 0 is done" in str(failed.error)


def test_a_device_that_waits_for_a_value_of_ours_owes_nothing():
    play = Play("a")
    play.tick(1.0, answer=("a",))
    play.launch(ticket=1, devices=("a",), feeds={"a": {"x": FEED}})
    assert not play.ended(play.tick(2 * OWED_S, answer=("a",)))


@pytest.mark.parametrize(
    ("message", "most_s"), [(m.Roster(), 10), (m.Commit(run="r"), 60), (m.Prepare(run="r"), 900)]
)
def test_a_device_that_lives_and_does_not_answer_is_given_up(message, most_s):
    play = Play("a", "b")
    play.tick(1.0, answer=("a", "b"))
    play.do(RequestAll(ticket=1, requests={"a": (message, ()), "b": (message, ())}))
    for actions in (play.tick(most_s - 2, answer=("a", "b")), play.do(Tick())):
        assert not play.ended(actions)
    play.now_s += 3600.0  # our own standstill
    assert not play.ended(play.do(Tick()))
    failed = play.ended(play.tick(4, answer=("a", "b")))[1]
    assert type(failed.error) is DeviceGone
    assert f"did not answer {type(message).__name__}" in str(failed.error)
    assert play.controller.session("a") is None


def test_what_comes_with_a_question_has_time_to_go_over():
    play = Play("a")
    play.tick(1.0, answer=("a",))
    document = bytes(10 * LEAST_BYTES_PER_S)
    play.do(RequestAll(ticket=1, requests={"a": (m.Roster(), (document,))}))
    assert not play.ended(play.tick(AT_HAND_S + 9, answer=("a",)))
    assert play.ended(play.tick(2, answer=("a",)))
