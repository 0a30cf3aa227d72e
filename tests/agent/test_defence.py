"""The last line of defence: what raises that nothing may raise costs whoever it came from, and
never the agent.
"""

import gc
import weakref
from pkgutil import resolve_name

import pytest
from tests.agent.agents import Keys, RawPeer, agent, command, faults_of
from tests.agent.core.core_driver import (
    EIGHT,
    MEMBER_KEY,
    MEMBER_SENDER,
    OTHER_SENDER,
    OWNER_KEY,
    OWNER_SENDER,
    READY,
    RUN,
    Talk,
    add,
    recv,
    send,
    value,
)

from potluck_agent import fault_log
from potluck_agent.core.events import (
    FromDisk,
    FromPeer,
    FromWorker,
    KillWorker,
    LinkReset,
    Report,
    SetMembers,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
    Undone,
    WorkerDied,
)
from potluck_wire.messages import (
    Chunk,
    Compute,
    Computed,
    Done,
    Drop,
    Dropped,
    Execute,
    Failed,
    FailureCause,
    Goodbye,
    Hello,
    Measure,
    MeasureTask,
    Ping,
    Pong,
    Prepare,
    Prepared,
    RefusalCode,
    Refused,
    Roster,
    Value,
    Welcome,
    WorkerReady,
)

FAULT = TypeError("unhashable")


def at_work():
    """A step whose one task is with the worker."""
    talk = (
        Talk()
        .begin()
        .roster()
        .load(recv("x"), recv("y", "phone"), add("x", "y", "a"), send("a", "phone"))
    )
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    talk.receive(value("y"), EIGHT, sender=MEMBER_SENDER)
    return talk


def survive(talk, event):
    actions = talk.core.survive(event, FAULT, talk.now_s)
    report, *others = actions
    assert isinstance(report, Report)
    assert "TypeError: unhashable" in report.text
    assert "FromPeer Hello" in report.text  # what had happened before
    assert talk.core.n_faults == 1
    return others


def messages(actions, kind):
    return [a.message for a in actions if isinstance(getattr(a, "message", None), kind)]


def test_a_notebook_that_caused_it_loses_its_session_and_another_works_on():
    talk = at_work()
    talk.receive(Hello(major=1), sender=OTHER_SENDER)
    actions = survive(talk, FromPeer(sender=OWNER_SENDER, message=Drop(run="r")))
    assert actions[0].message == Goodbye(reason="a fault in the agent (TypeError), see its report")
    assert not messages(actions, Failed)  # nothing is said after it
    assert len(talk.core.sessions) == 1
    assert talk.receive(Drop(run="s"), sender=OTHER_SENDER) == [
        ToPeer(key=OTHER_SENDER.key, message=Dropped(run="s"))
    ]


def test_a_member_that_caused_it_costs_the_steps_and_nothing_else():
    talk = at_work()
    actions = survive(
        talk, FromPeer(sender=MEMBER_SENDER, message=Chunk(transfer=1), buffers=(b"",))
    )
    assert [failed.cause for failed in messages(actions, Failed)] == [FailureCause.PEER_LOST]
    assert len(talk.core.sessions) == 1


def of_a_notebook(message, data):
    return FromPeer(sender=OWNER_SENDER, message=message, buffers=(data,))


WITH_BYTES = {
    "a plan that is refused": lambda data: of_a_notebook(Prepare(run="q", epoch=1), data),
    "a roster that is refused": lambda data: of_a_notebook(Roster(home="h"), data),
    "a value that nobody wants": lambda data: of_a_notebook(
        Value(run="q", shape=(2,), nbytes=8, chunk_bytes=8), data
    ),
    "what a worker says": lambda data: FromWorker(Computed(tag=9), (data,)),
    "what could not be told": lambda data: Undone(
        ToPeer(key=OTHER_SENDER.key, message=Done(run="q"), buffers=(data,)), "why"
    ),
}


@pytest.mark.parametrize("case", WITH_BYTES)
def test_for_a_report_no_bytes_of_others_are_kept(case):
    """Twenty plans of 64 MiB each, all of them refused, stayed until others came."""
    talk, data = at_work(), memoryview(bytes(8))
    kept = weakref.ref(data)
    talk.happen(WITH_BYTES[case](data))
    del data
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    "event", [FromWorker(Computed(tag=1)), WorkerDied(FailureCause.CRASHED, "x")]
)
def test_a_worker_that_caused_it_is_ended(event):
    talk = at_work()
    actions = survive(talk, event)
    assert any(isinstance(action, KillWorker) for action in actions)
    assert [failed.cause for failed in messages(actions, Failed)] == [FailureCause.INTERNAL]
    assert len(talk.core.sessions) == 1


