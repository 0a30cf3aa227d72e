"""Executions in the controller by tables of events: who is told what when, and in which order steps
follow.
"""

import pytest
from tests.sdk.sessions.controller_driver import FEED, Play, finish, join, place

from potluck.sessions.events import StartExecution
from potluck_wire import messages as m


def test_a_step_feeds_executes_and_collects():
    play = Play("a", "b")
    play.tick(1.0, answer=("a", "b"))  # their clocks are 50 s behind ours
    play.launch(feeds={"a": {"x": FEED}}, expects={"b": {"loss": 8}})
    assert play.sent(m.Execute) == [(d, m.Execute(**place())) for d in ("a", "b")]
    ((device, value),) = play.sent(m.Value)
    assert (device, value.name, value.nbytes) == ("a", "x", 8)
    play.receive("a", m.Credit(transfer=value.transfer, received_bytes=8, done=True))
    finish(play, "a")
    finish(play, "b", start_s=10.0)
    assert not play.ended()
    loss = m.Value(transfer=1, **place(), name="loss", shape=(), nbytes=4, chunk_bytes=64)
    play.receive("b", loss, b"\0\0\x80?")
    assert play.sent(m.Credit) == [("b", m.Credit(transfer=1, received_bytes=4, done=True))]
    execution = play.ended()[1].result
    assert bytes(execution.outputs["b", "loss"].data) == b"\0\0\x80?"
    assert execution.timelines["b"].rows[0][1:] == pytest.approx((60.0, 61.0), abs=1e-6)
    assert execution.timelines["a"].peak_bytes == 7


def test_serial_steps_wait_for_each_other_on_each_device_alone():
    play = join("a", "b", minor=1)
    play.launch(ticket=1, step=0, stream="train")
    play.launch(ticket=2, step=1, stream="train", feeds={"a": {"x": FEED}})
    assert not play.sent(m.Execute)
    assert play.sent(m.Value)  # its inputs travel already
    finish(play, "a")
    assert play.sent(m.Execute) == [("a", m.Execute(**place(step=1)))]
    finish(play, "b")
    assert 1 in play.ended()
    assert play.sent(m.Execute) == [("b", m.Execute(**place(step=1)))]


def test_a_device_is_told_of_one_step_more_and_keeps_the_order_itself():
    play = Play("a", "b")
    play.launch(ticket=1, step=0, stream="train")
    play.launch(ticket=2, step=1, stream="train")
    assert play.sent(m.Execute) == [
        (d, m.Execute(**place(step=1), after_step=0)) for d in ("a", "b")
    ]
    play.launch(ticket=3, step=2, stream="train")
    assert not play.sent(m.Execute)
    finish(play, "a")
    assert play.sent(m.Execute) == [("a", m.Execute(**place(step=2), after_step=1))]
    finish(play, "a", step=1)
    finish(play, "a", step=2)
    assert not play.ended()
    for step, ticket in enumerate((1, 2, 3)):
        finish(play, "b", step=step)
        assert list(play.ended()) == [ticket]


def test_a_step_of_another_program_waits_for_our_word():
    play = Play("a")
    play.launch(ticket=1, devices=("a",), stream="train")
    play.do(
        StartExecution(
            ticket=2, run="r", epoch=0, program="q", step=1, devices=("a",), stream="train"
        )
    )
    assert not play.sent(m.Execute)
    finish(play, "a")
    assert play.sent(m.Execute) == [("a", m.Execute(run="r", epoch=0, program="q", step=1))]


def test_devices_that_take_turns_begin_a_step_at_one_moment_by_their_own_clocks():
    play = Play("a", "b")
    play.tick(2.0, answer=("a", "b"))  # pings are answered by clocks that are 50 s behind
    for ticket, step in ((1, 0), (2, 1)):
        play.launch(ticket=ticket, step=step, stream="train", together=True)
        if step == 0:
            begins = play.sent(m.Execute)
            assert [device for device, _ in begins] == ["a", "b"]
            assert [order.begin_s for _, order in begins] == [pytest.approx(play.now_s - 50)] * 2
    assert not play.sent(m.Execute)
    finish(play, "a")
    assert not play.sent(m.Execute)  # b is not ready for the next step yet
    finish(play, "b")
    assert [device for device, _ in play.sent(m.Execute)] == ["a", "b"]


def test_of_requests_at_once_only_the_first_takes_turns():
    play = Play("a", "b")
    play.tick(2.0, answer=("a", "b"))
    begins = []
    for ticket in (1, 2):
        play.launch(ticket=ticket, step=ticket, together=True, request=True)
        begins.append([order.begin_s != 0.0 for _, order in play.sent(m.Execute)])
    assert begins == [[True, True], [False, False]]
    for step in (1, 2):
        finish(play, "a", step=step)
        finish(play, "b", step=step)
    play.launch(ticket=3, step=3, together=True, request=True)
    assert all(order.begin_s for _, order in play.sent(m.Execute))


def test_a_device_of_an_older_version_is_not_told_when_a_step_begins():
    play = join("a", minor=0)
    play.tick(2.0, answer=("a",))
    play.launch(devices=("a",), together=True)
    assert play.sent(m.Execute) == [("a", m.Execute(**place()))]


def test_other_executions_overlap():
    play = Play("a", "b")
    play.launch(ticket=1, step=0)
    play.launch(ticket=2, step=1)
    assert len(play.sent(m.Execute)) == 2
