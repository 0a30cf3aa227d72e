"""A step that is asked for while the one before is under way: when it begins, and what becomes of
it.
"""

import pytest
from tests.agent.core.core_driver import MEMBER_KEY, MEMBER_SENDER, OWNER_KEY, Talk, cut, recv, send

from potluck_agent.core.events import ToPeer, ToWorker
from potluck_wire.messages import (
    Abort,
    Compute,
    Computed,
    ComputeFailed,
    Credit,
    Done,
    Drop,
    Execute,
    Failed,
    FailureCause,
    Value,
)

ROWS = recv("x"), cut("x", "a"), send("a", "phone"), cut("x", "b")
EXPORTS = b'[["r/1/p/0/a",0,4,"float32",[1]]]'


def value(step):
    return Value(
        transfer=step + 1,
        run="r",
        epoch=1,
        program="p",
        step=step,
        name="x",
        shape=(2,),
        nbytes=8,
        chunk_bytes=64,
    )


def execute(step, after_step=-1):
    return Execute(run="r", epoch=1, program="p", step=step, after_step=after_step)


def steps(actions):
    """Of which steps tasks go to the worker."""
    return [
        a.message.step
        for a in actions
        if isinstance(a, ToWorker) and isinstance(a.message, Compute)
    ]


def answers(actions):
    answered = [a.message for a in actions if isinstance(a, ToPeer) and a.key == OWNER_KEY]
    return [(type(m), m.step) for m in answered if isinstance(m, Done | Failed)]


@pytest.fixture
def talk():
    """The inputs of two steps are here, the first has begun and the second is asked for."""
    talk = Talk().begin().roster().load(*ROWS)
    for step in (0, 1):
        talk.receive(value(step), b"12345678")
    assert steps(talk.receive(execute(0))) == [0, 0]
    assert talk.receive(execute(1, after_step=0)) == []
    return talk


def test_begins_once_the_worker_has_all_that_is_left_of_the_one_before(talk):
    actions = talk.work(Computed(tag=1), EXPORTS)
    assert steps(actions) == []  # its value is still on the way
    (transfer,) = [
        a.message.transfer for a in actions if isinstance(a, ToPeer) and a.key == MEMBER_KEY
    ]
    actions = talk.receive(
        Credit(transfer=transfer, received_bytes=4, done=True), sender=MEMBER_SENDER
    )
    assert (steps(actions), answers(actions)) == ([1], [])
    actions = talk.work(Computed(tag=2), b"[]")
    assert (steps(actions), answers(actions)) == ([1], [(Done, 0)])


def test_begins_when_the_one_before_is_done(talk):
    actions = talk.work(Computed(tag=1), EXPORTS)
    (transfer,) = [
        a.message.transfer for a in actions if isinstance(a, ToPeer) and a.key == MEMBER_KEY
    ]
    assert steps(talk.work(Computed(tag=2), b"[]")) == []
    actions = talk.receive(
        Credit(transfer=transfer, received_bytes=4, done=True), sender=MEMBER_SENDER
    )
    assert (steps(actions), answers(actions)) == ([1, 1], [(Done, 0)])


def test_begins_at_once_where_nothing_is_before_it():
    talk = Talk().begin().roster().load(*ROWS)
    talk.receive(value(1), b"12345678")
    assert steps(talk.receive(execute(1, after_step=0))) == [1, 1]


@pytest.mark.parametrize(
    "fail",
    [
        lambda talk: talk.work(ComputeFailed(tag=1, cause=FailureCause.ARITHMETIC, text="no")),
        lambda talk: talk.receive(Drop(run="r", epoch=1)),
    ],
    ids=["a task fails", "dropped"],
)
def test_is_cancelled_with_the_one_before(talk, fail):
    actions = fail(talk)
    assert (steps(actions), answers(actions)) == ([], [(Failed, 0), (Failed, 1)])
    (*_, last) = [
        a.message for a in actions if isinstance(a, ToPeer) and isinstance(a.message, Failed)
    ]
    assert (last.cause, last.text) == (FailureCause.CANCELLED, "step 0 failed before it")


# --- several of them ------------------------------------------------------------------------------


def begun(n_steps, *orders):
    """Values of so many steps are here, step 0 is under way, and (step, after_step) are asked
    for.
    """
    talk = Talk().begin().roster().load(*ROWS)
    for step in range(n_steps):
        talk.receive(value(step), b"12345678")
    talk.receive(execute(0))
    for step, after_step in orders:
        assert talk.receive(execute(step, after_step)) == []
    return talk


def worked_through(talk):
    """Every task is done and every value arrives, until nothing more happens: the steps in their
    order, and answers.
    """
    order = []
    answered = []
    done = set()
    tasks = {1: 0, 2: 0}
    while set(tasks) - done:
        tag = min(set(tasks) - done)
        done.add(tag)
        first = tasks[tag] not in [tasks[other] for other in done - {tag}]
        exports = EXPORTS.replace(b"/0/a", b"/%d/a" % tasks[tag]) if first else b"[]"
        actions = talk.work(Computed(tag=tag), exports)
        for sent in [a.message for a in actions if isinstance(a, ToPeer) and a.key == MEMBER_KEY]:
            arrived = Credit(transfer=sent.transfer, received_bytes=4, done=True)
            actions = actions + talk.receive(arrived, sender=MEMBER_SENDER)
        for task in [
            a.message for a in actions if isinstance(a, ToWorker) and isinstance(a.message, Compute)
        ]:
            tasks[task.tag] = task.step
        order += steps(actions)
        answered += answers(actions)
    return list(dict.fromkeys(order)), answered


CROWDS = {
    "both behind one": (((1, 0), (2, 0)), [1, 2]),
    "one behind the other": (((1, 0), (2, 1)), [1, 2]),
    "in another order": (((2, 0), (1, 0)), [2, 1]),
    "asked for twice": (((1, 0), (1, 0), (2, 1), (2, 1)), [1, 2]),
    "asked for twice, behind another": (((1, 0), (2, 1), (1, 2)), [1, 2]),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_several_may_wait_and_each_is_executed_and_answered_once(crowd):
    orders, order = CROWDS[crowd]
    begun_steps, answered = worked_through(begun(3, *orders))
    assert begun_steps == order
    assert sorted(answered, key=lambda answer: answer[1]) == [(Done, 0), (Done, 1), (Done, 2)]


@pytest.mark.parametrize("crowd", CROWDS)
def test_all_that_wait_are_cancelled_with_the_one_before_them(crowd):
    orders, _ = CROWDS[crowd]
    actions = begun(3, *orders).work(ComputeFailed(tag=1, cause=FailureCause.ARITHMETIC, text="no"))
    assert steps(actions) == []
    assert sorted(answers(actions), key=lambda answer: answer[1]) == [
        (Failed, 0),
        (Failed, 1),
        (Failed, 2),
    ]


def test_one_that_is_aborted_while_it_waits_is_answered_once():
    talk = begun(3, (1, 0), (2, 1))
    answered = answers(talk.receive(Abort(run="r", epoch=1, program="p", step=1)))
    assert sorted(answered, key=lambda answer: answer[1]) == [(Failed, 1), (Failed, 2)]
    assert worked_through(talk) == ([], [(Done, 0)])
