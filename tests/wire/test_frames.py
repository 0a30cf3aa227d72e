"""Messages to frames and back; whatever is not exactly a message is refused."""

import contextlib
import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.samples import messages, sample, sample_buffers

from potluck_wire.frames import WireCode, WireError, decode, encode
from potluck_wire.limits import MAX_BUFFER_BYTES, MAX_HEADER_BYTES, MAX_STR_BYTES
from potluck_wire.messages import (
    MESSAGES,
    Channel,
    Chunk,
    Done,
    Failed,
    Hello,
    Measure,
    PairShare,
    Reading,
    Refused,
)

CHUNK_HEADER = encode(Chunk(transfer=1, index=2), (b"data",))[0]


@given(messages())
def test_every_message_comes_back_as_it_was(case):
    entry, message, buffers = case
    assert decode(encode(message, buffers), entry.channel) == (message, buffers)


@pytest.mark.parametrize("entry", MESSAGES.values(), ids=lambda entry: entry.type.__name__)
@pytest.mark.parametrize("channel", Channel)
def test_a_message_is_taken_on_its_own_channel_only(entry, channel):
    frames = encode(sample(entry), sample_buffers(entry))
    if channel is entry.channel:
        assert decode(frames, channel)[0] == sample(entry)
    else:
        with pytest.raises(WireError) as raised:
            decode(frames, channel)
        assert raised.value.code == WireCode.CHANNEL


def test_a_field_at_its_default_takes_no_bytes():
    assert encode(Hello())[0] == msgpack.packb([1, {}])
    assert encode(Hello(major=1))[0] == msgpack.packb([1, {"major": 1}])


def test_buffers_are_not_copied():
    data = bytearray(b"tensor")
    frames = encode(Chunk(transfer=1, index=1), (memoryview(data),))
    data[0:1] = b"T"
    assert bytes(frames[1]) == b"Tensor"
    _, (buffer,) = decode([frames[0], memoryview(data)], Channel.DATA)
    data[0:1] = b"S"
    assert bytes(buffer) == b"Sensor"


def test_an_empty_or_many_dimensional_buffer_is_plain_bytes():
    square = memoryview(bytes(8)).cast("B", (2, 4))
    assert len(encode(Chunk(), (square,))[1]) == 8
    assert encode(Chunk(), (memoryview(b""),))[1] == b""


def test_a_strided_buffer_is_refused():
    with pytest.raises(WireError, match="not contiguous"):
        encode(Chunk(), (memoryview(b"abcdef")[::2],))


