"""Chains as long as a peer likes, where each link leads to the next: the core goes along them, and
never deeper.
"""

import sys

import pytest
from tests.agent.core.core_driver import (
    EIGHT,
    OWNER_KEY,
    OWNER_SENDER,
    Talk,
    credit,
    recv,
    send,
    value,
)

from potluck_agent.core.events import Event, FromPeer, ToPeer
from potluck_wire.messages import Chunk, Credit, Done, Execute, Failed, Message, Value

pytestmark = pytest.mark.usefixtures("small_chunks")

N_LINKS = 3000


def shallow(talk: Talk, message: Message, *buffers: bytes, depth: int = 60):
    """What the core does about this with no more than that many calls within one another."""
    event: Event = FromPeer(sender=OWNER_SENDER, message=message, buffers=buffers)
    frame, height = sys._getframe(), 0
    while frame is not None:
        frame, height = frame.f_back, height + 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(height + depth)
    try:
        return talk.core.handle(event, talk.now_s)
    finally:
        sys.setrecursionlimit(limit)


def messages_of(actions, kind):
    return [a.message for a in actions if isinstance(a, ToPeer) and isinstance(a.message, kind)]


@pytest.mark.long
@pytest.mark.parametrize("to", ["home", "nobody"])
def test_loose_sends_that_wait_for_one_another_all_leave_in_order(to):
    talk = Talk(inbound_bytes=64 * N_LINKS).begin()
    rows = [recv(f"x{i}") for i in range(N_LINKS)]
    for i in range(N_LINKS):
        rows.append(send(f"x{i}", to, to="1/q", after=(N_LINKS + i - 1,) if i else ()))
    talk.load(*rows)
    talk.receive(Execute(run="r", epoch=1, program="p"))
    for i in reversed(range(1, N_LINKS)):
        talk.receive(value(f"x{i}", transfer=N_LINKS - i), EIGHT)
    talk.core.reach(OWNER_KEY)
    actions = talk.rounds(shallow(talk, value("x0", transfer=N_LINKS), EIGHT))
    assert len(messages_of(actions, Done)) == 1
    names = []
    while sent := messages_of(actions, Value):
        names += [value.name for value in sent]
        actions = []
        for taken in sent:
            actions += talk.rounds(talk.receive(credit(transfer=taken.transfer)))
    assert names == ([f"x{i}" for i in range(N_LINKS)] if to == "home" else [])


def test_executions_behind_one_another_that_have_nothing_left_to_wait_for_all_end():
    n_steps = 250
    talk = Talk(inbound_bytes=64 * n_steps).begin().load(recv("x"))
    for step in range(1, n_steps):
        talk.receive(value(step=step, transfer=step), EIGHT)
    for step in range(n_steps):
        talk.receive(Execute(run="r", epoch=1, program="p", step=step, after_step=step - 1))
    actions = shallow(talk, value(transfer=n_steps), EIGHT)
    assert [done.step for done in messages_of(actions, Done)] == list(range(n_steps))


def test_values_that_wait_for_one_place_all_get_it():
    """Each is used for nothing, so its place is free at once."""
    n_values = 1000
    talk = Talk(inbound_bytes=64).begin().load(*[recv(f"x{i}") for i in range(n_values)])
    talk.receive(Execute(run="r", epoch=1, program="p"))
    talk.receive(value("x0", chunk_bytes=4), bytes(4))
    for i in range(1, n_values):
        assert not messages_of(talk.receive(value(f"x{i}", transfer=1 + i), EIGHT), Credit)
    actions = shallow(talk, Chunk(transfer=1, index=1), bytes(4))
    assert len(messages_of(actions, Done)) == 1
    assert max(credit.transfer for credit in messages_of(actions, Credit)) == n_values


def test_executions_that_end_for_one_anothers_room_all_end():
    """The value of each goes back home and holds the one place until its execution is aborted."""
    n_steps = 200
    talk = Talk(inbound_bytes=64).begin().load(recv("x"))
    for step in range(n_steps):
        talk.receive(Execute(run="r", epoch=1, program="p", step=step))
        talk.receive(
            value(step=step, transfer=step + 1, chunk_bytes=4 if not step else 64),
            bytes(4 if not step else 8),
        )
    actions = shallow(talk, Chunk(transfer=1, index=1), bytes(4))
    assert [done.step for done in messages_of(actions, Done)] == list(range(n_steps))
    assert not messages_of(actions, Failed)
