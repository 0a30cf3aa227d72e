"""A value for another program leaves its own one behind: that goes on, whatever becomes of the
value.
"""

import pytest
from tests.agent.core.core_talk import MEMBER_KEY, MEMBER_SENDER, OWNER_KEY, Talk, recv, send
from tests.agent.core.test_core_work import EIGHT, RUN, credit, value

from potluck_agent.core.events import MemberLost, Span, ToPeer, WorkerDied
from potluck_wire.limits import CHUNK_BYTES
from potluck_wire.messages import Done, Rejected, Value

LOOSE = send("x", "phone", name="follow:x", to="4/follow")


def let_go(**changes):
    """A device with room for one value, which it has just sent loosely."""
    talk = Talk(inbound_bytes=64, **changes).begin().roster().load(recv("x"), LOOSE)
    talk.hear(RUN)
    return talk, talk.hear(value(), EIGHT)


def test_it_is_for_the_same_step_of_the_other_program_and_its_own_one_is_done():
    _, actions = let_go()
    sent = Value(
        transfer=1,
        run="r",
        epoch=4,
        program="follow",
        name="follow:x",
        shape=(2,),
        nbytes=8,
        chunk_bytes=CHUNK_BYTES,
    )
    assert ToPeer(MEMBER_KEY, sent, (Span("inbound", 0, 8),)) in actions
    assert any(isinstance(action.message, Done) for action in actions if isinstance(action, ToPeer))


ENDS = {
    "it has arrived": lambda talk: talk.hear(credit(), sender=MEMBER_SENDER),
    "it is not wanted": lambda talk: talk.hear(
        Rejected(transfer=1, code="old-epoch"), sender=MEMBER_SENDER
    ),
    "the receiver is gone": lambda talk: talk.core.handle(MemberLost(MEMBER_KEY), talk.now_s),
}


@pytest.mark.parametrize("end", ENDS)
def test_its_place_is_free_when(end):
    talk, _ = let_go()
    waiting = talk.hear(value(step=1, transfer=2), EIGHT)
    assert waiting == []  # the one place is still held, so there is no credit
    actions = ENDS[end](talk)
    assert ToPeer(OWNER_KEY, credit(2)) in actions


def test_nobody_of_that_name_is_no_failure():
    talk = Talk(inbound_bytes=64).begin().load(recv("x"), LOOSE)
    talk.hear(RUN)
    actions = talk.hear(value(), EIGHT)
    assert [type(action.message) for action in actions if isinstance(action, ToPeer)][-1] is Done
    assert ToPeer(OWNER_KEY, credit(2)) in talk.hear(value(step=1, transfer=2), EIGHT)


def test_it_is_forgotten_with_the_worker_that_held_it():
    talk, _ = let_go()
    talk.core.handle(WorkerDied("crashed", "gone"), talk.now_s)
    assert talk.core.handle(MemberLost(MEMBER_KEY), talk.now_s) == []