def test_texts_for_people_are_clipped_by_the_sender_between_characters():
    message, _ = decode(encode(Failed(text="\u00e4" * 1000 + "\ud800")), Channel.CONTROL)
    assert message.text == "\u00e4" * (MAX_STR_BYTES // 2)


def header(document, **options):
    return msgpack.packb(document, **options)


TWICE = b"\x92\x01\x82" + b"\xa5major\x01" * 2

REFUSED = {
    "no frames": ([], Channel.CONTROL, WireCode.HEADER),
    "empty header": ([b""], Channel.CONTROL, WireCode.HEADER),
    "header too long": ([b"\x00" * (MAX_HEADER_BYTES + 1)], Channel.CONTROL, WireCode.SIZE),
    "never-used byte": ([b"\xc1"], Channel.CONTROL, WireCode.HEADER),
    "truncated": ([CHUNK_HEADER[:-1], b""], Channel.DATA, WireCode.HEADER),
    "bytes behind": ([CHUNK_HEADER + b"\x00", b""], Channel.DATA, WireCode.HEADER),
    "nested deep": ([b"\x91" * 10_000 + b"\x00"], Channel.CONTROL, WireCode.HEADER),
    "a number": ([header(1)], Channel.CONTROL, WireCode.HEADER),
    "a map": ([header({1: 2}, strict_types=True)], Channel.CONTROL, WireCode.HEADER),
    "fields are a list": ([header([1, []])], Channel.CONTROL, WireCode.HEADER),
    "three entries": ([header([1, {}, 0])], Channel.CONTROL, WireCode.HEADER),
    "string that is no UTF-8": (
        [b"\x92\x01\x81\xa4name\xa1\xff"],
        Channel.CONTROL,
        WireCode.HEADER,
    ),
    "field name is a number": ([header([1, {1: 2}])], Channel.CONTROL, WireCode.HEADER),
    "extension type": (
        [header([1, {"name": msgpack.ExtType(5, b"x")}])],
        Channel.CONTROL,
        WireCode.HEADER,
    ),
    "timestamp": ([header([1, {"name": msgpack.Timestamp(1)}])], Channel.CONTROL, WireCode.HEADER),
    "long string": (
        [header([1, {"name": "n" * (MAX_STR_BYTES + 1)}])],
        Channel.CONTROL,
        WireCode.HEADER,
    ),
    "many entries": ([header([20, {"rows": [1] * 65}]), b""], Channel.CONTROL, WireCode.HEADER),
    "long share": ([header([81, {"share": b"s" * 65}])], Channel.PAIRING, WireCode.HEADER),
    "unknown number": ([header([9999, {}])], Channel.CONTROL, WireCode.NUMBER),
    "number is true": ([header([True, {}])], Channel.CONTROL, WireCode.NUMBER),
    "number is a list": ([header([[1], {}])], Channel.CONTROL, WireCode.NUMBER),
    "unknown field": ([header([1, {"admin": 1}])], Channel.CONTROL, WireCode.FIELD),
    "field that is an attribute": (
        [header([1, {"__class__": 1}])],
        Channel.CONTROL,
        WireCode.FIELD,
    ),
    "field twice": ([TWICE], Channel.CONTROL, WireCode.FIELD),
    "string for integer": ([header([1, {"major": "1"}])], Channel.CONTROL, WireCode.FIELD),
    "float for integer": ([header([1, {"major": 1.0}])], Channel.CONTROL, WireCode.FIELD),
    "true for integer": ([header([1, {"major": True}])], Channel.CONTROL, WireCode.FIELD),
    "null": ([header([1, {"major": None}])], Channel.CONTROL, WireCode.FIELD),
    "negative": ([header([1, {"major": -1}])], Channel.CONTROL, WireCode.FIELD),
    "below none": ([header([14, {"epoch": -2}])], Channel.CONTROL, WireCode.FIELD),
    "above 2**53": ([header([1, {"major": 2**53 + 1}])], Channel.CONTROL, WireCode.FIELD),
    "NaN": ([header([24, {"period_s": math.nan}])], Channel.CONTROL, WireCode.FIELD),
    "infinity": ([header([24, {"period_s": math.inf}])], Channel.CONTROL, WireCode.FIELD),
    "integer for float": ([header([24, {"period_s": 1}])], Channel.CONTROL, WireCode.FIELD),
    "integer for boolean": ([header([20, {"train": 1}]), b""], Channel.CONTROL, WireCode.FIELD),
    "bytes for string": ([header([1, {"name": b"n"}])], Channel.CONTROL, WireCode.FIELD),
    "string for bytes": ([header([81, {"share": "s"}])], Channel.PAIRING, WireCode.FIELD),
    "number for list": ([header([20, {"rows": 3}]), b""], Channel.CONTROL, WireCode.FIELD),
    "map for list": ([header([20, {"rows": {"0": 1}}]), b""], Channel.CONTROL, WireCode.FIELD),
    "string in list of integers": (
        [header([20, {"rows": [1, "2"]}]), b""],
        Channel.CONTROL,
        WireCode.FIELD,
    ),
    "list in list": ([header([20, {"rows": [[1]]}]), b""], Channel.CONTROL, WireCode.FIELD),
    "no buffer": ([CHUNK_HEADER], Channel.DATA, WireCode.BUFFERS),
    "two buffers": ([CHUNK_HEADER, b"", b""], Channel.DATA, WireCode.BUFFERS),
    "buffer nobody asked for": ([header([1, {}]), b""], Channel.CONTROL, WireCode.BUFFERS),
    "buffer too long": ([CHUNK_HEADER, bytes(MAX_BUFFER_BYTES + 1)], Channel.DATA, WireCode.SIZE),
    "buffers too long together": (
        [header([10, {}]), *[bytes(MAX_BUFFER_BYTES)] * 9],
        Channel.CONTROL,
        WireCode.SIZE,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    frames, channel, code = REFUSED[case]
    with pytest.raises(WireError) as raised:
        decode(frames, channel)
    assert raised.value.code == code


UNSENDABLE = {
    "negative": (Hello(major=-1), ()),
    "too large": (Hello(major=2**53 + 1), ()),
    "NaN": (Reading(watts=math.nan), ()),
    "wrong type": (Hello(name=7), ()),
    "list where a tuple belongs, of strings": (Measure(rows=("1",)), (b"",)),
    "name too long": (Hello(name="n" * 513), ()),
    "share too long": (PairShare(share=bytes(65)), ()),
    "too many entries": (Measure(rows=(1,) * 65), (b"",)),
    "no buffer": (Done(), ()),
    "buffer too many": (Refused(), (b"",)),
}


@pytest.mark.parametrize("case", UNSENDABLE)
def test_the_sender_notices_what_the_receiver_would_refuse(case):
    with pytest.raises(WireError):
        encode(*UNSENDABLE[case])


def test_an_integer_is_sent_as_a_float_where_a_float_is_meant():
    message, _ = decode(encode(Reading(watts=5)), Channel.CONTROL)
    assert (message.watts, type(message.watts)) == (5.0, float)


@given(st.lists(st.binary(max_size=60), max_size=4), st.sampled_from(Channel))
def test_arbitrary_bytes_only_ever_raise_wire_errors(frames, channel):
    with contextlib.suppress(WireError):
        decode(frames, channel)


@given(messages(), st.data())
def test_mutated_frames_decode_or_raise_wire_errors(case, data):
    entry, message, buffers = case
    frames = [bytearray(frame) for frame in encode(message, buffers)]
    header_frame = frames[0]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(header_frame)))
        header_frame[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=4)
        )
    frames = [bytes(frame) for frame in frames][: data.draw(st.integers(0, 3))]
    try:
        decoded, rest = decode(frames, entry.channel)
    except WireError:
        return
    # what is accepted is a message
    assert decode(encode(decoded, rest), entry.channel) == (decoded, rest)
