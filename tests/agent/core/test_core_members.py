"""Who is a member of a home, where several notebooks have one each: nobody's values go astray."""

import json

import pytest
from tests.agent.core.core_driver import (
    EIGHT,
    MEMBER_KEY,
    OTHER_KEY,
    OTHER_SENDER,
    OWNER_KEY,
    RUN,
    Talk,
    plan,
    recv,
    refused,
    send,
    value,
)

from potluck_agent.core.events import MEMBER, MemberLost, Sender, SetMembers, ToPeer
from potluck_wire.limits import MIN_CHUNK_BYTES, PROBE
from potluck_wire.messages import Failed, Goodbye, Hello, Measure, Prepare, Probe, Roster, RosterSet


def say_roster(talk, address, *, name="phone", key=MEMBER_KEY, **sender):
    rows = [{"name": name, "key": key, "address": address}]
    return talk.receive(Roster(home="h"), json.dumps(rows).encode(), **sender)


def addresses(actions):
    (update,) = [action for action in actions if isinstance(action, SetMembers)]
    return [member.address for member in update.members]


def test_a_notebook_is_no_member_of_another_ones_home():
    talk = Talk().begin().begin(OTHER_SENDER)
    answers = say_roster(talk, "10.0.0.9:1", name="foe", key=OWNER_KEY, sender=OTHER_SENDER)
    text = "foe has the key of a notebook, and is no device"
    assert answers == [refused(Roster, "document", text, key=OTHER_KEY)]


def test_a_notebook_that_comes_later_is_a_member_no_more():
    talk = Talk().begin(OTHER_SENDER)
    assert addresses(say_roster(talk, "10.0.0.9:1", key=OWNER_KEY, sender=OTHER_SENDER)) != []
    assert SetMembers(()) in talk.receive(Hello(major=1))


def test_where_a_device_is_says_the_notebook_whose_run_is_on():
    talk = Talk().begin()
    say_roster(talk, "10.0.0.1:1")
    talk.load(recv("x"), send("x", "phone"))
    talk.begin(OTHER_SENDER)
    actions = say_roster(talk, "10.0.0.9:1", sender=OTHER_SENDER)
    assert actions == [ToPeer(key=OTHER_KEY, message=RosterSet(home="h"))]
    assert addresses(talk.receive(Goodbye())) == ["10.0.0.9:1"]


def test_a_notebook_whose_run_begins_says_it_from_then_on():
    talk = Talk().begin().begin(OTHER_SENDER)
    say_roster(talk, "10.0.0.9:1", sender=OTHER_SENDER)
    say_roster(talk, "10.0.0.1:1")
    actions = talk.receive(Prepare(run="r", epoch=1), *plan(recv("x"), send("x", "phone")))
    assert addresses(actions) == ["10.0.0.1:1"]


