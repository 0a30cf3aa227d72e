"""Two notebooks on one device: each has its own worker, memory, values and turns on the links, and
neither can read, stall or end what the other one runs.
"""

import json
import random
from dataclasses import fields, replace

import pytest
from tests.agent.core.core_attack import CorePlay
from tests.agent.core.core_driver import (
    CAN,
    EIGHT,
    MEMBER_SENDER,
    OTHER_KEY,
    OTHER_SENDER,
    OWNER_KEY,
    OWNER_SENDER,
    RUN,
    Talk,
    add,
    credit,
    exported,
    plan,
    recv,
    refused,
    send,
    settings,
    value,
)

from potluck_agent.core.events import (
    MEMBER,
    FromPeer,
    FromWorker,
    KillWorker,
    LimitWorker,
    PeerRevoked,
    Sender,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
    Undone,
    WorkerDied,
)
from potluck_agent.core.machine import Core
from potluck_agent.core.workspaces import IDLE_S
from potluck_wire.limits import MAX_WORKERS
from potluck_wire.messages import (
    Abort,
    Available,
    Commit,
    Committed,
    Compute,
    Computed,
    Done,
    Drop,
    Execute,
    Failed,
    FailureCause,
    Goodbye,
    Hello,
    LoadSegment,
    Measure,
    Measured,
    MeasuredTask,
    Offer,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Probe,
    RefusalCode,
    Refused,
    Rejected,
    Roster,
    SegmentLoaded,
    Value,
    Welcome,
    WorkerReady,
)

READY = json.dumps(CAN).encode()
PROGRAM = (recv("x"), add("x", "x", "y"), send("y"))


def two(**changes):
    """Two notebooks with a session each, and the first one's worker."""
    return Talk(**changes).begin().begin(OTHER_SENDER)


def both(*rows, other_memory=400, **changes):
    """Both have a run with a program of these rows: `r` and `s`."""
    talk = two(**changes).roster().load(*rows, memory_bytes=400)
    talk.receive(
        Prepare(run="s", epoch=1, memory_bytes=other_memory), *plan(*rows), sender=OTHER_SENDER
    )
    talk.work(WorkerReady(), READY, worker=1)
    talk.receive(Commit(run="s", epoch=1), sender=OTHER_SENDER)
    return talk


def to(key, actions):
    """What this notebook is told, but for what others leave."""
    messages = [a.message for a in actions if isinstance(a, ToPeer) and a.key == key]
    return [message for message in messages if not isinstance(message, Available)]


def left_for(key, actions):
    """What others leave for this notebook, as it is told."""
    return [
        (a.message.memory_bytes, a.message.n_beside)
        for a in actions
        if isinstance(a, ToPeer) and a.key == key and isinstance(a.message, Available)
    ]


def limits(actions):
    return {a.worker: a.memory_bytes for a in actions if isinstance(a, LimitWorker)}


def test_a_second_notebooks_plan_gets_a_worker_of_its_own():
    talk = two().load(*PROGRAM, segments=("a",))
    prepare = Prepare(run="s", epoch=1)
    actions = talk.receive(prepare, *plan(*PROGRAM, segments=("b",)), sender=OTHER_SENDER)
    assert StartWorker(1) in actions
    orders = talk.work(WorkerReady(), READY, worker=1)
    assert [(a.worker, a.message) for a in orders if isinstance(a, ToWorker)] == [
        (1, LoadSegment(slot="s/1/b", kind="aten", weights=""))
    ]
    assert to(OTHER_KEY, talk.work(SegmentLoaded(slot="s/1/b"), worker=1)) == [
        Prepared(run="s", epoch=1)
    ]


