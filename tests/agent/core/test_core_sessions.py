"""Sessions: who may say what, when the welcome comes, and what a notebook leaves behind."""

import json

import pytest
from tests.agent.core.core_driver import (
    MEMBER_KEY,
    MEMBER_SENDER,
    OTHER_KEY,
    OTHER_SENDER,
    OWN_KEY,
    OWNER_KEY,
    READY,
    Talk,
    plan,
    recv,
    refused,
    send,
)

from potluck_agent.core.events import (
    KillWorker,
    PeerDevice,
    PeerRevoked,
    SetMembers,
    StartWorker,
    ToPeer,
    ToWorker,
    WorkerDied,
)
from potluck_agent.core.members import MAX_LINKS, MAX_MEMBERS, read_address, read_roster
from potluck_agent.core.sessions import NotebookSession, known_members
from potluck_wire import statement
from potluck_wire.errors import WireError
from potluck_wire.limits import MAX_WORKERS
from potluck_wire.messages import (
    MESSAGES,
    NUMBER_OF,
    Channel,
    Commit,
    ComputeFailed,
    Drop,
    Dropped,
    Execute,
    Forget,
    Goodbye,
    Hello,
    LoadSegment,
    Meter,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Probe,
    RefusalCode,
    Refused,
    Roster,
    RosterSet,
    SegmentLoaded,
    Welcome,
    WorkerReady,
)
from potluck_wire.version import REFUSED_BYTES, VERSION, show


def test_welcome_waits_for_the_worker():
    talk = Talk()
    assert talk.receive(Hello(major=1)) == [StartWorker()]
    early = talk.receive(Meter(period_s=1.0))
    assert early == [refused(Meter, RefusalCode.STATE, "Meter while the session is opening")]
    (welcome,) = talk.work(WorkerReady(), READY)
    assert (welcome.key, welcome.message) == (
        OWNER_KEY,
        Welcome(major=VERSION[0], minor=VERSION[1], name="jetson"),
    )
    facts = statement.read(welcome.buffers[0])
    assert (facts["name"], facts["memory_bytes"], facts["operators"]) == (
        "jetson",
        1000,
        ["aten.add"],
    )


def test_second_hello_is_welcomed_at_once_and_keeps_the_runs():
    talk = Talk().begin().load(recv("x"))
    (welcome,) = talk.receive(Hello(major=1))
    assert isinstance(welcome.message, Welcome)
    assert talk.receive(Prepare(run="r", epoch=1), *plan(recv("x"))) == [
        ToPeer(key=OWNER_KEY, message=Prepared(run="r", epoch=1))
    ]


def test_another_major_version_is_refused_and_starts_nothing():
    (answer,) = Talk().receive(Hello(major=2))
    assert answer.message.code == RefusalCode.VERSION
    assert f"it speaks 2.0, we speak {show()}" in answer.message.text


def test_a_hello_that_is_refused_leaves_no_session_open():
    talk = Talk().begin().load(recv("x"))
    actions = talk.receive(Hello(major=2))
    assert [a.message.code for a in actions if isinstance(a, ToPeer)] == [RefusalCode.VERSION]
    (answer,) = talk.receive(Drop(run="r", epoch=0))
    assert answer.message.code == RefusalCode.STATE


@pytest.mark.parametrize("entry", MESSAGES.values(), ids=lambda entry: entry.type.__name__)
def test_member_may_send_values_and_nothing_else(entry):
    talk = Talk().begin().roster()
    actions = (
        talk.receive(entry.type(), *[b""] * entry.buffers[0], sender=MEMBER_SENDER)
        if on_network(entry)
        else []
    )
    if entry.channel is Channel.DATA:
        assert all(isinstance(action, ToPeer) and action.key == MEMBER_KEY for action in actions)
    else:
        assert actions == []


def on_network(entry):
    return entry.channel in (Channel.CONTROL, Channel.DATA, Channel.PULSE)


