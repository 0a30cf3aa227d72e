"""The session tables allow what a good conversation says, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_wire.errors import WireCode, WireError
from potluck_wire.messages import (
    MESSAGES,
    NUMBER_OF,
    Channel,
    Commit,
    Committed,
    Done,
    Drop,
    Dropped,
    Execute,
    Failed,
    Goodbye,
    GrantService,
    Hello,
    Measure,
    Ping,
    Prepare,
    Prepared,
    Reading,
    RefusalCode,
    Refused,
    Roster,
    RosterSet,
    Value,
    Welcome,
)
from potluck_wire.session import EPOCH, SESSION, EpochState, SessionMachine, SessionState

CONTROLLER, AGENT = "controller", "agent"


def one(kind, epoch=0, **fields):
    sender = MESSAGES[NUMBER_OF[kind]].sender
    return kind(run="r", epoch=epoch, **fields), CONTROLLER if sender == "either" else sender


def opened(*steps):
    session = SessionMachine()
    session.advance(Hello(), CONTROLLER)
    session.advance(Welcome(), AGENT)
    for message, sender in steps:
        session.advance(message, sender)
    return session


LOADED = [one(Prepare), one(Prepared)]
RUNNING = [*LOADED, one(Commit), one(Committed)]


def test_a_whole_session_with_a_switch_of_plans():
    session = opened(
        (Roster(), CONTROLLER),
        (RosterSet(), AGENT),
        (Reading(), AGENT),
        (Measure(), CONTROLLER),
        *LOADED,
        one(Execute, program="push"),
        one(Done),
        one(Commit),
        one(Committed),
        one(Execute),
        one(Done),
        one(Prepare, 1),
        one(Execute),
        one(Prepared, 1),
        one(Execute, 1, program="move"),
        one(Done),
        one(Done, 1),
    )
    assert session.epochs == {("r", 0): EpochState.COMMITTED, ("r", 1): EpochState.PREPARED}
    session.advance(*one(Commit, 1))
    session.advance(*one(Committed, 1))
    assert session.epochs == {("r", 1): EpochState.COMMITTED}
    session.advance(*one(Drop, -1))
    session.advance(*one(Dropped, -1))
    assert session.epochs == {}
    session.advance(Goodbye(), AGENT)
    assert session.state is SessionState.CLOSED


ILLEGAL = {
    "anything before Hello": (SessionMachine, (Measure(), CONTROLLER)),
    "Welcome without Hello": (SessionMachine, (Welcome(), AGENT)),
    "a second Welcome": (opened, (Welcome(), AGENT)),
    "Prepared without Prepare": (opened, one(Prepared)),
    "Committed without Commit": (lambda: opened(*LOADED), one(Committed)),
    "Commit before Prepare": (opened, one(Commit)),
    "Commit before Prepared": (lambda: opened(one(Prepare)), one(Commit)),
    "Execute before Prepared": (lambda: opened(one(Prepare)), one(Execute)),
    "Commit of another epoch": (lambda: opened(*RUNNING), one(Commit, 1)),
    "Prepare while dropping": (lambda: opened(*LOADED, one(Drop)), one(Prepare)),
    "Dropped without Drop": (lambda: opened(*LOADED), one(Dropped)),
    "Welcome from a controller": (SessionMachine, (Welcome(), CONTROLLER)),
    "Execute from an agent": (lambda: opened(*RUNNING), (Execute(run="r"), AGENT)),
    "a value": (opened, (Value(), CONTROLLER)),
    "a ping": (opened, (Ping(), CONTROLLER)),
    "Roster while opening": (lambda: opened((Hello(), CONTROLLER)), (Roster(), CONTROLLER)),
    "Prepare after Goodbye": (lambda: opened((Goodbye(), CONTROLLER)), one(Prepare)),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_refuses_and_nothing_changes(case):
    make, (message, sender) = ILLEGAL[case]
    session = make()
    before = session.state, dict(session.epochs)
    with pytest.raises(WireError) as raised:
        session.advance(message, sender)
    assert raised.value.code == WireCode.STATE
    assert (session.state, session.epochs) == before


@pytest.mark.parametrize(
    ("steps", "refusal", "epoch_state"),
    [
        ([one(Prepare)], {"about": 10, "code": RefusalCode.MEMORY}, None),
        ([*LOADED, one(Commit)], {"about": 12, "code": RefusalCode.STATE}, EpochState.PREPARED),
        (RUNNING, {"about": 16, "code": RefusalCode.STATE}, EpochState.COMMITTED),
        (RUNNING, {"about": 16, "code": RefusalCode.UNKNOWN_RUN}, None),
        (RUNNING, {"about": 9999, "code": "whatever"}, EpochState.COMMITTED),
    ],
)
def test_a_refusal_takes_back_what_it_is_about(steps, refusal, epoch_state):
    session = opened(*steps, (Refused(run="r", epoch=0, **refusal), AGENT))
    assert session.epochs.get(("r", 0)) is epoch_state


def test_a_refused_hello_closes():
    session = SessionMachine()
    session.advance(Hello(major=9), CONTROLLER)
    session.advance(Refused(about=1, code=RefusalCode.VERSION), AGENT)
    assert session.state is SessionState.CLOSED


def test_what_was_on_its_way_when_the_other_side_dropped_or_reconnected_is_no_error():
    session = opened(*RUNNING, one(Execute), one(Drop), one(Done), one(Dropped), one(Failed))
    session.advance(Hello(), CONTROLLER)
    session.advance(Reading(), AGENT)
    session.advance(Welcome(), AGENT)
    assert session.state is SessionState.OPEN


def test_repeats_are_no_error():
    again = [step for step in RUNNING for _ in range(2)]
    assert opened(*again).epochs == {("r", 0): EpochState.COMMITTED}


def test_every_control_message_is_in_the_tables():
    control = {entry.type for entry in MESSAGES.values() if entry.channel is Channel.CONTROL}
    assert {message for _, message in SESSION} == control
    assert {message for _, message in EPOCH} == {
        message
        for message in control
        if {"run", "epoch"} <= set(message.__slots__)
        and message not in (Refused, GrantService)  # they are about a plan, and change none
    }


def test_every_state_can_be_left_and_reached():
    for table, states in ((SESSION, SessionState), (EPOCH, EpochState)):
        assert {state for state, _ in table} == set(states) == set(table.values())


SAMPLES = [
    (entry.type(**({"run": "r", "epoch": 0} if "epoch" in entry.type.__slots__ else {})), sender)
    for entry in MESSAGES.values()
    for sender in (CONTROLLER, AGENT)
]


@given(st.lists(st.sampled_from(SAMPLES), max_size=40))
def test_no_conversation_commits_what_was_not_prepared(steps):
    session, types = SessionMachine(), []
    for message, sender in steps:
        try:
            session.advance(message, sender)
        except WireError:
            continue
        types.append(type(message))
        if EpochState.COMMITTED in session.epochs.values():
            assert (
                types.index(Hello)
                < types.index(Prepare)
                < types.index(Prepared)
                < types.index(Commit)
            )