def test_bytes_that_could_not_even_be_read_cost_their_sender():
    talk = at_work()
    assert messages(survive(talk, LinkReset(key=OWNER_KEY)), Goodbye)
    assert len(talk.core.sessions) == 0


PARTS_OF_A_ROUND = {
    "is its worker hung": "worker_proxy.WorkerProxy.overdue_s",
    "what was granted": "workspaces.Workspace.forget_what_is_over",
    "values that find no room": "execution_engine.ExecutionEngine.tick",
    "what was too much at once": "execution_engine.ExecutionEngine.go_on",
    "its measurements": "measurements.MeasurementQueue.tick",
    "how its services stand": "asks.AskExchange.tell",
    "feeding its worker": "execution_engine.ExecutionEngine.feed",
    "credit that waited": "receive_buffers.ReceiveBuffers.credit",
}


def raising_once(function):
    faults = [FAULT]

    def raising(*given):
        if faults:
            raise faults.pop()
        return function(*given)

    return raising


@pytest.mark.parametrize("part", PARTS_OF_A_ROUND)
def test_what_one_notebook_left_to_do_costs_that_one_whoever_s_event_it_is(part, monkeypatch):
    talk = at_work()  # the first notebook, whose turn is first
    talk.receive(Hello(major=1), sender=OTHER_SENDER)
    talk.load(recv("x"), send("x"), run="s", sender=OTHER_SENDER)
    target = f"potluck_agent.core.{PARTS_OF_A_ROUND[part]}"
    with monkeypatch.context() as broken:
        broken.setattr(target, raising_once(resolve_name(target)))
        actions = talk.tick(1.0)
    assert [
        a.text.startswith(f"a fault in the agent while handling Workspace of notebook {OWNER_KEY}")
        for a in actions
        if isinstance(a, Report)
    ] == [True]
    assert [a.key for a in actions if isinstance(getattr(a, "message", None), Goodbye)] == [
        OWNER_KEY
    ]
    assert KillWorker("its notebook is gone") in actions
    assert talk.core.sessions == {OTHER_SENDER.key}
    talk.core.reach(OTHER_SENDER.key)
    talk.receive(Execute(run="s", epoch=1, program="p"), sender=OTHER_SENDER)
    answered = talk.receive(value(run="s"), EIGHT, sender=OTHER_SENDER)
    assert [sent.name for sent in messages(answered, Value)] == ["x"]


OF_A_WORKER = {
    "weights that are kept": FromDisk(1, 0, "done"),
    "an order that could not be given": Undone(ToWorker(Compute(tag=1)), "why"),
}


@pytest.mark.parametrize("case", OF_A_WORKER)
def test_the_end_of_what_a_worker_was_to_have_costs_that_worker(case):
    talk = at_work()
    talk.receive(Hello(major=1), sender=OTHER_SENDER)
    assert KillWorker("a fault in the agent (TypeError), see its report", 0) in survive(
        talk, OF_A_WORKER[case]
    )
    assert len(talk.core.sessions) == 2


def test_what_could_not_be_sent_costs_whom_it_was_for():
    talk = at_work()
    talk.receive(Hello(major=1), sender=OTHER_SENDER)
    survive(talk, Undone(ToPeer(key=OTHER_SENDER.key, message=Prepared()), "why"))
    assert talk.core.sessions == {OWNER_KEY}


def test_a_member_of_one_home_costs_the_steps_of_that_home_alone():
    talk = at_work()
    talk.receive(Hello(major=1), sender=OTHER_SENDER)
    talk.load(recv("x"), send("x"), run="s", sender=OTHER_SENDER)
    talk.receive(Execute(run="s", epoch=1, program="p"), sender=OTHER_SENDER)
    actions = survive(talk, FromPeer(sender=MEMBER_SENDER, message=Chunk(transfer=1)))
    assert [failed.run for failed in messages(actions, Failed)] == ["r"]


def test_where_nobody_is_to_blame_everything_begins_anew():
    talk = at_work()
    actions = talk.core.survive(Tick(), FAULT, talk.now_s)
    assert len(talk.core.sessions) == 0
    assert {type(action) for action in actions} == {Report, ToPeer, SetMembers, KillWorker}
    assert StartWorker() in talk.receive(Hello(major=1))
    (welcome,) = talk.work(WorkerReady(), READY)
    assert isinstance(welcome.message, Welcome)


def test_where_the_ordinary_path_fails_too_everything_begins_anew(monkeypatch):
    talk = at_work()
    monkeypatch.setattr("potluck_agent.core.epochs.EpochTable.leave", lambda *_: 1 / 0)
    actions = talk.core.survive(
        FromPeer(sender=OWNER_SENDER, message=Drop(run="r")), FAULT, talk.now_s
    )
    assert talk.core.n_faults == 2
    assert KillWorker("a fault in the agent") in actions
    # no session: it has to say hello first
    assert messages(talk.load(recv("x")).receive(RUN), Refused)
    assert messages(talk.begin().load(recv("x")).receive(RUN), Goodbye) == []


