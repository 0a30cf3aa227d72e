"""Frames that were once on the wire are still written and read, byte for byte, whole, in pieces,
and with a tail.
"""

import pytest
from tests.wire.golden_frames import LASTING, golden
from tests.wire.samples import sample, sample_buffers

from potluck_wire.frames import decode, encode
from potluck_wire.stream import StreamReader, pack
from potluck_wire.version import VERSION, parse

ENTRY_OF = {entry.type.__name__: entry for entry in LASTING}
CASES = [
    (version, name, frames)
    for version, messages in golden().items()
    for name, frames in messages.items()
]
IDS = [f"{version}-{name}" for version, name, _ in CASES]


def test_every_message_has_golden_frames():
    assert {name for _, name, _ in CASES} == set(ENTRY_OF), (
        "python -m tests.wire.golden_frames adds what is missing"
    )


def test_no_version_is_from_the_future_or_another_major():
    assert all(
        parse(version) <= VERSION and parse(version)[0] == VERSION[0] for version in golden()
    )


@pytest.mark.parametrize(("version", "name", "frames"), CASES, ids=IDS)
def test_an_old_frame_is_still_read(version, name, frames):
    message, buffers = decode([bytes.fromhex(frame) for frame in frames], ENTRY_OF[name].channel)
    assert type(message) is ENTRY_OF[name].type
    assert buffers == sample_buffers(ENTRY_OF[name])
    if parse(version) == VERSION:
        assert message == sample(ENTRY_OF[name])
    else:
        assert encode(message, buffers)[0].hex() == frames[0]


@pytest.mark.parametrize(
    ("version", "name", "frames"), [c for c in CASES if parse(c[0]) == VERSION]
)
def test_the_same_bytes_are_written_today(version, name, frames):
    entry = ENTRY_OF[name]
    assert [bytes(frame).hex() for frame in encode(sample(entry), sample_buffers(entry))] == frames


@pytest.mark.parametrize(("version", "name", "frames"), CASES, ids=IDS)
@pytest.mark.parametrize("way", ["whole", "byte by byte", "with a tail"])
def test_as_a_stream(version, name, frames, way):
    entry = ENTRY_OF[name]
    message = decode([bytes.fromhex(frame) for frame in frames], entry.channel)
    data, reader = pack(*message), StreamReader(entry.channel)
    if way == "byte by byte":
        heard = [one for at in range(len(data)) for one in reader.feed(data[at : at + 1])]
    else:
        heard = reader.feed(data + data[: len(data) // 2] if way == "with a tail" else data)
        assert reader.held_bytes == (len(data) // 2 if way == "with a tail" else 0)
    assert heard == [message]
