"""How large the chunks to a receiver are: by how fast its link has shown to be, the usual ones when
it is new.
"""

import pytest

from potluck_agent.core.events import Span
from potluck_agent.core.send_queue import FAST_CHUNK_S, SendQueue, Transfer
from potluck_wire.chunks import PARTS
from potluck_wire.limits import CHUNK_BYTES, MAX_CHUNK_BYTES, MIB, WINDOW_BYTES
from potluck_wire.messages import Credit, Value

NEAR, FAR = "N" * 40, "F" * 40
LARGE = PARTS * MAX_CHUNK_BYTES
FASTEST = MAX_CHUNK_BYTES / FAST_CHUNK_S


class Sending:
    """A device that sends to two others at given speeds."""

    def __init__(self, window_bytes=WINDOW_BYTES, **options):
        self.outgoing, self.now_s = SendQueue(window_bytes=window_bytes, **options), 0.0
        for key in (NEAR, FAR):
            self.outgoing.reach(key)

    def begin(self, key=NEAR, nbytes=LARGE):
        """Post a value; returns its header, which says how large its chunks are."""
        value = Value(dtype="uint8", shape=(nbytes,), nbytes=nbytes)
        self.outgoing.add(
            Transfer(
                key=key,
                value=value,
                place=Span(arena="zeros", offset=0, nbytes=nbytes),
                priority=0,
                about=key,
            )
        )
        sent = self.outgoing.pump(self.now_s)
        if not sent:  # paced: it is on the air
            self.now_s = self.outgoing.wake_s()
            sent = self.outgoing.pump(self.now_s)
        self.sent_bytes = sum(action.buffers[0].nbytes for action in sent)
        return sent[0].message

    def transfer(self, bytes_per_s, *, key=NEAR, nbytes=LARGE, there_already=False):
        """The chunk size of one value that takes as long as it does at this rate."""
        header = self.begin(key, nbytes)
        while not there_already and self.sent_bytes < nbytes:
            credit = Credit(transfer=header.transfer, received_bytes=self.sent_bytes, done=False)
            assert self.outgoing.credited(key, credit, self.now_s) is None
            self.sent_bytes += sum(
                action.buffers[0].nbytes for action in self.outgoing.pump(self.now_s)
            )
        self.now_s += nbytes / bytes_per_s
        credit = Credit(transfer=header.transfer, received_bytes=nbytes, done=True)
        assert self.outgoing.credited(key, credit, self.now_s) is not None
        return header.chunk_bytes


@pytest.mark.long
@pytest.mark.parametrize(
    ("bytes_per_s", "expected"),
    [
        (1e6, CHUNK_BYTES),
        (1.99 * CHUNK_BYTES / FAST_CHUNK_S, CHUNK_BYTES),
        (2.01 * CHUNK_BYTES / FAST_CHUNK_S, 2 * CHUNK_BYTES),
        (0.49 * FASTEST, MAX_CHUNK_BYTES // 4),
        (0.99 * FASTEST, MAX_CHUNK_BYTES // 2),
        (1.01 * FASTEST, MAX_CHUNK_BYTES),
        (1e12, MAX_CHUNK_BYTES),
    ],
)
def test_a_link_gets_the_largest_chunk_that_it_carries_in_time(bytes_per_s, expected):
    sending = Sending()
    assert sending.transfer(bytes_per_s) == CHUNK_BYTES
    assert sending.transfer(1e6) == expected
    assert sending.transfer(1e12) == CHUNK_BYTES


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [(1, MIB), (PARTS * MIB, MIB), (2 * PARTS * MIB, 2 * MIB), (2 * LARGE, MAX_CHUNK_BYTES)],
)
def test_a_value_goes_in_several_chunks_however_fast_the_link_is(nbytes, expected):
    sending = Sending()
    sending.transfer(1e12)
    assert sending.begin(nbytes=nbytes).chunk_bytes == expected


def test_each_receiver_is_judged_by_its_own_link():
    sending = Sending()
    sending.transfer(1e12, key=NEAR)
    sending.transfer(1e6, key=FAR)
    assert (sending.begin(NEAR).chunk_bytes, sending.begin(FAR).chunk_bytes) == (
        MAX_CHUNK_BYTES,
        CHUNK_BYTES,
    )


def test_a_value_of_one_chunk_says_nothing_of_the_link():
    sending = Sending()
    sending.transfer(1e12, nbytes=CHUNK_BYTES)
    assert sending.begin().chunk_bytes == CHUNK_BYTES


def test_a_value_that_was_there_already_says_nothing_of_the_link():
    sending = Sending(window_bytes=CHUNK_BYTES)
    sending.transfer(1e12, there_already=True)  # done after its first chunk
    assert sending.begin().chunk_bytes == CHUNK_BYTES


@pytest.mark.parametrize("lose", [SendQueue.restart, SendQueue.forget])
def test_a_new_connection_begins_with_the_usual_chunks(lose):
    sending = Sending()
    sending.transfer(1e12)
    lose(sending.outgoing, NEAR)
    sending.outgoing.reach(NEAR)
    assert sending.begin().chunk_bytes == CHUNK_BYTES


def test_an_emulated_rate_keeps_its_own_chunks():
    sending = Sending(link_bytes_per_s=1e5)
    assert sending.begin().chunk_bytes == 25_000
