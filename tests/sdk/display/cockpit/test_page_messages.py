"""What a page asks for is checked before anything is done with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.display.cockpit import page_messages
from potluck.errors import UserError

GOOD = [
    ({"ask": "hello"}, page_messages.PageOpened()),
    (
        {"ask": "limits", "latency_s": 2},
        page_messages.SetLimits(limits=page_messages.Limits(latency_s=2.0)),
    ),
    ({"ask": "limits"}, page_messages.SetLimits(limits=page_messages.Limits())),
    (
        {"ask": "imagine", "media": {"air": 1e6}, "without": ["a"], "added": []},
        page_messages.Imagine(home=page_messages.Imagined(media={"air": 1e6}, without=("a",))),
    ),
    ({"ask": "preview", "name": "p1"}, page_messages.Preview(name="p1")),
    ({"ask": "preview"}, page_messages.Preview()),
    ({"ask": "go", "name": "p1", "number": 7}, page_messages.Go(name="p1")),
    ({"ask": "pair", "device": "a", "code": "1"}, page_messages.PairWith(device="a", code="1")),
]
BAD = [
    {"ask": "limits", "latency_s": 10**400},
    {"ask": "limits", "memory_bytes": -(10**400)},
    {"ask": "limits", "energy_j": 1e300},
    {"ask": "imagine", "media": {"air": 10**400}},
    {"ask": 10**5000},
    None,
    [],
    "go",
    {},
    {"ask": "eval"},
    {"ask": ["go"]},
    {"ask": "go"},
    {"ask": "go", "name": 5},
    {"ask": "go", "name": "x" * 201},
    {"ask": "limits", "latency_s": 0},
    {"ask": "limits", "latency_s": True},
    {"ask": "limits", "energy_j": float("nan")},
    {"ask": "limits", "memory_bytes": "much"},
    {"ask": "imagine", "media": [1]},
    {"ask": "imagine", "media": {"air": -1}},
    {"ask": "imagine", "without": "abc"},
    {"ask": "imagine", "added": [1]},
    {"ask": "imagine", "media": {str(i): 1.0 for i in range(33)}},
    {"ask": "pair", "device": "a"},
]


@pytest.mark.parametrize(("content", "event"), GOOD)
def test_reads_what_a_page_says(content, event):
    assert page_messages.click_of(content) == event


@pytest.mark.parametrize("content", BAD)
def test_refuses_what_no_page_says(content):
    with pytest.raises(UserError):
        page_messages.click_of(content)


HUGE = st.integers(-(10**5000), 10**5000)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | HUGE | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
ASKS = st.sampled_from(["hello", "limits", "imagine", "preview", "go", "pair"])


@pytest.mark.long
@given(
    ASKS, st.dictionaries(st.sampled_from(["name", "media", "without", "added", "latency_s"]), JSON)
)
def test_whatever_comes_is_an_event_or_refused(ask, content):
    try:
        found = page_messages.click_of({"ask": ask, **content})
    except UserError:
        return
    assert isinstance(found, page_messages.Click)
