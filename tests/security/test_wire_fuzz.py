"""Spoiled frames and spoiled graph documents: nothing but the errors of the wire ever comes of
them.
"""

import json
import random

import msgpack
import pytest
from tests.agent.worker.test_graph_documents import GRAPH
from tests.wire.samples import sample, sample_buffers

from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.graph import SegmentError
from potluck_wire.messages import MESSAGES, Channel
from potluck_wire.segment import dumps, loads
from potluck_wire.stream import StreamReader, pack

ATOMS = (
    0,
    -1,
    1,
    2**31,
    2**53,
    2**53 + 1,
    2**64 - 1,
    True,
    None,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x" * 513,
    b"",
    b"\xff" * 65,
    "\x1b[2J",
    (),
    [],
    {},
    [[]],
    [1] * 65,
    {"a": 1},
    "../../etc/passwd",
)


def spoiled_bytes(rng, data):
    """Some bytes changed, left out, doubled or added."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[place : place + rng.choice((1, 2, 8))]
            case 2:
                data[place:place] = rng.randbytes(rng.choice((1, 4, 16)))
            case 3:
                data[place:place] = data[: rng.randrange(len(data) + 1)]
            case _:
                data[place : place + 1] = bytes(
                    [rng.choice((0x80, 0x81, 0x90, 0x91, 0xC1, 0xC6, 0xCF, 0xDB, 0xDD))]
                )
    return bytes(data)


def spoiled_frames(rng, number):
    """The frames of a message with its fields or bytes spoiled, or with frames too many or too
    few.
    """
    entry = MESSAGES[number]
    frames = [bytes(frame) for frame in encode(sample(entry), sample_buffers(entry))]
    if rng.random() < 0.4:
        document = msgpack.unpackb(frames[0], strict_map_key=False)
        fields = document[1]
        for _ in range(rng.choice((1, 1, 3))):
            fields[rng.choice([*fields, "extra", ""])] = rng.choice(ATOMS)
        frames[0] = msgpack.packb([rng.choice((number, *MESSAGES, 999, "1", None)), fields])
    else:
        frames[0] = spoiled_bytes(rng, frames[0])
    match rng.randrange(12):
        case 0:
            frames.append(b"more")
        case 1:
            del frames[-1]
        case 2:
            frames[-1] = b""
    return frames


def check_frames(seed, count):
    rng = random.Random(seed)
    numbers = sorted(MESSAGES)
    refused = 0
    channels = tuple(Channel)
    for _ in range(count):
        number = rng.choice(numbers)
        frames = spoiled_frames(rng, number)
        channel = MESSAGES[number].channel if rng.random() < 0.9 else rng.choice(channels)
        try:
            decode(frames, channel)
        except WireError:
            refused += 1
        if channel is Channel.WORKER or channel is Channel.PAIRING:
            try:
                list(
                    StreamReader(channel).feed(
                        spoiled_bytes(rng, pack(sample(MESSAGES[number]), frames[1:]))
                    )
                )
            except WireError:
                refused += 1
    assert refused > count // 4  # most are wrong, or the spoiling does nothing


def leaves(document, path=()):
    """The path of every value in a JSON document."""
    yield path
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        yield from leaves(value, (*path, key))


WORDS = (
    *ATOMS[:10],
    2**40,
    -(2**40),
    "batch",
    "aten.from_file.default",
    "aten.lstm.input",
    "object",
    {"r": [0]},
    {"r": [-1]},
    {"r": [9999]},
    {"s": "batch"},
    {"s": ["*", "batch", 2**40]},
    {"s": ["//", 1, 0]},
    {"d": "object"},
    {"f": "inf"},
    {"f": "nan"},
    {"code": "x"},
    [2**40] * 8,
    [[[[[[[[[[]]]]]]]]]],
)


def check_documents(seed, count):
    rng = random.Random(seed)
    intact = dumps(GRAPH)
    causes = []
    paths = [path for path in leaves(json.loads(intact)) if path]
    for _ in range(count):
        if rng.random() < 0.3:
            data = spoiled_bytes(rng, intact)
        else:
            document = json.loads(intact)
            for path in rng.choices(paths, k=rng.choice((1, 1, 2))):
                at = document
                try:
                    for key in path[:-1]:
                        at = at[key]
                    at[path[-1]] = rng.choice(WORDS)
                except (KeyError, IndexError, TypeError):
                    continue  # an earlier change took it away
            data = json.dumps(document, default=repr).encode()
        try:
            loads(data)
        except SegmentError as error:
            causes.append(error.cause)
    assert set(causes) <= {"document", "operator"}
    assert len(causes) > count // 2


def test_s6_spoiled_frames_only_ever_raise_wire_errors(record_property):
    check_frames(6, 100_000)
    record_property("inputs", 100_000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_s6_many_more_spoiled_frames(seed, record_property):
    check_frames(600 + seed, 1_000_000)
    record_property("inputs", 1_000_000)


def test_s7_spoiled_graphs_only_ever_raise_segment_errors(record_property):
    check_documents(7, 10_000)
    record_property("inputs", 10_000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_s7_many_more_spoiled_graphs(seed, record_property):
    check_documents(700 + seed, 100_000)
    record_property("inputs", 100_000)
