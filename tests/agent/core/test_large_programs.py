"""The largest programs: whatever is said about them, the core is soon ready for what comes next."""

import json
import sys
from collections import Counter

import pytest
from tests.agent.core.core_driver import OWNER_KEY, Talk, add, cut, recv, send, value

from potluck_agent.core.deferred_work import N_IN_A_ROUND, N_ON_THE_SPOT, DeferredWork
from potluck_agent.core.events import PeerRevoked, Store, ToPeer, ToWorker
from potluck_agent.core.resource_usage import ResourceUsage
from potluck_agent.core.send_queue import MAX_AT_ONCE
from potluck_wire.messages import (
    Abort,
    Commit,
    Credit,
    Done,
    Execute,
    Failed,
    Freed,
    Ping,
    Pong,
    Prepare,
    Rejected,
    Value,
)

N_SENDS = 5000
MOST_ACTIONS = 2 * (N_IN_A_ROUND + N_ON_THE_SPOT) + MAX_AT_ONCE


def messages_of(actions, kind):
    return [a.message for a in actions if isinstance(a, ToPeer) and isinstance(a.message, kind)]


def loaded(rows, **changes):
    talk = Talk(**({"inbound_bytes": 1 << 20} | changes)).begin()
    document = {"segments": [], "programs": [{"name": "p", "instructions": rows}]}
    talk.receive(Prepare(run="r", epoch=1), json.dumps(document).encode())
    talk.receive(Commit(run="r", epoch=1))
    talk.core.reach(OWNER_KEY)
    return talk


def calls_of(work):
    """How many Python calls this takes: what it costs, without a clock."""
    n_calls = 0

    def count(frame, event, arg):
        nonlocal n_calls
        n_calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return n_calls


MOST_CALLS = 60 * (N_IN_A_ROUND + N_ON_THE_SPOT + MAX_AT_ONCE)
ABORT = Abort(run="r", epoch=1, program="p")
EVENTS = {
    "aborted before it begins": lambda talk: talk.receive(
        Abort(run="r", epoch=1, program="p", step=7)
    ),
    "begun": lambda talk: talk.receive(Execute(run="r", epoch=1, program="p", step=1)),
    "its value": lambda talk: talk.receive(value("x", step=0, nbytes=0, transfer=1), b""),
    "a round": lambda talk: talk.tick(),
    "a new connection": lambda talk: talk.reset(OWNER_KEY),
    "another new connection": lambda talk: talk.reset(OWNER_KEY),
    "a credit": lambda talk: talk.receive(Credit(transfer=1, received_bytes=0, done=True)),
    "aborted": lambda talk: talk.receive(ABORT),
    "another round": lambda talk: talk.tick(),
    "its notebook goes": lambda talk: talk.core.handle(PeerRevoked(OWNER_KEY), talk.now_s),
}


def test_each_event_of_a_large_program_takes_no_more_than_a_few_steps():
    """Counted in calls, so that no clock is needed; a walk over the program would be far more."""
    n_sends = 20_000
    talk = loaded([recv("x"), *[send("x", name=f"{i}") for i in range(n_sends)]])
    talk.receive(Execute(run="r", epoch=1, program="p"))
    most = {what: calls_of(lambda event=event: event(talk)) for what, event in EVENTS.items()}
    assert {what: n for what, n in most.items() if n > MOST_CALLS} == {}


@pytest.mark.long
def test_all_leaves_in_the_order_of_priorities_although_it_is_begun_in_parts():
    """The last one of the program is the most urgent."""
    rows = [recv("x"), *[send("x", name=f"{i}", priority=-i) for i in range(N_SENDS)]]
    talk = loaded(rows)
    talk.receive(Execute(run="r", epoch=1, program="p"))
    actions, names = talk.receive(value("x", nbytes=0), b""), []
    assert len(actions) < MOST_ACTIONS
    assert talk.core.wake_s() <= talk.now_s
    pong = messages_of(talk.receive(Ping(seq=3)), Pong)
    assert [answer.seq for answer in pong] == [3]
    actions = talk.rounds([])
    while sent := messages_of(actions, Value):
        names += [one.name for one in sent]
        actions = [
            action
            for one in sent
            for action in talk.receive(Credit(transfer=one.transfer, received_bytes=0, done=True))
        ]
        actions += talk.rounds([])
    assert names == [f"{i}" for i in reversed(range(N_SENDS))]
    (done,) = [a for a in actions if isinstance(a, ToPeer) and isinstance(a.message, Done)]
    events = json.loads(done.buffers[0])
    assert [row[0] for row in events] == list(range(N_SENDS + 1))


def test_tasks_go_to_the_worker_by_priority_although_they_are_offered_in_parts():
    n_tasks = 3000
    rows = [recv("x")] + [cut("x", f"y{i}", priority=-i) for i in range(n_tasks)]
    talk = loaded(rows)
    talk.receive(Execute(run="r", epoch=1, program="p"))
    actions = talk.rounds(talk.receive(value("x"), bytes(8)))
    orders = [a.message for a in actions if isinstance(a, ToWorker) and hasattr(a.message, "tag")]
    assert orders
    assert orders[0].outputs == (f"r/1/p/0/y{n_tasks - 1}",)


