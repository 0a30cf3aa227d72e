"""Steps from `ASKED_STEP` on are of requests for services: no two executions have one name."""

import json
from dataclasses import fields

import pytest
from tests.agent.core.core_driver import (
    EIGHT,
    MEMBER_KEY,
    MEMBER_SENDER,
    OTHER_KEY,
    OTHER_SENDER,
    Talk,
    add,
    plan,
    recv,
    send,
    value,
)

from potluck_agent.core.deferred_work import N_IN_A_ROUND
from potluck_agent.core.events import ToPeer
from potluck_agent.core.execution import ASKED_STEP
from potluck_agent.core.grants import HAND_ON
from potluck_wire import messages as m

FIRST = ASKED_STEP + 1
GRANT = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [2]}],
    "peers": [{"name": "phone", "asks_per_s": 10, "hands_on": True}],
}


def serve(talk, *, run_s=0.1, **more):
    grant = m.GrantService(service="v", run="r", epoch=1, program="p", run_s=run_s, limit_s=1.0)
    (answer,) = talk.receive(grant, json.dumps(GRANT | more).encode())
    assert isinstance(answer.message, m.ServiceGranted), answer
    return talk


def ask(talk):
    return talk.receive(m.Ask(number=1, service="v", left_s=0.9))


def offered():
    known = {field.name: getattr(value(step=FIRST), field.name) for field in fields(m.Offer)}
    return m.Offer(**known | {"content": b"c" * 32})


SAID = {
    "a step": (m.Execute(run="r", epoch=1, program="p", step=FIRST),),
    "its end": (m.Abort(run="r", epoch=1, program="p", step=FIRST),),
    "the last of all steps": (m.Execute(run="r", epoch=1, program="p", step=2**53),),
    "a value": (value(step=FIRST), EIGHT),
    "an offer": (offered(),),
}


@pytest.mark.parametrize("is_asked", [False, True], ids=["before", "meanwhile"])
@pytest.mark.parametrize("case", SAID)
def test_what_a_notebook_says_of_such_a_step_changes_no_request(case, is_asked):
    talk = serve(Talk().begin().load(recv("x"), add("x", "x", "y"), send("y")))
    answers = [] if is_asked else talk.receive(*SAID[case])
    assert ask(talk) == []
    if is_asked and isinstance(SAID[case][0], m.Execute | m.Abort):
        answers = talk.receive(*SAID[case])
    assert all(isinstance(a.message, m.Refused | m.Rejected) for a in answers)
    assert bool(answers) == (not is_asked or not isinstance(SAID[case][0], m.Value | m.Offer))
    orders = talk.receive(value(program="ask", run="", epoch=0, step=1), EIGHT)
    assert [a.message.op for a in orders if isinstance(getattr(a, "message", None), m.Compute)] == [
        "add"
    ]


def test_a_step_that_is_no_request_ends_no_other_notebook_s_session():
    """More of it was ready than is done at once; the rest, behind a request of the same name,
    raised when time passed, and whatever raises then ended all sessions.
    """
    sums = [add("x", "x", f"a{i}") for i in range(4 * N_IN_A_ROUND)]
    sends = send("x", "ghost", name="z"), send("a0", name="y")
    talk = Talk().begin().begin(OTHER_SENDER).roster().load(recv("x"), *sums, *sends)
    serve(talk, before=["ghost"])
    talk.receive(m.Execute(run="r", epoch=1, program="p", step=FIRST))
    talk.receive(value(step=FIRST), EIGHT)
    assert ask(talk) == []
    talk.receive(m.Abort(run="r", epoch=1, program="p", step=FIRST))
    for _ in range(8):
        talk.tick()
    assert OTHER_KEY in talk.core.sessions


def test_a_value_that_is_half_here_is_none_of_a_request_that_is_handed_on():
    """Its program is called as that which hands a request on, and takes other values."""
    talk = Talk(inbound_bytes=2**16).begin().roster()
    rows = recv("x"), add("x", "x", "y"), send("y")
    own = plan(recv("q"), send("q"), name=HAND_ON)[0]
    both = json.loads(plan(*rows)[0])
    both["programs"] += json.loads(own)["programs"]
    talk.receive(m.Prepare(run="r", epoch=1), json.dumps(both).encode())
    talk.receive(m.Commit(run="r", epoch=1))
    serve(talk, run_s=1.0)
    standing = m.Standing(service="v", capacity_per_s=2.0, idle_per_s=2.0, run_s=0.1)
    talk.receive(standing, sender=MEMBER_SENDER)
    half = value("q", program=HAND_ON, step=FIRST, transfer=7, nbytes=20_000, chunk_bytes=16_384)
    (rejected,) = talk.receive(half, bytes(16_384))
    assert isinstance(rejected.message, m.Rejected)
    assert [a.message.number for a in ask(talk) if isinstance(a, ToPeer) and a.key == MEMBER_KEY]
    assert talk.receive(m.Chunk(transfer=7, index=1), bytes(20_000 - 16_384)) == []
