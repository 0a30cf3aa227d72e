"""Sends that wait for their release time or keep a pace: hints, which delay and never stop
anything.
"""

import json

import pytest
from tests.agent.core.core_driver import MEMBER_KEY, Talk, recv, send

from potluck_agent.core.events import Span, ToPeer
from potluck_agent.core.execution import MAX_HOLD_S
from potluck_agent.core.send_queue import CATCH_UP_S, SendQueue, Transfer
from potluck_wire.limits import CHUNK_BYTES
from potluck_wire.messages import Commit, Credit, Execute, Prepare, Value

NEAR, FAR = "N" * 40, "F" * 40


def outgoing():
    made = SendQueue()
    made.reach(NEAR)
    made.reach(FAR)
    return made


def sending(name, *, nbytes=8, key=NEAR, priority=0, **options):
    value = Value(name=name, dtype="uint8", shape=(nbytes,), nbytes=nbytes)
    place = Span(arena="zeros", offset=0, nbytes=nbytes)
    return Transfer(key=key, value=value, place=place, priority=priority, about=name, **options)


def names(sent):
    return [action.message.name for action in sent if isinstance(action.message, Value)]


def test_a_value_waits_for_its_release_and_asks_to_be_woken_then():
    out = outgoing()
    out.add(sending("held", release_s=5.0), 1.0)
    out.add(sending("free", priority=9), 1.0)
    assert names(out.pump(1.0)) == ["free"]
    assert out.wake_s() == 5.0
    assert out.busy
    assert names(out.pump(4.99)) == []
    assert names(out.pump(5.0)) == ["held"]
    assert out.wake_s() is None


def test_values_that_are_late_leave_in_the_order_of_priorities():
    out = outgoing()
    for name, priority in (("third", 3), ("first", 1), ("second", 2)):
        out.add(sending(name, priority=priority, release_s=1.0), 7.0)
    assert names(out.pump(7.0)) == ["first", "second", "third"]


@pytest.mark.parametrize("how", ["cancel", "forget"])
def test_a_held_value_can_be_taken_back(how):
    out = outgoing()
    out.add(sending("held", release_s=5.0), 1.0)
    out.add(sending("other", key=FAR, release_s=6.0), 1.0)
    if how == "cancel":
        out.cancel({"held"})
    else:
        assert list(out.forget(NEAR)) == ["held"]
    assert out.wake_s() == 6.0
    assert names(out.pump(9.0)) == ["other"]


def test_a_pace_leaves_room_for_what_is_more_urgent():
    out, chunk_s = outgoing(), CHUNK_BYTES / 1e6
    out.add(sending("bulky", nbytes=4 * CHUNK_BYTES, priority=5, pace_bytes_per_s=1e6), 0.0)
    assert names(out.pump(0.0)) == ["bulky"]
    assert out.wake_s() == pytest.approx(chunk_s)
    out.add(sending("urgent", key=FAR, priority=1), 0.0)
    assert out.pump(0.01) == []  # the first chunk is still on the medium
    now_s = out.wake_s()
    sent = out.pump(now_s)
    assert names(sent) == ["urgent"]
    assert len(sent) == 2  # and then the bulky one's second chunk


def test_a_paced_value_takes_its_time_and_no_longer_where_the_loop_is_late():
    out, now_s = outgoing(), 0.0
    out.add(sending("bulky", nbytes=8 * CHUNK_BYTES, pace_bytes_per_s=1e6), 0.0)
    n_chunks = len(out.pump(0.0))
    while out.wake_s() is not None and n_chunks < 8:
        now_s = out.wake_s() + 0.02
        n_chunks += len(out.pump(now_s))
    whole_s = 7 * CHUNK_BYTES / 1e6
    assert whole_s - CATCH_UP_S <= now_s <= whole_s + 0.02


def test_a_pace_holds_for_values_that_come_after_a_rest():
    out = outgoing()
    for name in ("first", "second"):
        out.add(sending(name, nbytes=10_000, pace_bytes_per_s=1e6), 5.0)
    assert names(out.pump(5.0)) == ["first"]
    assert out.wake_s() == pytest.approx(5.01)
    assert names(out.pump(5.01)) == ["second"]


def test_a_pace_is_no_brake_where_all_is_there_already():
    out = outgoing()
    for name in ("first", "second"):
        out.add(sending(name, nbytes=10_000, pace_bytes_per_s=1e3), 5.0)
    (first,) = out.pump(5.0)
    out.credited(
        NEAR, Credit(transfer=first.message.transfer, received_bytes=10_000, done=True), 5.1
    )
    assert names(out.pump(5.1)) == ["second"]


def execute(talk, begin_s):
    """A value of home's is passed on to `phone`, 3 s after the common begin."""
    program = {"name": "p", "instructions": [recv("x"), send("x", "phone")], "release_s": [0, 3.0]}
    document = {"segments": [], "programs": [program]}
    talk.begin().roster()
    talk.receive(Prepare(run="r", epoch=1), json.dumps(document).encode())
    talk.receive(Commit(run="r", epoch=1))
    talk.receive(Execute(run="r", epoch=1, program="p", begin_s=begin_s))
    x = Value(
        transfer=1, run="r", epoch=1, program="p", name="x", shape=(2,), nbytes=8, chunk_bytes=64
    )
    return talk.receive(x, b"12345678")


def sent(actions):
    return [
        a
        for a in actions
        if isinstance(a, ToPeer) and a.key == MEMBER_KEY and isinstance(a.message, Value)
    ]


@pytest.mark.parametrize(
    ("begin_s", "waits_s"),
    [
        (0.0, 0.0),  # nobody knows when the step began
        (9.0, 2.0),
        (6.0, 0.0),  # it is late already
        (1e6, MAX_HOLD_S),  # a clock that is wrong
    ],
)
def test_a_send_waits_until_its_release_but_never_for_long(begin_s, waits_s):
    talk = Talk()
    actions = execute(talk, begin_s)
    if waits_s:
        assert not sent(actions)
        assert talk.core.wake_s() == talk.now_s + waits_s
        assert not sent(talk.tick(waits_s - 0.01))
        actions = talk.tick(0.01)
    assert len(sent(actions)) == 1
