"""The core and its worker, as lists of actions: crashes, hangs, and what is measured on the owner's
behalf.
"""

from dataclasses import replace

import pytest
from tests.agent.core.core_driver import (
    EIGHT,
    OWNER_KEY,
    READY,
    RUN,
    Talk,
    cut,
    plan,
    recv,
    refused,
    send,
    value,
)

from potluck_agent.core.events import (
    KillWorker,
    ReadMeter,
    Span,
    StartWorker,
    Store,
    ToPeer,
    ToWorker,
    WorkerDied,
)
from potluck_wire.messages import (
    Chunk,
    Commit,
    Compute,
    Computed,
    ComputeFailed,
    Drop,
    Execute,
    Failed,
    FailureCause,
    Freed,
    Hello,
    LoadSegment,
    Measure,
    Measured,
    MeasuredTask,
    MeasureTask,
    Meter,
    Ping,
    Prepare,
    Probe,
    RefusalCode,
    SegmentLoaded,
    Value,
    WorkerReady,
)

pytestmark = pytest.mark.usefixtures("small_chunks")

# --- the worker -----------------------------------------------------------------------------------


def test_a_crash_ends_the_execution_with_its_cause_and_the_agent_lives():
    talk = Talk().begin().load(recv("x"), cut("x", "a"), send("a"))
    talk.receive(Execute(run="r", epoch=1, program="p", step=4))
    actions = talk.core.handle(WorkerDied(FailureCause.CRASHED, "SIGSEGV"), talk.now_s)
    failed = Failed(
        run="r", epoch=1, program="p", step=4, cause=FailureCause.CRASHED, text="SIGSEGV"
    )
    assert actions == [ToPeer(key=OWNER_KEY, message=failed)]
    (answer,) = talk.receive(Execute(run="r", epoch=1, program="p", step=4))
    assert answer == ToPeer(key=OWNER_KEY, message=failed)
    # the next step, of a notebook that has not heard of it yet
    (answer,) = talk.receive(Execute(run="r", epoch=1, program="p", step=5))
    assert answer == ToPeer(key=OWNER_KEY, message=replace(failed, step=5))
    prepared, *_ = talk.receive(Prepare(run="again", epoch=1), *plan(segments=("s",)))
    assert prepared == StartWorker()  # lazily, when it is needed again
    assert talk.work(WorkerReady(), READY) == [ToWorker(LoadSegment(slot="again/1/s"), (b"{}",))]


@pytest.mark.parametrize(
    ("is_committed", "dropped", "answer"),
    [
        (
            True,
            None,
            refused(
                Prepare,
                RefusalCode.UNKNOWN_RUN,
                "run r went with the worker: SIGSEGV",
                run="r",
                epoch=2,
            ),
        ),
        (
            True,
            1,
            refused(
                Prepare,
                RefusalCode.UNKNOWN_RUN,
                "run r went with the worker: SIGSEGV",
                run="r",
                epoch=2,
            ),
        ),
        (True, -1, StartWorker()),
        (False, 1, StartWorker()),  # it was to take part later: its notebook may try again
    ],
)
def test_a_run_that_went_with_its_worker_is_not_gone_on_with(is_committed, dropped, answer):
    talk = Talk().begin()
    talk.receive(Prepare(run="r", epoch=1), *plan())
    if is_committed:
        talk.receive(Commit(run="r", epoch=1))
    talk.core.handle(WorkerDied(FailureCause.CRASHED, "SIGSEGV"), talk.now_s)
    if dropped is not None:
        talk.receive(Drop(run="r", epoch=dropped))
    actions, *_ = talk.receive(Prepare(run="r", epoch=2), *plan(segments=("s",)))
    assert actions == answer


def test_a_crash_while_loading_refuses_the_plan():
    talk = Talk().begin()
    talk.receive(Prepare(run="r", epoch=1), *plan(segments=("s",)))
    assert talk.core.handle(WorkerDied(FailureCause.MEMORY, "too big"), talk.now_s) == [
        refused(Prepare, RefusalCode.MEMORY, "too big", run="r", epoch=1)
    ]


def test_a_worker_that_does_not_start_refuses_the_session():
    talk = Talk()
    talk.receive(Hello(major=1))
    assert talk.core.handle(WorkerDied(FailureCause.CRASHED, "no torch"), talk.now_s) == [
        refused(Hello, RefusalCode.BACKEND, "the worker does not start: no torch")
    ]
    assert talk.receive(Hello(major=1)) == [StartWorker()]


