"""Executions and values in the core: whole lists of actions for small programs."""

import json

import pytest
from tests.agent.core.core_driver import (
    EIGHT,
    MEMBER_KEY,
    MEMBER_SENDER,
    OTHER_SENDER,
    OWNER_KEY,
    RUN,
    Talk,
    add,
    compute,
    credit,
    cut,
    cut_attrs,
    exported,
    forget,
    plan,
    recv,
    send,
    value,
)

from potluck_agent.core.events import Span, Store, ToPeer, ToWorker, WorkerDied
from potluck_wire.limits import CHUNK_BYTES
from potluck_wire.messages import (
    Chunk,
    Compute,
    Computed,
    ComputeFailed,
    Done,
    Drop,
    Dropped,
    Execute,
    Failed,
    FailureCause,
    Forget,
    Freed,
    Prepare,
    Put,
    RefusalCode,
    Rejected,
    Release,
    Value,
)

pytestmark = pytest.mark.usefixtures("small_chunks")


def test_a_value_is_stored_computed_with_sent_and_given_back():
    talk = Talk().begin().load(recv("x"), cut("x", "a"), send("a", name="out"))
    assert talk.receive(RUN) == []
    assert talk.receive(value(), EIGHT) == [
        Store(0, EIGHT),
        ToPeer(key=OWNER_KEY, message=credit()),
        ToWorker(Put(value="r/1/p/0/x", offset=0, nbytes=8, shape=(2,))),
        compute(1, "slice", ["x"], ["a"], exports=["a"], frees=["x", "a"], attrs=cut_attrs()),
    ]
    assert talk.work(Freed(offset=0)) == []
    talk.now_s = 11.0
    out = Value(
        transfer=1,
        run="r",
        epoch=1,
        program="p",
        name="out",
        shape=(2,),
        nbytes=8,
        chunk_bytes=CHUNK_BYTES,
    )
    assert talk.work(
        Computed(tag=1, start_s=10.25, stop_s=10.5, memory_bytes=99), exported(("a", 64))
    ) == [
        ToPeer(key=OWNER_KEY, message=out, buffers=(Span(arena="outbound", offset=64, nbytes=8),))
    ]
    talk.now_s = 12.0
    done = Done(run="r", epoch=1, program="p", busy_s=0.25, peak_bytes=99)
    times = b"[[0,10.0,10.0],[1,10.25,10.5],[2,11.0,12.0]]"
    assert talk.receive(credit()) == [
        ToWorker(Release(offset=64)),
        ToPeer(key=OWNER_KEY, message=done, buffers=(times,)),
        forget(),
    ]
    assert talk.receive(RUN) == [
        ToPeer(key=OWNER_KEY, message=done, buffers=(times,))
    ]  # executed once, answered again
    # applied once, acknowledged again
    assert talk.receive(value(transfer=2), EIGHT) == [ToPeer(key=OWNER_KEY, message=credit(2))]


def test_values_may_come_before_their_execution():
    talk = Talk().begin().load(recv("x"), cut("x", "a"))
    assert talk.receive(value(), EIGHT) == [
        Store(0, EIGHT),
        ToPeer(key=OWNER_KEY, message=credit()),
        ToWorker(Put(value="r/1/p/0/x", offset=0, nbytes=8, shape=(2,))),
    ]
    assert talk.receive(RUN) == [
        compute(1, "slice", ["x"], ["a"], frees=["x", "a"], attrs=cut_attrs())
    ]


def test_early_values_of_a_dropped_plan_are_given_back():
    talk = Talk(inbound_bytes=64).begin().roster().load(recv("x"), send("x", "phone"))
    talk.receive(value(), EIGHT)
    assert talk.receive(value(step=1, transfer=2), EIGHT) == []  # no room, no credit
    assert talk.receive(Drop(run="r")) == [
        ToPeer(
            key=OWNER_KEY,
            message=Rejected(transfer=2, code=RefusalCode.UNKNOWN_RUN, text="the run has ended"),
        ),
        ToWorker(Forget(prefix="r/1/")),
        ToPeer(key=OWNER_KEY, message=Dropped(run="r")),
    ]
    talk.load(recv("x"), epoch=2)
    assert talk.receive(value(epoch=2, transfer=3), EIGHT)[0] == Store(0, EIGHT)


def test_tasks_are_queued_ahead_when_their_inputs_are_on_the_way():
    talk = (
        Talk().begin().load(recv("x"), cut("x", "a"), cut("x", "b"), add("a", "b", "c"), send("c"))
    )
    talk.receive(RUN)
    *_, first, second = talk.receive(value(), EIGHT)
    assert first == compute(1, "slice", ["x"], ["a"], attrs=cut_attrs())
    assert second == compute(2, "slice", ["x"], ["b"], frees=["x"], attrs=cut_attrs())
    third = compute(3, "add", ["a", "b"], ["c"], exports=["c"], frees=["a", "b", "c"])
    assert talk.work(Computed(tag=1), b"[]") == [third]
    assert talk.work(Computed(tag=2), b"[]") == []


