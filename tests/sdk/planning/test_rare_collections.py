"""While plans are made Python looks for cycles less often, and afterwards as before."""

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from tests.sdk.planning.homes import random_home

from potluck.errors import UserError
from potluck.planning import make_plans
from potluck.planning.rare_collections import MADE, rare_collections


@pytest.fixture(autouse=True)
def usual_thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("usual", [(700, 10, 10), (0, 10, 10), (2 * MADE, 5, 5)])
def test_thresholds_are_as_before_once_the_last_of_several_threads_is_out(usual):
    gc.set_threshold(*usual)
    together = Barrier(3)

    def inside(_):
        with rare_collections(), rare_collections():
            together.wait(10)
            within = gc.get_threshold()
            together.wait(10)
        return within

    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(inside, range(3)))
    assert {threshold for threshold, *_ in found} == {max(MADE, usual[0]) if usual[0] else 0}
    assert gc.get_threshold() == usual


def test_a_planner_leaves_the_collector_as_it_was_also_where_it_refuses(monkeypatch):
    usual, within = (700, 10, 10), list[int]()
    gc.set_threshold(*usual)
    make_plans(random_home(0))
    assert gc.get_threshold() == usual

    def refuse(_):
        within.append(gc.get_threshold()[0])
        raise UserError("no")

    monkeypatch.setattr("potluck.planning.planner.check_problem", refuse)
    with pytest.raises(UserError):
        make_plans(random_home(0))
    assert within == [MADE]
    assert gc.get_threshold() == usual
