"""The controller by tables of events: what it sends, what it resolves, and how everything that goes wrong ends."""

import json

import pytest

from potluck.errors import DeviceGone, OutOfMemory, PlanError, ProtocolError, Refused, RequestFailed, WorkerFailed
from potluck.run.controller import JOIN_S, PEER_LOST_GRACE_S, Controller
from potluck.run.events import (
    Address,
    Connect,
    Deliver,
    Disconnect,
    Forsake,
    Gather,
    Heard,
    Join,
    Launch,
    Leave,
    Lost,
    Received,
    Reject,
    Resolve,
    Send,
    Tick,
)
from potluck.run.traffic import Raw
from potluck_wire import messages as m
from potluck_wire.limits import PULSE_LOST_S
from potluck_wire.version import VERSION

STATEMENT = json.dumps(
    {"name": "a", "memory_bytes": 1000, "backends": {"torch": "2"}, "dtypes": ["float32"], "operators": []}
).encode()


class Play:
    """A controller and a clock; `sent` are the messages of the last event by device."""

    def __init__(self, *devices):
        self.controller, self.now_s, self.actions = Controller(), 100.0, []
        for ticket, device in enumerate(devices, 900):
            self.do(Join(ticket=ticket, device=device, address=Address(host="h", port=1), key="k"))
            self.hear(device, m.Welcome(major=VERSION[0], minor=VERSION[1], name=device), STATEMENT)

    def do(self, event):
        self.actions = self.controller.handle(event, self.now_s)
        return self.actions

    def hear(self, device, message, *buffers):
        return self.do(Received(device=device, message=message, buffers=buffers))

    def tick(self, seconds, answer=()):
        """Let time pass in small steps, pongs from those in `answer`."""
        seen = []
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            seen += self.do(Tick())
            for action in tuple(self.actions):
                if isinstance(action, Send) and isinstance(action.message, m.Ping) and action.device in answer:
                    pong = m.Pong(seq=action.message.seq, clock_s=self.now_s - 50, progress=len(seen))
                    seen += self.hear(action.device, pong)
        return seen

    def launch(self, ticket=1, devices=("a", "b"), step=0, lane="", **more):
        return self.do(
            Launch(ticket=ticket, run="r", epoch=0, program="p", step=step, devices=devices, lane=lane, **more)
        )

    def sent(self, kind, actions=None):
        found = self.actions if actions is None else actions
        return [(x.device, x.message) for x in found if isinstance(x, Send) and isinstance(x.message, kind)]

    def ended(self, actions=None):
        found = self.actions if actions is None else actions
        return {x.ticket: x for x in found if isinstance(x, (Resolve, Reject))}


