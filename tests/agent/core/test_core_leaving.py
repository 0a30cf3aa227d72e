"""A device that has to leave: who is told, what it still takes, and when what is under way ends."""

import random

import pytest
from tests.agent.core.core_attack import CorePlay
from tests.agent.core.core_driver import (
    OTHER_KEY,
    OTHER_SENDER,
    OWNER_KEY,
    READY,
    RUN,
    Talk,
    plan,
    recv,
    refused,
)

from potluck_agent.core.events import KillWorker, MayStay, MustLeave, ToPeer
from potluck_agent.core.worker_proxy import COMPUTING
from potluck_wire import statement
from potluck_wire.limits import MAX_STR_BYTES
from potluck_wire.messages import (
    Drop,
    Goodbye,
    Hello,
    Leaving,
    Measure,
    Prepare,
    Prepared,
    RefusalCode,
    Staying,
    Welcome,
    WorkerReady,
)

WHY, DRAIN_S = "its battery is low", 60.0


def talking():
    """A session whose notebook is never silent for too long."""
    return Talk(grace_s=1e6).begin()


def answers(talk, event):
    """What the core says because of this event, by peer."""
    actions = talk.core.handle(event, talk.now_s)
    return [(action.key, action.message) for action in actions if isinstance(action, ToPeer)]


def leaves(talk, why=WHY, within_s=DRAIN_S, *, for_good=False):
    return answers(talk, MustLeave(reason=why, within_s=within_s, for_good=for_good))


def goodbyes(actions):
    return [a.key for a in actions if isinstance(a, ToPeer) and isinstance(a.message, Goodbye)]


def computing(core):
    return [each["notebook"] for each in core.state()["workers"] if each["state"] == COMPUTING]


def test_every_notebook_that_knows_the_message_is_told():
    talk = talking().begin(OTHER_SENDER, minor=7)
    assert leaves(talk) == [(OWNER_KEY, Leaving(reason=WHY, within_s=DRAIN_S))]
    assert answers(talk, MayStay()) == [(OWNER_KEY, Staying())]
    assert answers(talk, MayStay()) == []


def test_who_comes_while_it_leaves_reads_it_in_the_statement():
    talk = Talk()
    talk.receive(Hello(major=1, minor=8))
    assert leaves(talk) == []  # not welcomed yet
    (welcome,) = talk.work(WorkerReady(), READY)
    assert isinstance(welcome.message, Welcome)
    assert statement.read(welcome.buffers[0])["leaving"] == WHY
    talk.core.handle(MayStay(), talk.now_s)
    (welcome,) = talk.receive(Hello(major=1, minor=8))
    assert statement.read(welcome.buffers[0])["leaving"] == ""


def test_it_takes_no_new_run_and_measures_nothing_until_it_stays():
    talk = talking().load(recv("x"))
    leaves(talk)
    text = f"it wants to leave: {WHY}"
    new = Prepare(run="other", epoch=1), *plan(recv("x"))
    assert talk.receive(*new) == [refused(Prepare, RefusalCode.LEAVING, text, run="other", epoch=1)]
    assert talk.receive(Measure(task="t", rows=(1,)), b"{}") == [
        refused(Measure, RefusalCode.LEAVING, text)
    ]
    answers(talk, MayStay())
    assert talk.receive(*new) == [ToPeer(key=OWNER_KEY, message=Prepared(run="other", epoch=1))]


def test_a_run_that_is_here_may_be_prepared_once_more_to_get_elsewhere():
    talk = talking().load(recv("x"))
    leaves(talk)
    assert talk.receive(Prepare(run="r", epoch=2), *plan(recv("x"))) == [
        ToPeer(key=OWNER_KEY, message=Prepared(run="r", epoch=2))
    ]
    assert talk.receive(RUN) == [] or talk.core.state()["runs"]


def test_what_has_not_moved_in_time_ends_and_nothing_else():
    talk = talking().begin(OTHER_SENDER).load(recv("x"))
    leaves(talk)
    assert goodbyes(talk.tick(DRAIN_S - 1)) == []
    assert goodbyes(talk.tick(1)) == [OWNER_KEY]
    assert list(talk.core.sessions) == [OTHER_KEY]  # that one has no run here
    assert talk.core.state()["runs"] == []
    assert not talk.core.has_left


def test_a_second_reason_gives_no_more_time_than_the_first():
    talk = talking().load(recv("x"))
    leaves(talk)
    talk.tick(50)
    assert leaves(talk, "it is hot") == [(OWNER_KEY, Leaving(reason="it is hot", within_s=10.0))]
    assert goodbyes(talk.tick(10)) == [OWNER_KEY]


@pytest.mark.parametrize("moves", [True, False])
def test_for_good_it_goes_once_it_is_empty_or_it_is_late(moves):
    talk = talking().begin(OTHER_SENDER).load(recv("x"))
    leaves(talk, for_good=True)
    assert not talk.core.has_left
    assert answers(talk, MayStay()) == []  # no battery keeps it
    actions = talk.receive(Drop(run="r")) if moves else talk.tick(DRAIN_S)
    assert sorted(goodbyes(actions)) == sorted((OWNER_KEY, OTHER_KEY))
    assert talk.core.has_left
    assert any(isinstance(action, KillWorker) for action in actions)


def test_who_cannot_know_is_not_waited_for():
    talk = Talk().begin(minor=7).load(recv("x"))
    leaves(talk, for_good=True)
    assert talk.core.has_left


def test_a_long_reason_fits_into_what_is_said():
    talk = talking().load(recv("x"))
    ((_, messages),) = leaves(talk, "°" * 1000)
    assert len(messages.reason.encode()) <= MAX_STR_BYTES
    (refusal,) = talk.receive(Prepare(run="other", epoch=1), *plan(recv("x")))
    assert len(refusal.message.text.encode()) <= MAX_STR_BYTES
    messages = [action.message for action in talk.tick(DRAIN_S) if isinstance(action, ToPeer)]
    assert [len(message.reason.encode()) <= MAX_STR_BYTES for message in messages] == [True]


@pytest.mark.few(1)
@pytest.mark.parametrize("hostile", [False, True])
def test_whatever_goes_on_it_has_left_in_time(hostile):
    """At any moment of any conversation, and nothing is left behind."""
    for seed in range(100):
        rng = random.Random(seed)
        play = CorePlay(rng, hostile=hostile)
        for _ in range(rng.randrange(14)):
            play.move(rng)
        core, now_s = play.core, play.now_s
        core.handle(MustLeave(reason=WHY, within_s=DRAIN_S, for_good=True), now_s)
        for _ in range(3):
            play.move(rng)
        core.handle(MustLeave(reason=WHY, within_s=0.0, for_good=True), play.now_s)
        assert core.has_left
        assert list(core.sessions) == []
        assert core.state()["runs"] == []


@pytest.mark.few(1)
@pytest.mark.parametrize("hostile", [False, True])
def test_whatever_goes_on_nothing_is_computed_once_it_is_late(hostile):
    """Its owner does not want it to: no run, no measurement, whoever goes on asking."""
    n_computed = 0
    for seed in range(200):
        rng = random.Random(seed)
        play = CorePlay(rng, hostile=hostile)
        for _ in range(rng.randrange(30)):
            play.move(rng)
        core = play.core
        n_computed += bool(computing(core))
        core.handle(MustLeave(reason=WHY, within_s=0.0), play.now_s)
        for _ in range(10):
            assert (core.state()["runs"], computing(core)) == ([], [])
            play.move(rng)
    assert n_computed
