"""`potluck agent replay` of files that somebody made up: each is told, or is an error in one
sentence, and none takes for ever.
"""

import os
import random
import socket
import sys
import tracemalloc
import zlib
from functools import cache

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent.agents import command
from tests.agent.core.core_attack import CorePlay
from tests.agent.core.test_recording import Tape, at_work

from potluck_agent import record_file
from potluck_agent.cli import replay
from potluck_agent.core.events import PeerRevoked, Report, Store, Undone
from potluck_agent.core.msgpack_size import check_count
from potluck_agent.core.recorded_entries import (
    Malformed,
    RecordingError,
    open_outline,
    pack,
    unpack,
)
from potluck_agent.errors import AgentError
from potluck_agent.record_file import FIRST_LINE
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MIB
from potluck_wire.messages import Channel


@cache
def recordings():
    """Entries of some lives, unpacked: of all kinds of entries, events and actions."""
    lives = []
    for seed in range(4):
        rng, tape = random.Random(seed), Tape()
        play = CorePlay(rng, hostile=seed % 2 == 1, make_core=tape.core)
        for _ in range(12):
            play.move(rng)
        lives.append(tape)
    tape = Tape()
    talk = at_work(tape)
    talk.core.malformed("k", Channel.CONTROL, WireError(WireCode.SIZE, "too long"))
    talk.core.fault("a visitor", TypeError("unhashable"))
    talk.core.handle(Undone(Store(0, b""), "why"), talk.now_s)
    talk.core.handle(PeerRevoked("k"), talk.now_s)
    talk.core.survive(Undone(Report(""), "why"), TypeError("unhashable"), talk.now_s)
    lives.append(tape)
    return [
        [msgpack.unpackb(entry, strict_map_key=False) for entry in life.entries] for life in lives
    ]


def places(value, at=()):
    """Paths to everything in a document; packed ones within are opened, too."""
    yield at
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*at, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*at, key))
    elif isinstance(value, bytes) and (inner := opened(value)) is not None:
        yield from places(inner, (*at, "packed"))


def opened(data):
    try:
        inner = msgpack.unpackb(data, strict_map_key=False)
    except Exception:
        return None
    return inner if isinstance(inner, list) else None


def changed(value, path, change):
    """A copy with `change` applied to what is at this place."""
    if not path:
        return change(value)
    first, *rest = path
    if first == "packed" and isinstance(value, bytes):
        return msgpack.packb(changed(opened(value), rest, change))
    copy = value.copy()
    copy[first] = changed(copy[first], rest, change)
    return copy


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


HOSTILE = [
    *(None, True, -1, 0, 1, 2**31, 2**53 + 1, 2**63, -(2**63), 1.5, float("nan"), float("inf")),
    *("", "\0", "\x1b[2J", "x" * 100_000, "FromPeer", "ToPeer", "control", "é" * 300),
    *(b"", b"\xc1", b"x" * 3000, [], [[]], {}, {"a": 1}, {1: [2]}, deep(400)),
]
CHANGES = {
    "replaced": lambda rng: lambda value: rng.choice(HOSTILE),
    "one less": lambda rng: lambda value: value[:-1] if isinstance(value, list | bytes) else value,
    "one more": lambda rng: (
        lambda value: [*value, rng.choice(HOSTILE)] if isinstance(value, list) else value
    ),
    "turned": lambda rng: lambda value: value[::-1] if isinstance(value, list | bytes) else value,
    "in a list": lambda rng: lambda value: [value],
    "negative": lambda rng: lambda value: -value if type(value) in (int, float) else -7,
    "huge": lambda rng: lambda value: 10**18 if type(value) in (int, float) else value,
}


