"""Weights that a notebook offers: what the core asks its disk for, whom it believes, and what it
lets go of whatever ends meanwhile.
"""

import json

import pytest
from tests.agent.core.core_driver import (
    CAN,
    MEMBER_SENDER,
    OTHER_KEY,
    OTHER_SENDER,
    OWNER_KEY,
    RUN,
    Talk,
    add,
    credit,
    recv,
    value,
)

from potluck_agent.core.events import (
    DONE,
    FAILED,
    MOVES,
    FromDisk,
    PeerRevoked,
    ReadKept,
    RemoveKept,
    ToPeer,
    ToWorker,
    Undone,
    WorkerDied,
    WriteKept,
)
from potluck_wire.content import content_of
from potluck_wire.messages import Drop, Goodbye, Offer, Put, Rejected, Value, Wanted, WorkerReady

DATA = bytes(range(8))
CONTENT = content_of("float32", (2,), DATA)
ROW = {"owner": OWNER_KEY, "content": CONTENT.hex(), "nbytes": 8}
KEPT = {"kept_bytes": 1000, "kept": json.dumps([ROW])}
EMPTY = {"kept_bytes": 1000}


def offer(transfer=1, *, run="r", name="x", content=CONTENT, **more):
    fields = {"shape": (2,), "nbytes": 8} | more
    return Offer(
        transfer=transfer, run=run, epoch=1, program="p", name=name, content=content, **fields
    )


def home(sender=None, run="r", **settings):
    talk = Talk(**settings)
    talk.begin()
    if sender is not None:
        talk.begin(sender)
    return talk.load(recv("x"), recv("y"), add("x", "y", "z"), run=run)


def the(kind, actions):
    found = [action for action in actions if isinstance(action, kind)]
    assert len(found) == 1, actions
    return found[0]


def told(actions):
    return [action.message for action in actions if isinstance(action, ToPeer)]


def came(name="x", transfer=1, content=CONTENT):
    plain = value(name, transfer=transfer)
    return Value(**{key: getattr(plain, key) for key in ("transfer", "run", "epoch", "program")},
                 name=name, shape=(2,), nbytes=8, chunk_bytes=8, content=content)  # fmt: skip


def news(talk, order, state):
    return talk.happen(FromDisk(order.ticket, order.place.worker, state))


def test_what_is_not_kept_is_wanted_and_kept_when_it_has_come():
    talk = home(**EMPTY)
    assert told(talk.receive(offer())) == [Wanted(transfer=1)]
    actions = talk.receive(came(), DATA)
    order = the(WriteKept, actions)
    assert (order.owner, order.content, order.place.nbytes) == (OWNER_KEY, CONTENT, 8)
    assert the(ToWorker, actions).message.value == "r/1/p/0/x"
    assert told(news(talk, order, DONE)) == []
    assert the(ReadKept, talk.receive(offer(2, name="y"))).content == CONTENT


def test_what_is_kept_is_read_into_its_place_and_then_acknowledged():
    talk = home(**KEPT)
    order = the(ReadKept, talk.receive(offer()))
    assert told(news(talk, order, MOVES)) == []
    actions = news(talk, order, DONE)
    assert told(actions) == [credit()]
    assert isinstance(the(ToWorker, actions).message, Put)


def test_a_kept_value_is_used_by_an_execution_like_one_that_came():
    talk = home(**KEPT)
    talk.receive(RUN)
    news(talk, the(ReadKept, talk.receive(offer())), DONE)
    actions = talk.receive(value("y", transfer=2), DATA)
    assert [a.message.op for a in actions if isinstance(a, ToWorker) and hasattr(a.message, "op")]


@pytest.mark.parametrize("how", ["failed", "undone"])
def test_what_cannot_be_read_or_is_of_another_content_is_sent_after_all(how):
    talk = home(**KEPT)
    order = the(ReadKept, talk.receive(offer()))
    if how == "failed":
        actions = news(talk, order, FAILED)
    else:
        actions = talk.happen(Undone(order, "its memory is gone"))
    assert told(actions) == [Wanted(transfer=1)]
    assert talk.core.held.inbound_bytes == 0
    assert told(talk.receive(offer(2, name="y"))) == [Wanted(transfer=2)]


def test_what_could_not_be_written_is_not_kept():
    talk = home(**EMPTY)
    news(talk, the(WriteKept, talk.receive(came(), DATA)), FAILED)
    assert told(talk.receive(offer(2, name="y"))) == [Wanted(transfer=2)]


def test_nothing_is_kept_where_the_owner_keeps_nothing():
    talk = home()
    assert told(talk.receive(offer())) == [Wanted(transfer=1)]
    assert not [a for a in talk.receive(came(), DATA) if isinstance(a, WriteKept)]
    assert b"kept_bytes" not in json.dumps(talk.core.state()["statement"]).encode()


