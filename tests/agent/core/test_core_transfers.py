"""Values on their way through the core, as lists of actions: credit, urgency, pace, and broken
connections.
"""

import pytest
from tests.agent.core.core_driver import (
    EIGHT,
    MEMBER_KEY,
    OWNER_KEY,
    RUN,
    Talk,
    credit,
    cut,
    forget,
    recv,
    send,
    value,
)

from potluck_agent.core.events import LinkReset, MemberLost, Span, Store, ToPeer
from potluck_wire.limits import CHUNK_BYTES, WINDOW_BYTES, WINDOW_CHUNKS
from potluck_wire.messages import (
    Chunk,
    Credit,
    Done,
    Execute,
    FailureCause,
    Ping,
    Pong,
    Probe,
    Probed,
    RefusalCode,
    Refused,
    Rejected,
    Value,
)

pytestmark = pytest.mark.usefixtures("small_chunks")


def test_a_sender_that_ignores_its_window_is_stopped():
    n_chunks = WINDOW_BYTES // 2**20
    nbytes = 4 * WINDOW_BYTES
    talk = Talk(inbound_bytes=nbytes + 64).begin().load(recv("x"), cut("x", "a"))
    talk.receive(value(), EIGHT)  # the worker keeps it: no room for the next
    data = bytes(2**20)
    assert talk.receive(value(step=1, transfer=2, nbytes=nbytes, chunk_bytes=2**20), data) != []
    talk = Talk(inbound_bytes=nbytes).begin().load(recv("x"), cut("x", "a"))
    talk.receive(value(), EIGHT)
    answers = [talk.receive(value(step=1, transfer=2, nbytes=nbytes, chunk_bytes=2**20), data)]
    answers += [talk.receive(Chunk(transfer=2, index=i), data) for i in range(1, n_chunks + 1)]
    assert all(answer == [] for answer in answers[:-1])
    (rejected,) = answers[-1]
    assert rejected.message.code == RefusalCode.MEMORY


def test_a_large_value_is_sent_as_far_as_the_credit_goes():
    talk = Talk(inbound_bytes=4 * WINDOW_BYTES).begin()
    talk.core.reach(OWNER_KEY)
    actions = talk.receive(Probe(task="t", peer="home", nbytes=2 * WINDOW_BYTES))
    assert sum(action.buffers[0].nbytes for action in actions) == WINDOW_CHUNKS * CHUNK_BYTES
    assert [type(action.message) for action in actions] == [Value] + [Chunk] * (len(actions) - 1)
    (more,) = talk.receive(credit(1, CHUNK_BYTES, False))
    assert more.message == Chunk(transfer=1, index=len(actions))
    assert talk.receive(credit(1, CHUNK_BYTES, False)) == []


def test_an_urgent_value_overtakes_a_bulky_one():
    talk = Talk(inbound_bytes=4 * WINDOW_BYTES).begin().load(recv("x"), send("x"))
    talk.core.reach(OWNER_KEY)
    talk.receive(Probe(task="t", peer="home", nbytes=2 * WINDOW_BYTES))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    first, *_ = talk.receive(credit(1, CHUNK_BYTES, False))
    assert isinstance(first.message, Value)
    assert first.message.name == "x"


def test_a_probe_is_repeated_and_timed():
    talk = Talk().begin()
    talk.core.reach(OWNER_KEY)
    (sent,) = talk.receive(Probe(task="t", peer="home", nbytes=100, repeats=2))
    assert sent.buffers == (Span(arena="zeros", offset=0, nbytes=100),)
    talk.now_s += 0.5
    (again,) = talk.receive(credit(1, 100))
    assert again.message.transfer == 2
    talk.now_s += 0.25
    assert talk.receive(credit(2, 100)) == [
        ToPeer(key=OWNER_KEY, message=Probed(task="t", peer="home", seconds=(0.5, 0.25)))
    ]


def test_a_probe_is_taken_credited_and_thrown_away():
    talk = Talk().begin()
    probe = Value(
        transfer=3, program="probe", name="t", dtype="uint8", shape=(5,), nbytes=5, chunk_bytes=64
    )
    assert talk.receive(probe, b"12345") == [ToPeer(key=OWNER_KEY, message=credit(3, 5))]