def spoiled(seed):
    """A recording with some places changed, and some entries lost, repeated or exchanged."""
    rng = random.Random(seed)
    entries = list(rng.choice(recordings()))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = 0 if rng.random() < 0.2 else rng.randrange(len(entries))
        path = rng.choice(list(places(entries[at])))
        change = CHANGES[rng.choice(list(CHANGES))](rng)
        entries[at] = changed(entries[at], path, change)
        if rng.random() < 0.1:
            entries.insert(rng.randrange(len(entries)), entries[at])
        if rng.random() < 0.1 and len(entries) > 2:
            del entries[rng.randrange(1, len(entries))]
    return [msgpack.packb(entry) for entry in entries]


def write(path, entries):
    framed = (
        len(entry).to_bytes(4, "little") + zlib.crc32(entry).to_bytes(4, "little") + entry
        for entry in entries
    )
    path.write_bytes(FIRST_LINE + b"".join(framed))


def tell(path):
    """What is said of a file; the error's text is its last line."""
    lines = []
    try:
        replay.run(path, lines.append)
    except AgentError as error:
        lines.append(str(error))
    assert all(line.isprintable() and len(line) <= replay.MAX_LINE + 3 for line in lines)
    return lines


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_whatever_is_in_a_recording_is_told_or_an_error_in_one_line(tmp_path, seed):
    path = tmp_path / "f"
    write(path, spoiled(seed))
    assert tell(path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 4_000, 500))
def test_many_spoiled_recordings(tmp_path, first, record_property):
    path, n_broken = tmp_path / "f", 0
    for seed in range(first, first + 500):
        write(path, spoiled(seed))
        n_broken += not tell(path)[-1].endswith((" did the same", " s"))
    assert n_broken > 100  # the others hold all the same
    record_property("inputs", 500)


HELLO = [1, {"major": 1}]
MADE_UP = {
    "a channel that is none": [pack(Malformed(key="k", channel="smoke", code="size", text="x"))],
    "a list as a key": [msgpack.packb(["Handled", 1.0, ["PeerRevoked", ["k"]]])],
    "a list as a sender": [
        msgpack.packb(["Handled", 1.0, ["FromPeer", [["k"], "owner", "x"], HELLO, []]])
    ],
    "a kind that is a list": [msgpack.packb([["Handled"], 1.0, ["Tick"]])],
    "an outline that is none": [
        msgpack.packb(["Reached", "k"]),
        msgpack.packb(["Answered", [b"\xc1"]]),
    ],
    "an outline of nothing": [msgpack.packb(["Reached", "k"]), msgpack.packb(["Answered", [b""]])],
    "members that are numbers": [
        msgpack.packb(["Reached", "k"]),
        msgpack.packb(["Answered", [msgpack.packb(["SetMembers", 7])]]),
    ],
    "a negative buffer": [
        msgpack.packb(["Handled", 1.0, ["FromWorker", [110, {"offset": 1}], [-5]]])
    ],
    "a time that is none": [msgpack.packb(["Handled", float("nan"), ["Tick"]])],
    "nothing but depth": [msgpack.packb(deep(500))],
}


@pytest.mark.parametrize("what", MADE_UP)
def test_what_no_agent_records_is_an_error(tmp_path, what):
    path = tmp_path / "f"
    write(path, [msgpack.packb(recordings()[0][0]), *MADE_UP[what]])
    with pytest.raises(AgentError, match=r"entry 2|entry 3|no agent"):
        replay.run(path, lambda line: None)


@pytest.mark.parametrize("name", ["memory_bytes", "inbound_bytes", "outbound_bytes", "grace_s"])
@pytest.mark.parametrize("value", [-1, -(2**40), float("nan"), "x", None, [1]])
def test_settings_that_no_agent_has_are_an_error(tmp_path, name, value):
    kind, version, chosen = recordings()[0][0]
    write(tmp_path / "f", [msgpack.packb([kind, version, chosen | {name: value}])])
    with pytest.raises(AgentError, match="settings"):
        replay.run(tmp_path / "f", lambda line: None)