def test_a_hung_worker_is_killed_after_the_time_it_may_be_silent():
    talk = Talk(grace_s=1000.0).begin().load(recv("x"), cut("x", "a"))
    talk.receive(Execute(run="r", epoch=1, program="p"))
    assert talk.tick(100.0) == []  # nothing was asked of it
    (*_, compute) = talk.receive(
        Value(run="r", epoch=1, program="p", name="x", shape=(2,), nbytes=8, chunk_bytes=64),
        b"12345678",
    )
    assert isinstance(compute.message, Compute)
    assert talk.tick(30.0) == []
    kill, failed = talk.tick(0.5)
    assert kill == KillWorker("the worker was silent for 30 s")
    assert (failed.message.cause, failed.message.text) == (
        FailureCause.HUNG,
        "the worker was silent for 30 s",
    )


def test_no_task_took_longer_than_since_it_was_told():
    """What a worker says beyond that gives it no more time to be silent, and costs no joules."""
    talk = Talk(grace_s=1000.0).begin().load(recv("x"), cut("x", "a"))
    for step, (tag, said_s) in enumerate([(1, 0.0), (2, 0.0)]):
        talk.receive(replace(RUN, step=step))
        talk.receive(value(transfer=step + 1, step=step), EIGHT)
        talk.tick(2.0)
        if step == 0:
            talk.work(Computed(tag=tag, start_s=said_s, stop_s=talk.now_s), b"[]")
    assert talk.core.spent_s[0] == pytest.approx(2.0)
    assert talk.core.state()["workers"][0]["computed_s"] == pytest.approx(2.0)
    assert KillWorker("the worker was silent for 31 s") in talk.tick(28.6)


