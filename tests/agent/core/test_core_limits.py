"""What a notebook may have waiting at one agent: it is refused what is too much, by name, and never
more is held.
"""

import json

import pytest
from tests.agent.core.core_driver import (
    EIGHT,
    MEMBER_SENDER,
    OTHER_SENDER,
    OWNER_KEY,
    Talk,
    plan,
    recv,
    send,
    settings,
    value,
)

from potluck_agent.core.events import ToPeer
from potluck_agent.core.execution import Name
from potluck_agent.core.outbox import Outbox
from potluck_agent.core.run_state import KEPT_ANSWERS_BYTES, LoadedRun
from potluck_agent.core.worker_proxy import ORDER_BYTES, WorkerProxy
from potluck_wire.limits import (
    KIB,
    MAX_BEHIND_BYTES,
    MAX_BUFFER_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_EXECUTIONS,
    MAX_MEASURES,
    MAX_PLANS_BYTES,
    MAX_PROBES,
    MAX_UNDER_WAY,
    MIB,
)
from potluck_wire.messages import (
    Abort,
    Commit,
    Done,
    Drop,
    Execute,
    Hello,
    LoadSegment,
    Measure,
    MeasuredTask,
    Prepare,
    Probe,
    RefusalCode,
    Refused,
    Rejected,
)

HEAVY = bytes(MAX_BUFFER_BYTES)
WAITS = recv("x")  # a program that waits for a value


def codes(actions):
    """Refusal codes, and the texts say what to do."""
    refused = [
        a.message
        for a in actions
        if isinstance(a, ToPeer) and isinstance(a.message, Refused | Rejected)
    ]
    assert all("again" in m.text or "drop" in m.text for m in refused if m.code == RefusalCode.BUSY)
    return [m.code for m in refused]


def until_busy(ask, most):
    """How many of `ask(index)` are taken before one is refused as busy."""
    index, refused = 0, codes(ask(0))
    while not refused:
        index += 1
        assert index <= most, "all of them are taken"
        refused = codes(ask(index))
    assert refused == [RefusalCode.BUSY]
    return index


def busy_talk():
    """The worker has been given something that takes it for ever."""
    talk = Talk(grace_s=1e9).begin().roster().load(WAITS)
    talk.receive(Measure(task="heavy", rows=(1,)), b"{}")
    return talk


