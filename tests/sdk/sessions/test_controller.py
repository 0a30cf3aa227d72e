"""The controller by tables of events: what it sends, what it resolves, and how everything that goes
wrong ends.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.sessions.controller_driver import FEED, STATEMENT, Play, finish

from potluck.errors import DeviceGone, OutOfMemory, PlanError, ProtocolError, Refused, WorkerFailed
from potluck.sessions.controller import JOIN_S, WELCOME_S
from potluck.sessions.events import (
    Address,
    CloseSession,
    Connect,
    ConnectionLost,
    Disconnect,
    FeedExecution,
    Notification,
    OpenSession,
    RequestAll,
    Tick,
    UplinkProbe,
)
from potluck.sessions.executions import FIRST_HUNG_S
from potluck.sessions.heartbeat import Heartbeat
from potluck.sessions.indirect_probes import UNREACHED_S
from potluck_agent.core.outbox import Settings
from potluck_wire import messages as m
from potluck_wire.limits import HUNG_S, PULSE_LOST_S
from potluck_wire.version import VERSION

AGENT = Settings(name="a", key="k", memory_bytes=1, inbound_bytes=1, outbound_bytes=1)

# --- sessions -------------------------------------------------------------------------------------


def test_joining_says_hello_and_resolves_with_what_the_device_says():
    play = Play()
    play.do(OpenSession(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    assert isinstance(play.actions[0], Connect)
    assert play.sent(m.Hello) == [
        ("a", m.Hello(major=VERSION[0], minor=VERSION[1], name="notebook"))
    ]
    play.receive("a", m.Welcome(major=VERSION[0], minor=VERSION[1], name="a"), STATEMENT)
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
    play.do(OpenSession(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    play.receive("a", message, *buffers)
    assert isinstance(play.ended()[1].error, error)
    assert any(isinstance(action, Disconnect) for action in play.actions)
    assert play.controller.session("a") is None


def test_nobody_answering_ends_the_wait_and_a_slow_worker_does_not():
    play = Play()
    play.do(OpenSession(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    play.do(OpenSession(ticket=2, device="b", address=Address(host="h", port=2), key="k"))
    ended = play.ended(play.tick(JOIN_S + 1, answer=("b",)))
    assert isinstance(ended[1].error, DeviceGone)
    assert 2 not in ended
    play.receive("b", m.Welcome(major=1), STATEMENT)
    assert 2 in play.ended()


def test_who_lives_and_never_welcomes_is_waited_for_as_long_as_a_worker_may_take_to_start():
    play = Play()
    play.do(OpenSession(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    assert 1 not in play.ended(play.tick(AGENT.start_s + JOIN_S, answer=("a",)))
    error = play.ended(play.tick(WELCOME_S, answer=("a",)))[1].error
    assert isinstance(error, DeviceGone)
    assert "did not answer Hello" in str(error)
    assert play.controller.session("a") is None


def test_runs_of_a_process_before_end_at_the_first_meeting_and_at_no_later_one():
    play = Play()
    join = OpenSession(ticket=1, device="a", address=Address(host="h", port=1), key="k")
    types = []
    for _ in range(2):  # the second time its connection broke
        types += [type(message) for _, message in play.sent(m.Goodbye | m.Hello, play.do(join))]
        play.receive("a", m.Welcome(major=1), STATEMENT)
    assert types == [m.Goodbye, m.Hello, m.Hello]


def test_leaving_says_goodbye():
    play = Play("a")
    play.do(CloseSession(device="a"))
    assert play.sent(m.Goodbye)[-1] == ("a", m.Goodbye(reason="closed"))
    assert play.controller.session("a") is None


# --- questions to several devices -----------------------------------------------------------------


def test_a_question_resolves_when_all_have_answered():
    play = Play("a", "b")
    order = m.Prepare(run="r", epoch=3)
    play.do(RequestAll(ticket=1, requests={"a": (order, (b"x",)), "b": (order, (b"y",))}))
    assert len(play.sent(m.Prepare)) == 2
    play.receive("a", m.Prepared(run="r", epoch=2))  # of another epoch
    play.receive("a", m.Prepared(run="r", epoch=3))
    assert not play.ended()
    play.receive("b", m.Prepared(run="r", epoch=3))
    assert set(play.ended()[1].result) == {"a", "b"}


def test_one_refusal_fails_the_question_with_its_device():
    play = Play("a", "b")
    order = m.Prepare(run="r", epoch=3)
    play.do(RequestAll(ticket=1, requests={"a": (order, ()), "b": (order, ())}))
    sizes = {"needed_bytes": 700, "available_bytes": 300}
    play.receive(
        "b", m.Refused(about=10, code="memory", text="too large", run="r", epoch=3, **sizes)
    )
    error = play.ended()[1].error
    assert isinstance(error, OutOfMemory)
    assert (error.device, error.facts["needed_bytes"], error.facts["available_bytes"]) == (
        "b",
        700,
        300,
    )


@pytest.mark.parametrize("missing", [1, 1000, 60_000, 3 * 2**20])
def test_what_is_needed_never_reads_like_what_is_there(missing):
    play, available = Play("a"), 12_638_000_000
    play.do(RequestAll(ticket=1, requests={"a": (m.Prepare(run="r", epoch=3), ())}))
    sizes = {"needed_bytes": available + missing, "available_bytes": available}
    play.receive(
        "a", m.Refused(about=10, code="memory", text="too large", run="r", epoch=3, **sizes)
    )
    needed, present = re.search(
        "fit: (.+) needed, (.+) available", str(play.ended()[1].error)
    ).groups()
    assert needed != present


def test_the_words_of_a_device_are_for_people_and_not_read_back():
    play = Play("a")
    play.do(RequestAll(ticket=1, requests={"a": (m.Prepare(run="r", epoch=3), ())}))
    text = "7 bytes needed, 3 bytes available"  # all that an agent before 1.6 says
    play.receive("a", m.Refused(about=10, code="memory", text=text, run="r", epoch=3))
    error = play.ended()[1].error
    assert isinstance(error, OutOfMemory)
    assert text in str(error)
    assert error.facts.keys().isdisjoint({"needed_bytes", "available_bytes"})


def test_text_from_a_device_cannot_write_to_the_terminal():
    play = Play("a")
    play.do(RequestAll(ticket=1, requests={"a": (m.Commit(run="r"), ())}))
    play.receive("a", m.Refused(about=12, code="state", text="\x1b[2J gone", run="r"))
    assert "\x1b" not in str(play.ended()[1].error)


def test_asking_a_device_without_a_session_fails_at_once():
    play = Play("a")
    play.do(RequestAll(ticket=1, requests={"a": (m.Commit(), ()), "b": (m.Commit(), ())}))
    assert play.ended()[1].error.device == "b"
    assert not play.sent(m.Commit)


def test_asking_a_device_that_went_says_why_it_went():
    play = Play("a")
    play.do(ConnectionLost(device="a", error=DeviceGone("the connection broke.", device="a")))
    play.do(RequestAll(ticket=1, requests={"a": (m.Commit(), ())}))
    assert str(play.ended()[1].error) == "a: the connection broke."


@pytest.mark.parametrize(("dropped", "is_over"), [(-1, True), (3, True), (2, False)])
def test_a_plan_that_is_dropped_while_it_is_loaded_is_waited_for_no_more(dropped, is_over):
    play = Play("a", "b")
    order = m.Prepare(run="r", epoch=3)
    play.do(RequestAll(ticket=1, requests={"a": (order, ()), "b": (order, ())}))
    play.do(RequestAll(ticket=2, requests={"b": (m.Drop(run="r", epoch=dropped), ())}))
    errors = [action.error for action in play.ended().values()]
    assert [type(error) for error in errors] == [PlanError] * is_over
    play.receive("b", m.Dropped(run="r", epoch=dropped))
    assert list(play.ended()) == [2]


# --- measuring, readings and silence --------------------------------------------------------------


def test_bytes_for_measuring_resolve_with_the_seconds_until_all_are_there():
    play = Play("a")
    play.do(UplinkProbe(ticket=7, device="a", nbytes=10))
    ((_, value),) = play.sent(m.Value)
    assert (value.run, value.program, value.nbytes) == ("", "probe", 10)
    play.now_s += 0.25
    play.receive("a", m.Credit(transfer=value.transfer, received_bytes=10, done=True))
    assert play.ended()[7].result == 0.25


def test_bytes_for_a_device_that_goes_or_is_not_there_fail():
    play = Play("a")
    play.do(UplinkProbe(ticket=7, device="a", nbytes=10))
    play.do(ConnectionLost(device="a", error=DeviceGone("gone", device="a")))
    assert isinstance(play.ended()[7].error, DeviceGone)
    play.do(UplinkProbe(ticket=8, device="a", nbytes=10))
    assert isinstance(play.ended()[8].error, DeviceGone)


def test_two_values_for_measuring_resolve_each_its_own():
    play, transfers = Play("a"), {}
    for ticket in (8, 9):
        play.do(UplinkProbe(ticket=ticket, device="a", nbytes=10))
        ((_, value),) = play.sent(m.Value)
        transfers[ticket] = value.transfer
        play.now_s += 1.0
    for ticket, seconds in ((9, 1.0), (8, 2.0)):
        play.receive("a", m.Credit(transfer=transfers[ticket], received_bytes=10, done=True))
        assert {ended: action.result for ended, action in play.ended().items()} == {ticket: seconds}


def test_bytes_for_a_device_that_does_not_take_them_fail():
    play = Play("a")
    play.do(UplinkProbe(ticket=7, device="a", nbytes=10))
    ((_, value),) = play.sent(m.Value)
    play.receive("a", m.Rejected(transfer=value.transfer, code="memory", text="too many at once"))
    assert isinstance(play.ended()[7].error, OutOfMemory)


def test_a_reading_is_told_by_our_clock():
    play = Play("a")
    play.tick(1.0, answer=("a",))  # its clock is 50 s behind
    play.receive("a", m.Reading(at_s=60.0, joules=3.0))
    ((_, heard),) = [(x.device, x.message) for x in play.actions if isinstance(x, Notification)]
    assert heard.at_s == pytest.approx(110.0)


MOMENTS = st.lists(  # seconds that pass, how long the way there and back takes, and what comes
    st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 0.3), st.floats(0.0, 0.3), st.booleans()),
    max_size=30,
)


@given(ahead_s=st.floats(-1e6, 1e6), moments=MOMENTS)
def test_readings_are_told_in_order_and_at_most_a_way_off_whenever_the_clocks_become_known(
    ahead_s, moments
):
    pulse = Heartbeat(0.0)
    now_s = 0.0
    told = []
    for passed_s, there_s, back_s, is_ping in moments:
        now_s += passed_s
        if is_ping:
            ping = pulse.tick(now_s)
            if ping is not None:
                own_s = now_s + there_s + ahead_s
                now_s += there_s + back_s
                pulse.pong(m.Pong(seq=ping.seq, clock_s=own_s), now_s)
        else:
            true_s = now_s
            now_s += back_s
            told.append((true_s, pulse.ours_s(true_s + ahead_s, now_s)))
    assert [at_s for _, at_s in told] == sorted(at_s for _, at_s in told)
    assert all(abs(at_s - true_s) <= 0.3 + 1e-9 for true_s, at_s in told)


def test_silence_is_noticed():
    play = Play("a", "b")
    play.tick(1.0, answer=("a", "b"))
    play.launch(ticket=1)
    ended = play.ended(play.tick(PULSE_LOST_S + 0.5, answer=("a",)))
    assert ended[1].error.device == "b"
    assert "no sign of life" in str(ended[1].error)


def silence(play, seconds, *, reach=(), silent="b"):
    """Let time pass in which nothing is heard of `silent`, and those in `reach` say that they
    reach it; what has ended, and who was asked.
    """
    ended, devices_asked = {}, set()
    for _ in range(round(seconds / 0.1)):
        actions = play.tick(0.1, answer=("a", "c"))
        ended |= play.ended(actions)
        for device, probe in play.sent(m.Probe, actions):
            devices_asked.add(device)
            assert probe.peer == silent
            if device in reach:
                answer = m.Probed(task=probe.task, peer=silent, seconds=(0.01,))
                ended |= play.ended(play.receive(device, answer))
    return ended, devices_asked


def test_others_are_asked_before_a_device_is_given_up():
    play = Play("a", "b", "c")
    play.tick(1.0, answer=("a", "b", "c"))
    play.launch(ticket=1, devices=("a", "b"))
    ended, devices_asked = silence(play, PULSE_LOST_S + 0.5)
    assert devices_asked == {"a", "c"}
    assert ended[1].error.device == "b"
    assert "reaches it" not in str(ended[1].error)


def test_a_silent_device_that_another_reaches_has_more_time():
    play = Play("a", "b", "c")
    play.tick(1.0, answer=("a", "b", "c"))
    play.launch(ticket=1, devices=("a", "b"))
    ended, _ = silence(play, UNREACHED_S - 1.0, reach=("c",))
    assert not ended
    ended, _ = silence(play, 1.5, reach=("c",))
    assert ended[1].error.device == "b"
    assert "though c reaches it" in str(ended[1].error)
    assert "between this computer and it" in str(ended[1].error)


def test_a_device_that_was_reached_once_is_not_believed_alive_for_ever():
    play = Play("a", "b", "c")
    play.tick(1.0, answer=("a", "b", "c"))
    play.launch(ticket=1, devices=("a", "b"))
    ended, _ = silence(play, 1.5, reach=("a",))
    assert not ended
    ended, _ = silence(play, PULSE_LOST_S + 0.1)
    assert ended[1].error.device == "b"


def test_a_silent_device_that_is_heard_again_was_never_lost():
    play = Play("a", "b", "c")
    play.tick(1.0, answer=("a", "b", "c"))
    play.launch(ticket=1, devices=("a", "b"))
    for _ in range(4):
        assert not silence(play, PULSE_LOST_S - 0.7)[0]
        play.tick(1.0, answer=("a", "b", "c"))
    assert play.controller.session("b") is not None


def test_who_was_not_asked_vouches_for_nobody():
    play = Play("a", "b", "c")
    play.tick(1.0, answer=("a", "b", "c"))
    play.launch(ticket=1, devices=("a", "b"))
    ended, _ = silence(play, 1.5)
    for number in range(9):
        play.receive("c", m.Probed(task=f"reach-{number}", peer="a", seconds=(0.01,)))
        play.receive("c", m.Probed(task="reach", peer="b", seconds=(0.01,)))
    ended, _ = silence(play, PULSE_LOST_S - 1.0)
    assert ended[1].error.device == "b"


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
            play.receive("a", m.Pong(seq=ping.seq, clock_s=0.0, progress=3, busy=True))
    assert isinstance(ended[1].error, WorkerFailed)
    assert ended[1].error.facts["cause"] == "worker-hung"
    assert play.controller.session("a") is not None


@pytest.mark.parametrize("more", [{"run": "s"}, {"epoch": 1}, {"program": "of many rows"}, {}])
def test_what_is_usual_of_one_program_is_not_asked_of_another(more):
    """A large model after a small one, and many rows after few, take their time."""
    play = Play("a")
    play.launch(ticket=1, devices=("a",))
    finish(play, "a")
    play.launch(ticket=2, devices=("a",), step=1, **more)
    ended, lasted_s = {}, 0.0
    while not ended:
        lasted_s += 0.1
        play.now_s += 0.1
        ended = play.ended(play.do(Tick()))
        for _, ping in play.sent(m.Ping):
            play.receive("a", m.Pong(seq=ping.seq, clock_s=0.0, progress=3, busy=True))
    assert ended[2].error.facts["cause"] == "worker-hung"
    assert lasted_s == pytest.approx(FIRST_HUNG_S if more else HUNG_S, abs=1.0)


@pytest.mark.parametrize("is_fed", [False, True])
def test_a_device_does_not_hang_while_it_waits_for_what_we_have_not_sent(is_fed):
    play = Play("a")
    play.launch(ticket=1, devices=("a",), follows=True)
    fed = FeedExecution(device="a", place=("r", 0, "p", 0), name="x", raw=FEED, is_last=is_fed)
    play.do(fed)
    ended = {}
    for _ in range(700):
        play.now_s += 0.1
        ended |= play.ended(play.do(Tick()))
        for _, ping in play.sent(m.Ping):
            play.receive("a", m.Pong(seq=ping.seq, clock_s=0.0, progress=3, busy=True))
    assert bool(ended) is is_fed


@pytest.mark.parametrize("still", [("a",), ("a", "b"), ("a", "b", "c")])
def test_of_several_that_stand_still_none_is_accused_alone(still):
    """Those that wait for a hung worker make no progress either."""
    play = Play("a", "b", "c")
    play.launch(ticket=1, devices=("a", "b", "c"))
    ended = {}
    for beat in range(700):
        play.now_s += 0.1
        ended |= play.ended(play.do(Tick()))
        for device, ping in play.sent(m.Ping):
            progress = 3 if device in still else beat
            pong = m.Pong(seq=ping.seq, clock_s=0.0, progress=progress, busy=True)
            play.receive(device, pong)
    error = ended[1].error
    assert isinstance(error, WorkerFailed)
    assert error.device == "a"
    named = f"nor has that of {' or '.join(still[1:])}, which" if still[1:] else "for 60 s."
    assert named in str(error)


@pytest.mark.parametrize("is_narrow_first", [True, False])
def test_what_ends_with_a_narrower_execution_ends_on_all_its_devices(is_narrow_first):
    """One on a and one on a and b; a is lost while a value of b is half here."""
    play, nbytes = Play("a", "b"), 1 << 20

    def narrow():
        play.launch(ticket=1, devices=("a",), step=0, request=True)

    def wide():
        expected = {"b": {"y": nbytes}}
        play.launch(ticket=2, devices=("a", "b"), step=1, request=True, expects=expected)

    for launch in (narrow, wide) if is_narrow_first else (wide, narrow):
        launch()
    half = m.Value(
        transfer=1,
        run="r",
        epoch=0,
        program="p",
        step=1,
        name="y",
        dtype="uint8",
        shape=(nbytes,),
        nbytes=nbytes,
        chunk_bytes=nbytes // 4,
    )
    play.receive("b", half, bytes(nbytes // 4))
    play.do(ConnectionLost(device="a", error=DeviceGone("gone", device="a")))
    assert sorted(play.ended()) == [1, 2]
    assert [device for device, _ in play.sent(m.Drop)] == ["b"]
    assert play.controller.held()["b"].here_bytes == 0