def test_what_waits_for_a_device_that_is_no_member_any_more_fails():
    talk = Talk().begin().roster().load(recv("x"), send("x", "phone"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    actions = talk.receive(Roster(home="h"), b"[]")
    (failed,) = [
        a.message for a in actions if isinstance(a, ToPeer) and isinstance(a.message, Failed)
    ]
    assert "phone rejected x: it is no member of the home any more" in failed.text
    assert ToPeer(key=OWNER_KEY, message=RosterSet(home="h")) in actions
    assert talk.core.handle(MemberLost(MEMBER_KEY), talk.now_s) == []


def test_what_was_coming_from_a_device_that_is_no_member_any_more_takes_no_memory():
    """A notebook may name others as often as it likes, and each of them begins values."""
    parts = {"nbytes": 2 * MIN_CHUNK_BYTES, "chunk_bytes": MIN_CHUNK_BYTES}
    part = bytes(MIN_CHUNK_BYTES)
    talk = Talk(inbound_bytes=2 * MIN_CHUNK_BYTES).begin()
    talk.load(recv("x", "phone"), recv("y", "phone"), send("x"), send("y"))
    talk.receive(RUN)
    for number in range(20):
        key = f"{number:040}"
        say_roster(talk, "10.0.0.9:1", key=key)
        sender = Sender(key=key, role=MEMBER, name="phone")
        talk.receive(value("x", transfer=1, **parts), part, sender=sender)
        talk.receive(value("y", transfer=2, **parts), part, sender=sender)
        probe = value("z", transfer=3, program=PROBE, run="", epoch=0, **parts)
        talk.receive(probe, part, sender=sender)
        assert talk.core.held.n_arriving == 3
    talk.receive(Roster(home="h"), b"[]")
    assert talk.core.held.n_arriving == talk.core.held.inbound_bytes == 0


@pytest.mark.parametrize("asks", [Probe(task="t", peer="phone", nbytes=8), Measure(task="t")])
def test_no_notebook_moves_a_device_that_anothers_run_uses_whatever_it_does_besides(asks):
    talk = Talk().begin()
    say_roster(talk, "10.0.0.1:1")
    talk.load(recv("x"), send("x", "phone"))
    talk.begin(OTHER_SENDER)
    document = b"{}" if isinstance(asks, Measure) else b""
    talk.receive(Prepare(run="s", epoch=1), *plan(recv("x"), send("x")), sender=OTHER_SENDER)
    talk.receive(asks, *[document] * bool(document), sender=OTHER_SENDER)
    actions = say_roster(talk, "10.0.0.9:1", sender=OTHER_SENDER)
    (update,) = [action for action in actions if isinstance(action, SetMembers)]
    (phone,) = update.members
    assert (phone.address, phone.others) == ("10.0.0.1:1", ("10.0.0.9:1",))


def say_many(talk, *numbers, **sender):
    rows = [
        {"name": f"d{number}", "key": f"{number:040}", "address": "10.0.0.1:1"}
        for number in numbers
    ]
    return talk.receive(Roster(home="h"), json.dumps(rows).encode(), **sender)


@pytest.mark.parametrize(
    "asks", [Roster(home="h"), Probe(task="t", peer="d3", nbytes=8), Prepare(run="s", epoch=1)]
)
def test_a_notebook_hears_that_its_devices_get_no_connection(asks):
    """There are as many as the agent has descriptors for, and another one's run uses them."""
    talk = Talk(most_links=3).begin().begin(OTHER_SENDER)
    say_many(talk, 0, 1)
    say_many(talk, 2, 3, sender=OTHER_SENDER)
    talk.load(recv("x"), send("x", "d1"))
    if isinstance(asks, Roster):
        answers = say_many(talk, 2, 3, sender=OTHER_SENDER)
    else:
        buffers = plan(recv("x"), send("x", "d3")) if isinstance(asks, Prepare) else ()
        answers = talk.receive(asks, *buffers, sender=OTHER_SENDER)
    text = (
        "no connection is left here for d3: of all devices that notebooks use here, 3 have one at "
        "most, for the system permits few descriptors (ulimit -Hn)"
    )
    fields = {"run": asks.run, "epoch": asks.epoch} if isinstance(asks, Prepare) else {}
    assert answers == [refused(type(asks), "busy", text, key=OTHER_KEY, **fields)]
    talk.receive(Goodbye())
    assert len(say_many(talk, 2, 3, 4, sender=OTHER_SENDER)) == 2


def test_devices_that_nobody_uses_keep_no_connection_from_those_of_a_run():
    talk = Talk(most_links=3).begin(OTHER_SENDER).begin()
    say_many(talk, 0, 1, 2, sender=OTHER_SENDER)
    say_many(talk, 3, 4)
    actions = talk.receive(Prepare(run="r", epoch=1), *plan(recv("x"), send("x", "d4")))
    (update,) = [action for action in actions if isinstance(action, SetMembers)]
    assert {"d3", "d4"} < {member.name for member in update.members}
