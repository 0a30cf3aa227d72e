"""Requests over time, drawn: whoever is in the picture can be told apart, and the numbers below it
hide nothing.
"""

import pytest

from potluck.display import offload_views
from potluck.display.scene import Dot, Line
from potluck.offload.stats import ALONE, Answer, Stats

CURVES = ("the device alone", "all on the helper", "the best layer cut", "another")


def answer(at_s, way, predicted_s, *, fallback=False):
    return Answer(
        at_s=at_s,
        way=way,
        latency_s=1.0,
        predicted_s=predicted_s,
        bytes_per_s=1e6,
        fallback=fallback,
        by=("robot",),
    )


def some(n_shared, n_alone):
    shared = [answer(i, "share-1", 0.5) for i in range(n_shared)]
    alone = [answer(n_shared + i, ALONE, 0.99) for i in range(n_alone)]
    return Stats(answers=(*shared, *alone, answer(99, ALONE, 0.9, fallback=True)))


@pytest.mark.parametrize("n_curves", range(len(CURVES) + 1))
def test_no_two_things_in_the_picture_have_the_same_colour(n_curves):
    lines = {name: [(0.0, 1.0), (9.0, 1.0)] for name in CURVES[:n_curves]}
    scene = offload_views.over_time(some(3, 3), lines)
    dots = {item.fill for item in scene.items if isinstance(item, Dot)}
    drawn = [item.stroke for item in scene.items if isinstance(item, Line) and item.width == 2.0]
    assert len(dots) == 3
    assert len(drawn) == len(set(drawn)) == n_curves
    assert dots.isdisjoint(drawn)


def test_many_requests_that_were_answered_alone_do_not_hide_how_far_off_the_shared_ones_were():
    stats = some(n_shared=2, n_alone=20)
    assert stats.prediction_error_frac == pytest.approx(0.01)
    (off_by,) = (note for note in offload_views.stats(stats).notes if "off by" in note)
    assert "of 2 shared, 50 %" in off_by
    assert "of 20 alone, 1 %" in off_by
    assert "without those that fell back" in off_by