def test_each_computes_on_its_own_worker_and_hears_of_its_own_step():
    talk = both(*PROGRAM)
    for sender, run, number in ((OWNER_SENDER, "r", 0), (OTHER_SENDER, "s", 1)):
        talk.receive(Execute(run=run, epoch=1, program="p"), sender=sender)
        actions = talk.receive(value(run=run), EIGHT, sender=sender)
        assert [a.worker for a in actions if isinstance(a, Store)] == [number]
        (order,) = [
            a for a in actions if isinstance(a, ToWorker) and isinstance(a.message, Compute)
        ]
        assert (order.worker, order.message.scope) == (number, f"{run}/1/p/0/")
        done = Computed(tag=order.message.tag, start_s=10.0, stop_s=10.0)
        places = json.dumps([[f"{run}/1/p/0/y", 64, 8, "float32", [2]]]).encode()
        sent = talk.work(done, places, worker=number)
        (out,) = [a for a in sent if isinstance(a, ToPeer)]
        assert (out.key, out.message.run) == (sender.key, run)
        assert [part.worker for part in out.buffers] == [number]
        acknowledged = talk.receive(credit(transfer=out.message.transfer), sender=sender)
        assert [type(m) for m in to(sender.key, acknowledged)] == [Done]


@pytest.mark.parametrize(
    "message",
    [
        RUN,
        Commit(run="r", epoch=1),
        Abort(run="r", epoch=1, program="p"),
        Drop(run="r", epoch=-1),
        Drop(run="r", epoch=1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_anothers_run_is_unknown(message):
    talk = both(*PROGRAM)
    talk.receive(RUN)
    actions = talk.receive(message, sender=OTHER_SENDER)
    assert to(OWNER_KEY, actions) == []
    if not isinstance(message, Drop):
        assert [(m.code, m.text) for m in to(OTHER_KEY, actions)] == [
            (RefusalCode.UNKNOWN_RUN, "no run r is loaded")
        ]
    assert [run["name"] for run in talk.core.state()["runs"]] == ["r", "s"]
    answer = talk.receive(value(), EIGHT)  # it goes on
    assert any(isinstance(a, ToWorker) and isinstance(a.message, Compute) for a in answer)


def test_anothers_name_of_a_run_is_taken_also_when_that_was_lost_with_its_worker():
    talk = both(*PROGRAM)
    prepare = Prepare(run="r", epoch=2)
    text = "another notebook's run has this name"
    taken = refused(Prepare, RefusalCode.BUSY, text, key=OTHER_KEY, run="r", epoch=2)
    assert taken in talk.receive(prepare, *plan(*PROGRAM), sender=OTHER_SENDER)
    talk.core.handle(WorkerDied(FailureCause.CRASHED, "SIGSEGV", 0), talk.now_s)
    assert taken in talk.receive(prepare, *plan(*PROGRAM), sender=OTHER_SENDER)


@pytest.mark.parametrize("sender", [OTHER_SENDER, MEMBER_SENDER])
def test_a_value_for_anothers_run_is_not_taken(sender):
    talk = both(*PROGRAM)
    talk.receive(RUN)
    (answer,) = talk.receive(value(), EIGHT, sender=sender)
    assert isinstance(answer.message, Rejected)
    assert (answer.key, answer.message.code) == (sender.key, RefusalCode.DOCUMENT)


def test_what_another_notebook_is_refused_is_no_progress_of_this_one():
    talk = both(*PROGRAM)
    talk.receive(RUN)
    progress = progress_of(talk)
    wrong = [value(), value("a"), value(step=9), value(program="o"), value(epoch=7)]
    offers = [offered(replace(each, transfer=10), b"c" * 32) for each in wrong]
    for foreign in wrong:
        (answer,) = talk.receive(foreign, EIGHT, sender=OTHER_SENDER)
        assert isinstance(answer.message, Rejected)
    for foreign in offers:
        (answer,) = talk.receive(foreign, sender=OTHER_SENDER)
        assert isinstance(answer.message, Rejected)
    assert progress_of(talk) == progress
    talk.receive(value(), EIGHT)
    assert progress_of(talk) > progress


def progress_of(talk):
    (pong,) = to(OWNER_KEY, talk.receive(Ping(seq=1)))
    return pong.progress


def offered(header, content):
    """The offer of a value."""
    known = {field.name: getattr(header, field.name) for field in fields(Offer)}
    return Offer(**{**known, "content": content})


# --- memory ---------------------------------------------------------------------------------------


def test_what_others_claim_is_not_there_to_be_claimed_and_the_refusal_says_so():
    talk = two().load(*PROGRAM, memory_bytes=700)
    prepare = Prepare(run="s", epoch=1, memory_bytes=301)
    assert to(OTHER_KEY, talk.receive(prepare, *plan(*PROGRAM), sender=OTHER_SENDER)) == [
        Refused(
            about=10,
            code=RefusalCode.MEMORY,
            text="301 bytes needed, 300 bytes available; other notebooks have 700",
            run="s",
            epoch=1,
            needed_bytes=301,
            available_bytes=300,
        )
    ]
    fits = talk.receive(replace(prepare, memory_bytes=300), *plan(*PROGRAM), sender=OTHER_SENDER)
    assert Prepared(run="s", epoch=1) in to(OTHER_KEY, fits)


def test_what_a_worker_was_seen_to_hold_counts_where_its_plan_said_less():
    talk = two().load(*PROGRAM, memory_bytes=100)
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    talk.work(Computed(tag=1, start_s=10.0, stop_s=10.0, memory_bytes=650), exported(("y", 64)))
    prepare = Prepare(run="s", epoch=1, memory_bytes=400)
    (answer,) = to(OTHER_KEY, talk.receive(prepare, *plan(*PROGRAM), sender=OTHER_SENDER))
    assert (answer.code, answer.available_bytes) == (RefusalCode.MEMORY, 350)
    talk.receive(Drop(run="r", epoch=-1))
    fits = talk.receive(prepare, *plan(*PROGRAM), sender=OTHER_SENDER)
    assert Prepared(run="s", epoch=1) in to(OTHER_KEY, fits)


def test_the_limits_of_all_workers_are_the_owners_together():
    talk = two().load(*PROGRAM, memory_bytes=600)
    prepare = Prepare(run="s", epoch=1, memory_bytes=200)
    assert limits(talk.receive(prepare, *plan(*PROGRAM), sender=OTHER_SENDER)) == {0: 700}
    assert limits(talk.work(WorkerReady(), READY, worker=1)) == {1: 300}
    assert limits(talk.receive(Drop(run="r", epoch=-1))) == {0: 400, 1: 600}
    assert limits(talk.receive(Goodbye())) == {1: 1000}


@pytest.mark.parametrize("said_bytes", [501, 1000, 2**53])
def test_what_a_worker_says_that_it_holds_gives_it_no_more_than_nobody_claims(said_bytes):
    """It may have been taken over, and go on saying so."""
    talk, told = both(*PROGRAM), {}
    for step in range(20):
        talk.receive(replace(RUN, step=step))
        talk.receive(value(step=step, transfer=step), EIGHT)
        done = Computed(tag=step + 1, start_s=10.0, stop_s=10.0, memory_bytes=said_bytes)
        talk.work(done, exported_at(step))
        told |= limits(talk.tick())
        assert sum(told.values()) <= 1000
        assert told[1] >= 400  # what the other one's plan says


def exported_at(step):
    return json.dumps([[f"r/1/p/{step}/y", 64 * step, 8, "float32", [2]]]).encode()


def test_a_notebook_hears_what_others_leave_with_its_welcome_and_when_that_changes():
    talk = Talk().begin().load(*PROGRAM, memory_bytes=600)
    assert left_for(OTHER_KEY, talk.receive(Hello(major=1, minor=10), sender=OTHER_SENDER)) == [
        (400, 1)
    ]
    assert left_for(OTHER_KEY, talk.tick()) == []
    talk.receive(RUN)
    talk.receive(value(), EIGHT)
    talk.work(Computed(tag=1, start_s=10.0, stop_s=10.0, memory_bytes=650), exported(("y", 64)))
    assert left_for(OTHER_KEY, talk.tick()) == [(350, 1)]
    dropped = talk.receive(Drop(run="r", epoch=-1))
    assert left_for(OTHER_KEY, dropped) == [(1000, 0)]
    assert left_for(OWNER_KEY, [*dropped, *talk.tick()]) == []  # it was alone all the time


def test_a_notebook_of_before_is_not_told():
    talk = Talk().begin().load(*PROGRAM, memory_bytes=600)
    actions = talk.receive(Hello(major=1, minor=9), sender=OTHER_SENDER)
    assert isinstance(to(OTHER_KEY, actions)[0], Welcome)
    actions += talk.receive(Drop(run="r", epoch=-1))
    assert left_for(OTHER_KEY, [*actions, *talk.tick()]) == []


def test_no_more_notebooks_compute_than_may():
    keys = [f"{n:040d}" for n in range(MAX_WORKERS + 1)]
    core, now_s = Core(settings()), 10.0

    def says(key, message, *buffers):
        sender = Sender(key=key, role="owner")
        return core.handle(FromPeer(sender=sender, message=message, buffers=buffers), now_s)

    for number, key in enumerate(keys):
        says(key, Hello(major=1, minor=10))
        core.handle(FromWorker(WorkerReady(), (READY,), number), now_s)
    for key in keys[:-1]:
        actions = says(key, Prepare(run=f"r{key}", epoch=1), *plan(*PROGRAM))
        assert any(isinstance(message, Prepared) for message in to(key, actions))
    for request, buffers in (
        (Prepare(run="one more", epoch=1), plan(*PROGRAM)),
        (Measure(task="t", rows=(1,)), [b"{}"]),
    ):
        (answer,) = to(keys[-1], says(keys[-1], request, *buffers))
        assert answer.code == RefusalCode.BUSY
        assert answer.text.startswith(f"{MAX_WORKERS} notebooks compute here already")
    says(keys[0], Goodbye())
    actions = says(keys[-1], Prepare(run="one-more", epoch=1), *plan(*PROGRAM))
    assert StartWorker(MAX_WORKERS) in actions


# --- workers --------------------------------------------------------------------------------------

ENDS = {
    "it died": lambda talk: WorkerDied(FailureCause.CRASHED, "SIGSEGV", 1),
    "it broke the protocol": lambda talk: FromWorker(Computed(tag=1, stop_s=-1.0), (b"[]",), 1),
    "its order cannot be told": lambda talk: Undone(Store(0, b"", 1), "why"),
    "its notebook is not trusted any more": lambda talk: PeerRevoked(OTHER_KEY),
    "its notebook said goodbye": lambda talk: FromPeer(sender=OTHER_SENDER, message=Goodbye()),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_end_of_anothers_worker_ends_nothing_here(end):
    talk = both(*PROGRAM)
    talk.receive(RUN)
    talk.receive(Execute(run="s", epoch=1, program="p"), sender=OTHER_SENDER)
    talk.receive(value(run="s"), EIGHT, sender=OTHER_SENDER)
    actions = talk.core.handle(end(talk), talk.now_s)
    assert to(OWNER_KEY, actions) == []
    assert not [a for a in actions if isinstance(a, KillWorker | ToWorker) and a.worker == 0]
    assert [run["name"] for run in talk.core.state()["runs"]] == ["r"]
    talk.receive(value(), EIGHT)
    talk.work(Computed(tag=1, start_s=10.0, stop_s=10.0), exported(("y", 64)))
    assert any(isinstance(m, Done) for m in to(OWNER_KEY, talk.receive(credit())))


def test_a_worker_that_hangs_is_ended_and_the_other_one_is_not():
    talk = both(*PROGRAM)
    talk.receive(Execute(run="s", epoch=1, program="p"), sender=OTHER_SENDER)
    talk.receive(value(run="s"), EIGHT, sender=OTHER_SENDER)
    for _ in range(4):
        talk.now_s += 10.0
        for sender in (OWNER_SENDER, OTHER_SENDER):
            talk.receive(Ping(seq=1), sender=sender)
        actions = talk.tick()
        if any(isinstance(a, KillWorker) for a in actions):
            break
    assert [a.worker for a in actions if isinstance(a, KillWorker)] == [1]
    (failed,) = [m for m in to(OTHER_KEY, actions) if isinstance(m, Failed)]
    assert (failed.run, failed.cause) == ("s", FailureCause.HUNG)


def test_a_pulse_tells_of_the_notebooks_own_work():
    talk = both(*PROGRAM)
    talk.receive(Execute(run="s", epoch=1, program="p"), sender=OTHER_SENDER)
    ((own,), (other,)) = [
        to(sender.key, talk.receive(Ping(seq=1), sender=sender))
        for sender in (OWNER_SENDER, OTHER_SENDER)
    ]
    assert isinstance(own, Pong)
    assert (own.busy, other.busy) == (False, True)


def test_a_worker_without_work_makes_room_for_anothers_and_is_started_again():
    talk = both(*PROGRAM)
    talk.receive(Drop(run="r", epoch=-1))
    assert not any(isinstance(a, KillWorker) for a in talk.tick(IDLE_S))
    ended = talk.tick(0.1)
    assert KillWorker("another notebook's runs need the room", 0) in ended
    assert limits(ended) == {1: 1000}
    again = talk.receive(Prepare(run="r", epoch=1), *plan(*PROGRAM))
    assert StartWorker(0) in again
    assert not any(isinstance(a, KillWorker) for a in Talk().begin().tick(2 * IDLE_S))


def test_a_notebook_that_only_looks_has_no_worker():
    talk = Talk().begin().load(*PROGRAM)
    actions = talk.receive(Hello(major=1, minor=10), sender=OTHER_SENDER)
    assert isinstance(to(OTHER_KEY, actions)[0], Welcome)
    assert not any(isinstance(a, StartWorker) for a in actions)


def test_who_waited_for_the_worker_of_a_notebook_that_left_is_welcomed_by_another_one():
    talk = Talk()
    talk.receive(Hello(major=1, minor=10))
    assert talk.receive(Hello(major=1, minor=10), sender=OTHER_SENDER) == []
    assert talk.receive(Goodbye()) == [KillWorker("its notebook is gone", 0), StartWorker(1)]
    (welcome,) = to(OTHER_KEY, talk.work(WorkerReady(), READY, worker=1))
    assert isinstance(welcome, Welcome)


def test_a_worker_that_does_not_start_is_told_to_all_who_wait_for_it_once():
    talk = Talk()
    talk.receive(Hello(major=1, minor=10))
    talk.receive(Hello(major=1, minor=10), sender=OTHER_SENDER)
    actions = talk.core.handle(WorkerDied(FailureCause.CRASHED, "no torch", 0), talk.now_s)
    for key in (OWNER_KEY, OTHER_KEY):
        assert [(m.code, m.text) for m in to(key, actions)] == [
            (RefusalCode.BACKEND, "the worker does not start: no torch")
        ]
    assert not any(isinstance(a, StartWorker) for a in actions)


# --- measurements ---------------------------------------------------------------------------------


def test_what_was_measured_beside_others_says_so():
    talk = two().load(*PROGRAM, memory_bytes=100)
    measure = Measure(task="t", kind="aten", rows=(1,), repeats=1)
    talk.receive(measure, b"{}", sender=OTHER_SENDER)
    talk.work(WorkerReady(), READY, worker=1)
    talk.receive(Drop(run="r", epoch=-1))  # it was there when that began
    result = MeasuredTask(task="t", rows=(1,), forward_s=(0.1,), memory_bytes=(1,))
    (answer,) = to(OTHER_KEY, talk.work(result, worker=1))
    assert isinstance(answer, Measured)
    assert answer.n_beside == 1
    talk.receive(replace(measure, task="u"), b"{}", sender=OTHER_SENDER)
    (answer,) = to(OTHER_KEY, talk.work(replace(result, task="u"), worker=1))
    assert answer.n_beside == 0


def test_two_notebooks_may_call_what_they_measure_the_same():
    talk = two()
    measure = Measure(task="t", kind="aten", rows=(1,), repeats=1)
    for sender in (OWNER_SENDER, OTHER_SENDER):
        assert to(sender.key, talk.receive(measure, b"{}", sender=sender)) == []
    talk.work(WorkerReady(), READY, worker=1)
    for seconds, number, key in ((0.1, 0, OWNER_KEY), (0.2, 1, OTHER_KEY)):
        result = MeasuredTask(task="t", rows=(1,), forward_s=(seconds,), memory_bytes=(1,))
        (answer,) = to(key, talk.work(result, worker=number))
        assert answer.forward_s == (seconds,)


@pytest.mark.parametrize(
    ("message", "buffers"),
    [
        (Measure(task="t", kind="aten", rows=(1,), repeats=1), (b"{}",)),
        (Probe(task="t", peer="home", nbytes=8, repeats=1), ()),
    ],
)
def test_a_notebook_that_could_not_be_told_measures_nothing_beside_others(message, buffers):
    talk = Talk().begin().load(*PROGRAM).begin(OTHER_SENDER, minor=9)
    text = "another notebook's run is on, and would slow what is measured; ask again later"
    assert to(OTHER_KEY, talk.receive(message, *buffers, sender=OTHER_SENDER)) == [
        refused(type(message), RefusalCode.BUSY, text, key=OTHER_KEY).message
    ]
    assert not any(isinstance(m, Refused) for m in to(OWNER_KEY, talk.receive(message, *buffers)))


# --- whatever another notebook does ---------------------------------------------------------------

OWN_MEMBER = Sender(key="N" * 40, role=MEMBER, name="nas")
NAS = [{"name": "nas", "key": OWN_MEMBER.key, "address": "127.0.0.1:47700"}]
ROWS = [
    recv("x"),
    add("x", "x", "y"),
    send("y", "nas"),
    recv("z", "nas"),
    add("y", "z", "t"),
    send("t"),
]


class Own:
    """The first notebook, its worker and its other device: all do what they should."""

    def __init__(self):
        self.todo = [
            FromPeer(sender=OWNER_SENDER, message=Hello(major=1, minor=10)),
            FromWorker(WorkerReady(), (READY,), 0),
            FromPeer(
                sender=OWNER_SENDER, message=Roster(home="h"), buffers=(json.dumps(NAS).encode(),)
            ),
            FromPeer(
                sender=OWNER_SENDER,
                message=Prepare(run="mine", epoch=1, memory_bytes=300),
                buffers=tuple(plan(*ROWS, segments=("a",))),
            ),
            FromWorker(SegmentLoaded(slot="mine/1/a"), (), 0),
            FromPeer(sender=OWNER_SENDER, message=Commit(run="mine", epoch=1)),
        ]
        self.seen = []
        self._step = self._n_sent = 0

    def react(self, action):
        """What is done about what the core did for this notebook."""
        match action:
            case ToWorker(message=Compute() as order, worker=0):
                rows = [[name, 64, 8, "float32", [2]] for name in order.exports]
                computed = Computed(tag=order.tag, start_s=10.0, stop_s=10.0)
                self.todo.append(FromWorker(computed, (json.dumps(rows).encode(),), 0))
            case ToPeer(key=key, message=Value(run="mine") as sent):
                sender = OWN_MEMBER if key == OWN_MEMBER.key else OWNER_SENDER
                self.todo.append(FromPeer(sender=sender, message=credit(sent.transfer)))
                if sender is OWN_MEMBER:
                    self._send("z", OWN_MEMBER)
            case ToPeer(key=key, message=Done() | Committed()) if key == OWNER_KEY:
                self._execute()

    def _execute(self):
        if self._step < 3:
            execute = Execute(run="mine", epoch=1, program="p", step=self._step)
            self.todo.append(FromPeer(sender=OWNER_SENDER, message=execute))
            self._send("x", OWNER_SENDER)
            self._step += 1

    def _send(self, name, sender):
        self._n_sent += 1
        sent = value(name, run="mine", step=self._step - (name == "z"), transfer=self._n_sent)
        self.todo.append(FromPeer(sender=sender, message=sent, buffers=(EIGHT,)))

    def note(self, action):
        """What this notebook could notice of the core, but for numbers that all share."""
        match action:
            case ToPeer(message=Available() | Pong() | Value(program="probe")):
                return  # of the other one, or about it
            case ToPeer(key=key) if key in (OWNER_KEY, OWN_MEMBER.key):
                message = action.message
                if isinstance(message, Value):
                    message = replace(message, transfer=0)
                self.seen.append((key, message, len(action.buffers)))
            case ToWorker(worker=0) | Store(worker=0) | StartWorker(0) | KillWorker(worker=0):
                self.seen.append(action)


def life(strange=(), rng=None, begins_at=0):
    """All that the first notebook notices of three steps, among these events of others, which come
    when it has noticed so much.
    """
    core, own = Core(settings(inbound_bytes=4096)), Own()
    strange = list(strange)
    while own.todo or strange:
        mine = own.todo and (not strange or len(own.seen) < begins_at or rng.random() < 0.5)
        event = own.todo.pop(0) if mine else strange.pop(0)
        try:
            actions = core.handle(event, 10.0)
        except Exception as error:
            raise AssertionError(f"{event} raised") from error
        for action in actions:
            own.note(action)
            own.react(action)
    assert not any(key == "runs" and not rows for key, rows in core.state().items())
    return own.seen, core


def hostile(rng, n_moves):
    """What another notebook, its worker and its member may say and do: anything."""
    play, events = CorePlay(rng, hostile=True), []
    handle = play.core.handle

    def noted(event, now_s):
        events.append(event)
        return handle(event, now_s)

    play.core.handle = noted
    for _ in range(n_moves):
        play.move(rng)
    senders = {OWNER_KEY: OTHER_SENDER, OTHER_KEY: OTHER_SENDER}
    for event in events:
        match event:
            case FromPeer(sender=sender):
                yield replace(event, sender=senders.get(sender.key, sender))
            case FromWorker() | WorkerDied():
                yield replace(event, worker=1)
            case PeerRevoked():
                yield PeerRevoked(OTHER_KEY)
            case Tick():
                yield event


def claims(rng):
    """It says that the first one's device is its own, elsewhere, and that runs have its names."""
    rows = [{"name": "phone", "key": OWN_MEMBER.key, "address": "10.9.9.9:9"}]
    yield FromPeer(
        sender=OTHER_SENDER, message=Roster(home="o"), buffers=(json.dumps(rows).encode(),)
    )
    prepare = Prepare(run="mine", epoch=rng.choice((1, 2)), memory_bytes=rng.choice((0, 900)))
    yield FromPeer(sender=OTHER_SENDER, message=prepare, buffers=tuple(plan(*ROWS)))
    for message in (
        Drop(run="mine", epoch=-1),
        Abort(run="mine", epoch=1, program="p", step=rng.choice((0, 1, 2))),
        Probe(task="t", peer="phone", nbytes=8, repeats=64),
        credit(rng.choice((1, 2, 3))),
        Rejected(transfer=rng.choice((1, 2, 3))),
    ):
        yield FromPeer(sender=OTHER_SENDER, message=message)
    spoiled = value("x", run="mine", transfer=rng.choice((1, 2)), step=rng.choice((0, 1, 2)))
    yield FromPeer(sender=OTHER_SENDER, message=spoiled, buffers=(bytes(8),))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
def test_whatever_another_notebook_and_its_worker_do_this_one_notices_nothing(
    seed, record_property
):
    alone, _ = life()
    assert sum(isinstance(action, tuple) and isinstance(action[1], Done) for action in alone) == 3
    rng = random.Random(seed)
    moves = list(hostile(rng, 120))
    for event in claims(rng) if seed % 2 else ():
        moves.insert(rng.randrange(len(moves)), event)
    moves.insert(0, FromPeer(sender=OTHER_SENDER, message=Hello(major=1, minor=10)))
    beside, core = life(moves, rng, begins_at=len(alone) // 4 if seed % 2 else 2)
    assert beside == alone
    record_property("inputs", len(moves))
    assert [run["name"] for run in core.state()["runs"] if run["notebook"] == OWNER_KEY] == ["mine"]
