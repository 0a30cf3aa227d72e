"""A byte stream gives the same messages however it is cut, and stays broken after the first wrong
length.
"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import messages

from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_BUFFER_BYTES, MAX_PAIRING_BYTES, MAX_WORKER_HEADER_BYTES
from potluck_wire.messages import Channel, Compute, PairHello, PairShare, Put, WorkerReady
from potluck_wire.stream import StreamReader, pack

SAID = [
    (Put(value="run/0/p/0/x", nbytes=8, shape=(2,)), ()),
    (Compute(tag=1, op="run", inputs=("x",)), (b"{}",)),
    (Compute(tag=2, op="add", inputs=tuple(f"value{i}" for i in range(1000))), (b"",)),
]
BYTES = b"".join(pack(*packed) for packed in SAID)


@pytest.mark.parametrize("step", [1, 2, 7, 100, len(BYTES)])
def test_messages_come_out_whole_however_the_stream_is_cut(step):
    reader = StreamReader(Channel.WORKER)
    assert feed(reader, BYTES, step) == SAID
    assert reader.held_bytes == 0


def test_a_tail_stays_until_its_rest_comes():
    reader = StreamReader(Channel.WORKER)
    assert reader.feed(BYTES + BYTES[:10]) == SAID
    assert reader.held_bytes == 10
    assert reader.feed(BYTES[10:]) == SAID


@given(st.lists(messages(), max_size=4), st.data())
def test_any_messages_of_a_channel_survive_any_cuts(cases, data):
    cases = [case for case in cases if case[0].channel is Channel.CONTROL]
    stream = b"".join(pack(message, buffers) for _, message, buffers in cases)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    reader = StreamReader(Channel.CONTROL)
    heard = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += reader.feed(stream[start:stop])
    assert heard == [(message, buffers) for _, message, buffers in cases]


def feed(reader, data, step):
    return [
        message for at in range(0, len(data), step) for message in reader.feed(data[at : at + step])
    ]


def lengths(*numbers):
    return struct.pack(f">{len(numbers)}I", *numbers)


WRONG = {
    "no frame": (lengths(0), Channel.PAIRING, WireCode.BUFFERS),
    "more frames than any message": (lengths(4_000_000_000), Channel.WORKER, WireCode.BUFFERS),
    "buffers in pairing": (lengths(2), Channel.PAIRING, WireCode.BUFFERS),
    "a header too long": (lengths(1, MAX_WORKER_HEADER_BYTES + 1), Channel.WORKER, WireCode.SIZE),
    "a buffer too long": (lengths(2, 5, MAX_BUFFER_BYTES + 1), Channel.WORKER, WireCode.SIZE),
    "a pairing message too long": (lengths(1, MAX_PAIRING_BYTES), Channel.PAIRING, WireCode.SIZE),
    "no msgpack": (lengths(1, 1) + b"\xc1", Channel.PAIRING, WireCode.HEADER),
    "another channel": (pack(PairHello()), Channel.WORKER, WireCode.CHANNEL),
    "an HTTP request": (b"GET / HTTP/1.1\r\n\r\n", Channel.PAIRING, WireCode.BUFFERS),
    "a ZMTP greeting": (b"\xff\0\0\0\0\0\0\0\x01\x7f", Channel.PAIRING, WireCode.BUFFERS),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("bytewise", [False, True])
def test_refuses_at_the_first_length_that_cannot_be(case, bytewise):
    data, channel, code = WRONG[case]
    reader = StreamReader(channel)
    with pytest.raises(WireError) as raised:
        feed(reader, data, 1 if bytewise else len(data))
    assert raised.value.code == code
    assert reader.held_bytes == 0


def test_stays_broken_after_an_error():
    reader = StreamReader(Channel.PAIRING)
    with pytest.raises(WireError):
        reader.feed(lengths(0))
    with pytest.raises(WireError):
        reader.feed(pack(PairShare(share=b"s")))


def test_a_smaller_cap_can_be_asked_for():
    data = pack(WorkerReady(), (bytes(1000),))
    assert len(StreamReader(Channel.WORKER, max_bytes=len(data)).feed(data)) == 1
    with pytest.raises(WireError) as raised:
        StreamReader(Channel.WORKER, max_bytes=len(data) - 1).feed(data)
    assert raised.value.code == WireCode.SIZE


@given(st.lists(st.binary(max_size=30), max_size=5), st.sampled_from(Channel))
def test_arbitrary_streams_only_ever_raise_wire_errors(pieces, channel):
    reader = StreamReader(channel)
    for piece in pieces:
        try:
            reader.feed(piece)
        except WireError:
            return
