"""Which term a difference comes from, by traces written by hand.

And predicted against measured on real agents.
"""

import pytest

from potluck.display import tables, text
from potluck.records import Device, Event, Medium, Network, Path, Trace
from potluck.run.comparison import compare
from potluck.run.history import measured_trace, metered_j
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult, Timeline
from potluck.simulate.equations import energy_j
from potluck.simulate.time_spans import in_turn_s, most_at_once, pace_s
from potluck_wire.program import Instruction, Program

# a computes x and sends it to b, which computes with it and sends the answer home
PROGRAMS = {
    "a": Program(
        name="p",
        instructions=(
            Instruction(id=0, op="run", outputs=("x",)),
            Instruction(id=1, op="send", inputs=("x",), attrs={"peer": "b", "name": "y"}),
        ),
    ),
    "b": Program(
        name="p",
        instructions=(
            Instruction(id=0, op="recv", outputs=("y",), attrs={"peer": "a"}),
            Instruction(id=1, op="run", inputs=("y",), outputs=("z",)),
            Instruction(id=2, op="send", inputs=("z",), attrs={"peer": "home", "name": "z"}),
        ),
    ),
}
NETWORK = Network(
    media=(Medium(name="air", capacity_bytes_per_s=1000.0),),
    paths={pair: Path(media=(("air", 1),), latency_s=0.5) for pair in (("a", "b"), ("b", "home"))},
)
LANES = {"run": "compute", "send": "send", "recv": "receive"}


def trace(source, *steps):
    """Each step: its beginning, and (device, instruction, start, stop) of what happens, counted
    from there.
    """
    events, spans = [], []
    for number, (since_s, *rows) in enumerate(steps):
        for device, index, start_s, stop_s in rows:
            item = PROGRAMS[device].instructions[index]
            events.append(
                Event(
                    device=device,
                    lane=LANES[item.op],
                    op=item.op,
                    step=number,
                    instruction=index,
                    nbytes=1000,
                    start_s=since_s + start_s,
                    stop_s=since_s + stop_s,
                    peer=item.attrs.get("peer", ""),
                )
            )
        spans.append((since_s, since_s + max(row[3] for row in rows)))
    return Trace(
        source=source,
        events=tuple(events),
        step_s=in_turn_s(spans),
        busy_s={"a": 1.0},
        energy_j={"a": 2.0},
    )


def chain(run_a=1.0, way=1.5, gap=0.0, run_b=2.0):
    """The rows of a step in which everything waits for the one before it."""
    sent = run_a + way
    begun = sent + gap
    return [
        ("a", 0, 0.0, run_a),
        ("a", 1, run_a, sent - 0.5),
        ("b", 0, run_a + 0.5, sent),
        ("b", 1, begun, begun + run_b),
        ("b", 2, begun + run_b, begun + run_b + 0.75),
    ]


EXPECTED = {"compute": 3.0, "link": 1.25, "latency": 1.0, "overhead": 0.0}


@pytest.mark.parametrize(
    ("change", "term", "more"),
    [
        ({"run_b": 2.5}, "compute", 0.5),
        ({"way": 2.5}, "link", 1.0),
        ({"gap": 0.25}, "overhead", 0.25),
    ],
)
def test_the_term_that_a_difference_comes_from_is_found(change, term, more):
    found = compare(
        trace("predicted", (0.0, *chain())),
        trace("measured", (0.0, *chain(**change))),
        PROGRAMS,
        NETWORK,
    )
    for name, (expected, measured) in found.terms.items():
        assert expected == pytest.approx(EXPECTED[name])
        assert measured == pytest.approx(EXPECTED[name] + (more if name == term else 0.0))
    assert found.cause == term
    assert found.error_frac == pytest.approx(more / (5.25 + more))
    assert f"what differs most: {term}" in text.compared(found)


def test_what_a_step_did_while_the_one_before_went_on_does_not_count():
    # The second step begins 2 s before the first has ended; a has then long computed.
    both = trace("measured", (0.0, *chain()), (3.25, *chain()))
    found = compare(trace("predicted", (0.0, *chain())), both, PROGRAMS, NETWORK)
    assert both.step_s == (5.25, 3.25)
    assert sum(measured for _, measured in found.terms.values()) in (
        pytest.approx(5.25),
        pytest.approx(3.25),
    )


