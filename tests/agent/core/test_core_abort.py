"""Abort in the core: one execution ends and gives everything back; all others of its plan go on."""

import pytest
from tests.agent.core.core_driver import MEMBER_SENDER, OWNER_KEY, Talk, cut, recv, send
from tests.agent.core.test_core_work import (
    EIGHT,
    RUN,
    compute,
    credit,
    cut_attrs,
    exported,
    forget,
    value,
)

from potluck_agent.core.events import Store, ToPeer, ToWorker
from potluck_wire.messages import (
    Abort,
    Computed,
    ComputeFailed,
    Done,
    Execute,
    Failed,
    FailureCause,
    Freed,
    RefusalCode,
    Refused,
    Rejected,
    Release,
)

pytestmark = pytest.mark.usefixtures("small_chunks")

ABORT = Abort(run="r", epoch=1, program="p")
CANCELLED = Failed(
    run="r", epoch=1, program="p", cause=FailureCause.CANCELLED, text="it was aborted"
)


def test_it_ends_alone_and_the_next_one_goes_on():
    talk = Talk().begin().load(recv("x"), cut("x", "a"))
    for step in (0, 1):
        talk.receive(Execute(run="r", epoch=1, program="p", step=step))
    assert talk.receive(ABORT) == [ToPeer(key=OWNER_KEY, message=CANCELLED), forget()]
    assert talk.receive(ABORT) == []
    assert talk.receive(RUN) == [ToPeer(key=OWNER_KEY, message=CANCELLED)]
    talk.receive(value(step=1), EIGHT)
    done = talk.work(Computed(tag=1), b"[]")[0].message
    assert (type(done), done.step) == (Done, 1)


def test_its_values_are_given_back_where_they_are_computed_sent_or_early():
    talk = (
        Talk(inbound_bytes=64)
        .begin()
        .roster()
        .load(recv("x"), cut("x", "a"), send("a"), recv("y"), send("y", "phone"))
    )
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    talk.work(Computed(tag=1), exported(("a", 128)))
    assert ToWorker(Release(offset=128)) in talk.receive(ABORT)
    talk.work(Freed(offset=0))

    talk.receive(value("y", step=1, transfer=2), EIGHT)  # of one that never begins
    assert (
        talk.receive(Abort(run="r", epoch=1, program="p", step=1))[0].message.cause
        == FailureCause.CANCELLED
    )
    # all is free
    assert talk.receive(value("y", step=2, transfer=3, nbytes=32), bytes(32))[0] == Store(
        0, bytes(32)
    )


@pytest.mark.parametrize(
    "ends", [lambda t: t.receive(ABORT), lambda t: t.work(ComputeFailed(tag=1, cause="bad-input"))]
)
def test_what_has_half_arrived_counts_as_received_and_its_room_is_free(ends):
    talk = Talk(inbound_bytes=128).begin().load(recv("x"), cut("x", "a"), recv("y"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    talk.receive(value("y", transfer=2, nbytes=64, chunk_bytes=8), EIGHT)
    assert ToPeer(key=OWNER_KEY, message=credit(2, 64)) in ends(talk)
    assert talk.receive(value("x", step=1, transfer=3, nbytes=64), bytes(64))[0].data == bytes(64)


def test_what_comes_later_counts_as_received_and_is_not_kept():
    talk = Talk().begin().load(recv("x"), cut("x", "a"))
    talk.receive(ABORT)
    assert talk.receive(value(), EIGHT) == [ToPeer(key=OWNER_KEY, message=credit())]


def test_one_that_is_over_was_answered_already():
    talk = Talk().begin().load(recv("x"), cut("x", "a"))
    talk.receive(RUN)
    assert talk.receive(value(), EIGHT)[-1] == compute(
        1, "slice", ["x"], ["a"], frees=["x", "a"], attrs=cut_attrs()
    )
    assert isinstance(talk.work(Computed(tag=1), b"[]")[0].message, Done)
    assert talk.receive(ABORT) == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Abort(run="other", epoch=1, program="p"), RefusalCode.UNKNOWN_RUN),
        (Abort(run="r", epoch=0, program="p"), RefusalCode.OLD_EPOCH),
        (Abort(run="r", epoch=1, program="q"), RefusalCode.DOCUMENT),
    ],
)
def test_what_nobody_knows_is_refused(message, code):
    (answer,) = Talk().begin().load(recv("x")).receive(message)
    assert isinstance(answer.message, Refused)
    assert answer.message.code == code


def test_a_receiver_that_rejects_what_was_sent_for_it_changes_nothing():
    talk = Talk().begin().roster().load(recv("x"), send("x", "phone"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    talk.receive(ABORT)
    assert (
        talk.receive(Rejected(transfer=1, code=RefusalCode.UNKNOWN_RUN), sender=MEMBER_SENDER) == []
    )
