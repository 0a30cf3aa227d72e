"""What comes lately, and whether other places for models satisfy clearly more of it."""

import pytest

from potluck.serve.scheduling.load_watch import LoadWatch, satisfied_per_s, should_move


class Runs:
    """Stands for an allocation: so many requests per second."""

    def __init__(self, rate_per_s):
        self.rate_per_s = rate_per_s


def looked(*looks, window_s=10.0):
    watch = LoadWatch(window_s)
    return [watch.look(counts, now_s) for now_s, counts in looks]


def test_nothing_is_known_before_a_window_is_over():
    assert looked((0.0, {"a": 0}), (9.9, {"a": 500})) == [None, None]


def test_the_mean_of_the_window_and_what_more_may_come():
    *_, found = looked((0.0, {"a": 5, "b": 0}), (5.0, {"a": 5, "b": 0}), (10.0, {"a": 105, "b": 0}))
    assert found == {"a": pytest.approx(10 + 2 * 10**0.5), "b": 0.0}


def test_what_came_before_the_window_is_forgotten():
    *_, found = looked((0.0, {"a": 0}), (10.0, {"a": 1000}), (20.0, {"a": 1000}))
    assert found == {"a": 0.0}


def test_a_service_that_came_later_is_counted_once_it_was_there_for_a_window():
    watch = LoadWatch(10.0)
    watch.look({"a": 0}, 0.0)
    watch.look({"a": 0, "b": 0}, 5.0)
    early = watch.look({"a": 0, "b": 50}, 10.0)
    late = watch.look({"a": 0, "b": 50}, 15.0)
    assert "b" not in early
    assert late["b"] > 0


def test_after_a_move_counting_begins_anew():
    watch = LoadWatch(10.0)
    watch.look({"a": 0}, 0.0)
    watch.begin()
    assert watch.look({"a": 900}, 11.0) is None


def test_models_move_only_where_clearly_more_is_satisfied():
    demand = {"a": 30.0, "b": 1.0}
    even = {("a", "k"): (Runs(10.0), 1), ("b", "k"): (Runs(10.0), 1)}
    moved = {("a", "k"): (Runs(10.0), 2), ("b", "k"): (Runs(10.0), 1)}
    assert satisfied_per_s(even, demand) == 11.0
    assert satisfied_per_s(moved, demand) == 21.0
    assert should_move(even, moved, demand)
    assert not should_move(moved, even, demand)
    assert not should_move(even, even, demand)