FLOODS = {  # what is asked -> most of it that may wait
    "measurements": (lambda t, i: t.receive(Measure(task=f"t{i}", rows=(1,)), b"{}"), MAX_MEASURES),
    "large measurements": (
        lambda t, i: t.receive(Measure(task=f"t{i}", rows=(1,)), HEAVY),
        MAX_BEHIND_BYTES // MAX_BUFFER_BYTES + 1,
    ),
    "probes": (
        lambda t, i: t.receive(Probe(task=f"t{i}", peer="home", nbytes=8, repeats=64)),
        MAX_PROBES,
    ),
    "executions": (
        lambda t, i: t.receive(Execute(run="r", epoch=1, program="p", step=i)),
        MAX_EXECUTIONS,
    ),
    "executions behind one another": (
        lambda t, i: t.receive(Execute(run="r", epoch=1, program="p", step=i, after_step=i - 1)),
        MAX_EXECUTIONS,
    ),
    "executions behind one": (
        lambda t, i: t.receive(Execute(run="r", epoch=1, program="p", step=i, after_step=0)),
        MAX_EXECUTIONS,
    ),
    "plans, each dropped at once": (
        lambda t, i: dropped(t, i, [HEAVY] * 7),
        MAX_BEHIND_BYTES // (7 * 8191 * KIB) + 1,
    ),
    "empty plans, each dropped at once": (lambda t, i: dropped(t, i, []), MIB // ORDER_BYTES),
    "executions, each aborted at once": (lambda t, i: aborted(t, i), MIB // ORDER_BYTES),
}


# so they get a smaller share
LONG = ("empty plans, each dropped at once", "executions, each aborted at once")


def dropped(talk, index, segments):
    names = [{"name": f"s{i}", "kind": "aten"} for i in range(len(segments))]
    document = json.dumps({"segments": names, "programs": []}).encode()
    answers = talk.receive(Prepare(run="q", epoch=index), document, *segments)
    talk.receive(Drop(run="q"))
    return answers


def aborted(talk, index):
    answers = talk.receive(Execute(run="r", epoch=1, program="p", step=index))
    talk.receive(Abort(run="r", epoch=1, program="p", step=index))
    return answers


@pytest.mark.few(3)
@pytest.mark.parametrize("flood", FLOODS)
def test_what_waits_behind_a_busy_worker_has_an_end(flood, monkeypatch):
    if flood in LONG:
        monkeypatch.setattr("potluck_agent.core.worker_proxy.MAX_BEHIND_BYTES", MIB)
    ask, most = FLOODS[flood]
    talk = busy_talk()
    n_taken = until_busy(lambda index: ask(talk, index), most)
    assert 1 < n_taken <= most
    assert codes(talk.receive(Drop(run="nobody"))) == []  # the session goes on


def test_what_waits_for_a_worker_that_is_only_starting_has_an_end_too():
    worker, n_held = WorkerProxy(settings(), Outbox()), 0
    worker.need(0.0)
    while not worker.crowded(len(HEAVY)):
        worker.send(LoadSegment(slot="s"), (HEAVY,), 0.0)
        n_held += 1
    assert n_held == MAX_BEHIND_BYTES // (MAX_BUFFER_BYTES + ORDER_BYTES)


def test_what_waits_is_less_when_the_worker_has_come_to_it():
    talk = busy_talk()
    n_taken = until_busy(lambda i: talk.receive(Measure(task=f"t{i}", rows=(1,)), HEAVY), 100)
    times = {"rows": (1,), "forward_s": (0.1,), "memory_bytes": (1,)}
    talk.work(MeasuredTask(task="heavy", **times))
    # that was a small one
    assert codes(talk.receive(Measure(task="more", rows=(1,)), HEAVY)) == [RefusalCode.BUSY]
    talk.work(MeasuredTask(task="t0", **times))
    assert codes(talk.receive(Measure(task="more", rows=(1,)), HEAVY)) == []
    for task in [f"t{i}" for i in range(1, n_taken)] + ["more"]:
        talk.work(MeasuredTask(task=task, **times))
    assert (
        until_busy(lambda i: talk.receive(Measure(task=f"t{i}", rows=(1,)), HEAVY), 100) >= n_taken
    )


def test_values_are_rejected_while_too_much_waits(monkeypatch):
    talk = busy_talk()
    monkeypatch.setattr("potluck_agent.core.worker_proxy.MAX_BEHIND_BYTES", 1)
    assert codes(talk.receive(value(), EIGHT)) == [RefusalCode.BUSY]


def test_one_notebook_leaves_the_other_its_measurements_and_probes():
    talk = busy_talk()
    talk.receive(Drop(run="r", epoch=-1))  # beside a run nobody else may measure
    talk.receive(Hello(major=1), sender=OTHER_SENDER)
    for ask in (
        lambda i: Probe(task=f"t{i}", peer="home", repeats=1),
        lambda i: Measure(task=f"t{i}", rows=(1,)),
    ):
        buffers = [b"{}"] * isinstance(ask(0), Measure)
        until_busy(lambda i, ask=ask, buffers=buffers: talk.receive(ask(i), *buffers), 300)
        assert codes(talk.receive(ask(10**6), *buffers, sender=OTHER_SENDER)) == []


@pytest.mark.long
def test_instructions_of_executions_have_an_end():
    """Programs as large as they get, so that few of them are as much as many small ones."""
    n_rows = 50_000
    talk = Talk().begin()
    talk.receive(Prepare(run="r", epoch=1), *plan(*[recv(f"{i:x}") for i in range(n_rows)]))
    talk.receive(Commit(run="r", epoch=1))
    n_taken = until_busy(
        lambda i: talk.receive(Execute(run="r", epoch=1, program="p", step=i)), 100
    )
    assert n_taken == MAX_UNDER_WAY // n_rows
    talk.receive(Abort(run="r", epoch=1, program="p", step=0))
    assert codes(talk.receive(Execute(run="r", epoch=1, program="p", step=100))) == []


@pytest.mark.long
def test_plans_have_an_end():
    talk = Talk().begin()
    document = plan(WAITS)[0]
    document += b" " * (MAX_DOCUMENT_BYTES - len(document))
    n_taken = until_busy(
        lambda i: talk.receive(Prepare(run=f"r{i // 4}", epoch=i % 4), document), 64
    )
    assert n_taken == MAX_PLANS_BYTES // MAX_DOCUMENT_BYTES
    talk.receive(Drop(run="r0", epoch=0))
    assert codes(talk.receive(Prepare(run="again", epoch=0), document)) == []


def test_the_answers_that_are_kept_have_an_end():
    n_rows = 20_000
    run = LoadedRun(name="r", owner=OWNER_KEY)
    for step in range(40):
        name = Name("r", 1, "p", step)
        run.answered(name, (Done(), (bytes(50 * n_rows),)))
        assert (
            sum(len(answer[1][0]) for answer in run.answers.values() if answer)
            <= KEPT_ANSWERS_BYTES
        )
    assert run.answers[name] is not None


def test_aborted_sends_to_nobody_are_not_kept():
    """The home's data connection does not stand, so nothing leaves.

    What is aborted is not among what waits.
    """
    talk = Talk().begin().roster().load(recv("x", "phone"), send("x"))
    for step in range(50):
        talk.receive(Execute(run="r", epoch=1, program="p", step=step))
        talk.receive(value(step=step, transfer=step + 1), EIGHT, sender=MEMBER_SENDER)
        assert talk.core.held.n_leaving == 1
        talk.receive(Abort(run="r", epoch=1, program="p", step=step))
    assert talk.core.held.n_leaving == 0


def test_ordinary_work_is_far_from_all_of_it():
    """A pipeline of 64 micro-batches on a worker that is behind, two steps at once, and a switch of
    plans.
    """
    talk = Talk(memory_bytes=10**9, inbound_bytes=MIB).begin().roster()
    rows = [recv(f"x{i}") for i in range(64)] + [
        ["add", [f"x{i}"], [f"y{i}"], [], i, {}] for i in range(64)
    ]
    talk.load(*rows)
    for step in range(2):
        assert (
            codes(
                talk.receive(Execute(run="r", epoch=1, program="p", step=step, after_step=step - 1))
            )
            == []
        )
        for i in range(64):
            assert (
                codes(talk.receive(value(f"x{i}", step=step, transfer=1 + i + 64 * step), EIGHT))
                == []
            )
    assert codes(talk.receive(Prepare(run="r", epoch=2), *plan(*rows, segments=("s",)))) == []
    assert talk.core.held.order_bytes < MAX_BEHIND_BYTES / 100