def test_another_notebook_does_not_learn_what_is_kept():
    talk = Talk(**KEPT).begin().begin(OTHER_SENDER)
    talk.load(recv("x"), sender=OTHER_SENDER, run="s", worker=1)
    talk.work(WorkerReady(), json.dumps(CAN).encode(), worker=1)
    assert told(talk.receive(offer(run="s"), sender=OTHER_SENDER)) == [Wanted(transfer=1)]


@pytest.mark.parametrize("sender", [OTHER_SENDER, MEMBER_SENDER])
@pytest.mark.parametrize("peer", ["home", "phone"])
def test_nobody_offers_to_the_run_of_another(sender, peer):
    talk = Talk(**KEPT).begin().begin(OTHER_SENDER).roster().load(recv("x", peer))
    (answer,) = talk.receive(offer(), sender=sender)
    assert isinstance(answer.message, Rejected)


def test_a_member_does_not_say_what_is_kept():
    talk = Talk(**EMPTY).begin().roster().load(recv("x", "phone"))
    actions = talk.receive(came(), DATA, sender=MEMBER_SENDER)
    assert isinstance(told(actions)[0], Rejected)
    assert not [action for action in actions if isinstance(action, WriteKept)]


WRONG = {
    "no content": {"content": b""},
    "a short content": {"content": CONTENT[:31]},
    "another length": {"nbytes": 9},
    "another type": {"dtype": "object"},
    "too many sizes": {"shape": (1,) * 20},
}


@pytest.mark.parametrize("what", WRONG)
def test_an_offer_that_does_not_hold_is_rejected(what):
    talk = home(**KEPT)
    (answer,) = told(talk.receive(offer(**WRONG[what])))
    assert isinstance(answer, Rejected)


def test_offers_are_looked_at_one_after_the_other_and_have_an_end(monkeypatch):
    monkeypatch.setattr("potluck_agent.core.kept_values.MAX_TRANSFERS", 2)
    talk = Talk(**KEPT).begin().load(*[recv(f"v{i}") for i in range(5)])
    answers = [talk.receive(offer(i, name=f"v{i}")) for i in range(5)]
    assert [type(told(a)[0]) if told(a) else None for a in answers] == [None] * 3 + [Rejected] * 2
    assert sum(isinstance(action, ReadKept) for a in answers for action in a) == 1


ENDS = {
    "its run": lambda talk: talk.receive(Drop(run="r")),
    "its session": lambda talk: talk.receive(Goodbye()),
    "the trust": lambda talk: talk.happen(PeerRevoked(OWNER_KEY)),
    "the worker": lambda talk: talk.happen(WorkerDied("worker-crashed", "SIGKILL")),
    "the connection": lambda talk: talk.reset(OWNER_KEY),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("state", [DONE, FAILED])
def test_a_place_is_the_disks_until_it_is_through(end, state):
    talk = home(**KEPT)
    order = the(ReadKept, talk.receive(offer()))
    ENDS[end](talk)
    held = talk.core.held.inbound_bytes
    assert held == (64 if end in ("its run", "the connection") else 0)  # else the arena is gone
    actions = news(talk, order, state)
    assert not [a for a in actions if isinstance(a, ToWorker) and isinstance(a.message, Put)]
    assert talk.core.held.inbound_bytes == 0


def test_what_came_whole_before_the_notebook_went_is_there_for_the_next():
    talk = home(**EMPTY)
    order = the(WriteKept, talk.receive(came(), DATA))
    talk.receive(Goodbye())
    news(talk, order, DONE)
    talk.begin().load(recv("x"), run="r")
    assert the(ReadKept, talk.receive(offer())).content == CONTENT


def test_who_is_trusted_no_longer_has_nothing_here():
    talk = home(**KEPT)
    assert RemoveKept(OWNER_KEY) in talk.happen(PeerRevoked(OWNER_KEY))


def test_a_slow_disk_holds_no_more_than_half_of_the_memory_for_values():
    talk = Talk(kept_bytes=10**6, inbound_bytes=192).begin()
    talk.load(recv("x"), recv("y"), recv("z"), add("x", "y", "u"), add("u", "z", "v"))
    big = {"shape": (16,), "nbytes": 64, "chunk_bytes": 64}
    orders = []
    for i, name in enumerate("xyz"):
        header = Value(transfer=i + 1, run="r", epoch=1, program="p", name=name,
                       content=content_of("float32", (16,), bytes([i]) * 64), **big)  # fmt: skip
        actions = talk.receive(header, bytes([i]) * 64)
        orders += [action for action in actions if isinstance(action, WriteKept)]
    assert len(orders) == 1


def test_a_value_that_is_larger_than_its_room_is_refused_as_ever():
    talk = home(kept_bytes=10**6, kept=json.dumps([ROW | {"nbytes": 8000}]))
    answers = told(talk.receive(offer(shape=(2000,), nbytes=8000)))
    assert answers == [Wanted(transfer=1)]


def test_the_other_notebook_has_its_own():
    talk = Talk(kept_bytes=1000, kept=json.dumps([ROW | {"owner": OTHER_KEY}]))
    talk.begin().load(recv("x"))
    assert told(talk.receive(offer())) == [Wanted(transfer=1)]