@pytest.mark.parametrize(
    "entry",
    [e for e in MESSAGES.values() if e.channel is Channel.CONTROL and e.sender == "agent"],
    ids=lambda entry: entry.type.__name__,
)
def test_answers_are_not_requests(entry):
    actions = Talk().begin().receive(entry.type(), *[b""] * entry.buffers[0])
    text = f"{entry.type.__name__} is not for the controller to say"
    assert actions == [refused(entry.type, RefusalCode.STATE, text)]


def test_ping_is_answered_without_a_session():
    assert Talk().receive(Ping(seq=7)) == [ToPeer(key=OWNER_KEY, message=Pong(seq=7, clock_s=10.0))]


def test_roster_sets_the_members_but_not_this_device():
    talk = Talk().begin()
    rows = [
        {"name": "phone", "key": MEMBER_KEY, "address": "10.0.0.2:47600"},
        {"name": "jetson", "key": OWN_KEY, "address": "10.0.0.3:47600"},
    ]
    assert talk.receive(Roster(home="h"), json.dumps(rows).encode()) == [
        SetMembers((PeerDevice(name="phone", key=MEMBER_KEY, address="10.0.0.2:47600"),)),
        ToPeer(key=OWNER_KEY, message=RosterSet(home="h")),
    ]


def test_the_notebook_whose_run_is_on_says_where_a_device_is():
    """Another one, which is out of date or means harm, moves nothing of it."""
    talk = Talk().begin().begin(OTHER_SENDER).roster().load(recv("x"))
    members = [{"name": "phone", "key": MEMBER_KEY, "address": "10.9.9.9:9"}]
    actions = talk.receive(Roster(home="o"), json.dumps(members).encode(), sender=OTHER_SENDER)
    assert actions == [ToPeer(key=OTHER_SENDER.key, message=RosterSet(home="o"))]


def test_a_notebook_whose_run_begins_is_heard_from_then_on():
    talk = Talk().begin().begin(OTHER_SENDER)
    members = [{"name": "phone", "key": MEMBER_KEY, "address": "10.9.9.9:9"}]
    talk.receive(Roster(home="o"), json.dumps(members).encode(), sender=OTHER_SENDER)
    talk.roster()
    actions = talk.receive(Prepare(run="r", epoch=1), *plan(recv("x")))
    assert (
        SetMembers((PeerDevice(name="phone", key=MEMBER_KEY, address="127.0.0.1:47600"),))
        in actions
    )


ROW = {"name": "phone", "key": MEMBER_KEY, "address": "10.0.0.2:47600"}


@pytest.mark.parametrize(
    "rows",
    [
        {},
        [1],
        [{**ROW, "extra": 1}],
        [{**ROW, "name": "Phone!"}],
        [{**ROW, "name": "home"}],
        [{**ROW, "key": "short"}],
        [{**ROW, "address": "nowhere"}],
        [ROW, {**ROW, "name": "other"}],
        [ROW, {**ROW, "key": OTHER_KEY}],
        [{**ROW, "name": f"d{i}", "key": f"{i:040d}"} for i in range(65)],
    ],
)
def test_refuses_rosters_that_do_not_hold(rows):
    with pytest.raises(WireError):
        read_roster(json.dumps(rows).encode())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a.local:1", ("a.local", 1)),
        ("[fe80::1]:47600", ("fe80::1", 47600)),
        ("10.0.0.1:65532", ("10.0.0.1", 65532)),
    ],
)
def test_reads_addresses(text, address):
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "x", "x:", ":1", "x:0", "x:65533", "x:-1", "a b:1", "x/y:1", "ipc://x:1", 5]
)
def test_refuses_addresses(text):
    with pytest.raises(WireError):
        read_address(text)


def is_refusal(action):
    return isinstance(action, ToPeer) and isinstance(action.message, Refused)


def test_a_refused_plan_leaves_the_device_free_for_others():
    talk = Talk().begin()
    talk.receive(Prepare(run="r", epoch=1), *plan(segments=("s",)))
    actions = talk.work(ComputeFailed(slot="r/1/s", cause=RefusalCode.OPERATOR, text="aten.secret"))
    assert actions == [
        refused(Prepare, RefusalCode.OPERATOR, "segment s: aten.secret", run="r", epoch=1),
        ToWorker(Forget(prefix="r/1/")),
    ]
    talk.receive(Hello(major=1), sender=OTHER_SENDER)
    answers = talk.receive(Prepare(run="r", epoch=1), *plan(recv("x")), sender=OTHER_SENDER)
    assert ToPeer(key=OTHER_KEY, message=Prepared(run="r", epoch=1)) in answers


