"""The trace of a stream tells times as runs do: from answer to answer."""

import pytest
from tests.sdk.planning.homes import random_home

from potluck.planning import make_plans, predict
from potluck.records import Inference


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_the_steps_of_a_stream_do_not_count_what_is_under_way_beside_them(seed):
    problem = random_home(seed, Inference(batch=4, streaming=True))
    trace = predict(problem, make_plans(problem).best)
    assert len(trace.step_s) > 4
    assert 0.9 * trace.stop_s <= sum(trace.step_s) <= trace.stop_s * (1 + 1e-9)
