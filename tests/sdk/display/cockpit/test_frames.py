"""Frames tell a page all that is new, once, and a late page all there is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.display.cockpit.frames import FrameReader, Frames, difference, merge
from potluck.display.cockpit.state import MOST_LABELS, CockpitState, RecentItems, Words

NAMES = st.text(max_size=6) | st.sampled_from(["__proto__", "constructor", "a\u202eb", "<b>"])
VALUES = st.recursive(
    st.integers(-5, 5) | st.booleans() | st.text(max_size=4) | st.lists(st.integers(0, 3)),
    lambda inner: st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
SECTIONS = st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=4), max_size=4)


def head_of(frame):
    length = int.from_bytes(frame[:4], "little")
    return json.loads(frame[4 : 4 + length])


def shown(state):
    """What a page has to hold: sections, and the newest of each log."""
    texts = {name: list(log.since(0)[1]) for name, log in state.texts.items()}
    rows = {
        name: [[pytest.approx(figure, rel=1e-6) for figure in row] for row in log.since(0)[1]]
        for name, log in state.rows.items()
    }
    return state.sections, texts, rows


def held(reader, state):
    texts = {n: [*reader.texts.get(n, {}).values()][-len(log) :] for n, log in state.texts.items()}
    rows = {
        n: [list(row) for row in reader.rows.get(n, {}).values()][-len(log) :]
        for n, log in state.rows.items()
    }
    empty = {name: [] for name, log in {**state.texts, **state.rows}.items() if not len(log)}
    texts |= {name: [] for name in texts if name in empty}
    rows |= {name: [] for name in rows if name in empty}
    return reader.sections, texts, rows


@pytest.mark.long
@given(st.lists(SECTIONS, min_size=1, max_size=6))
def test_patches_make_the_new_of_the_old(steps):
    target, before = {}, {}
    for after in steps:
        merge(target, json.loads(json.dumps(difference(before, after))))
        assert target == after
        before = after


@pytest.mark.long
@given(st.lists(st.tuples(SECTIONS, st.integers(0, 5)), min_size=1, max_size=6))
def test_a_page_that_reads_every_frame_holds_the_state(steps):
    state = CockpitState()
    frames = Frames()
    reader = FrameReader()
    assert reader.take(frames.full(state))
    for number, (sections, count) in enumerate(steps):
        state.sections = sections
        for index in range(count):
            state.events.add({"at": number, "words": f"event {index}"})
            state.losses.add((float(index), 0.1 * index, 2.0))
            state.tasks.add(tuple(float(index + place) for place in range(9)))
        frame = frames.change(state)
        assert frame is None or reader.take(frame)
        assert held(reader, state) == shown(state)


def test_nothing_new_is_no_frame():
    state, frames = CockpitState(sections={"home": {"n": 2}}), Frames()
    frames.full(state)
    assert frames.change(state) is None
    state.sections = {"home": {"n": 2}}
    assert frames.change(state) is None


def test_a_change_travels_alone():
    state, frames = (
        CockpitState(sections={"devices": {"a": {"w": 1, "x": 2}, "b": {"w": 1}}}),
        Frames(),
    )
    frames.full(state)
    state.sections = {"devices": {"a": {"w": 5, "x": 2}, "b": {"w": 1}}}
    assert head_of(frames.change(state))["set"] == {"devices": {"a": {"w": 5}}}


def test_who_missed_a_frame_waits_for_a_whole_one():
    state = CockpitState()
    frames = Frames()
    late = FrameReader()
    frames.full(state)
    state.sections = {"home": {"n": 1}}
    missed = frames.change(state)
    state.sections = {"home": {"n": 2}}
    assert not late.take(frames.change(state))
    assert late.sections == {}
    assert late.take(frames.full(state))
    assert late.sections == {"home": {"n": 2}}
    assert not late.take(missed)


def test_a_log_keeps_its_latest_and_counts_all():
    log = RecentItems(3)
    for item in "abcde":
        log.add(item)
    assert (log.start, log.end, len(log)) == (2, 5, 3)
    assert log.since(0) == (2, ("c", "d", "e"))
    assert log.since(4) == (4, ("e",))
    assert log.since(9) == (5, ())


def test_words_keep_their_number_as_long_as_they_are_kept():
    words = Words(max_words=3)
    assert [words.number(text) for text in "aab"] == [0, 0, 1]
    for text in "cde":
        words.number(text)
    assert words.number("a") == 5  # the first one is gone from what pages hold
    assert words.number("a") == 5


def test_words_do_not_grow_for_ever():
    words = Words()
    for number in range(5 * MOST_LABELS):
        words.number(str(number))
    assert len(words.log) == MOST_LABELS
    assert words.number(str(5 * MOST_LABELS - 1)) == 5 * MOST_LABELS - 1


def test_a_loss_that_is_no_number_travels_among_the_figures():
    state, reader = CockpitState(), FrameReader()
    state.losses.add((1.0, float("nan"), 0.1))
    reader.take(Frames().full(state))
    (row,) = reader.rows["losses"].values()
    assert row[1] != row[1]


def test_a_figure_that_is_no_number_leaves_the_rest_of_its_frame_whole():
    state = CockpitState()
    state.sections["run"] = {"step_s": float("inf"), "n": 3, "more": [float("nan"), 1.0]}
    reader = FrameReader()
    assert reader.take(Frames().full(state))
    assert reader.sections == {"run": {"n": 3, "more": [None, 1.0]}}
