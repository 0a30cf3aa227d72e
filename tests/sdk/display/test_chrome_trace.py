"""Chrome traces: what Perfetto asks for, over made-up and random traces."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.display import chrome_trace
from potluck.records import Event, Trace

from . import example


def slices_by_thread(document):
    threads = defaultdict(list)
    for row in document["traceEvents"]:
        if row["ph"] == "X":
            threads[row["pid"], row["tid"]].append((row["ts"], row["ts"] + row["dur"]))
    return threads


def assert_no_overlap(document):
    for thread, slices in slices_by_thread(document).items():
        slices.sort()
        for (_, stop), (start, _) in itertools.pairwise(slices):
            assert stop <= start, thread


def assert_arrows_bind(document):
    """Each flow id once as start and once as finish, each inside a slice of its thread, in the
    order of time.
    """
    threads = slices_by_thread(document)
    ends = defaultdict(dict)
    for row in document["traceEvents"]:
        if row["ph"] in "sf":
            assert row["ph"] not in ends[row["id"]]
            ends[row["id"]][row["ph"]] = row
            assert any(start <= row["ts"] < stop for start, stop in threads[row["pid"], row["tid"]])
    for pair in ends.values():
        assert set(pair) == {"s", "f"}
        assert pair["f"]["bp"] == "e"
        assert pair["s"]["ts"] <= pair["f"]["ts"]
    return len(ends)


def test_predicted_and_measured_are_separate_groups_with_all_that_happened(tmp_path):
    watts = chrome_trace.modelled_watts(example.PREDICTED, [example.LAPTOP, example.PHONE])
    path = chrome_trace.save(
        tmp_path / "trace.json", example.PREDICTED, example.MEASURED, watts=[watts]
    )
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = document["traceEvents"]
    names = {row["args"]["name"]: row["pid"] for row in rows if row["name"] == "process_name"}
    assert set(names) == {
        "predicted: laptop",
        "predicted: phone",
        "measured: laptop",
        "measured: phone",
    }
    assert len(set(names.values())) == 4
    assert sum(row["ph"] == "X" for row in rows) == 18
    assert assert_arrows_bind(document) == 4
    assert {row["pid"] for row in rows if row["ph"] == "C"} == {names["predicted: laptop"]}
    assert_no_overlap(document)


def test_modelled_watts_follow_computing_and_the_radio():
    steps = chrome_trace.modelled_watts(example.PREDICTED, [example.LAPTOP])["laptop"]
    assert steps == [
        (0.0, 28.0),
        (0.004, 4.5),
        (0.006, 3.0),
        (0.037, 4.5),
        (0.039, 28.0),
        (0.048, 3.0),
    ]


def test_a_device_of_unknown_power_gets_no_counter():
    assert chrome_trace.modelled_watts(example.PREDICTED, [example.PHONE]) == {}


def test_what_overlaps_in_a_lane_gets_a_second_thread():
    events = tuple(
        Event(device="a", lane="send", start_s=start, stop_s=stop, label=label)
        for label, start, stop in (("x", 0, 2), ("y", 1, 3), ("z", 2, 4))
    )
    document = chrome_trace.document([Trace(source="measured", events=events)])
    names = {row["args"]["name"] for row in document["traceEvents"] if row["name"] == "thread_name"}
    assert names == {"send", "send 2"}
    assert_no_overlap(document)


def test_transfers_meet_by_label_then_by_order():
    def event(device, lane, peer, start_s, label):
        return Event(
            device=device, lane=lane, start_s=start_s, stop_s=start_s + 1, peer=peer, label=label
        )

    events = (
        event("a", "send", "b", 0, "first"),
        event("a", "send", "b", 1, "second"),
        event("a", "send", "b", 2, "nameless"),
        event("b", "receive", "a", 0.1, "second"),
        event("b", "receive", "a", 0.2, "first"),
        event("b", "receive", "a", 0.3, ""),
        event("b", "receive", "c", 0.4, "other"),
    )
    pairs = chrome_trace.flows(Trace(source="measured", events=events))
    assert [(sent.label, received.label) for sent, received in pairs] == [
        ("first", "first"),
        ("second", "second"),
        ("nameless", ""),
    ]


def test_hostile_names_are_cleaned():
    hostile = replace(
        example.MEASURED, events=(replace(example.MEASURED.events[0], device="a\x1b[2J\n"),)
    )
    assert "\\u001b" not in json.dumps(chrome_trace.document([hostile]))


TIMES = st.floats(min_value=0, max_value=1, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(chrome_trace.LANES), TIMES, TIMES),
        max_size=30,
    ),
    lag_s=st.floats(min_value=-0.1, max_value=0.1),
)
def test_any_trace_gives_threads_without_overlap_and_whole_arrows(rows, lag_s):
    events = []
    for device, lane, start_s, span_s in rows:
        peer = "" if lane == "compute" else "b" if device == "a" else "a"
        events.append(
            Event(
                device=device,
                lane=lane,
                start_s=start_s,
                stop_s=start_s + span_s,
                label="v",
                peer=peer,
            )
        )
        # clocks are not quite the same, so a receive may even seem to come first
        if lane == "send":
            start = max(0.0, start_s + lag_s)
            events.append(
                Event(
                    device=peer,
                    lane="receive",
                    start_s=start,
                    stop_s=start + span_s,
                    label="v",
                    peer=device,
                )
            )
    document = chrome_trace.document([Trace(source="measured", events=tuple(events))])
    assert_no_overlap(document)
    assert_arrows_bind(document)


@pytest.mark.parametrize("field", ["ts", "dur"])
def test_times_are_whole_microseconds(field):
    rows = [row for row in chrome_trace.document([example.MEASURED])["traceEvents"] if field in row]
    assert rows
    assert all(isinstance(row[field], int) for row in rows)