def test_the_most_urgent_ready_task_goes_first():
    rows = [recv("x"), *(cut("x", f"v{i}", priority=-i) for i in range(4))]
    talk = Talk().begin().load(*rows)
    talk.receive(RUN)
    actions = talk.receive(value(), EIGHT)
    for tag in (1, 2):
        actions += talk.work(Computed(tag=tag), b"[]")
    order = [
        action.message.outputs[0]
        for action in actions
        if isinstance(getattr(action, "message", 0), Compute)
    ]
    assert order == [f"r/1/p/0/v{i}" for i in (3, 2, 1, 0)]


def test_after_a_send_means_after_its_acknowledgement():
    talk = (
        Talk()
        .begin()
        .load(
            recv("x"), send("x"), ["slice", ["x"], ["a"], [1], 0, {"dim": 0, "start": 0, "stop": 1}]
        )
    )
    talk.receive(RUN)
    *_, sent = talk.receive(value(), EIGHT)
    assert sent.buffers == (Span(arena="inbound", offset=0, nbytes=8),)
    assert talk.receive(credit()) == [
        compute(1, "slice", ["x"], ["a"], frees=["x", "a"], attrs=cut_attrs())
    ]


@pytest.mark.parametrize(
    "events", [(Freed(offset=0),), (Computed(tag=1, freed=(0,)), b"[]")], ids=["alone", "at once"]
)
def test_a_place_that_is_computed_with_and_sent_on_is_free_after_both(events):
    talk = Talk(inbound_bytes=64).begin().load(recv("x"), cut("x", "a"), send("x"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    second = value(step=1, transfer=2)
    assert talk.receive(second, EIGHT) == []
    assert talk.work(*events) == []
    assert talk.receive(credit())[:3] == [
        Store(0, EIGHT),
        ToPeer(key=OWNER_KEY, message=credit(2)),
        ToWorker(Put(value="r/1/p/1/x", offset=0, nbytes=8, shape=(2,))),
    ]


def test_a_value_that_nobody_uses_is_given_back_at_once():
    talk = Talk(inbound_bytes=64).begin().load(recv("x"))
    talk.receive(value(), EIGHT)
    assert talk.receive(value(step=1, transfer=2), EIGHT)[0] == Store(0, EIGHT)
    (done, forgotten) = talk.receive(RUN)
    assert isinstance(done.message, Done)
    assert forgotten == forget()


def test_segments_are_named_by_run_and_epoch():
    rows = [
        ["gradients", [], ["g"], [], 0, {"segment": name, "share_frac": 1.0}]
        for name in ("s", "7/s")
    ]
    rows[1][2] = ["h"]
    talk = Talk().begin().load(*rows, segments=("s",))
    slots = [action.message.slot for action in talk.receive(RUN)]
    assert slots == ["r/1/s", "r/7/s"]


def test_a_prepared_epoch_may_execute_before_it_is_in_force():
    talk = Talk().begin()
    talk.receive(Prepare(run="r", epoch=1), *plan(recv("x")))
    assert talk.receive(RUN) == []
    assert talk.receive(value(), EIGHT)[-2].message == Done(run="r", epoch=1, program="p")


# --- failures -------------------------------------------------------------------------------------


def test_a_failed_task_ends_its_execution_and_no_other():
    talk = Talk().begin().load(recv("x"), cut("x", "a"), send("a"))
    for step in (0, 1):
        talk.receive(Execute(run="r", epoch=1, program="p", step=step))
        talk.receive(value(step=step, transfer=step + 1), EIGHT)
    failed = Failed(
        run="r", epoch=1, program="p", instruction=1, cause=FailureCause.INPUT, text="bad shape"
    )
    assert talk.work(ComputeFailed(tag=1, cause=FailureCause.INPUT, text="bad shape")) == [
        ToPeer(key=OWNER_KEY, message=failed),
        forget(),
    ]
    assert talk.receive(RUN) == [ToPeer(key=OWNER_KEY, message=failed)]
    (sent,) = talk.work(Computed(tag=2), json.dumps([["r/1/p/1/a", 0, 8, "float32", [2]]]).encode())
    assert sent.message.step == 1


def test_tasks_of_a_failed_execution_that_were_with_the_worker_give_their_places_back():
    talk = Talk().begin().load(recv("x"), cut("x", "a"), cut("x", "b"), send("b"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    talk.work(ComputeFailed(tag=1, cause=FailureCause.INPUT, text="no"))
    assert talk.work(Computed(tag=2), exported(("b", 128))) == [ToWorker(Release(offset=128))]


@pytest.mark.parametrize(
    ("code", "cause"),
    [(RefusalCode.MEMORY, FailureCause.MEMORY), (RefusalCode.OLD_EPOCH, FailureCause.PEER_LOST)],
)
def test_a_rejected_value_ends_the_execution_and_names_the_receiver(code, cause):
    talk = Talk().begin().roster().load(recv("x"), send("x", "phone"))
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    failed, forgotten = talk.receive(
        Rejected(transfer=1, code=code, text="no"), sender=MEMBER_SENDER
    )
    assert (failed.message.cause, failed.message.text) == (cause, "phone rejected x: no")
    assert forgotten == forget()


def test_a_send_to_somebody_who_is_not_in_the_roster_fails():
    talk = Talk().begin().load(recv("x"), send("x", "phone"))
    talk.receive(RUN)
    *_, failed, _ = talk.receive(value(), EIGHT)
    assert failed.message.cause == FailureCause.PEER_LOST
    assert failed.message.text == "phone is not in the roster"


def test_dropping_a_plan_cancels_what_runs_and_says_so():
    talk = Talk().begin().load(recv("x"))
    talk.receive(RUN)
    failed, *_ = talk.receive(Drop(run="r", epoch=1))
    assert failed.message.cause == FailureCause.CANCELLED


def test_what_comes_after_a_crash_is_rejected():
    talk = Talk().begin().load(recv("x"), cut("x", "a"))
    talk.receive(value(nbytes=128), b"x" * 64)
    assert talk.core.handle(WorkerDied(FailureCause.CRASHED, "died"), talk.now_s) == [
        ToPeer(
            key=OWNER_KEY,
            message=Rejected(
                transfer=1, code=RefusalCode.UNKNOWN_RUN, text="the worker of this device is gone"
            ),
        )
    ]
    assert talk.receive(Chunk(transfer=1, index=1), b"x" * 64) == []


# --- values that do not belong --------------------------------------------------------------------

UNWANTED = [
    ("unknown run", value(run="other"), RefusalCode.UNKNOWN_RUN),
    ("epoch to come", value(epoch=2), RefusalCode.UNKNOWN_RUN),
    ("old epoch", value(epoch=0), RefusalCode.OLD_EPOCH),
    ("unknown program", value(program="q"), RefusalCode.DOCUMENT),
    ("name that is not received", value("y"), RefusalCode.DOCUMENT),
    ("from another device", value("z"), RefusalCode.DOCUMENT),
    ("larger than the memory", value(nbytes=8192), RefusalCode.MEMORY),
    (
        "length and shape differ",
        Value(run="r", epoch=1, program="p", name="x", shape=(3,), nbytes=8),
        RefusalCode.DOCUMENT,
    ),
    ("chunk too long", value(nbytes=4), RefusalCode.DOCUMENT),
]


@pytest.mark.parametrize(("what", "message", "code"), UNWANTED, ids=[what for what, *_ in UNWANTED])
def test_rejects_values_that_do_not_belong(what, message, code):
    talk = Talk().begin().roster().load(recv("x"), recv("z", "phone"))
    (answer,) = talk.receive(message, EIGHT)
    assert (answer.key, answer.message.code) == (OWNER_KEY, code)
    assert isinstance(answer.message, Rejected)


def test_rejects_values_of_another_notebook():
    talk = Talk().begin().load(recv("x"))
    (answer,) = talk.receive(value(), EIGHT, sender=OTHER_SENDER)
    assert answer.message.code == RefusalCode.DOCUMENT


def test_takes_values_of_a_member_only_under_its_own_name():
    talk = Talk().begin().roster().load(recv("x"), recv("z", "phone"))
    assert isinstance(talk.receive(value("x"), EIGHT, sender=MEMBER_SENDER)[0].message, Rejected)
    assert talk.receive(value("z"), EIGHT, sender=MEMBER_SENDER)[:2] == [
        Store(0, EIGHT),
        ToPeer(key=MEMBER_KEY, message=credit()),
    ]


@pytest.mark.parametrize(("index", "nbytes"), [(2, 64), (0, 64), (1, 63), (1, 65)])
def test_refuses_chunks_out_of_order_or_of_the_wrong_size(index, nbytes):
    talk = Talk().begin().load(recv("x"))
    assert talk.receive(value(nbytes=192), b"x" * 64) == [Store(0, b"x" * 64)]
    (answer,) = talk.receive(Chunk(transfer=1, index=index), b"x" * nbytes)
    assert isinstance(answer.message, Rejected)
    assert (
        talk.receive(Chunk(transfer=1, index=1), b"x" * 64) == []
    )  # on its way when it was rejected


def test_a_value_in_two_transfers_at_once_is_applied_once():
    talk = Talk().begin().load(recv("x"), cut("x", "a"))
    for transfer in (1, 2):
        talk.receive(value(nbytes=128, transfer=transfer), b"x" * 64)
    talk.receive(Chunk(transfer=1, index=1), b"x" * 64)
    assert talk.receive(Chunk(transfer=2, index=1), b"x" * 64) == [
        Store(128 + 64, b"x" * 64),
        ToPeer(key=OWNER_KEY, message=credit(2, 128)),
    ]
