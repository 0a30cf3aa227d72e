"""What one message and one connection may take of whoever reads them, whatever is sent."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_wire import bounded_receive
from potluck_wire.bounded_receive import (
    SKIPPED_AT_ONCE,
    MessageReader,
    Unread,
    Untaken,
    most_frames,
)
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.limits import MAX_BUFFER_BYTES, MAX_MESSAGE_BYTES
from potluck_wire.messages import MESSAGES, Channel, Ping, Prepare

OVER_SOCKETS = (Channel.CONTROL, Channel.DATA, Channel.PULSE)


@dataclass(frozen=True)
class Frame:
    """A frame of so many bytes, which nobody has to hold."""

    nbytes: int
    more: bool

    def __len__(self):
        return self.nbytes


class Source:
    """Messages, each a list of the sizes of its frames; counts what was asked of it."""

    def __init__(self, *messages):
        self._frames = [
            Frame(nbytes, more=index < len(sizes) - 1)
            for sizes in messages
            for index, nbytes in enumerate(sizes)
        ]
        self._frames.reverse()
        self.n_asked = 0

    def __call__(self):
        self.n_asked += 1
        return self._frames.pop()

    def __bool__(self):
        return bool(self._frames)


SIZES = st.sampled_from([0, 1, 200, MAX_BUFFER_BYTES])
LENGTHS = st.sampled_from([1, 2, 3, 257, 258, 259, 260, 3_000, 20_000])
MESSAGE = st.tuples(LENGTHS, SIZES).map(lambda drawn: [drawn[1]] * drawn[0])


@given(st.lists(MESSAGE, max_size=4), st.sampled_from(OVER_SOCKETS), st.integers(0, 1))
def test_no_call_takes_or_keeps_more_than_a_message_may_have(messages, channel, n_routes):
    source = Source(*messages)
    reader = MessageReader(channel, n_routes)
    heard = []
    most = most_frames(channel) + n_routes
    while source:
        before = source.n_asked
        frames = reader.read(source)
        assert source.n_asked - before <= SKIPPED_AT_ONCE + most + 1
        assert len(frames) <= most + 1
        assert sum(map(len, frames)) <= MAX_MESSAGE_BYTES + 3 * MAX_BUFFER_BYTES
        if frames:
            heard.append([len(frame) for frame in frames])
    # each message is heard of, in order; one in bounds is heard whole
    assert len(heard) == len(messages)
    for got, sent in zip(heard, messages, strict=True):
        assert got == sent[: len(got)]
        assert len(got) == len(sent) or len(sent) > most or sum(sent) > MAX_MESSAGE_BYTES


@pytest.mark.parametrize("channel", OVER_SOCKETS)
@pytest.mark.parametrize("nbytes", [0, MAX_BUFFER_BYTES])
def test_what_is_kept_of_a_message_that_is_too_long_is_no_message(channel, nbytes):
    """However right its header is."""
    reader = MessageReader(channel)
    kept = reader.read(Source([10] + [nbytes] * 500))
    assert not reader.skipping  # so little more is passed over at once
    zeros = memoryview(bytes(nbytes))
    for number, entry in MESSAGES.items():
        if entry.channel is channel:
            header = encode(entry.type(), [b""] * entry.buffers[0])[0]
            with pytest.raises(WireError, match=r"buffers|bytes in one message"):
                decode([header, *([zeros] * (len(kept) - 1))], channel), number


def test_the_largest_message_is_whole():
    sizes = [16_000, *[MAX_BUFFER_BYTES] * 8, *[1] * 249]
    reader = MessageReader(Channel.CONTROL, n_routes=1)
    assert len(reader.read(Source([5, *sizes]))) == 1 + len(sizes)
    assert not reader.skipping
    assert MESSAGES[10].type is Prepare
    assert len(sizes) == 1 + MESSAGES[10].buffers[1]


# --- one connection -------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5), max_size=20))
def test_what_was_read_is_not_left(messages):
    unread, came_bytes = Unread(), 0
    for sizes in messages:
        frames = [Frame(nbytes, more=False) for nbytes in sizes]
        came_bytes += bounded_receive.wire_bytes(frames)
        assert unread.left_bytes(came_bytes) == bounded_receive.wire_bytes(frames)
        unread.read(frames)
        assert unread.left_bytes(came_bytes) == 0


@given(st.lists(st.integers(0, 2 * bounded_receive.FORGIVEN_BYTES), max_size=50))
def test_one_message_that_never_ends_is_never_forgiven_much(slices):
    """Whoever looks at it meanwhile, however often."""
    unread = Unread()
    unread.read(encode(Ping()))
    for came_bytes in (sum(slices[: n + 1]) for n in range(len(slices))):
        assert unread.left_bytes(came_bytes) >= came_bytes - bounded_receive.FORGIVEN_BYTES - 100
        unread.settle(came_bytes)


def test_heartbeats_of_years_are_forgiven_between_messages():
    unread = Unread()
    came_bytes = 0
    ping = encode(Ping())
    for _ in range(10_000):
        came_bytes += bounded_receive.wire_bytes(ping) + 100_000
        unread.read(ping)
        unread.settle(came_bytes)
    assert unread.left_bytes(came_bytes) == 0


def test_an_account_of_an_older_system_says_nothing():
    assert bounded_receive.received_bytes(bytes(104)) is None
    assert bounded_receive.received_bytes(bytes(128) + (7).to_bytes(8, "little")) == 7
    assert bounded_receive.acknowledged_bytes(bytes(104)) == 0
    assert bounded_receive.acknowledged_bytes(bytes(120) + (7).to_bytes(8, "little")) == 7


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)), max_size=50))
def test_what_was_sent_is_held_until_the_other_side_has_it(steps):
    untaken = Untaken()
    sent_bytes, taken_bytes = 0, 0
    for nbytes, more_bytes in steps:
        frames = [Frame(nbytes, more=False)]
        untaken.sent(frames)
        sent_bytes += bounded_receive.wire_bytes(frames)
        taken_bytes = min(sent_bytes, taken_bytes + more_bytes)
        held_bytes = sent_bytes - taken_bytes if taken_bytes else 0
        assert untaken.left_bytes(taken_bytes) == held_bytes
        if not taken_bytes:  # nobody counts
            sent_bytes = 0


def test_heartbeats_make_no_room_for_messages_that_are_not_taken():
    untaken = Untaken()
    for n_bytes in range(1, 1_000_000, 1000):  # acknowledged, and no messages
        assert untaken.left_bytes(n_bytes) == 0
    untaken.sent([Frame(1 << 20, more=False)])
    assert untaken.left_bytes(n_bytes) >= 1 << 20