@pytest.mark.parametrize(
    "wrong", [credit(1, 9**9, False), Credit(transfer=1, received_bytes=3, done=True)]
)
def test_credit_that_cannot_be_ends_that_value_only(wrong):
    talk = Talk().begin().load(recv("x"), send("x"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    failed, *_ = talk.receive(wrong)
    assert failed.message.cause == FailureCause.PEER_LOST


def test_a_paced_link_hands_each_chunk_over_when_it_has_left_the_air():
    talk = Talk(link_bytes_per_s=1e6).begin()
    talk.core.reach(OWNER_KEY)
    chunk_s = 250_000 / 1e6
    assert talk.receive(Probe(task="t", peer="home", nbytes=500_000)) == []
    assert talk.core.wake_s() == pytest.approx(10.0 + chunk_s)
    (first,) = talk.tick(chunk_s)
    assert (type(first.message), first.buffers[0].nbytes) == (Value, 250_000)
    (second,) = talk.tick(1.4 * chunk_s)  # late, but the link was not idle meanwhile
    assert second.message == Chunk(transfer=1, index=1)
    assert talk.core.wake_s() is None


def test_after_a_broken_connection_everything_begins_anew_under_new_numbers():
    talk = Talk().begin().load(recv("x"), send("x"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    (again,) = talk.core.handle(LinkReset(key=OWNER_KEY), talk.now_s)
    assert again.message.transfer == 2
    assert talk.receive(credit(1)) == []  # of the old connection
    assert isinstance(talk.receive(credit(2))[-2].message, Done)


def test_half_values_of_a_broken_connection_are_forgotten():
    talk = Talk(inbound_bytes=128).begin().load(recv("x"))
    talk.receive(value(nbytes=128), b"x" * 64)
    assert talk.core.handle(LinkReset(key=OWNER_KEY), talk.now_s) == []
    assert talk.receive(value(nbytes=128), b"x" * 64) == [Store(0, b"x" * 64)]


def test_a_device_whose_only_work_is_a_long_transfer_gets_on():
    talk, pongs = Talk().begin().load(recv("x")), []
    talk.receive(RUN)
    for message in (value(nbytes=192), Chunk(transfer=1, index=1), Chunk(transfer=1, index=2)):
        (pong,) = [
            action.message for action in talk.receive(Ping()) if isinstance(action.message, Pong)
        ]
        pongs.append((pong.busy, pong.progress))
        talk.receive(message, b"x" * 64)
    assert pongs == [(True, pongs[0][1] + n) for n in range(3)]


def test_nothing_is_sent_home_before_home_was_heard_on_the_data_channel():
    talk = Talk().begin()
    assert talk.receive(Probe(task="t", peer="home", nbytes=4)) == []
    talk.core.reach(OWNER_KEY)
    assert isinstance(talk.tick()[0].message, Value)


def test_a_value_that_never_finds_room_is_rejected_in_the_end():
    talk = Talk(inbound_bytes=64, grace_s=1e3).begin().roster().load(recv("x"), send("x", "phone"))
    talk.receive(value(), EIGHT)
    assert talk.receive(value(step=1, transfer=2), EIGHT) == []
    assert talk.tick(30.0) == []
    text = "no room for 8 bytes"
    assert talk.tick(0.5) == [
        ToPeer(key=OWNER_KEY, message=Rejected(transfer=2, code=RefusalCode.MEMORY, text=text))
    ]


def test_a_member_that_stays_away_ends_what_waits_for_it():
    talk = Talk().begin().roster().load(recv("x"), send("x", "phone"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    failed, forgotten = talk.core.handle(MemberLost(MEMBER_KEY), talk.now_s)
    assert (failed.message.cause, failed.message.text) == (
        FailureCause.PEER_LOST,
        "phone rejected x: no connection",
    )
    assert forgotten == forget()


def test_an_execution_of_an_unknown_program_is_refused():
    (answer,) = Talk().begin().load(recv("x")).receive(Execute(run="r", epoch=1, program="q"))
    assert isinstance(answer.message, Refused)
    assert answer.message.text == "no program q in this epoch"