@pytest.mark.parametrize(("weights", "slot"), [("s", "r/3/s"), ("2/whole", "r/2/whole")])
def test_a_segment_may_have_the_weights_of_another(weights, slot):
    document = {"segments": [{"name": "t", "kind": "aten", "weights": weights}], "programs": []}
    messages = (
        Talk().begin().receive(Prepare(run="r", epoch=3), json.dumps(document).encode(), b"{}")
    )
    assert messages == [ToWorker(LoadSegment(slot="r/3/t", kind="aten", weights=slot), (b"{}",))]


@pytest.mark.parametrize("weights", ["", "x/y", 3, None])
def test_weights_that_name_no_segment_are_refused(weights):
    document = {"segments": [{"name": "t", "kind": "aten", "weights": weights}], "programs": []}
    (answer,) = (
        Talk().begin().receive(Prepare(run="r", epoch=3), json.dumps(document).encode(), b"{}")
    )
    assert answer.message.code == RefusalCode.DOCUMENT
    assert (
        "segments[0].weights of the plan must be those of NAME or EPOCH/NAME" in answer.message.text
    )


def test_prepare_loads_every_segment_once_and_then_says_so():
    talk = Talk().begin()
    request = Prepare(run="r", epoch=1, seed=3), *plan(segments=("s", "t"))
    assert talk.receive(*request) == [
        ToWorker(LoadSegment(slot="r/1/s", kind="aten", seed=3), (b"{}",)),
        ToWorker(LoadSegment(slot="r/1/t", kind="aten", seed=3), (b"{}",)),
    ]
    assert talk.receive(*request) == []
    assert talk.work(SegmentLoaded(slot="r/1/t")) == []
    assert talk.receive(Commit(run="r", epoch=1)) == [
        refused(Commit, RefusalCode.STATE, "epoch 1 is not prepared", run="r", epoch=1)
    ]
    assert talk.work(SegmentLoaded(slot="r/1/s")) == [
        ToPeer(key=OWNER_KEY, message=Prepared(run="r", epoch=1))
    ]
    assert talk.receive(*request) == [ToPeer(key=OWNER_KEY, message=Prepared(run="r", epoch=1))]


@pytest.mark.parametrize("minor", range(VERSION[1] + 2))
def test_a_plan_that_does_not_fit_says_needed_and_available(minor):
    talk = Talk().begin(minor=minor)
    talk.receive(Prepare(run="r", epoch=1, memory_bytes=600), *plan(recv("x")))
    actions = talk.receive(Prepare(run="s", epoch=1, memory_bytes=600), *plan(recv("x")))
    text = "600 bytes needed, 400 bytes available"
    # others know no such
    sizes = {"needed_bytes": 600, "available_bytes": 400} if (1, minor) >= REFUSED_BYTES else {}
    assert actions == [refused(Prepare, RefusalCode.MEMORY, text, run="s", epoch=1, **sizes)]
    assert talk.receive(Prepare(run="r", epoch=2, memory_bytes=900), *plan(recv("x"))) == [
        ToPeer(key=OWNER_KEY, message=Prepared(run="r", epoch=2))
    ]


@pytest.mark.parametrize(
    "buffers",
    [
        [b"not json"],
        [b"[]"],
        [b'{"segments": [], "programs": [], "more": 1}'],
        [b'{"segments": [{"name": "s", "kind": "aten"}], "programs": []}'],
        [b'{"segments": [{"name": "s", "kind": "pickle"}], "programs": []}', b""],
        [b'{"segments": [{"name": "a/b", "kind": "aten"}], "programs": []}', b""],
        plan(["eval", [], [], [], 0, {}]),
        plan(send("nobody made it")),
        plan(recv("x"), recv("x")),
        [b"[" * 100_000],
    ],
)
def test_refuses_plans_that_do_not_hold(buffers):
    (answer,) = Talk().begin().receive(Prepare(run="r", epoch=1), *buffers)
    assert (answer.message.about, answer.message.code) == (NUMBER_OF[Prepare], RefusalCode.DOCUMENT)


