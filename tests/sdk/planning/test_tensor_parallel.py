"""Plans of models that are divided by tensor: where links are fast, and why not elsewhere."""

import random
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from potluck.errors import Infeasible, UserError
from potluck.planning import make_plans
from potluck.planning.divided_alternatives import plans_of_both
from potluck.planning.tensor_parallel import plan_lanes, plan_of
from potluck.records import (
    Device,
    Edge,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Problem,
    Training,
)
from potluck.simulate.direct_simulation import Direct

LAYER_S = 0.01
N_PHASES = 4
SUM_BYTES = 1000
FAST, SLOW = 1e9, 1e5  # a sum takes a microsecond, or 10 ms


def layers(n_lanes, weight=1000):
    """Phases of so many lanes, each of which hands its summand to all of the next; a last layer."""
    found = []
    for phase in range(N_PHASES):
        first = n_lanes * (phase + 1)
        to = (first,) if phase == N_PHASES - 1 else tuple(range(first, first + n_lanes))
        for lane in range(n_lanes):
            edge = Edge(to=to, output_bytes=SUM_BYTES, gradient_bytes=SUM_BYTES)
            found.append(
                Layer(
                    name=f"{phase}@{lane}",
                    lane=lane,
                    parameter_bytes=weight,
                    output_bytes=SUM_BYTES,
                    gradient_bytes=SUM_BYTES,
                    edges=(edge,),
                )
            )
    return (*found, Layer(name="last@0", lane=0, output_bytes=4))


def problem(rate, *, n_lanes=2, n_devices=2, workload=None, memory_bytes=10**9, model="m-by-1-1"):
    """So many alike devices on one switch."""
    names = [f"d{i}" for i in range(n_devices)]
    media = tuple(
        Medium(name=f"{n}-{way}", capacity_bytes_per_s=rate)
        for n in names
        for way in ("up", "down")
    )
    paths = {
        (a, b): Path(media=((f"{a}-up", 1), (f"{b}-down", 1)))
        for a in names
        for b in names
        if a != b
    }
    work = LayerCost(rows=(1, 8), forward_s=(LAYER_S,) * 2, backward_s=(2 * LAYER_S,) * 2)
    made = layers(n_lanes)
    return Problem(
        model=model,
        devices=tuple(Device(name=name, memory_bytes=memory_bytes) for name in names),
        network=Network(media=media, paths=paths),
        layers=made,
        costs={name: (work,) * len(made) for name in names},
        workload=workload or Inference(),
    )


def test_lanes_work_side_by_side_where_links_are_fast():
    best = make_plans(problem(FAST)).best
    assert best.planner == "tensor"
    assert best.latency_s == pytest.approx((N_PHASES + 1) * LAYER_S, rel=0.01)
    assert [len(stage.devices) for stage in best.stages] == [1] * 9


def test_one_device_does_it_alone_where_links_are_slow_and_the_other_is_told_why():
    best = make_plans(problem(SLOW)).best
    assert (best.planner, len(best.devices)) == ("single", 1)
    (why,) = best.unused.values()
    assert "s" in why


def test_training_exchanges_as_often_back_as_forward():
    found = make_plans(problem(FAST, workload=Training(batch=1)))
    forward, backward = (N_PHASES + 1) * LAYER_S, (N_PHASES + 1) * 2 * LAYER_S
    assert found.best.planner == "tensor"
    assert found.best.latency_s == pytest.approx(forward + backward, rel=0.01)


def test_every_order_of_devices_is_tried():
    slow = problem(FAST, n_devices=3)
    costs = {**slow.costs, "d0": tuple(replace(c, forward_s=(1.0, 1.0)) for c in slow.costs["d0"])}
    assert set(make_plans(replace(slow, costs=costs)).best.devices) == {"d1", "d2"}
    assert len({plan.devices for plan in plan_lanes(slow)}) == 6


def test_more_lanes_than_devices_are_several_on_each():
    found = make_plans(problem(FAST, n_lanes=4)).best
    assert found.planner == "tensor"
    assert found.latency_s == pytest.approx((2 * N_PHASES + 1) * LAYER_S, rel=0.01)
    assert [*plan_lanes(problem(FAST, n_lanes=4, n_devices=1))] == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_no_way_to_give_devices_lanes_is_faster(seed):
    rng = random.Random(seed)
    rate, workload = rng.choice([FAST, 1e6]), rng.choice([Inference(), Training(batch=4)])
    home = problem(rate, n_lanes=3, n_devices=3, workload=workload)
    costs = {
        name: tuple(
            replace(
                layer,
                forward_s=tuple(times * s for s in layer.forward_s),
                backward_s=tuple(times * s for s in layer.backward_s),
            )
            for layer in layers
        )
        for (name, layers), times in zip(home.costs.items(), (1, rng.uniform(1, 4), 4), strict=True)
    }
    home = replace(home, costs=costs)
    simulator = Direct(home)
    every = (
        plan_of(
            home.model,
            home.layers,
            devices,
            size,
            n_micro_batches=home.workload.batch // size,
            training=isinstance(workload, Training),
            warm_up=depth,
        )
        for devices in product(home.costs, repeat=3)
        for size in (1, 2, 4)
        for depth in (1, 2, 4)
        if home.workload.batch % size == 0 and depth * size <= home.workload.batch
    )
    assert make_plans(home).best.latency_s <= 1.001 * min(simulator.run(p).latency_s for p in every)


def test_an_undivided_model_has_no_lanes():
    plain = problem(FAST)
    bare = tuple(replace(layer, lane=None) for layer in plain.layers)
    assert [*plan_lanes(replace(plain, layers=bare))] == []


def undivided(rate):
    """The same model undivided: half as many layers, each twice as long."""
    divided = problem(rate, model="m")
    made = tuple(
        Layer(name=str(i), output_bytes=SUM_BYTES, parameter_bytes=2000) for i in range(N_PHASES)
    )
    work = LayerCost(rows=(1, 8), forward_s=(2 * LAYER_S,) * 2)
    return replace(
        divided, layers=made, costs={d.name: (work,) * N_PHASES for d in divided.devices}
    )


def test_both_ways_are_ranked_together_and_never_worse_than_one_of_them():
    for rate, model in ((FAST, "m-by-1-1"), (SLOW, "m")):
        alone = make_plans(undivided(rate))
        plans = plans_of_both(partial(make_plans, undivided(rate)), problem(rate))
        assert plans.best.model == model
        assert plans.best.latency_s <= alone.best.latency_s
        (remark,) = plans.notes
        assert "divided by tensor over" in remark
        assert "exchanges a direction" in remark


def test_why_there_is_no_division_is_said():
    plans = plans_of_both(partial(make_plans, undivided(FAST)), problem(FAST, n_devices=1))
    assert plans.notes == ("divided by tensor it needs several devices, and there is one",)


def test_a_profile_of_an_undivided_model_is_refused():
    with pytest.raises(UserError, match="m is not divided by tensor"):
        plans_of_both(partial(make_plans, undivided(FAST)), undivided(FAST))


def test_where_neither_fits_the_wish_is_refused():
    small = problem(FAST, memory_bytes=100)
    with pytest.raises(Infeasible):
        plans_of_both(partial(make_plans, replace(undivided(FAST), devices=small.devices)), small)
