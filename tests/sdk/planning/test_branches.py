"""Plans for models with parallel branches: the branches on different devices at once, judged and
bounded rightly.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.sdk.planning.homes import later, random_branches, random_home, two_by_rows_or_branches

from potluck.errors import Infeasible, UserError
from potluck.planning import make_plans
from potluck.planning.baselines.asteroid import plan_hybrid
from potluck.planning.baselines.dora import plan_dora
from potluck.planning.bounds.latency import lower_bound_s
from potluck.planning.evaluate import judge
from potluck.planning.exhaustive import plan_exhaustive
from potluck.planning.feasibility import breaches
from potluck.planning.registry import BASELINES
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.local_search import neighbours, with_depths
from potluck.records import Edge, Inference, Layer, LayerCost, Plan, Stage, Training
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct
from potluck.simulate.flows import chain_ends, feed_bytes, learning, output_groups


def edge(*to, nbytes=100):
    return Edge(to=to, output_bytes=nbytes, gradient_bytes=nbytes)


# a stem, two branches of two layers, a head; the second branch is fed by home too
EDGES = [(edge(1, 3),), (edge(2),), (edge(5),), (edge(4),), (edge(5),), ()]
ALIVE = [100, 200, 200, 200, 200, 100]  # over a cut of the layers in a row


def branched(workload, *, seconds=(0.1, 1, 1, 1, 1, 0.1), capacity=1e6):
    """Three equal devices on one medium."""
    home = random_home(3, devices=3, capacity=capacity)
    names = [device.name for device in home.devices]
    layers = tuple(
        Layer(
            name=f"l{i}",
            parameter_bytes=1000,
            output_bytes=alive,
            gradient_bytes=alive,
            activation_bytes=10,
            edges=edges,
            feed_bytes=40 if i == 3 else 0,
        )
        for i, (edges, alive) in enumerate(zip(EDGES, ALIVE, strict=True))
    )
    costs = tuple(
        LayerCost(rows=(1, 8), forward_s=(s, 8 * s), backward_s=(2 * s, 16 * s)) for s in seconds
    )
    return replace(
        home,
        layers=layers,
        costs=dict.fromkeys(names, costs),
        workload=workload,
        input_bytes=60,
        target_bytes=4,
    )


def stages(*bounds):
    pairs = pairwise(bounds)
    return [Stage(start=a, stop=b, devices=("d0",), shares=(1,)) for a, b in pairs]


def test_what_stages_hand_on_is_counted_once_for_each_taker():
    problem = branched(Inference(batch=4))
    apart = output_groups(problem, stages(0, 1, 3, 5, 6))
    assert apart == (((((1, 2)), 100, 100),), ((((3,)), 100, 100),), ((((3,)), 100, 100),), ())
    together = output_groups(problem, stages(0, 1, 5, 6))
    assert together == ((((1,), 100, 100),), (((2,), 200, 200),), ())
    # the second stage ends one branch and begins the other
    inside = output_groups(problem, stages(0, 2, 4, 6))
    assert inside == ((((1,), 200, 200),), (((2,), 200, 200),), ())
    assert chain_ends(problem) == (0, 1, 3, 5, 6)
    assert learning(apart) == (True,) * 4
    assert [feed_bytes(problem, a, b) for a, b in ((0, 1), (0, 6), (1, 3), (3, 5))] == [
        20,
        60,
        0,
        40,
    ]


@pytest.mark.long
@pytest.mark.parametrize("workload", [Training(batch=8, micro_batch=2), Inference(batch=1)])
def test_branches_go_to_different_devices_at_once(workload):
    problem = branched(workload)
    table = CostTable(problem)
    direct = Direct(problem, table)
    dora = min(plan_dora(problem, table), key=lambda plan: direct.run(plan).latency_s)
    best = make_plans(problem).best
    assert best.latency_s <= direct.run(dora).latency_s * (1 + 1e-9)
    chain = replace(
        problem, layers=tuple(replace(layer, edges=(), feed_bytes=0) for layer in problem.layers)
    )
    in_a_row = min(Direct(chain).run(plan).latency_s for plan in plan_hybrid(chain))
    # many micro-batches keep all devices busy in a row too
    gain = 0.9 if isinstance(workload, Inference) else 1 + 1e-9
    assert best.latency_s <= in_a_row * gain
    assert best.gap_frac is None or 0 <= best.gap_frac < 1


def test_one_request_takes_the_longest_way_alone():
    """Two branches of 2 s, a stem and a head of 0.1 s each: 2.2 s and some transfers; 4.2 s in a
    row.

    Two devices will do: one takes a branch and then the head.
    """
    problem = branched(Inference(batch=1))
    best = make_plans(problem).best
    assert 2.2 <= best.latency_s < 2.21
    assert best.gap_frac < 0.005  # no plan is below the longest way


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(20))
def test_for_a_chain_the_longest_way_is_the_chain(seed):
    """The closed form along the longest ways says for chains what Asteroid's does."""
    from potluck.planning.building_blocks.build import build

    problem = random_home(seed)
    table = CostTable(problem)
    for plan in list(plan_dora(problem, table))[:20]:
        bounds = [0, *(stage.stop for stage in plan.stages)]
        same = build(
            table, "dora", bounds, [stage.devices for stage in plan.stages], plan.micro_batch
        )
        assert same is not None
        if same.stages == plan.stages:
            assert plan.latency_s == pytest.approx(same.latency_s)


