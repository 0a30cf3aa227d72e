"""A plan has no cut that does nothing: neighbouring stages on the same devices are one, unless that
is slower.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from potluck.planning import make_plans
from potluck.planning.evaluate import judge
from potluck.records import Inference

from .homes import WORKLOADS, later, random_home

ROUNDING = 1 + 1e-9


@pytest.mark.few(3)
@pytest.mark.parametrize("workload", [Inference(batch=1, streaming=True), *WORKLOADS])
@pytest.mark.parametrize("seed", [*range(4), *later(range(4, 30))])
def test_cuts_between_stages_of_the_same_devices_are_there_for_a_reason(seed, workload):
    problem = random_home(seed, workload, devices=4, layers=8)
    for plan in make_plans(problem):
        for p, (left, right) in enumerate(pairwise(plan.stages)):
            if left.devices == right.devices and left.shares == right.shares:
                one = replace(left, stop=right.stop)
                whole = replace(plan, stages=(*plan.stages[:p], one, *plan.stages[p + 2 :]))
                assert judge(problem, whole).latency_s * ROUNDING > plan.latency_s


def test_a_stream_has_no_more_requests_under_way_for_a_cut_on_one_device():
    problem = random_home(0, Inference(batch=1, streaming=True))
    alone = next(plan for plan in make_plans(problem) if len(plan.devices) == 1)
    (stage,) = alone.stages
    cut = (replace(stage, stop=1), replace(stage, start=1))
    twice = judge(problem, replace(alone, stages=cut))
    assert twice.latency_s == pytest.approx(alone.latency_s)
    assert twice.energy_j == pytest.approx(alone.energy_j)