def test_commit_drops_older_epochs_and_refuses_them_from_then_on():
    talk = Talk().begin().load(recv("x"))
    talk.receive(Prepare(run="r", epoch=2), *plan(recv("x")))
    assert talk.receive(Commit(run="r", epoch=2))[0] == ToWorker(Forget(prefix="r/1/"))
    text = "epoch 2 is in force"
    assert talk.receive(Commit(run="r", epoch=1)) == [
        refused(Commit, RefusalCode.OLD_EPOCH, text, run="r", epoch=1)
    ]
    assert talk.receive(Prepare(run="r", epoch=1), *plan(recv("x"))) == [
        refused(Prepare, RefusalCode.OLD_EPOCH, text, run="r", epoch=1)
    ]
    (answer,) = talk.receive(Execute(run="r", epoch=1, program="p"))
    assert answer.message.code == RefusalCode.OLD_EPOCH
    assert talk.core.n_old_messages == 2


@pytest.mark.parametrize(
    ("alone", "free_bytes"),
    [(300, 700), (0, 100), (1000, 100)],
    ids=["less", "as prepared", "never more"],
)
def test_a_commit_gives_back_what_was_only_for_the_time_beside_the_plan_before(alone, free_bytes):
    """The device has 1,000 bytes; the plan was prepared with 900 for itself and the one before."""
    talk = Talk().begin()
    talk.receive(Prepare(run="r", epoch=1, memory_bytes=600), *plan(recv("x")))
    talk.receive(Prepare(run="r", epoch=2, memory_bytes=900), *plan(recv("x")))
    talk.receive(Commit(run="r", epoch=2, memory_bytes=alone))
    (answer,) = talk.receive(
        Prepare(run="s", epoch=1, memory_bytes=free_bytes + 1), *plan(recv("x"))
    )
    assert answer.message.text == f"{free_bytes + 1} bytes needed, {free_bytes} bytes available"
    (answer,) = talk.receive(Prepare(run="s", epoch=1, memory_bytes=free_bytes), *plan(recv("x")))
    assert answer.message == Prepared(run="s", epoch=1)


def test_a_plan_that_is_loaded_while_a_newer_one_comes_into_force_is_refused():
    talk = Talk().begin()
    talk.receive(Prepare(run="r", epoch=2), *plan())
    talk.receive(Prepare(run="r", epoch=1), *plan(segments=("s",)))
    first, *_ = talk.receive(Commit(run="r", epoch=2))
    text = "epoch 2 came into force while it was loaded"
    assert first == refused(Prepare, RefusalCode.OLD_EPOCH, text, run="r", epoch=1)
    assert talk.work(SegmentLoaded(slot="r/1/s")) == []


def test_dropping_twice_is_fine():
    talk = Talk().begin().load(recv("x"))
    assert talk.receive(Drop(run="r")) == [
        ToWorker(Forget(prefix="r/1/")),
        ToPeer(key=OWNER_KEY, message=Dropped(run="r")),
    ]
    assert talk.receive(Drop(run="r")) == [ToPeer(key=OWNER_KEY, message=Dropped(run="r"))]


GONE = [
    ("goodbye", lambda talk: talk.receive(Goodbye())),
    ("silence", lambda talk: talk.tick(31.0)),
    ("revoked", lambda talk: talk.core.handle(PeerRevoked(OWNER_KEY), talk.now_s)),
]


@pytest.mark.parametrize(("how", "leave"), GONE, ids=[how for how, _ in GONE])
def test_a_notebook_that_is_gone_leaves_nothing_behind(how, leave):
    talk = Talk().begin().roster().load(recv("x"))
    actions = [action for action in leave(talk) if not isinstance(action, ToPeer)]
    assert actions[:1] == [ToWorker(Forget(prefix="r/1/"))]
    assert SetMembers(()) in actions
    assert actions[-1] == KillWorker("its notebook is gone")
    assert len(talk.core.sessions) == 0
    assert talk.receive(Hello(major=1), sender=OTHER_SENDER) == [StartWorker()]


