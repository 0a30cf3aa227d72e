"""The way of a row through all layers: a latency that no plan goes below."""

from contextlib import suppress
from dataclasses import replace

import pytest
from tests.sdk.planning.test_large import small

from potluck.bench.large_homes import LargeHome
from potluck.bench.small_homes import KINDS, draw
from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.bounds.latency import lower_bound_s, way_s
from potluck.records import (
    Device,
    Edge,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    Stage,
    Training,
)
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

PATH = Path(media=(("air", 1),), latency_s=0.5)
CHAIN = Problem(
    model="chain",
    workload=Inference(batch=2),
    layers=tuple(Layer(name=name, output_bytes=10) for name in ("first", "second", "third")),
    devices=(Device(name="a", memory_bytes=100), Device(name="b", memory_bytes=100)),
    network=Network(
        media=(Medium(name="air", capacity_bytes_per_s=10.0),),
        paths={("a", "b"): PATH, ("b", "a"): PATH},
    ),
    costs={
        "a": tuple(LayerCost(rows=(1, 2), forward_s=(s, 2 * s)) for s in (1.0, 1.0, 9.0)),
        "b": tuple(LayerCost(rows=(1, 2), forward_s=(s, 2 * s)) for s in (9.0, 2.0, 1.0)),
    },
)


def test_a_row_passes_every_layer_of_a_chain_and_the_links_between_them():
    # 1 + 1 on a, half a second and ten bytes to b, 1 there
    assert way_s(CHAIN) == pytest.approx(1.0 + 1.0 + 1.5 + 1.0)
    near = replace(CHAIN.network, media=(Medium(name="air", capacity_bytes_per_s=1e9),))
    assert way_s(replace(CHAIN, network=near)) == pytest.approx(3.5)


def test_requests_of_a_stream_overlap():
    assert way_s(replace(CHAIN, workload=Inference(batch=2, streaming=True))) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_no_plan_of_a_small_home_goes_below_it(kind):
    for seed in range(6):
        problem = draw(kind, str(seed), {"devices": 3, "layers": 5})
        with suppress(Infeasible):
            assert way_s(problem) <= make_plans(problem).best.latency_s * (1 + 1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("network", ["wifi", "switch", "sites"])
def test_one_request_in_a_home_of_many_alike_devices_is_certified_to_a_hundredth(network):
    problem = small(LargeHome(24, "alike", network, "single", 11), n_layers=8)
    assert make_plans(problem).best.gap_frac < 0.01


def test_layers_that_are_handed_nothing_wait_for_nothing():
    # the third is done beside the first two: 4 s on a for both rows, and 2 s on b
    layers = (CHAIN.layers[0], replace(CHAIN.layers[1], output_bytes=0), CHAIN.layers[2])
    problem = replace(CHAIN, layers=layers)
    parts = ((0, 2, "a"), (2, 3, "b"))
    apart = Plan(
        planner="by hand",
        model="chain",
        stages=tuple(
            Stage(start=start, stop=stop, devices=(name,), shares=(1,))
            for start, stop, name in parts
        ),
        micro_batch=1,
        n_micro_batches=2,
        training=False,
    )
    plan_s = Direct(problem).run(apart).latency_s
    assert plan_s == pytest.approx(4.0)
    assert lower_bound_s(problem, CostTable(problem), 2 * plan_s) <= plan_s * (1 + 1e-9)
    assert way_s(problem) == pytest.approx(2.0)


def test_gradients_come_back_over_their_own_edges():
    # 1 s each way and layer; the third reads the second, and has no gradient for it
    costs = (LayerCost(rows=(1,), forward_s=(1.0,), backward_s=(1.0,)),) * 4
    edges = (
        (Edge(to=(1, 2), output_bytes=1, gradient_bytes=1),),
        (Edge(to=(2,), output_bytes=1), Edge(to=(3,), output_bytes=1, gradient_bytes=1)),
        (Edge(to=(3,), output_bytes=1, gradient_bytes=1),),
        (),
    )
    problem = replace(
        CHAIN,
        workload=Training(batch=1),
        layers=tuple(Layer(name=str(i), output_bytes=10, edges=e) for i, e in enumerate(edges)),
        costs={"a": costs, "b": costs},
        network=replace(CHAIN.network, paths=dict.fromkeys(CHAIN.network.paths, Path(media=()))),
    )
    parts = ((0, "a"), (1, "a"), (2, "b"), (3, "b"))
    plan = Plan(
        planner="by hand",
        model="chain",
        stages=tuple(Stage(start=i, stop=i + 1, devices=(name,), shares=(1,)) for i, name in parts),
        micro_batch=1,
    )
    # four forwards one after another, and back over the last, the second or the third, the first
    assert Direct(problem).run(plan).latency_s == pytest.approx(7.0, rel=1e-6)
    assert way_s(problem) == pytest.approx(7.0)
