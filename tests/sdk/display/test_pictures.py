"""Timelines and charts: what is drawn where, as well-formed SVG and as PNG."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from potluck.display import axes, chart, scene, timeline
from potluck.display.png import save_png
from potluck.display.scene import Rect, Text
from potluck.records import Event, Trace

from . import example

SVG = "{http://www.w3.org/2000/svg}"


def pictures() -> dict[str, scene.Scene]:
    slow = replace(example.PLAN, latency_s=0.2, energy_j=9.0)
    return {
        "gantt": timeline.gantt(example.MEASURED),
        "both": timeline.gantt(example.PREDICTED, example.MEASURED, title="One step"),
        "empty": timeline.gantt(Trace(source="measured")),
        "loss": chart.loss({"split": [2.0, 1.0, 0.5], "one machine": [2.0, 1.0, 0.5]}),
        "no loss": chart.loss({}),
        "tiny losses": chart.loss({"loss": [5e-45, 2.8e-45, 1.4e-45]}),
        "huge losses": chart.loss({"loss": [-3.4e38, 1.0, 3.4e38]}),
        "a loss that is no number": chart.loss({"loss": [2.0, float("nan"), float("inf")]}),
        "four": timeline.gantt(*[example.MEASURED] * 4, headings=["a", "b", "c"]),
        "pareto": chart.pareto([example.PLAN, slow], example.PLAN),
        "no plans": chart.pareto([]),
    }


@pytest.mark.parametrize("name", pictures())
def test_svg_is_well_formed_and_inside_its_frame(name):
    picture = pictures()[name]
    root = ElementTree.fromstring(picture.svg())
    assert root.tag == f"{SVG}svg"
    for shape in root.iter(f"{SVG}rect"):
        x, y, width, height = (float(shape.get(key)) for key in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + width <= picture.width + 1
        assert y + height <= picture.height + 1


@pytest.mark.parametrize("name", pictures())
def test_a_file_of_its_own_is_well_formed_too(name, tmp_path):
    path = scene.save_svg(pictures()[name], tmp_path / "picture.svg")
    assert ElementTree.parse(path).getroot().find(f"{SVG}style") is not None


def test_bars_stand_where_the_time_axis_says():
    picture = timeline.gantt(example.MEASURED)
    texts = {item.text: item.x for item in picture.items if isinstance(item, Text)}
    bars = {
        item.title.split()[0]: item
        for item in picture.items
        if isinstance(item, Rect) and item.title
    }
    pixels_per_ms = (texts["50"] - texts["0"]) / 50
    assert bars["1B0"].x == pytest.approx(texts["0"] + 16.5 * 1.25 * pixels_per_ms)
    assert bars["1B0"].width == pytest.approx(20 * 1.25 * pixels_per_ms, abs=1)


def test_predicted_stands_above_measured_on_one_axis():
    picture = timeline.gantt(example.PREDICTED, example.MEASURED)
    bars = [
        item for item in picture.items if isinstance(item, Rect) and item.title.startswith("0B0")
    ]
    assert bars[0].y < bars[1].y
    assert bars[1].width == pytest.approx(1.25 * bars[0].width, rel=0.02)
    words = [item.text for item in picture.items if isinstance(item, Text)]
    assert "predicted, 48.0 ms per step" in words
    assert "measured, 60.0 ms per step" in words


KINDS = [
    ({"lane": "compute", "label": "2F0", "op": "run"}, "forward"),
    ({"lane": "compute", "label": "2B11", "op": "backward"}, "backward"),
    ({"lane": "compute", "label": "0I3"}, "input gradient"),
    ({"lane": "compute", "label": "0W3"}, "weight gradient"),
    ({"lane": "compute", "label": "", "op": "run"}, "forward"),
    ({"lane": "compute", "label": "step", "op": "step"}, "step"),
    ({"lane": "compute", "label": "", "op": "add"}, "reduce"),
    ({"lane": "send", "label": "2F0"}, "send"),
    ({"lane": "receive"}, "receive"),
]


@pytest.mark.parametrize(("fields", "kind"), KINDS)
def test_knows_the_kind_of_an_event(fields, kind):
    assert timeline.kind(Event(device="a", start_s=0, stop_s=1, **fields)) == kind


def test_devices_stand_in_the_order_in_which_they_begin_to_compute():
    def event(device, lane, start_s):
        return Event(device=device, lane=lane, start_s=start_s, stop_s=start_s + 1)

    events = (
        event("second", "receive", 0),
        event("never", "receive", 0),
        event("second", "compute", 2),
        event("first", "compute", 1),
    )
    assert timeline.devices(Trace(source="measured", events=events)) == ("first", "second", "never")


def test_a_window_holds_its_steps_and_begins_at_zero():
    events = [
        Event(device="a", lane="compute", start_s=step, stop_s=step + 0.5, step=step)
        for step in range(5)
    ]
    cut = timeline.window(
        Trace(source="measured", events=tuple(events), step_s=(1, 1, 1, 1, 1)), 2, 2
    )
    assert [(event.step, event.start_s, event.stop_s) for event in cut.events] == [
        (2, 0, 0.5),
        (3, 1, 1.5),
    ]
    assert cut.step_s == (1, 1)


def test_a_long_trace_is_cut_to_whole_steps_from_its_middle():
    events = [
        Event(
            device="a",
            lane="compute",
            start_s=step + i / 20,
            stop_s=step + i / 20 + 0.01,
            step=step,
        )
        for step in range(100)
        for i in range(10)
    ]
    cut = timeline.excerpt(
        Trace(source="measured", events=tuple(events), step_s=(1.0,) * 100), max_events=50
    )
    assert sorted({event.step for event in cut.events}) == [48, 49, 50, 51, 52]
    assert len(cut.events) == 50


def test_loss_tells_how_far_the_curves_differ():
    def words_of(a, b):
        return [item.text for item in chart.loss({"a": a, "b": b}).items if isinstance(item, Text)]

    assert "the curves are equal bit for bit" in words_of([2.0, 1.0], [2.0, 1.0])
    assert "largest difference 2.5e-01" in words_of([2.0, 1.0], [2.0, 1.25])


def test_frontier_keeps_what_nothing_beats():
    assert chart.frontier([(1, 5), (2, 2), (3, 3), (4, 1), (4, 2), (2, 2)]) == [
        (1, 5),
        (2, 2),
        (4, 1),
    ]


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 10, 6, (0, 2, 4, 6, 8, 10)),
        (0, 0.048, 5, (0, 0.02, 0.04)),
        (3, 3, 5, (3,)),
        (-1, 1, 3, (-1, 0, 1)),
    ],
)
def test_ticks_are_round(low, high, most, expected):
    assert axes.ticks(low, high, most) == expected


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1e-13), (1e-45, 5e-45), (-3e38, 3e38), (1.0, 1.0 + 1e-9), (0.0, 7.0)]
)
def test_each_tick_value_is_told_apart_and_briefly(low, high):
    labels = axes.labels(axes.ticks(low, high, 6))
    assert len(set(labels)) == len(labels) > 1
    assert max(map(len, labels)) <= 12


@pytest.mark.long
def test_png_has_the_size_of_the_scene(tmp_path):
    pytest.importorskip("matplotlib")
    picture = timeline.gantt(example.PREDICTED, example.MEASURED, title="costs $5 or $6")
    data = save_png(picture, tmp_path / "picture.png", scale=1).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (
        pytest.approx(picture.width, abs=1),
        pytest.approx(picture.height, abs=1),
    )


def test_plans_far_off_are_left_out_and_counted_but_never_the_best_or_the_frontier():
    def plan(latency_s, energy_j):
        return replace(example.PLAN, latency_s=latency_s, energy_j=energy_j)

    fastest = plan(0.1, 4.0)
    thriftiest = plan(0.9, 1.0)
    near = plan(0.2, 2.4)
    far = plan(5.0, 9.0)

    def drawn(plans, best):
        picture = chart.pareto(plans, best)
        words = [item.text for item in picture.items if isinstance(item, Text)]
        return [
            item.title[0] for item in picture.items if isinstance(item, scene.Dot) and item.title
        ], words

    shown, words = drawn([fastest, thriftiest, near, far], fastest)
    assert sorted(shown) == ["0", "1", "2"]
    assert "lower left is better; 1 far off, not shown" in words
    assert sorted(drawn([fastest, thriftiest, near, far], far)[0]) == ["0", "1", "2", "3"]


def test_the_typical_step_is_the_one_nearest_the_median_from_its_first_computing_on():
    def event(step, lane, start_s, stop_s):
        return Event(device="a", lane=lane, start_s=start_s, stop_s=stop_s, step=step)

    events = [event(step, "compute", step, step + 0.5) for step in range(3)]
    early = [event(2, "receive", 0.1, 0.2), event(2, "receive", 1.5, 2.25)]
    trace = timeline.typical(
        Trace(source="measured", events=(*events, *early), step_s=(0.9, 0.2, 0.5))
    )
    assert trace.step_s == (0.5,)
    assert [(e.step, e.lane, e.start_s, e.stop_s) for e in trace.events] == [
        (2, "compute", 0, 0.5),
        (2, "receive", 0, 0.25),
    ]


@pytest.mark.parametrize("times", [1 + 2**-52, 1 + 1e-12, 1 + 1e-9, 1 + 1e-5, 1.0])
def test_plans_that_next_to_nothing_tells_apart_are_drawn(times):
    plans = [
        replace(
            example.PLAN,
            latency_s=example.PLAN.latency_s * near,
            energy_j=example.PLAN.energy_j * near,
        )
        for near in (1.0, times)
    ]
    numbers = [item.text for item in chart.pareto(plans).items if isinstance(item, Text)]
    assert len(numbers) > 4
