"""Plans whose backwards are in two parts are faster than the way of a row with whole ones: what is
said of every plan holds for them, too.
"""

from dataclasses import replace

import pytest

from potluck.planning import judge, make_plans
from potluck.planning.bounds.energy import least_energy_j
from potluck.planning.bounds.latency import quick_bound_s, way_s
from potluck.planning.explain import explain
from potluck.records import (
    Device,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    QoE,
    Stage,
    Training,
)
from potluck.simulate.cost import CostTable

MB = 10**6
# one row through two layers: a second forward, one back for the gradients of what came in, and one
# for those of weights
COST = LayerCost(rows=(1,), forward_s=(1.0,), backward_s=(2.0,), weight_frac=0.5, update_s=0.0)
WIRE = Path(media=(("wire", 1),))
TWO = Problem(
    model="chain",
    workload=Training(batch=1, optimizer_copies=0),
    layers=tuple(
        Layer(name=name, output_bytes=4, gradient_bytes=4, parameter_bytes=MB)
        for name in ("first", "second")
    ),
    devices=tuple(
        Device(name=name, memory_bytes=3 * MB, idle_w=10.0, busy_w=11.0) for name in ("a", "b")
    ),
    network=Network(
        media=(Medium(name="wire", capacity_bytes_per_s=1e6),),
        paths={("a", "b"): WIRE, ("b", "a"): WIRE},
    ),
    costs={"a": (COST, COST), "b": (COST, COST)},
)
STAGES = tuple(
    Stage(start=i, stop=i + 1, devices=(name,), shares=(1,)) for i, name in enumerate("ab")
)
IN_PARTS = Plan(planner="by hand", model="chain", stages=STAGES, micro_batch=1, schedule="zb-h1")


def test_the_way_of_a_row_leaves_out_what_can_wait():
    fast = judge(TWO, IN_PARTS)
    assert fast.latency_s == pytest.approx(5, rel=1e-4)
    assert way_s(TWO) == pytest.approx(6)
    assert way_s(TWO, in_parts=True) == pytest.approx(4)
    assert quick_bound_s(TWO, in_parts=True) <= fast.latency_s


def test_joules_of_such_plans_are_no_fewer_than_the_least():
    assert least_energy_j(TWO, CostTable(TWO)) <= judge(TWO, IN_PARTS).energy_j


def test_a_limit_that_only_such_a_plan_holds_is_not_refused():
    roomy = tuple(replace(device, memory_bytes=100 * MB) for device in TWO.devices)
    hurried = replace(TWO, devices=roomy, qoe=QoE(latency_s=5.5))
    assert make_plans(hurried, schedules=("zb-h1",)).best.latency_s < 5.5


def test_the_certificate_says_that_it_is_one_of_whole_backwards():
    assert "and whole backwards is more" in repr(explain(make_plans(TWO).best, improvements=False))
    answer = make_plans(replace(TWO, workload=Inference())).best
    assert "stage per device is more" in repr(explain(answer, improvements=False))