def test_what_a_recording_says_it_left_out_takes_no_memory(tmp_path):
    """Zeros stand for it, and all are the same."""
    chunk = msgpack.packb(["Handled", 1.0, ["FromWorker", [101, {}], [8 * MIB - 1024]]])
    entries = [replay.unpack(chunk).event.buffers[0] for _ in range(3)]
    assert len({id(memoryview(entry).obj) for entry in entries}) == 1


def test_a_line_has_an_end(tmp_path):
    entries = [
        msgpack.packb(recordings()[0][0]),
        msgpack.packb(["Handled", 1.0, ["WorkerDied", "crashed", "x" * (10 * MIB)]]),
        msgpack.packb(["Faulted", "y" * MIB, "E", "z" * MIB]),
    ]
    write(tmp_path / "f", entries)
    assert len("".join(tell(tmp_path / "f"))) < 20_000


def special(tmp_path, what):
    path = tmp_path / what
    match what:
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case "a socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "too large":
            with open(path, "wb") as file:
                file.write(FIRST_LINE)
                file.truncate(record_file.MAX_FILE_BYTES + 1)
        case "a link to itself":
            path.symlink_to(path)
        case "a null":
            return tmp_path / "a\0b"
        case "a long name":
            return tmp_path / ("x" * 300)
        case _:
            return what
    return path


SPECIAL = ("a folder", "a pipe", "a socket", "too large", "a link to itself", "a null")
SPECIAL += ("a long name", "/dev/zero", "/proc/self/mem", "/proc/self/maps")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="files as Linux has them")
@pytest.mark.parametrize("what", SPECIAL)
def test_what_is_no_ordinary_file_is_an_error_at_once(tmp_path, what):
    (line,) = tell(replay.Path(special(tmp_path, what)))
    assert "cannot be read" in line or "is no recording" in line


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="files as Linux has them")
def test_the_command_says_so_in_one_line(tmp_path):
    for what in ("a pipe", "/proc/self/mem"):
        answer = command("replay", str(special(tmp_path, what)))
        assert answer.returncode == 1
        assert len(answer.stderr.splitlines()) == 1


N_BYTES = 4 * MIB
SWOLLEN = {
    "empty maps": b"\x80" * N_BYTES,
    "empty lists": b"\x90" * N_BYTES,
    "lists in lists": (b"\x91" * 500 + b"\xc0") * (N_BYTES // 501),
    "texts": b"\xa2ab" * (N_BYTES // 3),
    "numbers": b"\xca\x01\x02\x03\x04" * (N_BYTES // 5),
    "small numbers": b"\x01" * N_BYTES,
}


@pytest.mark.parametrize("kind", SWOLLEN)
@pytest.mark.parametrize("read", [unpack, open_outline])
def test_an_entry_takes_no_more_memory_than_it_is_long(kind, read):
    packed = b"\xdd" + N_BYTES.to_bytes(4, "big") + SWOLLEN[kind]
    tracemalloc.start()
    try:
        with pytest.raises(RecordingError, match="things"):
            read(packed)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < N_BYTES


THINGS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def n_things(value):
    if isinstance(value, list):
        return 1 + sum(map(n_things, value))
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(n_things, value.values()))
    return 1


@pytest.mark.long
@given(THINGS, st.sampled_from([b"", b"\xc0", b"\x91"]))
@settings(deadline=None)
def test_things_are_counted_as_they_are_read(value, after):
    packed = msgpack.packb(value)
    check_count(packed + after, n_things(value))
    with pytest.raises(ValueError, match="things"):
        check_count(packed + after, n_things(value) - 1)


def test_long_texts_and_lists_are_one_thing_and_each_of_theirs():
    for value in ("a" * 300, b"a" * 70_000, list(range(70_000)), {str(i): i for i in range(20)}):
        check_count(msgpack.packb(value), n_things(value))
        with pytest.raises(ValueError, match="things"):
            check_count(msgpack.packb(value), n_things(value) - 1)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_no_bytes_take_the_count_beyond_their_end(data):
    check_count(data, 2**40)
