"""A value for another program leaves its own one behind: that goes on, whatever becomes of the
value.
"""

import json
import random

import pytest
from tests.agent.core.core_driver import (
    MEMBER_KEY,
    MEMBER_SENDER,
    OTHER_SENDER,
    OWNER_KEY,
    Talk,
    recv,
    send,
)
from tests.agent.core.test_core_work import EIGHT, RUN, credit, value

from potluck_agent.core.events import MemberLost, PeerRevoked, Span, ToPeer, WorkerDied
from potluck_agent.core.resource_usage import ResourceUsage
from potluck_wire.limits import CHUNK_BYTES
from potluck_wire.messages import Abort, Done, Drop, Execute, Hello, Rejected, Roster, Value

ONE_WAY = send("x", "phone", name="follow:x", to="4/follow")


def let_go(**changes):
    """A device with room for one value, which it has just sent loosely."""
    talk = Talk(inbound_bytes=64, **changes).begin().roster().load(recv("x"), ONE_WAY)
    talk.receive(RUN)
    return talk, talk.receive(value(), EIGHT)


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
    assert (
        ToPeer(key=MEMBER_KEY, message=sent, buffers=(Span(arena="inbound", offset=0, nbytes=8),))
        in actions
    )
    assert any(isinstance(action.message, Done) for action in actions if isinstance(action, ToPeer))


ENDS = {
    "it has arrived": lambda talk: talk.receive(credit(), sender=MEMBER_SENDER),
    "it is not wanted": lambda talk: talk.receive(
        Rejected(transfer=1, code="old-epoch"), sender=MEMBER_SENDER
    ),
    "the receiver is gone": lambda talk: talk.core.handle(MemberLost(MEMBER_KEY), talk.now_s),
}


@pytest.mark.parametrize("end", ENDS)
def test_its_place_is_free_when(end):
    talk, _ = let_go()
    waiting = talk.receive(value(step=1, transfer=2), EIGHT)
    assert waiting == []  # the one place is still held, so there is no credit
    actions = ENDS[end](talk)
    assert ToPeer(key=OWNER_KEY, message=credit(2)) in actions


def test_nobody_of_that_name_is_no_failure():
    talk = Talk(inbound_bytes=64).begin().load(recv("x"), ONE_WAY)
    talk.receive(RUN)
    actions = talk.receive(value(), EIGHT)
    assert [type(action.message) for action in actions if isinstance(action, ToPeer)][-1] is Done
    assert ToPeer(key=OWNER_KEY, message=credit(2)) in talk.receive(
        value(step=1, transfer=2), EIGHT
    )


def test_it_is_forgotten_with_the_worker_that_held_it():
    talk, _ = let_go()
    talk.core.handle(WorkerDied("crashed", "gone"), talk.now_s)
    assert talk.core.handle(MemberLost(MEMBER_KEY), talk.now_s) == []


def _home(*, members):
    rows = [{"name": "phone", "key": MEMBER_KEY, "address": "127.0.0.1:47600"}][:members]
    return Roster(home="h"), json.dumps(rows).encode()


HAPPENS = {
    "its notebook goes": lambda talk, n: talk.core.handle(PeerRevoked(OWNER_KEY), talk.now_s),
    "the receiver is gone": lambda talk, n: talk.core.handle(MemberLost(MEMBER_KEY), talk.now_s),
    "a new connection": lambda talk, n: talk.reset(MEMBER_KEY),
    "a new connection home": lambda talk, n: talk.reset(OWNER_KEY),
    "the plan is dropped": lambda talk, n: talk.receive(Drop(run="r", epoch=1)),
    "a step is aborted": lambda talk, n: talk.receive(Abort(run="r", epoch=1, program="p", step=n)),
    "no member any more": lambda talk, n: talk.receive(*_home(members=0)),
    "one arrives": lambda talk, n: talk.receive(credit(transfer=n), sender=MEMBER_SENDER),
    "one is not wanted": lambda talk, n: talk.receive(
        Rejected(transfer=n, code="old-epoch"), sender=MEMBER_SENDER
    ),
    "one arrives at home": lambda talk, n: talk.receive(credit(transfer=n)),
}


@pytest.mark.few(15)
@pytest.mark.parametrize("seed", range(60))
def test_every_place_is_free_in_the_end_whatever_happens_in_whatever_order(seed):
    """Another notebook stays all the time, so that the worker and its memory do."""
    rng = random.Random(seed)
    talk = Talk(inbound_bytes=4096).begin().begin(OTHER_SENDER)
    rows = [recv("x"), recv("y"), recv("z")]
    rows += [send("x", "phone", to="4/q"), send("y", "home", to="1/q"), send("z", "phone")]
    ways = list(HAPPENS)
    for _ in range(4):
        talk.receive(Hello(major=1))
        talk.roster().load(*rows)
        talk.core.reach(OWNER_KEY)
        for step in range(rng.randrange(1, 4)):
            talk.receive(Execute(run="r", epoch=1, program="p", step=step))
            for i, name in enumerate("xyz"):
                if rng.random() < 0.8:
                    talk.receive(value(name, step=step, transfer=1 + i + 3 * step), EIGHT)
        for _ in range(rng.randrange(8)):
            HAPPENS[rng.choice(ways)](talk, rng.randrange(1, 20))
    talk.core.handle(PeerRevoked(OWNER_KEY), talk.now_s)
    talk.rounds([])
    assert len(talk.core.sessions) == 1
    assert talk.core.held == ResourceUsage()
    assert talk.core.wake_s() is None
