"""The planners: Algorithm 1 and the round's equations by hand, the dynamic program against the
exhaustive oracle.
"""

import random
import re
from copy import deepcopy
from dataclasses import replace

import pytest

from potluck.errors import EmptyHome, Infeasible, PlanError, UserError
from potluck.planning import check_plan, judge, make_plans
from potluck.planning.anytime import plan_anytime
from potluck.planning.baselines.asteroid import plan_hybrid
from potluck.planning.building_blocks.candidates import cuts, micro_batches
from potluck.planning.building_blocks.closed_form import PipelineStep, period_s, request_s, round_s
from potluck.planning.building_blocks.row_allocation import allocate, balance, offload, proportion
from potluck.planning.exhaustive import groupings, plan_exhaustive
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
from potluck.simulate.equations import all_reduce_s, cut_s
from potluck.simulate.interpolation import interpolate


def make(
    speeds,
    *,
    layers=4,
    workload=None,
    capacity=1e6,
    memory=10**9,
    qoe=None,
    rng=None,
    parameter_bytes=1000,
):
    """A home of devices as fast as `speeds` (rows per second and layer), one shared medium, a chain
    of layers.
    """
    names = [f"d{i}" for i in range(len(speeds))]
    devices = tuple(
        Device(name=n, memory_bytes=memory, idle_w=1.0, busy_w=4.0, radio_w=1.0) for n in names
    )
    paths = {(a, b): Path(media=(("air", 1),)) for a in names for b in names if a != b}
    weights = [rng.uniform(0.5, 2) if rng else 1.0 for _ in range(layers)]
    sizes = [rng.choice([100, 1000, 10_000]) if rng else 1000 for _ in range(layers)]
    costs = {
        name: tuple(
            LayerCost(
                rows=(1, 64),
                forward_s=(w / speed, 64 * w / speed),
                backward_s=(2 * w / speed, 128 * w / speed),
            )
            for w in weights
        )
        for name, speed in zip(names, speeds, strict=True)
    }
    return Problem(
        model="chain",
        devices=devices,
        costs=costs,
        workload=workload or Training(batch=16),
        qoe=qoe or QoE(),
        network=Network(media=(Medium(name="air", capacity_bytes_per_s=capacity),), paths=paths),
        layers=tuple(
            Layer(
                name=f"l{i}",
                parameter_bytes=parameter_bytes,
                output_bytes=s,
                gradient_bytes=s,
                activation_bytes=s,
            )
            for i, s in enumerate(sizes)
        ),
    )


# --- equations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "seconds"),
    [(0, 0.0), (2, 3.0), (4, 5.0), (3, 4.0), (8, 6.0), (6, 5.5), (16, 8.0), (1, 2.0)],
)
def test_times_between_and_beyond_measured_batch_sizes(at, seconds):
    assert interpolate((2, 4, 8), (3.0, 5.0, 6.0), at) == pytest.approx(seconds)


def test_a_time_is_never_below_proportion_nor_falling():
    assert interpolate((4, 8), (1.0, 5.0), 2) == 0.5  # the line would say -1
    assert interpolate((4, 8), (5.0, 4.0), 16) == 4.0
    assert interpolate((4,), (2.0,), 8) == 4.0


def test_round_by_hand():
    assert round_s([PipelineStep(1, 2)], 3) == 9
    # The last step is dominant: waits 1.5, then 4 x 6; the first starts at once and ends its last
    # backward after it.
    assert round_s([PipelineStep(1, 2), PipelineStep(0.5, 0.5), PipelineStep(2, 4, 1)], 4) == 28
    # A slow link is dominant: 1 + 4 x 10 + 2 behind... the first step waits for its last gradient.
    assert round_s([PipelineStep(1, 2), PipelineStep(5, 5), PipelineStep(2, 4)], 4) == 43
    assert request_s([PipelineStep(1), PipelineStep(5), PipelineStep(2)], 3) == 18
    assert period_s([PipelineStep(1), PipelineStep(5), PipelineStep(2)], 3) == 15


def test_transfers_and_all_reduce_by_hand():
    network = make([1, 1, 1], capacity=100.0).network
    # one sender, 80 bytes
    assert cut_s(network, 10, ["d0"], [8], ["d1", "d2"], [5, 3]) == pytest.approx(0.8)
    assert cut_s(network, 10, ["d0", "d1"], [4, 4], ["d1", "d2"], [4, 4]) == pytest.approx(0.4)
    assert cut_s(network, 10, ["d0"], [8], ["d0"], [8]) == 0.0
    # 2 x 2/3 x 300 bytes at 100 per second
    assert all_reduce_s(network, ["d0", "d1", "d2"], 300) == pytest.approx(4.0)
    assert all_reduce_s(network, ["d0"], 300) == 0.0


# --- Algorithm 1 ----------------------------------------------------------------------------------


def test_rows_in_proportion():
    assert proportion(10, [1, 1, 2]) == (3, 2, 5)
    assert proportion(7, [1.0, 1.0]) == (4, 3)