NOISE = {  # what nobody asked for, or asked for no more
    "ready again": (WorkerReady(), READY),
    "a place": (Freed(offset=0),),
    "another task": (Computed(tag=99, start_s=1.0, stop_s=2.0), b"[]"),
    "a segment": (SegmentLoaded(slot="r/1/s"),),
    "a measurement": (MeasuredTask(task="t"),),
    "another failure": (ComputeFailed(tag=99, cause="bad-input"),),
    "a failure of nothing": (ComputeFailed(cause="bad-input"),),
    "the task before": (Computed(tag=1), b"[]"),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("owes", ["a task", "a segment", "a measurement"])
def test_a_worker_that_says_anything_but_what_is_due_is_silent(noise, owes):
    talk = Talk(grace_s=1000.0).begin().load(recv("x"), cut("x", "a"))
    talk.receive(RUN)
    talk.receive(value(), b"12345678")
    talk.work(Computed(tag=1), b"[]")
    if owes == "a task":
        talk.receive(Execute(run="r", epoch=1, program="p", step=1))
        talk.receive(value(step=1, transfer=2), b"12345678")
    elif owes == "a segment":
        talk.receive(Prepare(run="r", epoch=2), *plan(segments=("s",)))
    else:
        talk.receive(Measure(task="u", rows=(1,)), b"graph")
    progress = pong(talk).progress
    for _ in range(6):
        assert not [action for action in talk.tick(5.0) if isinstance(action, KillWorker)]
        talk.work(*NOISE[noise])
    assert KillWorker("the worker was silent for 30 s") in talk.tick(0.5)
    assert pong(talk).progress == progress


def pong(talk):
    (answer,) = talk.receive(Ping(seq=1))
    return answer.message


@pytest.mark.parametrize(
    "cause", ["", "peer-lost", "cancelled", "worker-hung", "not-paired", "old-term", "\x1b[2J"]
)
def test_a_worker_that_fails_as_no_task_can_is_ended(cause):
    """It would tell its notebook of other devices, or of its own keys, in its agent's name."""
    talk = Talk().begin().load(recv("x"), cut("x", "a"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    kill, failed = talk.work(ComputeFailed(tag=1, cause=cause, text="no"))
    assert isinstance(kill, KillWorker)
    assert failed.message.cause == FailureCause.CRASHED
    assert f"no task fails by {cause!r}" in failed.message.text


def test_a_worker_that_never_gets_ready_is_silent_whatever_else_it_says():
    talk = Talk(grace_s=1000.0, start_s=30.0)
    talk.receive(Hello(major=1))
    for _ in range(6):
        talk.tick(5.0)
        talk.work(Freed(offset=0))
    assert KillWorker("the worker was silent for 30 s") in talk.tick(0.5)


# who holds the place of x, which is 128 bytes at 0: its program, and what has come of it
HOLDERS = {
    "it is still coming in": ([recv("x"), cut("x", "a")], 1),
    "it is to be sent on": ([recv("x"), send("x", "phone")], 2),
    "it is to be sent on, and the worker has let go already": (
        [recv("x"), cut("x", "a"), send("x", "phone")],
        2,
    ),
}


@pytest.mark.parametrize(
    "freed", [Freed(offset=0), Computed(tag=9, freed=(0,))], ids=["alone", "with a task"]
)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_worker_that_lets_go_of_what_it_does_not_hold_frees_no_place(holder, freed):
    rows, n_chunks = HOLDERS[holder]
    talk = Talk(inbound_bytes=256).begin().roster().load(*rows)
    talk.receive(value(nbytes=128), bytes(64))
    for index in range(1, n_chunks):
        talk.receive(Chunk(transfer=1, index=index), bytes(64))
    for _ in range(3):
        talk.work(freed, *[b"[]"] * isinstance(freed, Computed))
    # not over x
    assert talk.receive(value(step=1, transfer=2, nbytes=128), bytes(64))[0] == Store(
        128, bytes(64)
    )
    if n_chunks == 1:
        assert talk.receive(Chunk(transfer=1, index=1), bytes(64))[0] == Store(64, bytes(64))
    else:
        sent = [action for action in talk.receive(RUN) if isinstance(action, ToPeer)]
        assert sent[0].buffers == (Span(arena="inbound", offset=0, nbytes=128),)


# --- measuring ------------------------------------------------------------------------------------


def test_measure_is_handed_on_and_answered():
    talk = Talk().begin()
    request = Measure(task="t", train=True, rows=(1, 2), repeats=3)
    assert talk.receive(request, b"graph") == [
        ToWorker(MeasureTask(task="t", train=True, rows=(1, 2), repeats=3), (b"graph",))
    ]
    numbers = {
        "rows": (1, 2),
        "forward_s": (0.1, 0.2),
        "backward_s": (0.2, 0.3),
        "memory_bytes": (5, 6),
    }
    assert talk.work(MeasuredTask(task="t", **numbers)) == [
        ToPeer(key=OWNER_KEY, message=Measured(task="t", **numbers))
    ]
    assert talk.work(MeasuredTask(task="t", **numbers)) == []


def test_a_layer_that_cannot_be_measured_is_refused():
    talk = Talk().begin()
    talk.receive(Measure(task="t", rows=(1,)), b"graph")
    assert talk.work(ComputeFailed(slot="t", cause=RefusalCode.OPERATOR, text="aten.secret")) == [
        refused(Measure, RefusalCode.OPERATOR, "t: aten.secret")
    ]


@pytest.mark.parametrize(
    "request_",
    [
        Measure(rows=(1,)),
        Measure(task="t"),
        Measure(task="t", rows=(0,)),
        Measure(task="t", kind="x", rows=(1,)),
    ],
)
def test_refuses_measures_that_make_no_sense(request_):
    (answer,) = Talk().begin().receive(request_, b"graph")
    assert answer.message.code == RefusalCode.DOCUMENT


@pytest.mark.parametrize(
    "request_", [Probe(task="t", peer="nobody"), Probe(task="t", peer="home", repeats=65)]
)
def test_refuses_probes_that_make_no_sense(request_):
    (answer,) = Talk().begin().receive(request_)
    assert answer.message.code == RefusalCode.DOCUMENT


def test_readings_come_at_the_rate_that_was_asked_for():
    talk = Talk().begin()
    talk.receive(Meter(period_s=1.0))
    due = [ReadMeter(key=OWNER_KEY, busy_s=0.0, radio_s=0.0, busy_frac=0.0)]
    assert [talk.tick(), talk.tick(0.5), talk.tick(0.5), talk.tick(1.0)] == [due, [], due, due]
    assert talk.core.wake_s() == talk.now_s + 1.0
    talk.receive(Meter(period_s=0.0))
    assert talk.tick(5.0) == []


@pytest.mark.parametrize("period_s", [0.049, -1.0, 1e-300, 3601.0, 1e300])
def test_absurd_rates_of_readings_are_refused_and_the_rate_before_stays(period_s):
    talk = Talk().begin()
    talk.receive(Meter(period_s=1.0))
    talk.tick()
    (answer,) = talk.receive(Meter(period_s=period_s))
    assert answer.message.code == RefusalCode.DOCUMENT
    assert "0.05 to 3600 s" in answer.message.text
    assert talk.tick(1.0) == [ReadMeter(key=OWNER_KEY, busy_s=0.0, radio_s=0.0, busy_frac=0.0)]


def test_who_speaks_an_older_version_is_not_told_of_batteries():
    talk = Talk().begin(minor=7)
    talk.receive(Meter(period_s=1.0))
    assert talk.tick() == [
        ReadMeter(key=OWNER_KEY, busy_s=0.0, radio_s=0.0, busy_frac=0.0, tells_battery=False)
    ]
