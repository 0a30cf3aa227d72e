"""What a device may make this notebook hold: never more bytes of its values than what was asked of
it.
"""

import random

import pytest
from tests.fuzz import storm
from tests.sdk.sessions.controller_driver import Play, place
from tests.sdk.sessions.held_bytes import check_held

from potluck.errors import ProtocolError
from potluck.sessions.events import CancelExecution, Reject, RequestAll, Resolve
from potluck.sessions.expected_values import LATE_VALUES
from potluck_wire import messages as m
from potluck_wire.limits import MAX_CHUNK_BYTES, MAX_VALUE_BYTES

pytestmark = pytest.mark.usefixtures("small_chunks")

PROBE = m.Probe(task="t", peer="home", nbytes=8, repeats=2)


def value(nbytes=8, chunk_bytes=None, **more):
    known = {"transfer": 1, "name": "y", "dtype": "uint8", "shape": (nbytes,), "nbytes": nbytes}
    return m.Value(**place(**known) | {"chunk_bytes": chunk_bytes or max(1, nbytes)} | more)


def probe_value(nbytes=8, **more):
    return value(nbytes, **{"run": "", "epoch": 0, "program": "probe", "name": "t"} | more)


def begun(expects=8):
    play = Play("a", "b")
    play.launch(ticket=1, expects={"a": {"y": expects}})
    return play


# --- values of no run -----------------------------------------------------------------------------


def test_a_probe_that_was_asked_for_is_measured_and_not_held():
    play = Play("a")
    play.do(RequestAll(ticket=1, requests={"a": (PROBE, ())}))
    for transfer in range(PROBE.repeats):
        play.receive("a", probe_value(transfer=transfer, chunk_bytes=4), bytes(4))
        check_held(play.controller)
        play.receive("a", m.Chunk(transfer=transfer, index=1), bytes(4))
        assert play.sent(m.Credit) == [
            ("a", m.Credit(transfer=transfer, received_bytes=8, done=True))
        ]
    play.receive("a", m.Probed(task="t", peer="home", seconds=(0.1, 0.1)))
    assert isinstance(play.ended()[1], Resolve)


@pytest.mark.parametrize(
    "case", ["never", "of another", "once more than it says", "and has said its times"]
)
def test_a_probe_is_rejected_that_is_not_under_way(case):
    play = Play("a")
    probe = m.Probe(task="other", peer="home", nbytes=8) if case == "of another" else PROBE
    if case != "never":
        play.do(RequestAll(ticket=1, requests={"a": (probe, ())}))
    for transfer in range(PROBE.repeats if case == "once more than it says" else 0):
        play.receive("a", probe_value(transfer=transfer), bytes(8))
    if case == "and has said its times":
        play.receive("a", m.Probed(task="t", peer="home", seconds=(0.1, 0.1)))
    play.receive("a", probe_value(transfer=9), bytes(8))
    assert [message.transfer for _, message in play.sent(m.Rejected)] == [9]


def test_a_probe_of_two_other_devices_lets_nothing_come_home():
    play = Play("a", "b")
    play.do(RequestAll(ticket=1, requests={"a": (m.Probe(task="t", peer="b", nbytes=8), ())}))
    play.receive("a", probe_value(), bytes(8))
    assert play.sent(m.Rejected)


# --- what ends the session ------------------------------------------------------------------------

HUGE = {"nbytes": MAX_VALUE_BYTES, "chunk_bytes": MAX_CHUNK_BYTES}


@pytest.mark.parametrize(
    ("value_said", "word"),
    [
        (value(9), "9 bytes, at most 8"),
        (value(**HUGE), "at most 8"),
        (probe_value(9), "9 bytes, at most 8"),
        (value(name="z"), "nobody expects"),
    ],
    ids=["a byte too large", "four gigabytes", "a larger probe", "another name"],
)
def test_what_nobody_can_have_asked_for_ends_the_session_of_that_device_alone(value_said, word):
    play = begun()
    play.do(RequestAll(ticket=2, requests={"a": (PROBE, ())}))
    play.receive("a", value_said, bytes(min(value_said.nbytes, value_said.chunk_bytes)))
    error = play.ended()[1].error
    assert (type(error), error.device) == (ProtocolError, "a")
    assert word in str(error)
    assert play.controller.session("a") is None
    assert play.controller.session("b") is not None
    check_held(play.controller)


def test_what_a_process_that_was_killed_has_left_is_answered_and_not_held():
    play = begun()
    play.receive("a", value(run="of-the-process-before"), bytes(8))
    assert [message.code for _, message in play.sent(m.Rejected)] == ["unknown-run"]
    assert play.controller.session("a") is not None
    check_held(play.controller)