def test_a_notebook_that_is_heard_is_not_gone():
    talk = Talk().begin()
    for _ in range(5):
        talk.tick(20.0)
        talk.receive(Ping())
    assert len(talk.core.sessions) == 1


THERE = [{"name": "phone", "key": MEMBER_KEY, "address": "10.9.9.9:9"}]


@pytest.mark.parametrize("messages", [[], [Probe(task="t", peer="phone", nbytes=100, repeats=2)]])
def test_an_idle_notebook_moves_no_device_that_another_one_uses(messages):
    talk = Talk().begin().begin(OTHER_SENDER).roster()
    for message in messages:
        talk.receive(message)
    *actions, answer = talk.receive(
        Roster(home="o"), json.dumps(THERE).encode(), sender=OTHER_SENDER
    )
    assert answer == ToPeer(key=OTHER_SENDER.key, message=RosterSet(home="o"))
    addresses = [member.address for action in actions for member in action.members]
    assert addresses in ([], ["127.0.0.1:47600"])


def test_a_probe_goes_where_its_notebook_says():
    talk = Talk().begin().begin(OTHER_SENDER).roster()
    talk.receive(Roster(home="o"), json.dumps(THERE).encode(), sender=OTHER_SENDER)
    probe = Probe(task="t", peer="phone", nbytes=100, repeats=2)
    actions = talk.receive(probe, sender=OTHER_SENDER)
    assert actions[0] == SetMembers(
        (PeerDevice(name="phone", key=MEMBER_KEY, address="10.9.9.9:9"),)
    )


def test_a_notebook_that_leaves_hears_no_more_of_what_it_ran():
    talk = Talk().begin().load(recv("x"))
    talk.receive(Execute(run="r", epoch=1, program="p"))
    actions = talk.receive(
        Goodbye()
    )  # the talk holds all that is said against the session's tables
    assert not [action for action in actions if isinstance(action, ToPeer)]


def test_a_notebook_that_was_silent_for_too_long_is_told_that_its_session_has_ended():
    """Its computer may have slept: the message waits for it."""
    talk = Talk(grace_s=30.0).begin().load(recv("x"))
    talk.receive(Execute(run="r", epoch=1, program="p"))
    actions = [action for action in talk.tick(31.0) if isinstance(action, ToPeer)]
    assert [action.message for action in actions] == [
        Goodbye(reason="it heard nothing of this notebook for 30 s")
    ]
    assert len(talk.core.sessions) == 0


def test_a_session_that_ends_with_a_worker_that_does_not_start_leaves_nothing():
    talk = Talk(grace_s=1e9).begin()
    talk.receive(Meter(period_s=1.0))
    talk.core.handle(WorkerDied("crashed", "x"), talk.now_s)
    talk.receive(Hello(major=1, minor=VERSION[1], name="n"))
    talk.core.handle(WorkerDied("crashed", "does not start"), talk.now_s)
    assert len(talk.core.sessions) == 0
    assert talk.core.wake_s() is None


def test_of_more_devices_than_there_may_be_links_to_those_of_runs_are_members():
    """Very many notebooks may name 64 each, and take no link of one that computes."""
    sessions = {
        f"notebook{i}": NotebookSession(0.0, None, members=members(i))
        for i in range(MAX_WORKERS + 3)
    }
    owners = [f"notebook{i}" for i in range(3, MAX_WORKERS + 3)]
    for order in (sessions, dict(reversed(sessions.items()))):
        for in_force in ({}, known_members(order, [], [], {})):
            known = known_members(order, owners, [], in_force)
            assert set(known.values()) == {
                m for owner in owners for m in sessions[owner].members.values()
            }
    assert len(known) == MAX_LINKS


def members(number):
    return {
        f"d{j}": PeerDevice(name=f"d{j}", key=f"{number:02}{j:038}", address="10.0.0.1:1")
        for j in range(MAX_MEMBERS)
    }
