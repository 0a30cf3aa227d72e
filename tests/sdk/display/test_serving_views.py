"""Services and their answers over time, drawn: nothing that was refused is hidden."""

from concurrent.futures import Future

import pytest

from potluck.display import serving_views
from potluck.display.scene import Dot, Line
from potluck.errors import NotServed
from potluck.serve.runtime.pending_requests import ComputedBatch, Pending


def ended(at_s, took_s, *devices, limit_s=1.0, refused=False):
    pending = Pending("birds", [], 1, at_s, limit_s, list)
    pending.is_over = True
    pending.batches = [ComputedBatch(at_s, at_s + took_s, (name,), 1) for name in devices]
    pending.answered_s = at_s + took_s
    pending.future = Future()
    if refused:
        pending.future.set_exception(NotServed("busy"))
    else:
        pending.future.set_result(None)
    return pending


def test_each_answer_has_the_colour_of_who_computed_it_and_refusals_lie_on_the_axis():
    requests = [
        ended(10.0, 0.2, "a"),
        ended(11.0, 0.4, "b", "b", "a"),
        ended(12.0, 0.0, refused=True),
    ]
    scene = serving_views.over_time(requests)
    dots = [item for item in scene.items if isinstance(item, Dot)]
    by_title = {dot.title.split(",")[0]: dot for dot in dots if dot.title}
    assert set(by_title) == {"birds: a", "birds: b", "birds: refused"}
    assert len({dot.fill for dot in by_title.values()}) == 3
    assert by_title["birds: refused"].y > by_title["birds: a"].y > by_title["birds: b"].y
    assert any(
        "2 of 3 answered, 0 of them late" in getattr(item, "text", "") for item in scene.items
    )


def test_a_limit_is_drawn_where_answers_come_near_it():
    def dashed(limit_s):
        scene = serving_views.over_time([ended(0.0, 0.9, "a", limit_s=limit_s)])
        return [item for item in scene.items if isinstance(item, Line) and item.dashed]

    assert len(dashed(0.8)) == 1
    assert not dashed(100.0)


@pytest.mark.parametrize("requests", [[], [ended(0.0, 0.0, refused=True)]])
def test_nothing_answered_is_a_picture_too(requests):
    assert serving_views.over_time(requests).svg().startswith("<svg")