def test_of_what_comes_too_late_only_so_much_is_answered():
    play = begun()
    play.do(CancelExecution(ticket=1))
    for transfer in range(LATE_VALUES + 1):  # and the one that it left behind
        play.receive("a", value(transfer=transfer), bytes(8))
        assert len(play.sent(m.Rejected)) == 1
    play.receive("a", value(transfer=LATE_VALUES + 1), bytes(8))
    assert play.controller.session("a") is None


def test_a_value_that_comes_twice_is_held_once():
    play = begun()
    play.receive("a", value(transfer=1, chunk_bytes=4), bytes(4))
    play.receive("a", value(transfer=2, chunk_bytes=4), bytes(4))
    assert [message.transfer for _, message in play.sent(m.Rejected)] == [2]
    check_held(play.controller)


def test_a_transfer_that_begins_twice_ends_the_session():
    play = begun()
    play.do(RequestAll(ticket=2, requests={"a": (PROBE, ())}))
    play.receive("a", value(chunk_bytes=4), bytes(4))
    play.receive("a", probe_value(chunk_bytes=4), bytes(4))
    assert play.controller.session("a") is None


def test_a_device_that_is_back_may_send_what_it_could_not():
    """A new session begins with values of the old one, where the agent sends again what was not
    acknowledged.
    """
    play = begun()
    play.controller.handle(CancelExecution(ticket=1), play.now_s)
    again = Play("a", play=play)
    again.receive("a", value(), bytes(8))
    assert again.sent(m.Rejected)
    assert again.controller.session("a") is not None


# --- all of it in any order -----------------------------------------------------------------------


class Hoarder:
    """A device that sends whatever it likes while steps, requests and probes are under way."""

    def __init__(self, rng: random.Random) -> None:
        self.play, self.ticket = Play("a", "b"), 0

    def move(self, rng: random.Random) -> None:
        self.ticket += 1
        if self.play.controller.session("a") is None:
            Play("a", play=self.play)
        rng.choice((self._value, self._value, self._value, self._chunk, self._chunk, self._asks))(
            rng
        )
        check_held(self.play.controller)

    def _value(self, rng: random.Random) -> None:
        fields = {
            "run": rng.choice(("", "r", "r", "r", "q")),
            "step": rng.choice((0, 1)),
            "name": rng.choice("yt"),
        }
        fields |= {
            "program": "p" if fields["run"] else "probe",
            "transfer": rng.choice((1, 2, 3, 4, 5, self.ticket)),
        }
        made = value(rng.choice((0, 1, 8, 8, 16, 900)), rng.choice((4, 8, 900)), **fields)
        self.play.receive("a", made, bytes(min(made.nbytes, made.chunk_bytes)))

    def _chunk(self, rng: random.Random) -> None:
        self.play.receive(
            "a",
            m.Chunk(transfer=rng.choice((1, 2, 3, 4, 5)), index=1),
            bytes(rng.choice((4, 4, 8))),
        )

    def _asks(self, rng: random.Random) -> None:
        expects, step = (
            rng.choice(({"a": {"y": 8}}, {"a": {"y": 8, "t": 16}}, {})),
            rng.choice((0, 1)),
        )
        rng.choice(
            (
                lambda: self.play.launch(
                    ticket=self.ticket, step=step, expects=expects, request=True
                ),
                lambda: self.play.do(CancelExecution(ticket=rng.randint(0, self.ticket))),
                lambda: self.play.do(RequestAll(ticket=self.ticket, requests={"a": (PROBE, ())})),
            )
        )()


N_SEQUENCES = 1_000
N_LONG = 30_000
MOVES = 40


@pytest.mark.long
def test_no_device_makes_the_notebook_hold_more_than_it_asked_for(record_property):
    storm(Hoarder, first=0, n_sequences=N_SEQUENCES, n_moves=MOVES)
    record_property("inputs", N_SEQUENCES)


@pytest.mark.long
def test_no_device_makes_the_notebook_hold_more_for_long(record_property):
    storm(Hoarder, first=1_000_000, n_sequences=N_LONG, n_moves=MOVES)
    record_property("inputs", N_LONG)


@pytest.mark.parametrize("seconds", [0.0, -0.1, 5e-324, 1e-300, 1.7e308])
def test_a_device_whose_probe_took_no_time_that_there_is_is_gone_by_name(seconds):
    """Rates are made of it: they would be endless, or nothing."""
    play = Play("a", "b")
    play.do(RequestAll(ticket=1, requests={"a": (PROBE, ())}))
    play.receive("a", m.Probed(task="t", peer="home", seconds=(0.1, seconds)))
    reject = play.ended()[1]
    assert isinstance(reject, Reject)
    assert reject.error.device == "a"
    play.do(RequestAll(ticket=2, requests={"b": (PROBE, ())}))
    play.receive("b", m.Probed(task="t", peer="home", seconds=(0.1, 0.2)))
    assert isinstance(play.ended()[2], Resolve)
