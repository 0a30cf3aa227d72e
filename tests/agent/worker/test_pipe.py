"""When the worker's end of the pipe says what it has to say."""

import socket

import pytest

from potluck_agent.worker import pipe
from potluck_agent.worker.pipe import LATE_S, Pipe
from potluck_wire.messages import Channel, Compute, Computed
from potluck_wire.stream import StreamReader, pack


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved."""
    clock = type("Clock", (), {"now_s": 100.0})
    monkeypatch.setattr(pipe.time, "monotonic", lambda: clock.now_s)
    return clock


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, Pipe(theirs)
    ours.close()
    theirs.close()


def heard(end):
    try:
        return [message.tag for message, _ in StreamReader(Channel.WORKER).feed(end.recv(1 << 16))]
    except BlockingIOError:
        return []


def order(end, pipe, n):
    """So many tasks wait in the pipe; nothing is unsaid."""
    end.send(b"".join(pack(Compute(tag=tag), [b"{}"]) for tag in range(n)))
    pipe.listen()
    pipe.send(Computed(tag=99), [b"[]"])
    pipe.flush()
    assert heard(end) == [99]


def do(pipe, urgent=False):
    message, _ = pipe.next()
    pipe.send(Computed(tag=message.tag), [b"[]"], urgent=urgent)
    pipe.flush_in_time()


def test_answers_come_together_when_nothing_is_left_to_do(clock, ends):
    end, pipe = ends
    order(end, pipe, 6)
    heard_each = []
    for _ in range(6):
        do(pipe)
        heard_each.append(heard(end))
    assert heard_each == [[]] * 5 + [list(range(6))]


def test_what_is_urgent_is_said_at_once_and_takes_the_rest_along(clock, ends):
    end, pipe = ends
    order(end, pipe, 6)
    do(pipe)
    do(pipe, urgent=True)
    do(pipe)
    assert heard(end) == [0, 1]


def test_an_answer_is_not_kept_for_long(clock, ends):
    end, pipe = ends
    order(end, pipe, 6)
    do(pipe)
    clock.now_s += 2 * LATE_S
    do(pipe)
    assert heard(end) == [0, 1]


def test_whoever_waits_for_orders_has_said_everything(clock, ends):
    end, pipe = ends
    order(end, pipe, 4)
    message, _ = pipe.next()
    pipe.send(Computed(tag=message.tag), [b"[]"])
    end.send(pack(Compute(tag=7), [b"{}"]))
    pipe.listen()
    assert heard(end) == [0]