@pytest.mark.long
@pytest.mark.parametrize(
    "workload",
    [
        Training(batch=8, micro_batch=2),
        Inference(batch=4),
        Inference(batch=1),
        Inference(batch=4, streaming=True),
    ],
)
def test_no_plan_is_below_the_bound(workload):
    problem = branched(workload, seconds=(0.3, 1, 0.2, 0.5, 2, 0.4), capacity=1e4)
    table = CostTable(problem)
    direct = Direct(problem, table)
    plans = make_plans(problem)
    bound_s = plans.best.latency_s * (1 - plans.best.gap_frac)
    assert all(
        direct.run(plan).latency_s >= bound_s * (1 - 1e-9) for plan in plan_dora(problem, table)
    )


WORKLOADS = [
    Training(batch=8, micro_batch=2),
    Inference(batch=4),
    Inference(batch=1),
    Inference(batch=4, streaming=True),
]


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(4), *later(range(4, 12))])
def test_is_near_the_best_of_all_placings_and_none_is_below_the_bound(seed):
    problem = random_branches(seed, WORKLOADS[seed % 4], devices=2)
    best_s = make_plans(problem).best.latency_s
    optimum_s = min(best_s, least_s(problem))
    assert best_s <= optimum_s * 1.10
    assert lower_bound_s(problem, CostTable(problem), float("inf")) <= optimum_s * (1 + 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("seed", [27, 37, 47, *range(4), *later(range(4, 27))])
def test_some_layers_are_shared_by_rows_and_others_by_branches(seed):
    problem = two_by_rows_or_branches(seed)
    assert make_plans(problem).best.latency_s <= least_s(problem) * 1.01


def least_s(problem):
    """The least simulated latency of all plans, those first that may be fastest."""
    table, optimum_s = CostTable(problem), float("inf")
    direct = Direct(problem, table)
    for plan in sorted(plan_exhaustive(problem, table), key=lambda plan: plan.latency_s):
        if plan.latency_s >= optimum_s:
            break  # the busiest device alone takes longer
        optimum_s = min(optimum_s, direct.run(plan).latency_s)
    return optimum_s


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(20, 24), *later(range(24, 30))])
def test_no_baseline_is_faster_on_branches(seed):
    problem = random_branches(seed, WORKLOADS[seed % 4])
    table = CostTable(problem)
    direct, best_s = Direct(problem, table), make_plans(problem).best.latency_s
    for name, planner in BASELINES.items():
        plans = sorted(planner(problem, table), key=lambda plan: plan.latency_s)[:12]
        judged = [judge(problem, plan, table, direct) for plan in plans]
        fitting = [plan.latency_s for plan in judged if not breaches(problem, plan)]
        assert best_s <= min(fitting, default=float("inf")) * (1 + 1e-9), name


