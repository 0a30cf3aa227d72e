"""Whatever rides in a buffer, the one parser gives a document that has been checked, or a
WireError; nothing else.
"""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz import ODD, RAW, mutated

from potluck_agent.core.members import read_roster
from potluck_agent.core.run_state import read_load
from potluck_wire import messages as m
from potluck_wire.checks import Unfit, anything, number, record, row, rows, shown
from potluck_wire.documents import dump, fit, parse
from potluck_wire.errors import WireCode, WireError
from potluck_wire.frames import decode
from potluck_wire.limits import MAX_DEPTH
from potluck_wire.program import loads
from potluck_wire.replies import check_seconds, check_timings, read_exports, read_timeline
from potluck_wire.statement import read, read_facts

KEYS = ("r/1/p/0/a",)
ROWS = [["recv", [], ["x"], [], 0, {"peer": "home"}], ["add", ["x"], ["a"], [0], 0, {}]]
PROGRAM = {"name": "p", "instructions": ROWS}
CAN = {"backends": {"torch": "2"}, "dtypes": ["float32"], "operators": ["x"], "overhead_s": 1e-5}
STATEMENT = {
    "name": "a",
    "memory_bytes": 1,
    "power": {"idle_w": 1.5},
    "meters": [{"name": "m", "source": "measured"}],
}
# What a reader takes -> a document that holds.
READERS = {
    "program": (loads, PROGRAM),
    "plan": (
        lambda data: read_load([data, b"{}"], "r", 1),
        {"segments": [{"name": "s", "kind": "aten", "weights": "1/t"}], "programs": [PROGRAM]},
    ),
    "roster": (read_roster, [{"name": "phone", "key": "C" * 40, "address": "127.0.0.1:47600"}]),
    "statement": (read, CAN | STATEMENT),
    "facts": (read_facts, CAN | {"bounds": {"network": "cut off"}, "memory_counted": "x"}),
    "timeline": (read_timeline, [[0, 1.0, 2.0], [1, 2, 2.5]]),
    "exports": (lambda data: read_exports(data, KEYS, 4096), [[KEYS[0], 64, 8, "float32", [2]]]),
}

JSON = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abkn", max_size=4), inner, max_size=4)
    ),
    max_leaves=15,
)


@pytest.mark.parametrize("reader", READERS)
def test_reads_what_holds(reader):
    read_it, good = READERS[reader]
    assert read_it(dump(good)) is not None


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_bytes_that_parsers_fall_over_raise_wire_errors(reader, raw):
    read_it, _ = READERS[reader]
    if (reader, raw) in (("timeline", b"[]"), ("roster", b"[]"), ("facts", b"{}")):  # they hold
        return
    with pytest.raises(WireError):
        read_it(raw)


@given(st.sampled_from(sorted(READERS)), st.randoms(use_true_random=False), JSON)
def test_a_document_wrong_in_one_place_or_in_all_raises_nothing_else(reader, rng, other):
    read_it, good = READERS[reader]
    for document in (mutated(good, rng), other):
        with contextlib.suppress(WireError):
            read_it(json.dumps(document).encode())


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=200))
def test_any_bytes_raise_nothing_else(reader, data):
    read_it, _ = READERS[reader]
    with contextlib.suppress(WireError):
        read_it(data)


@pytest.mark.parametrize("inside", ["1", '"]]]]["', '"\\"]"', "{}"])
def test_nests_as_deep_as_the_limit_and_no_deeper(inside):
    depth = MAX_DEPTH - (inside == "{}")
    parse(b"[" * depth + inside.encode() + b"]" * depth, "it", anything)
    with pytest.raises(WireError, match="nested deeper"):
        parse(b"[" * (depth + 1) + inside.encode() + b"]" * (depth + 1), "it", anything)


def test_brackets_in_strings_are_no_depth_however_many_and_however_they_end():
    assert parse(json.dumps(["[{" * 10_000]).encode(), "it", anything) == ["[{" * 10_000]
    for tail in (b"", b"\\", b'\\"'):
        with pytest.raises(WireError):
            parse(b'["' + b'\\"[' * 200_000 + tail, "it", anything)  # seconds and not hours


def test_half_of_a_character_is_refused_and_a_whole_one_is_not():
    assert parse(b'"\\ud83d\\ude00"', "it", anything) == "\U0001f600"
    with pytest.raises(WireError, match="not JSON"):
        parse(b'"\\ud83d"', "it", anything)


def test_says_where_and_what():
    check = record(("more",), rows=rows(row(number, number), max_entries=2), more=number)
    with pytest.raises(
        WireError, match=r"rows\[1\] of it must be a list of 2, got list of 1"
    ) as raised:
        fit({"rows": [[1, 2], [1]]}, "it", check)
    assert raised.value.code == WireCode.DOCUMENT
    with pytest.raises(
        WireError, match="it must be an object with rows, and perhaps more, got dict of 1"
    ):
        fit({"row": 1}, "it", check)