def test_terms_of_a_later_step_end_where_the_one_before_ended():
    steps = [(3.25 * number, *chain()) for number in range(4)]  # 3.25 s each, but for the first
    found = compare(
        trace("predicted", (0.0, *chain())), trace("measured", *steps), PROGRAMS, NETWORK
    )
    assert sum(measured for _, measured in found.terms.values()) == pytest.approx(3.25)
    assert found.terms["compute"][1] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("apart_s", "expected"),
    [
        (
            3.25,
            {
                "time from answer to answer": "3.25 s",
                "time of one request, of several at once": "5.25 s",
            },
        ),
        (6.0, {"time per request": "5.25 s"}),
    ],
)
def test_of_a_stream_its_rate_and_the_time_of_a_request_are_told(apart_s, expected):
    stream = [
        trace(source, *((apart_s * n, *chain()) for n in range(4)))
        for source in ("predicted", "measured")
    ]
    for table in (tables.comparison(*stream), tables.compared(compare(*stream, PROGRAMS, NETWORK))):
        times = {row[0]: row[2:4] for row in table.rows if row[0].startswith("time")}
        assert times == {what: (time, time) for what, time in expected.items()}


def test_answers_that_come_in_pairs_tell_the_pace_of_a_stream():
    """Half of the times from answer to answer are next to nothing, and half are two requests'."""
    begins = [6.0 * (n // 2) + 0.25 * (n % 2) for n in range(16)]
    pairs = trace("measured", *((begin_s, *chain(run_b=8.0)) for begin_s in begins))
    assert sorted(set(pairs.step_s[1:])) == [0.25, 5.75]
    assert pace_s(pairs) == pytest.approx(3.0, rel=0.1)
    steady = trace("predicted", *((3.0 * n, *chain(run_b=8.0)) for n in range(16)))
    assert compare(steady, pairs, PROGRAMS, NETWORK).error_frac < 0.1


def test_transfers_are_counted_per_step_from_the_first_byte_sent_to_the_last_one_there():
    steps = [(10.0 * number, *chain(way=2.0)) for number in range(3)]
    found = compare(
        trace("predicted", (0.0, *chain())), trace("measured", *steps), PROGRAMS, NETWORK
    )
    (way,) = found.transfers
    assert (way.source, way.target, way.n, way.nbytes) == ("a", "b", 1, 1000)
    assert way.seconds == pytest.approx((1.5, 2.0))
    assert found.busy_s == {"a": (1.0, pytest.approx(1 / 3))}
    assert found.energy_j == {"a": (2.0, pytest.approx(2 / 3))}


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        # 2 W from 0 to 4 s, and so until 8 s
        ([(-1.0, 0.0), (0.0, 2.0), (4.0, 10.0), (9.0, 99.0)], 16.0),
        ([(0.0, 2.0), (3.0, 10.0)], None),  # less than half
        ([(2.0, 2.0)], None),
        ([], None),
    ],
)
def test_joules_of_a_meter_count_where_it_read_for_half_the_time(readings, expected):
    assert metered_j(readings, 0.0, 8.0) == expected


def test_a_measured_trace_says_which_energy_was_metered():
    done = ExecutionResult(
        run="r",
        epoch=0,
        program="p",
        step=0,
        outputs={},
        start_s=100.0,
        stop_s=104.0,
        timelines={
            name: Timeline(rows=((0, 100.0, 101.0),), busy_s=1.0, peak_bytes=7)
            for name in ("a", "b")
        },
    )
    watts = {name: Device(name=name, memory_bytes=1, idle_w=1.0, busy_w=3.0) for name in ("a", "b")}
    compiled = Compiled(programs=PROGRAMS)
    trace = measured_trace(
        [(done, compiled)], watts, energy_j, {"a": [(100.0, 50.0), (104.0, 70.0)]}
    )
    assert trace.energy_j == {"a": 20.0, "b": 6.0}
    assert trace.energy_source == {"a": "measured", "b": "assumed"}


def test_the_meter_of_a_machine_that_devices_share_is_not_counted_for_each_of_them():
    names = ("a", "b", "c")
    done = ExecutionResult(
        run="r",
        epoch=0,
        program="p",
        step=0,
        outputs={},
        start_s=100.0,
        stop_s=104.0,
        timelines={
            name: Timeline(rows=((0, 100.0, 102.0),), busy_s=2.0, peak_bytes=7) for name in "ab"
        },
    )
    watts = {
        name: Device(name=name, memory_bytes=1, idle_w=1.0, busy_w=3.0, host="box")
        for name in names
    }
    metered = {name: [(100.0, 50.0), (104.0, 90.0)] for name in "ab"}
    trace = measured_trace([(done, Compiled(programs=PROGRAMS))], watts, energy_j, metered)
    # of 40 J, c took its part at rest: 4 J of 8 + 8 + 4 are reckoned for it
    assert trace.energy_j == pytest.approx({"a": 16.0, "b": 16.0})
    assert set(trace.energy_source.values()) == {"assumed"}


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 1), ([(0.0, 1.0), (1.0, 2.0)], 1), ([(0.0, 3.0), (1.0, 2.0), (1.5, 4.0)], 3)],
)
def test_how_many_requests_were_under_way_at_once(spans, expected):
    assert most_at_once(spans) == expected