@pytest.mark.parametrize(
    ("n_rows", "capacities", "rooms", "shares"),
    [
        (8, [1, 3], [99, 99], (2, 6)),
        (8, [1, 3], [99, 4], (4, 4)),  # what does not fit goes to the other
        (9, [1, 1, 4], [99, 2, 3], (4, 2, 3)),  # twice over
        (8, [1, 3], [3, 4], None),
        (8, [1, 3], [8, 0], (8, 0)),
    ],
)
def test_balancing_within_memory_by_hand(n_rows, capacities, rooms, shares):
    assert balance(n_rows, capacities, rooms) == shares


def test_offloading_moves_rows_while_the_slowest_gets_faster():
    def steep(rows):
        return 1.0 * rows

    def flat(rows):
        return 2.0 if rows else 0.0  # a GPU that takes any batch in the same time

    assert offload((4, 4), (99, 99), (steep, flat)) == (2, 6)
    assert offload((4, 4), (99, 5), (steep, flat)) == (3, 5)
    assert offload((4, 4), (4, 4), (steep, flat)) == (4, 4)


@pytest.mark.long
def test_a_search_leaves_the_facts_of_a_table_as_they_were():
    table = CostTable(make([1.0, 1.0, 3.0]))

    def facts():
        return {name: fact for name, fact in vars(table).items() if not name.startswith("_")}

    before = deepcopy(facts())
    for plans in (plan_hybrid, plan_exhaustive, plan_anytime):
        assert list(plans(table.problem, table))
    assert facts() == before


def test_allocation_is_by_speed():
    table = CostTable(make([1.0, 3.0]))
    assert allocate(table, 0, 4, ["d0", "d1"], 8, warm_up=1, n_micro_batches=2) == (2, 6)


# --- the dynamic program --------------------------------------------------------------------------


def random_problem(seed, workload):
    rng = random.Random(seed)
    speeds = [rng.uniform(20, 200) for _ in range(rng.randint(1, 3))]
    return make(
        speeds,
        layers=rng.randint(2, 5),
        workload=workload,
        capacity=rng.choice([1e4, 1e5, 1e6]),
        rng=rng,
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(
    "workload",
    [Training(batch=8, micro_batch=2), Inference(batch=4), Inference(batch=4, streaming=True)],
    ids=["training", "request", "streaming"],
)
def test_dynamic_program_against_every_plan_in_its_order(seed, workload):
    problem = random_problem(seed, workload)
    found = min(plan.latency_s for plan in plan_hybrid(problem))
    names = [device.name for device in problem.devices]  # equal memory: sorted by name

    def in_order(plan):
        return list(plan.devices) == sorted(plan.devices, key=names.index)

    best = min(plan.latency_s for plan in plan_exhaustive(problem) if in_order(plan))
    assert found >= best * (1 - 1e-9)
    # Q keeps one pipeline per state while eq. (6) looks at all steps, so the best may be missed,
    # but not by much.
    assert found <= best * 1.15


def test_the_oracle_lists_every_ordered_grouping_once():
    listed = list(groupings(["a", "b"], 2))
    assert sorted(listed) == [
        (("a",),),
        (("a",), ("b",)),
        (("a", "b"),),
        (("b",),),
        (("b",), ("a",)),
    ]


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(10))
def test_the_best_plan_is_at_most_as_slow_as_any_baseline(seed):
    problem = random_problem(seed, Training(batch=8))
    plans = make_plans(problem)
    assert plans.best.latency_s == min(plan.latency_s for plan in plans)
    assert any(len(plan.devices) == 1 for plan in plans)
    for plan in plans:
        check_plan(plan, problem)
        assert judge(problem, plan).latency_s == plan.latency_s


@pytest.mark.long
def test_two_equal_devices_on_a_fast_link_halve_the_time():
    problem = make([10.0, 10.0], capacity=1e12, workload=Training(batch=16))
    best = make_plans(problem).best
    assert best.latency_s == pytest.approx(16 * 4 * 3 / 10 / 2, rel=0.1)
    assert set(best.devices) == {"d0", "d1"}


def test_a_slow_link_leaves_one_device_alone_and_says_why():
    plans = make_plans(make([10.0, 10.0], capacity=10.0))
    assert len(plans.best.devices) == 1
    (reason,) = plans.best.unused.values()
    assert re.match(r"alike to d[01], which is used: the best plan that uses one more", reason)
    assert reason.endswith(("slower", "no faster"))


@pytest.mark.long
def test_more_bandwidth_never_hurts_the_best_plan():
    latencies = [
        make_plans(make([30.0, 10.0], capacity=c)).best.latency_s for c in (1e3, 1e4, 1e5, 1e7)
    ]
    assert latencies == sorted(latencies, reverse=True)


@pytest.mark.long
def test_with_a_latency_limit_the_thriftiest_plan_that_holds_it_is_best():
    problem = make([100.0, 20.0], capacity=1e9)
    fastest = make_plans(problem).best
    relaxed = make_plans(replace(problem, qoe=QoE(latency_s=fastest.latency_s * 100)))
    assert relaxed.best.energy_j == min(plan.energy_j for plan in relaxed)
    front = relaxed.pareto
    assert [plan.latency_s for plan in front] == sorted(plan.latency_s for plan in front)
    assert relaxed[0] is relaxed.best
    assert relaxed[1:3] == tuple(relaxed)[1:3]