def test_a_value_in_an_error_is_shown_without_looking_into_it():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "list of 1"
    assert "list of 1" in str(Unfit("a number", deep))
    assert len(shown("x" * 10**6)) <= 40


@pytest.mark.parametrize(
    ("channel", "number_", "field"),
    [
        (m.Channel.CONTROL, 1, "major"),
        (m.Channel.DATA, 40, "shape"),
        (m.Channel.PULSE, 60, "seq"),
        (m.Channel.PAIRING, 80, "major"),
        (m.Channel.WORKER, 107, "tag"),
    ],
)
def test_a_header_nested_deeper_than_repr_goes_is_a_wire_error(channel, number_, field):
    name = bytes([0xA0 + len(field)]) + field.encode()
    for depth in (10, 500, 900, *range(960, 1024)):
        nest = b"\x91" * depth + b"\x90"
        for header in (
            b"\x92" + bytes([number_]) + b"\x81" + name + nest,
            b"\x92" + nest + b"\x80",
            nest,
        ):
            with pytest.raises(WireError):
                decode([header], channel)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rows": (1, 2)},
        {"rows": (2, 1), "forward_s": (1.0, 1.0), "memory_bytes": (1, 1)},
        {"rows": (1, 2), "forward_s": (1.0, -1.0), "memory_bytes": (1, 1)},
        {"rows": (1, 2), "forward_s": (1.0, 1.0), "memory_bytes": (1, 1), "backward_s": (1.0, 1.0)},
        {"rows": (1, 2), "forward_s": (1.0, 1.0), "memory_bytes": (1, 1), "sgd_s": (1.0, 1.0)},
    ],
)
def test_a_measurement_that_is_no_answer_is_refused(fields):
    with pytest.raises(WireError):
        check_timings(m.Measure(task="t", rows=(1, 2)), m.Measured(task="t", **fields))
    good = m.Measured(task="t", rows=(1, 2), forward_s=(1.0, 2.0), memory_bytes=(1, 1))
    check_timings(m.Measure(task="t", rows=(1, 2)), good)


@pytest.mark.parametrize("sgd_s", [(1.0,), (1.0, -1.0), (1.0, 1.0, 1.0)])
def test_two_times_of_sgd_are_told_of_a_layer_that_trains_or_none(sgd_s):
    request = m.Measure(task="t", train=True, rows=(1,))
    fields = {"task": "t", "rows": (1,), "forward_s": (1.0,), "backward_s": (1.0,)}
    for right in ((), (1.0, 2.0)):
        check_timings(request, m.Measured(**fields, memory_bytes=(1,), sgd_s=right))
    with pytest.raises(WireError):
        check_timings(request, m.Measured(**fields, memory_bytes=(1,), sgd_s=sgd_s))


@pytest.mark.parametrize("seconds", [(), (1.0,), (1.0, -1.0), (1.0, 1.0, 1.0)])
def test_a_probe_that_is_no_answer_is_refused(seconds):
    with pytest.raises(WireError):
        check_seconds(m.Probe(repeats=2), m.Probed(seconds=seconds))


def is_deeper(text):
    """Whether brackets outside of strings nest deeper than they may, or do not match: by hand."""
    depth = 0
    deepest = 0
    lowest = 0
    in_string = is_escaped = False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif in_string:
            in_string, is_escaped = character != '"', character == "\\"
        elif character == '"':
            in_string = True
        else:
            depth += (character in "[{") - (character in "]}")
            deepest, lowest = max(deepest, depth), min(lowest, depth)
    return deepest > MAX_DEPTH or lowest < 0 or depth != 0


@given(st.text('[]{}"\\a,', max_size=60), st.integers(0, 20), st.integers(0, 20))
def test_how_deep_a_document_is_does_not_depend_on_what_stands_in_its_strings(text, opened, closed):
    """However brackets, quotes and backslashes stand. Few brackets are left to the JSON parser."""
    raw = "[" * opened + text + "]" * closed
    refused = ""
    try:
        parse(raw.encode(), "it", anything)
    except WireError as error:
        refused = error.text
    is_counted = raw.count("[") + raw.count("{") > MAX_DEPTH
    assert ("nested deeper" in refused) == (is_counted and is_deeper(raw))


@pytest.mark.parametrize(
    "number", [2**53, -(2**53), 2**53 + 1, -(2**53) - 1, 10**15 - 1, 10**16, 10**18, 10**30]
)
def test_integers_past_2_53_are_refused_in_small_and_in_large_documents(number):
    for raw in (
        str(number),
        f"[{number}]",
        f'{{"a":[0.1234567890123456789,{number}]}}',
        f"[1e5,{number}]",
    ):
        if abs(number) <= 2**53:
            assert parse(raw.encode(), "x", anything) == json.loads(raw)
        else:
            with pytest.raises(WireError):
                parse(raw.encode(), "x", anything)
