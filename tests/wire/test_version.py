"""One major version understands itself; the smaller minor is spoken; nothing else is guessed."""

import pytest

from potluck_wire.errors import WireCode, WireError
from potluck_wire.version import VERSION, agree, parse, show


@pytest.mark.parametrize(
    ("theirs", "ours", "spoken"),
    [
        ((1, 0), (1, 0), (1, 0)),
        ((1, 3), (1, 0), (1, 0)),
        ((1, 0), (1, 3), (1, 0)),
        ((2, 1), (2, 1), (2, 1)),
    ],
)
def test_the_smaller_minor_is_spoken(theirs, ours, spoken):
    assert agree(*theirs, ours=ours) == spoken


@pytest.mark.parametrize(
    ("theirs", "who"),
    [((0, 9), "the other side"), ((2, 0), "this side"), ((0, 0), "the other side")],
)
def test_another_major_is_refused_and_says_who_has_to_update(theirs, who):
    with pytest.raises(WireError, match=who) as raised:
        agree(*theirs)
    assert raised.value.code == WireCode.VERSION


def test_the_text_form_comes_back():
    assert parse(show(VERSION)) == VERSION


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "text", ["", "1", "1.", "1.0.0", " 1.0", "1.0\n", "-1.0", "1.\u0660", "99999.0", "v1.0"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(WireError):
        parse(text)