def test_what_is_aborted_in_the_midst_goes_on_no_more_and_gives_back_its_places():
    n_values = 2000
    rows = [recv(f"x{i}") for i in range(n_values)] + [send(f"x{i}") for i in range(n_values)]
    talk = loaded(rows)
    for i in range(n_values):
        talk.receive(value(f"x{i}", transfer=1 + i), bytes(8))
    talk.receive(Execute(run="r", epoch=1, program="p"))
    assert talk.core.wake_s() == talk.now_s  # more is ready than was seen to at once
    actions = talk.receive(ABORT)
    assert [failed.text for failed in messages_of(actions, Failed)] == ["it was aborted"]
    later = talk.rounds([])
    assert not messages_of(later, Value)
    assert talk.core.held == ResourceUsage()


def test_a_value_that_came_early_and_is_not_used_yet_is_known_when_it_comes_again():
    n_values = 2000
    talk = loaded(
        [recv(f"x{i}") for i in range(n_values)] + [send(f"x{i}") for i in range(n_values)]
    )
    for i in range(n_values):
        talk.receive(value(f"x{i}", transfer=1 + i), bytes(8))
    talk.receive(Execute(run="r", epoch=1, program="p"))
    again = talk.receive(value(f"x{n_values - 1}", transfer=n_values + 1), bytes(8))
    assert [credit.done for credit in messages_of(again, Credit)] == [True]
    assert not [action for action in again if isinstance(action, Store)]


# --- the backlog ----------------------------------------------------------------------------------


def test_what_a_step_leads_to_comes_before_the_next_step_in_the_order_it_came_up():
    backlog, done = DeferredWork(), []

    def piece(name, n_steps, leads_to=()):
        for step in range(n_steps):
            done.append(f"{name}{step}")
            if step == 0:
                for other in leads_to:
                    backlog.do(piece(other, 2))
            yield

    backlog.do(piece("a", 2, ("b", "c")))
    assert done == ["a0", "b0", "b1", "c0", "c1", "a1"]
    assert not backlog


@pytest.mark.parametrize("n_steps", [1, N_ON_THE_SPOT, N_IN_A_ROUND, 5 * N_IN_A_ROUND])
def test_no_event_and_no_round_does_more_than_its_share(n_steps):
    backlog, done = DeferredWork(), Counter()

    def piece(name):
        for _ in range(n_steps):
            done[name] += 1
            yield

    for name in range(4):
        before = done.total()
        backlog.do(piece(name))
        assert done.total() - before <= N_ON_THE_SPOT + N_IN_A_ROUND
    while backlog:
        before, begun = done.total(), len(done)
        backlog.go_on()
        assert done.total() - before <= N_IN_A_ROUND
        assert len(done) >= begun
    assert done == dict.fromkeys(range(4), n_steps)


# --- early values ---------------------------------------------------------------------------------


def test_early_values_are_as_many_as_executions_under_way_have_instructions(monkeypatch):
    monkeypatch.setattr("potluck_agent.core.early_values.MAX_UNDER_WAY", 100)
    talk = loaded([recv(f"x{i}") for i in range(30)])
    answers = [
        talk.receive(value(f"x{i}", step=step, nbytes=0, transfer=1 + i + 30 * step), b"")
        for step in range(10)
        for i in range(30)
    ]
    rejected = [one for actions in answers for one in messages_of(actions, Rejected)]
    assert {one.code for one in rejected} == {"memory"}
    assert len(rejected) == 7 * 30
    talk.receive(Execute(run="r", epoch=1, program="p", step=0))
    assert not messages_of(talk.receive(value("x0", step=9, nbytes=0, transfer=999), b""), Rejected)


def test_early_values_that_the_worker_holds_are_no_more_than_its_memory():
    talk = loaded([recv("x"), recv("y"), add("x", "y", "z")], inbound_bytes=4096, memory_bytes=4096)
    taken_bytes, n_rejected = 0, 0
    for step in range(20):
        actions = talk.receive(
            value(step=step, nbytes=1024, transfer=1 + step, chunk_bytes=1024), bytes(1024)
        )
        for order in [a.message for a in actions if isinstance(a, ToWorker)]:
            taken_bytes += order.nbytes
            talk.work(Freed(offset=order.offset))  # it has copied it
        n_rejected += len(messages_of(actions, Rejected))
    assert taken_bytes == 8192
    assert n_rejected == 12


def test_nothing_is_left_of_early_values_when_they_are_taken_or_dropped():
    talk = loaded([recv("x"), send("x")])
    for step in range(5):
        talk.receive(value(step=step, transfer=1 + step), bytes(8))
    talk.receive(Execute(run="r", epoch=1, program="p", step=0))
    talk.receive(Abort(run="r", epoch=1, program="p", step=1))
    held = talk.core.held
    assert (held.n_early, held.n_early_instructions, held.early_bytes) == (3, 3 * 2, 0)
    talk.core.handle(PeerRevoked(OWNER_KEY), talk.now_s)
    assert talk.core.held == ResourceUsage()