def place(**more):
    return {"run": "r", "epoch": 0, "program": "p", "step": 0} | more


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_joining_says_hello_and_resolves_with_what_the_device_says():
    play = Play()
    play.do(Join(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    assert isinstance(play.actions[0], Connect)
    assert play.sent(m.Hello) == [("a", m.Hello(major=VERSION[0], minor=VERSION[1], name="notebook"))]
    play.hear("a", m.Welcome(major=VERSION[0], minor=VERSION[1], name="a"), STATEMENT)
    session = play.ended()[1].result
    assert session.capability["memory_bytes"] == 1000
    assert play.controller.session("a") == session


@pytest.mark.parametrize(
    ("message", "buffers", "error"),
    [
        (m.Refused(about=1, code="version", text="speaks 2.0"), (), ProtocolError),
        (m.Refused(about=1, code="busy", text="another"), (), Refused),
        (m.Welcome(major=1), (b"{",), ProtocolError),
        (m.Welcome(major=1), (b"{}",), ProtocolError),
        (m.Goodbye(reason="shutting down"), (), DeviceGone),
    ],
    ids=["other major", "busy", "not JSON", "lacks keys", "goodbye"],
)
def test_a_session_that_is_refused(message, buffers, error):
    play = Play()
    play.do(Join(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    play.hear("a", message, *buffers)
    assert isinstance(play.ended()[1].error, error)
    assert any(isinstance(action, Disconnect) for action in play.actions)
    assert play.controller.session("a") is None


def test_nobody_answering_ends_the_wait_and_a_slow_worker_does_not():
    play = Play()
    play.do(Join(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    play.do(Join(ticket=2, device="b", address=Address(host="h", port=2), key="k"))
    ended = play.ended(play.tick(JOIN_S + 1, answer=("b",)))
    assert isinstance(ended[1].error, DeviceGone)
    assert 2 not in ended
    play.hear("b", m.Welcome(major=1), STATEMENT)
    assert 2 in play.ended()


def test_leaving_says_goodbye():
    play = Play("a")
    play.do(Leave(device="a"))
    assert play.sent(m.Goodbye)
    assert play.controller.session("a") is None


# --- questions to several devices -------------------------------------------------------------------------------------


def test_a_question_resolves_when_all_have_answered():
    play = Play("a", "b")
    order = m.Prepare(run="r", epoch=3)
    play.do(Gather(ticket=1, requests={"a": (order, (b"x",)), "b": (order, (b"y",))}))
    assert len(play.sent(m.Prepare)) == 2
    play.hear("a", m.Prepared(run="r", epoch=2))  # of another epoch
    play.hear("a", m.Prepared(run="r", epoch=3))
    assert not play.ended()
    play.hear("b", m.Prepared(run="r", epoch=3))
    assert set(play.ended()[1].result) == {"a", "b"}


def test_one_refusal_fails_the_question_with_its_device():
    play = Play("a", "b")
    order = m.Prepare(run="r", epoch=3)
    play.do(Gather(ticket=1, requests={"a": (order, ()), "b": (order, ())}))
    text = "700 bytes needed, 300 bytes available"
    play.hear("b", m.Refused(about=10, code="memory", text=text, run="r", epoch=3))
    error = play.ended()[1].error
    assert isinstance(error, OutOfMemory)
    assert (error.device, error.facts["needed_bytes"], error.facts["available_bytes"]) == ("b", 700, 300)


def test_text_from_a_device_cannot_write_to_the_terminal():
    play = Play("a")
    play.do(Gather(ticket=1, requests={"a": (m.Commit(run="r"), ())}))
    play.hear("a", m.Refused(about=12, code="state", text="\x1b[2J gone", run="r"))
    assert "\x1b" not in str(play.ended()[1].error)


def test_asking_a_device_without_a_session_fails_at_once():
    play = Play("a")
    play.do(Gather(ticket=1, requests={"a": (m.Commit(), ()), "b": (m.Commit(), ())}))
    assert play.ended()[1].error.device == "b"
    assert not play.sent(m.Commit)


def test_asking_a_device_that_went_says_why_it_went():
    play = Play("a")
    play.do(Lost(device="a", error=DeviceGone("the connection broke.", device="a")))
    play.do(Gather(ticket=1, requests={"a": (m.Commit(), ())}))
    assert str(play.ended()[1].error) == "a: the connection broke."


@pytest.mark.parametrize(("dropped", "is_over"), [(-1, True), (3, True), (2, False)])
def test_a_plan_that_is_dropped_while_it_is_loaded_is_waited_for_no_more(dropped, is_over):
    play = Play("a", "b")
    order = m.Prepare(run="r", epoch=3)
    play.do(Gather(ticket=1, requests={"a": (order, ()), "b": (order, ())}))
    play.do(Gather(ticket=2, requests={"b": (m.Drop(run="r", epoch=dropped), ())}))
    errors = [action.error for action in play.ended().values()]
    assert [type(error) for error in errors] == [PlanError] * is_over
    play.hear("b", m.Dropped(run="r", epoch=dropped))
    assert list(play.ended()) == [2]


# --- executions -------------------------------------------------------------------------------------------------------

FEED = Raw(dtype="float32", shape=(2,), data=bytes(8))


def finish(play, device, *, step=0, start_s=0.0):
    rows = json.dumps([[0, start_s, start_s + 1]]).encode()
    return play.hear(device, m.Done(**place(step=step), busy_s=0.5, peak_bytes=7), rows)


def test_a_step_feeds_executes_and_collects():
    play = Play("a", "b")
    play.tick(1.0, answer=("a", "b"))  # their clocks are 50 s behind ours
    play.launch(feeds={"a": {"x": FEED}}, expects={"b": ("loss",)})
    assert play.sent(m.Execute) == [(d, m.Execute(**place())) for d in ("a", "b")]
    ((device, value),) = play.sent(m.Value)
    assert (device, value.name, value.nbytes) == ("a", "x", 8)
    play.hear("a", m.Credit(transfer=value.transfer, received_bytes=8, done=True))
    finish(play, "a")
    finish(play, "b", start_s=10.0)
    assert not play.ended()
    loss = m.Value(transfer=1, **place(), name="loss", shape=(), nbytes=4, chunk_bytes=64)
    play.hear("b", loss, b"\0\0\x80?")
    assert play.sent(m.Credit) == [("b", m.Credit(transfer=1, received_bytes=4, done=True))]
    execution = play.ended()[1].result
    assert bytes(execution.outputs["b", "loss"].data) == b"\0\0\x80?"
    assert execution.timelines["b"].rows[0][1:] == pytest.approx((60.0, 61.0), abs=1e-6)
    assert execution.timelines["a"].peak_bytes == 7


def join(*devices, minor):
    """Devices of a minor version."""
    play = Play()
    for device in devices:
        play.do(Join(ticket=1, device=device, address=Address(host="h", port=1), key="k"))
        play.hear(device, m.Welcome(major=1, minor=minor, name=device), STATEMENT)
    return play


def test_serial_steps_wait_for_each_other_on_each_device_alone():
    play = join("a", "b", minor=1)
    play.launch(ticket=1, step=0, lane="train")
    play.launch(ticket=2, step=1, lane="train", feeds={"a": {"x": FEED}})
    assert not play.sent(m.Execute)
    assert play.sent(m.Value)  # its inputs travel already
    finish(play, "a")
    assert play.sent(m.Execute) == [("a", m.Execute(**place(step=1)))]
    finish(play, "b")
    assert 1 in play.ended()
    assert play.sent(m.Execute) == [("b", m.Execute(**place(step=1)))]


def test_a_device_is_told_of_one_step_more_and_keeps_the_order_itself():
    play = Play("a", "b")
    play.launch(ticket=1, step=0, lane="train")
    play.launch(ticket=2, step=1, lane="train")
    assert play.sent(m.Execute) == [(d, m.Execute(**place(step=1), after_step=0)) for d in ("a", "b")]
    play.launch(ticket=3, step=2, lane="train")
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
    play.launch(ticket=1, devices=("a",), lane="train")
    play.do(Launch(ticket=2, run="r", epoch=0, program="q", step=1, devices=("a",), lane="train"))
    assert not play.sent(m.Execute)
    finish(play, "a")
    assert play.sent(m.Execute) == [("a", m.Execute(run="r", epoch=0, program="q", step=1))]


def test_devices_that_take_turns_begin_a_step_at_one_moment_by_their_own_clocks():
    play = Play("a", "b")
    play.tick(2.0, answer=("a", "b"))  # pings are answered by clocks that are 50 s behind
    for ticket, step in ((1, 0), (2, 1)):
        play.launch(ticket=ticket, step=step, lane="train", together=True)
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


@pytest.mark.parametrize(
    ("cause", "error"), [("worker-crashed", WorkerFailed), ("out-of-memory", OutOfMemory), ("bad-input", WorkerFailed)]
)
def test_a_failure_ends_the_run_everywhere_with_its_cause(cause, error):
    play = Play("a", "b")
    play.launch(ticket=1)
    play.launch(ticket=2, step=1)
    play.hear("b", m.Failed(**place(), instruction=4, cause=cause, text="why"))
    ended = play.ended()
    assert set(ended) == {1, 2}
    assert all(isinstance(x.error, error) and x.error.device == "b" and "why" in str(x.error) for x in ended.values())
    assert {device for device, _ in play.sent(m.Drop)} == {"a", "b"}


@pytest.mark.parametrize("cause", ["arithmetic", "bad-input"])
def test_a_request_that_fails_over_its_values_ends_alone(cause):
    play = Play("a", "b", "c")
    devices = "a", "b", "c"
    play.launch(ticket=1, devices=devices, request=True, feeds={"a": {"x": FEED}}, expects={"c": ("y",)})
    play.launch(ticket=2, devices=devices, request=True, step=1)
    finish(play, "a")
    play.hear("b", m.Failed(**place(), instruction=4, cause=cause, text="why"))
    assert set(play.ended()) == {1}
    error = play.ended()[1].error
    assert (type(error), error.device, error.facts["instruction"]) == (RequestFailed, "b", 4)
    assert play.sent(m.Abort) == [("b", m.Abort(**place())), ("c", m.Abort(**place()))]  # a is done
    assert not play.sent(m.Drop)
    assert not play.hear("c", m.Failed(**place(), cause="cancelled", text="it was aborted"))
    play.hear("c", m.Value(transfer=1, **place(), name="y", shape=(), nbytes=4, chunk_bytes=64), bytes(4))
    assert [x.code for _, x in play.sent(m.Rejected)] == ["unknown-run"]
    for device in devices:
        finish(play, device, step=1)
    assert isinstance(play.ended()[2], Resolve)


@pytest.mark.parametrize(
    ("minor", "request_", "cause"),
    [(2, True, "arithmetic"), (3, False, "arithmetic"), (3, True, "out-of-memory"), (3, True, "worker-crashed")],
    ids=["a device does not know Abort", "a step of training", "no memory", "a crash"],
)
def test_any_other_failure_ends_the_run(minor, request_, cause):
    play = join("a", "b", minor=minor)
    for ticket, step in ((1, 0), (2, 1)):
        play.launch(ticket=ticket, step=step, request=request_)
    play.hear("b", m.Failed(**place(), cause=cause, text="why"))
    assert set(play.ended()) == {1, 2}
    assert not any(isinstance(action.error, RequestFailed) for action in play.ended().values())
    assert not play.sent(m.Abort)
    assert {device for device, _ in play.sent(m.Drop)} == {"a", "b"}


@pytest.mark.parametrize(("dropped", "over"), [(-1, {1, 2}), (0, {1}), (3, {2})])
def test_what_is_dropped_while_it_is_executed_is_waited_for_no_more(dropped, over):
    """A failed request ends the run with a drop; a request of the plan before must not wait for ever."""
    play = Play("a", "b")
    play.launch(ticket=1)
    play.do(Launch(ticket=2, run="r", epoch=3, program="p", step=1, devices=("b",)))
    play.do(Launch(ticket=3, run="other", epoch=0, program="p", step=0, devices=("b",)))
    play.do(Gather(ticket=4, requests={"b": (m.Drop(run="r", epoch=dropped), ())}))
    ended = play.ended()
    assert set(ended) == over
    assert all(isinstance(action.error, PlanError) for action in ended.values())


def test_one_that_is_forsaken_ends_the_others_of_its_plan():
    play = Play("a")
    play.launch(ticket=1, devices=("a",))
    play.launch(ticket=2, devices=("a",), step=1)
    play.do(Forsake(ticket=1))
    assert isinstance(play.ended()[2].error, PlanError)


def test_one_that_a_device_has_cancelled_is_waited_for_no_more_and_a_better_cause_comes_first():
    play = Play("a", "b")
    for told, cause in ((False, WorkerFailed), (True, DeviceGone)):
        play.launch(ticket=1)
        assert not play.ended(play.hear("a", m.Failed(**place(), cause="cancelled", text="its plan was dropped")))
        if told:
            play.do(Lost(device="b", error=DeviceGone("the connection broke.", device="b")))
        ended = play.ended() if told else play.ended(play.tick(PEER_LOST_GRACE_S + 0.5, answer=("a", "b")))
        assert isinstance(ended[1].error, cause)


def test_what_waits_behind_one_that_failed_begins():
    play = Play("a")
    play.launch(ticket=1, devices=("a",), lane="train")
    play.do(Launch(ticket=2, run="r", epoch=1, program="p", step=1, devices=("a",), lane="train"))
    play.hear("a", m.Failed(**place(), cause="bad-input", text="why"))
    assert play.sent(m.Execute, play.tick(0.2, answer=("a",))) == [("a", m.Execute(**place(epoch=1, step=1)))]


def test_a_lost_device_fails_its_executions_and_the_others_drop_them():
    play = Play("a", "b", "c")
    play.launch(ticket=1)
    play.do(Launch(ticket=2, run="other", epoch=0, program="p", step=0, devices=("c",)))
    play.do(Lost(device="b", error=DeviceGone("the connection broke.", device="b")))
    assert set(play.ended()) == {1}
    assert {device for device, _ in play.sent(m.Drop)} == {"a"}
    assert any(isinstance(action, Heard) and action.device == "b" for action in play.actions)


def test_a_device_that_misses_its_neighbour_is_not_blamed_where_the_neighbour_is_found_dead():
    play = Play("a", "b")
    play.launch(ticket=1)
    assert not play.ended(play.hear("a", m.Failed(**place(), cause="peer-lost", text="b is gone")))
    play.do(Lost(device="b", error=DeviceGone("the connection broke.", device="b")))
    assert play.ended()[1].error.device == "b"


def test_a_lost_neighbour_that_still_talks_to_us_is_told_after_a_while():
    play = Play("a", "b")
    play.launch(ticket=1)
    play.hear("a", m.Failed(**place(), cause="peer-lost", text="no way to b"))
    ended = play.ended(play.tick(PEER_LOST_GRACE_S + 0.5, answer=("a", "b")))
    assert isinstance(ended[1].error, DeviceGone)
    assert "no way to b" in str(ended[1].error)


def test_bytes_for_measuring_resolve_with_the_seconds_until_all_are_there():
    play = Play("a")
    play.do(Deliver(ticket=7, device="a", nbytes=10))
    ((_, value),) = play.sent(m.Value)
    assert (value.run, value.program, value.nbytes) == ("", "probe", 10)
    play.now_s += 0.25
    play.hear("a", m.Credit(transfer=value.transfer, received_bytes=10, done=True))
    assert play.ended()[7].result == 0.25


def test_bytes_for_a_device_that_goes_or_is_not_there_fail():
    play = Play("a")
    play.do(Deliver(ticket=7, device="a", nbytes=10))
    play.do(Lost(device="a", error=DeviceGone("gone", device="a")))
    assert isinstance(play.ended()[7].error, DeviceGone)
    play.do(Deliver(ticket=8, device="a", nbytes=10))
    assert isinstance(play.ended()[8].error, DeviceGone)


def test_bytes_for_a_device_that_does_not_take_them_fail():
    play = Play("a")
    play.do(Deliver(ticket=7, device="a", nbytes=10))
    ((_, value),) = play.sent(m.Value)
    play.hear("a", m.Rejected(transfer=value.transfer, code="memory", text="too many at once"))
    assert isinstance(play.ended()[7].error, OutOfMemory)


def test_a_reading_is_told_by_our_clock():
    play = Play("a")
    play.tick(1.0, answer=("a",))  # its clock is 50 s behind
    play.hear("a", m.Reading(at_s=60.0, joules=3.0))
    ((_, heard),) = [(x.device, x.message) for x in play.actions if isinstance(x, Heard)]
    assert heard.at_s == pytest.approx(110.0)


def test_silence_is_noticed():
    play = Play("a", "b")
    play.tick(1.0, answer=("a", "b"))
    play.launch(ticket=1)
    ended = play.ended(play.tick(PULSE_LOST_S + 0.5, answer=("a",)))
    assert ended[1].error.device == "b"
    assert "no sign of life" in str(ended[1].error)


def test_our_own_standstill_is_not_taken_for_silence():
    play = Play("a")
    play.tick(1.0, answer=("a",))
    play.now_s += 60.0
    play.do(Tick())
    assert play.controller.session("a") is not None


def test_a_busy_worker_without_progress_hangs():
    play = Play("a")
    play.launch(ticket=1, devices=("a",))
    ended = {}
    for _ in range(700):
        play.now_s += 0.1
        ended |= play.ended(play.do(Tick()))
        for _, ping in play.sent(m.Ping):
            play.hear("a", m.Pong(seq=ping.seq, clock_s=0.0, progress=3, busy=True))
    assert isinstance(ended[1].error, WorkerFailed)
    assert ended[1].error.facts["cause"] == "worker-hung"
    assert play.controller.session("a") is not None


def test_what_nobody_waits_for_is_dropped_and_refused():
    play = Play("a")
    play.launch(ticket=1, devices=("a",), expects={"a": ("y",)})
    play.do(Forsake(ticket=1))
    assert play.sent(m.Drop)
    play.hear("a", m.Value(transfer=1, **place(), name="y", shape=(), nbytes=4, chunk_bytes=64), bytes(4))
    assert [x.code for _, x in play.sent(m.Rejected)] == ["unknown-run"]
    assert not play.ended(finish(play, "a"))


@pytest.mark.parametrize(
    ("message", "buffers"),
    [
        (m.Value(transfer=1, **place(), name="y", shape=(9,), nbytes=4, chunk_bytes=64), (bytes(4),)),
        (m.Value(transfer=1, **place(), name="y", shape=(), nbytes=4, chunk_bytes=64), (bytes(3),)),
        (m.Done(**place()), (b"[[",)),
        (m.Done(**place()), (b'[["x", 1]]',)),
        (m.Execute(**place()), ()),
        (m.Welcome(major=1), (STATEMENT,)),
    ],
    ids=["shape and size differ", "short chunk", "cut timeline", "wrong timeline", "not its to say", "welcome twice"],
)
def test_a_device_that_breaks_the_rules_is_cut_off(message, buffers):
    play = Play("a")
    play.launch(ticket=1, devices=("a",), expects={"a": ("y",)})
    play.hear("a", message, *buffers)
    assert isinstance(play.ended()[1].error, ProtocolError)
    assert play.controller.session("a") is None


def test_a_refused_value_fails_the_step():
    play = Play("a")
    play.launch(ticket=1, devices=("a",), feeds={"a": {"x": FEED}})
    ((_, value),) = play.sent(m.Value)
    play.hear("a", m.Rejected(transfer=value.transfer, code="memory", text="full"))
    assert isinstance(play.ended()[1].error, OutOfMemory)