@pytest.mark.long
def test_memory_is_held_by_splitting():
    problem = make([10.0, 10.0], layers=4, capacity=1e9, parameter_bytes=10**6, memory=12 * 10**6)
    # 16 MB of weights, gradients and moments: no device holds them alone
    best = make_plans(problem).best
    assert len(best.devices) == 2
    assert max(best.peak_bytes.values()) <= 12 * 10**6


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_no_memory_names_device_needed_available_and_the_way_out():
    problem = make([10.0, 10.0], layers=4, parameter_bytes=10**6, memory=7 * 10**6)
    with pytest.raises(
        Infeasible,
        match=r"d\d: no plan for chain fits, not even one that recomputes activations: it would "
        r"need \d+ MB, and may use 7 MB",
    ) as caught:
        make_plans(problem)
    facts = caught.value.facts
    assert facts["limit"] == "memory"
    assert facts["needed"] > facts["available"] == 7 * 10**6
    relaxed = replace(
        problem,
        devices=tuple(
            replace(d, memory_bytes=int(facts["needed"] * 1.01) + 10**6) for d in problem.devices
        ),
    )
    assert make_plans(relaxed)


def test_a_layer_too_big_for_any_device_is_named():
    problem = make([10.0], layers=2, parameter_bytes=10**9, memory=10**6)
    with pytest.raises(
        Infeasible,
        match=r"layer 'l1' of chain fits on no device: it needs 5\d+ MB, .* may use 1 MB",
    ):
        make_plans(problem)


@pytest.mark.parametrize(
    ("qoe", "limit"),
    [
        (QoE(latency_s=1e-6), "latency"),
        (QoE(energy_j=1e-6), "energy"),
        (QoE(device_energy_j={"d0": 1e-6}), "device energy"),
        (QoE(memory_bytes={"d0": 100}), "memory"),
    ],
)
def test_impossible_limits_are_named(qoe, limit):
    with pytest.raises(Infeasible) as caught:
        make_plans(make([10.0], qoe=qoe))
    assert caught.value.facts["limit"] == limit


def test_an_empty_home_is_an_error():
    with pytest.raises(EmptyHome):
        make_plans(make([]))


# --- choices and checks ---------------------------------------------------------------------------


def test_micro_batches_divide_the_batch():
    assert micro_batches(make([1.0], workload=Training(batch=12))) == (12, 6, 4, 3, 2, 1)
    assert micro_batches(make([1.0], workload=Training(batch=7))) == (7, 1)
    assert micro_batches(make([1.0], workload=Training(batch=12, micro_batch=4))) == (4,)
    assert all(
        128 % size == 0 and 128 // size <= 32
        for size in micro_batches(make([1.0], workload=Training(batch=128)))
    )


def test_many_layers_keep_the_cuts_that_matter():
    problem = make([1.0], layers=50)
    assert cuts(problem, limit=10)[0] == 0
    assert cuts(problem, limit=10)[-1] == 50
    assert len(cuts(problem, limit=10)) == 11


PLAN = Plan(
    planner="hand",
    model="chain",
    micro_batch=4,
    n_micro_batches=4,
    stages=(Stage(start=0, stop=4, devices=("d0",), shares=(4,)),),
)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "other"}, "for the model 'other', not for 'chain'"),
        (
            {"stages": (Stage(start=0, stop=3, devices=("d0",), shares=(4,)),)},
            "cover 3 layers; chain has 4",
        ),
        (
            {"stages": (Stage(start=0, stop=4, devices=("d9",), shares=(4,)),)},
            "d9: is not in this home",
        ),
        ({"training": False}, "asked was training"),
        ({"n_micro_batches": 3}, "12 in all; the batch has 16"),
    ],
)
def test_a_plan_for_something_else_is_refused(change, error):
    problem = make([1.0])
    check_plan(PLAN, problem)
    with pytest.raises(PlanError, match=error):
        check_plan(replace(PLAN, **change), problem)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: Device(name="home", memory_bytes=1), "cannot be called 'home'"),
        (lambda: Device(name="a", memory_bytes=0), "a: memory_bytes must be above zero, got 0"),
        (lambda: Medium(name="m", capacity_bytes_per_s=float("nan")), "must be above zero"),
        (
            lambda: Training(batch=10, micro_batch=3),
            "10 rows cannot be split into micro-batches of 3",
        ),
        (lambda: LayerCost(rows=(2, 1), forward_s=(1.0, 1.0)), "ascending"),
        (lambda: replace(make([1.0]), costs={}), "4 layers but the profile 0"),
        (lambda: make([1.0]).network.path("d0", "d7"), "no path from d0 to d7"),
        (lambda: make([1.0], qoe=QoE(memory_bytes={"x": 5})), "limit names the device 'x'"),
    ],
)
def test_wrong_records_cannot_exist(wrong, error):
    with pytest.raises(UserError, match=error):
        wrong()