@pytest.mark.long
def test_branches_that_fit_nowhere_are_refused():
    problem = branched(Training(batch=8, micro_batch=2))
    layers = tuple(replace(layer, parameter_bytes=1_000_000) for layer in problem.layers)
    # one layer each, of six
    tiny = tuple(replace(device, memory_bytes=7_000_000) for device in problem.devices)
    with pytest.raises(Infeasible, match="no plan for chain fits"):
        make_plans(replace(problem, layers=layers, devices=tiny))


def test_a_plan_has_no_cut_inside_a_device_that_gains_nothing():
    problem = branched(Inference(batch=1))
    best = make_plans(problem).best
    joined = list(StagePlacements(CostTable(problem)).joined(best))
    assert all(Direct(problem).run(plan).latency_s > best.latency_s * (1 + 1e-9) for plan in joined)


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_are_ranked_by_a_time_that_no_plan_is_below(seed):
    problem = random_branches(seed, WORKLOADS[seed])
    table = CostTable(problem)
    places, direct = StagePlacements(table), Direct(problem, table)
    micro_batch = 2 if isinstance(problem.workload, Training) else problem.workload.batch
    plan = next(places.by_chains(micro_batch))
    others = list(places.ranked(table, plan))
    least = [places.least_s(other) for other in others]
    assert least == sorted(least)
    for other, least_s in list(zip(others, least, strict=True))[::5]:
        assert least_s <= direct.run(other).latency_s * (1 + 1e-9)


@pytest.mark.parametrize(("seed", "cuts"), [(6, (1, 3, 4, 5, 6)), (10, (1, 3, 4, 5))])
def test_a_cut_that_moves_into_another_branch_leaves_no_stage_waiting(seed, cuts):
    """The depths of a plan suit its own stages: moved, one may take from a stage that keeps fewer
    micro-batches.
    """
    problem = random_branches(seed, Training(batch=8, micro_batch=1))
    table, n_layers = CostTable(problem), len(problem.layers)
    bounds = pairwise((0, *cuts, n_layers))
    plan = Plan(
        planner="potluck",
        model=problem.model,
        micro_batch=1,
        n_micro_batches=8,
        training=True,
        stages=with_depths(
            table, [Stage(start=a, stop=b, devices=("d0",), shares=(1,)) for a, b in bounds]
        ),
    )
    others = list(neighbours(table, plan))
    assert others
    for other in others:
        Direct(problem, table).run(other)


@pytest.mark.long
def test_a_device_with_several_stages_needs_memory_for_all_of_them():
    """Each branch alone would fit on each device: not two of them."""
    problem = branched(Training(batch=8, micro_batch=2))
    # 16 MB each in training
    layers = tuple(replace(layer, parameter_bytes=1_000_000) for layer in problem.layers)
    tight = tuple(replace(device, memory_bytes=40_000_000) for device in problem.devices)
    best = make_plans(replace(problem, layers=layers, devices=tight)).best
    assert set(best.devices) == {device.name for device in problem.devices}
    assert max(best.peak_bytes.values()) <= 40_000_000


@pytest.mark.parametrize(
    ("edges", "match"),
    [
        ({3: (edge(1),)}, "layer l3 .*cycle"),
        ({3: (edge(3),)}, "layer l3 .*cycle"),
        ({3: (edge(9),)}, "layer l3 .*there are 6 layers"),
        ({3: ()}, "layer l3 .*to nobody"),
    ],
)
def test_refuses_edges_that_lead_nowhere(edges, match):
    problem = branched(Inference(batch=1))
    layers = tuple(
        replace(layer, edges=edges.get(i, layer.edges)) for i, layer in enumerate(problem.layers)
    )
    with pytest.raises(UserError, match=match):
        replace(problem, layers=layers)
    with pytest.raises(UserError, match="somebody who takes it"):
        Edge(to=(), output_bytes=1)