# --- actions that could not be carried out --------------------------------------------------------


def undone(talk, action):
    report, *others = talk.core.handle(Undone(action, "why"), talk.now_s)
    assert report == Report("why")
    assert talk.core.n_faults == 1
    return others


def test_a_task_that_the_worker_cannot_be_told_fails_its_step():
    talk = at_work()
    (failed,) = messages(undone(talk, ToWorker(Compute(tag=1))), Failed)
    assert (failed.instruction, failed.cause, failed.text) == (2, FailureCause.INTERNAL, "why")


def test_a_measurement_that_the_worker_cannot_be_told_is_refused():
    talk = Talk().begin()
    talk.receive(Measure(task="t", rows=(1,)), b"{}")
    (refused,) = messages(undone(talk, ToWorker(MeasureTask(task="t"))), Refused)
    assert (refused.code, refused.text) == (RefusalCode.DOCUMENT, "t: why")


@pytest.mark.parametrize("action", [Store(0, b""), StartWorker(), ToWorker(WorkerReady())])
def test_a_worker_that_misses_something_is_ended(action):
    talk = at_work()
    assert any(isinstance(action, KillWorker) for action in undone(talk, action))


def test_a_value_that_cannot_be_sent_fails_its_step():
    talk = at_work()
    rows = b'[["r/1/p/0/a",0,8,"float32",[2]]]'
    talk.core.reach(MEMBER_KEY)
    (sent,) = messages(talk.work(Computed(tag=1), rows), Value)
    (failed,) = messages(undone(talk, ToPeer(key=MEMBER_KEY, message=sent)), Failed)
    assert failed.cause == FailureCause.PEER_LOST


def test_an_answer_that_cannot_be_sent_is_a_failure_and_remembered_as_one():
    talk = Talk().begin().load(recv("x"))
    talk.receive(value(), EIGHT)
    (done,) = messages(talk.receive(RUN), Done)
    (failed,) = undone(talk, ToPeer(key=OWNER_KEY, message=done, buffers=(b"[]",)))
    assert failed.message.cause == FailureCause.INTERNAL
    assert talk.receive(RUN) == [failed]


def test_a_notebook_that_cannot_be_answered_loses_its_session():
    talk = at_work()
    assert messages(undone(talk, ToPeer(key=OWNER_KEY, message=Prepared())), Goodbye)
    assert len(talk.core.sessions) == 0
    assert talk.core.handle(
        Undone(ToPeer(key=OWNER_KEY, message=Goodbye()), "why"), talk.now_s
    ) == [Report("why")]


# --- the process ----------------------------------------------------------------------------------

BREAKS = """
import sys
from potluck_agent.cli import arguments, main
from potluck_agent.core.epochs import EpochTable

def raises(*_):
    raise TypeError("unhashable")

EpochTable.drop = raises
sys.exit(main.run(arguments.read(sys.argv[1:])))
"""


@pytest.mark.long
def test_a_real_agent_lives_on_and_keeps_a_report_and_a_recording(tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    ada = Keys()
    bob = Keys()
    state = tmp_path / "state"
    recording = str(tmp_path / "fault.rec")
    trust = ("--trust", f"{ada.public}:ada", "--trust", f"{bob.public}:bob")
    with (
        agent(
            state, *trust, "--record", recording, program=(str(tmp_path / "breaks.py"),)
        ) as jetson,
        RawPeer(jetson.port, jetson.key, ada) as first,
        RawPeer(jetson.port, jetson.key, bob) as second,
    ):
        for peer in (first, second):
            assert isinstance(peer.ask(Hello(major=1)), Welcome)
        assert isinstance(first.ask(Drop(run="r")), Goodbye)
        assert isinstance(second.ask(Ping(seq=1)), Pong)
        assert isinstance(second.ask(Measure(task="t"), b"{}"), Refused)
        assert isinstance(first.ask(Hello(major=1)), Welcome)
        assert "TypeError: unhashable" in faults_of(state)
        (state / fault_log.FILE).unlink()
    output = command("replay", recording).stdout  # by an agent that is not broken
    assert "survived TypeError: unhashable" in output
    assert "DIFFERS: the agent raised TypeError, the replay did not" in output
    assert "the replay differs at 1 of them" in output


def test_a_report_fills_no_disk(tmp_path):
    for _ in range(5):
        fault_log.keep(tmp_path, "x" * (fault_log.MAX_FILE_BYTES // 2))
    assert (tmp_path / fault_log.FILE).stat().st_size < 2 * fault_log.MAX_FILE_BYTES
    fault_log.keep(tmp_path / "nowhere", "x")
