"""How much of one peer the loop takes before it looks at the others: by the number of messages, and
by their bytes.
"""

import json
import sys

import pytest
from tests.agent.core.core_driver import recv

from potluck_agent.core.run_state import read_load
from potluck_agent.net.fair_receive import AT_ONCE, BYTES_AT_ONCE, ROUND_S, FairReceiver
from potluck_agent.net.socket_memory import SOURCE, InboundConnection, SocketMemory
from potluck_wire.bounded_receive import SKIPPED_AT_ONCE, most_frames
from potluck_wire.limits import KIB, MAX_BUFFER_BYTES, MIB
from potluck_wire.messages import Channel

FOE = 77  # the descriptor of the connection that everything comes over


class Frame(bytes):
    """A frame as zmq gives it."""

    more = False
    bytes = property(bytes)

    def get(self, option):
        return FOE if option == SOURCE else None


class Router:
    """A socket with many messages, each of some frames behind its route."""

    def __init__(self, n_messages, nbytes, n_frames=1):
        self.n_left, self._n_frames = n_messages, n_frames
        self.n_given = self._at = 0
        self._route = Frame(b"route")
        self._last, self._other = Frame(nbytes), Frame(nbytes)
        self._route.more = self._other.more = True

    def recv(self, flags, copy):
        frame = self._other if self._at else self._route
        self._at = (self._at + 1) % (self._n_frames + 1)
        frame = frame if self._at else self._last
        self.n_left -= not frame.more
        self.n_given += 1
        return frame


class Sources:
    """Whoever asks for a message is told whether one is left."""

    def has_message(self, socket):
        return socket.n_left > 0


class Cuts(SocketMemory):
    """Notes who is cut off."""

    def __init__(self):
        super().__init__()
        self.cuts = []

    def over(self, source, frames):
        return InboundConnection(source, frames[-1].get(SOURCE), None)

    def cut(self, connection):
        self.cuts.append(connection.descriptor)


def taken_in_one_round(channel, n_messages, nbytes):
    router = Router(n_messages, nbytes)
    FairReceiver(Sources(), Cuts(), lambda *_: None).read(channel, {channel: router})
    return n_messages - router.n_left


@pytest.mark.few(2)
@pytest.mark.parametrize("channel", AT_ONCE)
@pytest.mark.parametrize("nbytes", [0, MAX_BUFFER_BYTES])
def test_a_message_of_any_length_takes_a_few_frames_of_a_round_and_its_sender_is_cut(
    channel, nbytes
):
    """Over a million empty frames took ten seconds, and nobody's pulse was answered meanwhile."""
    router = Router(3, nbytes, n_frames=100_000)
    cuts, taken = Cuts(), []
    intake = FairReceiver(Sources(), cuts, lambda channel, route, frames: taken.append(len(frames)))
    while router.n_left:
        before = router.n_given
        intake.read(channel, {channel: router})
        assert router.n_given - before <= SKIPPED_AT_ONCE + most_frames(channel) + 2
    assert len(taken) == 3  # each is answered once, as no message
    assert all(n_frames <= most_frames(channel) + 1 for n_frames in taken)
    assert cuts.cuts == [FOE] * 3


@pytest.mark.parametrize("nbytes", [0, KIB, 64 * KIB, MIB, 4 * MIB, MAX_BUFFER_BYTES])
def test_a_round_takes_few_messages_and_few_bytes_of_a_notebook(nbytes):
    n_taken = taken_in_one_round(Channel.CONTROL, 100, nbytes)
    assert 1 <= n_taken <= AT_ONCE[Channel.CONTROL]
    assert (n_taken - 1) * nbytes <= BYTES_AT_ONCE  # what is one too many is the last


@pytest.mark.parametrize("each_s", [0.0, ROUND_S / 4, ROUND_S, 10.0])
def test_a_round_ends_after_a_message_that_took_long(each_s):
    """A lease that was written to an old card held the others' pulse up for 16 of its kind."""
    clock, router = iter(range(10**6)), Router(100, 100)
    taken = []
    intake = FairReceiver(
        Sources(), Cuts(), lambda *_: taken.append(1), now_s=lambda: next(clock) * each_s
    )
    intake.read(Channel.CONTROL, {Channel.CONTROL: router})
    assert len(taken) == max(1, min(AT_ONCE[Channel.CONTROL], round(ROUND_S / (each_s or 1e-9))))


def test_small_requests_still_come_together():
    assert taken_in_one_round(Channel.CONTROL, 100, 100) == AT_ONCE[Channel.CONTROL]


def rows_until(nbytes, first, row):
    """So many rows that they take that many bytes."""
    rows, left_bytes = list(first), nbytes
    while left_bytes > 0:
        rows.append(row(len(rows)))
        left_bytes -= len(json.dumps(rows[-1]))
    return rows


PLANS = {  # of what a plan may have most
    "instructions": lambda n: rows_until(n, [], lambda i: recv(f"{i:x}")),
    "inputs": lambda n: rows_until(
        n, [recv("x")], lambda i: ["add", ["x"] * 201, [f"{i:x}"], [], 0, {}]
    ),
    "inputs of one": lambda n: rows_until(
        n, [recv("x")], lambda i: ["add", ["x"] * 1400, [f"{i:x}"], [], 0, {}]
    ),
    "instructions before it": lambda n: rows_until(
        n, [recv("x")], lambda i: [*recv(f"{i:x}")[:3], [0] * 500, 0, {"peer": "home"}]
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("most", PLANS)
def test_the_work_of_reading_a_plan_is_bounded_by_its_bytes(most):
    """In calls of functions, which are what takes time, and are the same on each machine."""
    rows = PLANS[most](300 * KIB)
    document = json.dumps(
        {"segments": [], "programs": [{"name": "p", "instructions": rows}]}, separators=(",", ":")
    )
    n_calls = 0

    def count(frame, event, argument):
        nonlocal n_calls
        n_calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        load = read_load([document.encode()], "r", 1)
    finally:
        sys.setprofile(before)
    assert load.layouts["p"].n_instructions == len(rows)
    assert n_calls < len(document) / 2
