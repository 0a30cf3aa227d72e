"""Micro-batches of stages' own sizes: by hand, by search, and kept where layers see them."""

import random
from dataclasses import replace
from itertools import product

import pytest
from tests.sdk.planning.homes import random_home
from tests.sdk.simulate.test_direct_simulation import random_plan, random_problem

import potluck
from potluck.adapt.adapter import same_sums
from potluck.adapt.alternatives import still_wanted, trained_alike
from potluck.errors import PlanError, UserError
from potluck.planning import judge, make_plans
from potluck.planning.feasibility import breaches
from potluck.planning.plans import preference
from potluck.planning.stage_sizes import better_sizes, resized, with_sizes_of
from potluck.records import (
    Device,
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

BATCH = 8


def problem_of(seconds_of_row=0.0, seconds=1.0, overhead_s=0.0, capacity=2.0, **layer):
    """Two devices and two layers; forward takes `seconds` and so many for each row, backward twice
    that. A row is one byte on the link.
    """
    layers = tuple(
        Layer(name=f"l{i}", output_bytes=1, gradient_bytes=1, activation_bytes=1, **layer)
        for i in range(2)
    )
    rows = (1, BATCH)
    forward_s = tuple(seconds + seconds_of_row * n for n in rows)
    cost = LayerCost(
        rows=rows, forward_s=forward_s, backward_s=tuple(2 * s for s in forward_s), update_s=0.0
    )
    names = "a", "b"
    return Problem(
        model="m",
        devices=tuple(
            Device(name=n, memory_bytes=10**9, overhead_s=overhead_s, copy_bytes_per_s=1e15)
            for n in names
        ),
        network=Network(
            media=tuple(Medium(name=n, capacity_bytes_per_s=capacity) for n in names),
            paths={("a", "b"): Path(media=(("a", 1),)), ("b", "a"): Path(media=(("b", 1),))},
        ),
        layers=layers,
        costs=dict.fromkeys(names, (cost, cost)),
        workload=Training(batch=BATCH),
    )


def plan_of(micro_batch, *sizes):
    stages = tuple(
        Stage(
            start=p,
            stop=p + 1,
            devices=("ab"[p],),
            shares=(size,),
            warm_up=BATCH // size,
            micro_batch=size if size != micro_batch else None,
        )
        for p, size in enumerate(sizes or (micro_batch, micro_batch))
    )
    return Plan(
        planner="by hand",
        model="m",
        stages=stages,
        micro_batch=micro_batch,
        n_micro_batches=BATCH // micro_batch,
    )


# Per 8 rows: a forward takes 1 s, a backward 2 s, a transfer 4 s. In one: 1 + 4 + 1 + 2 + 4 + 2.
# Where a takes halves, b has the second at 4.5 and is done at 7.5; its halves come back at 9.5 and
# 11.5. Where b takes halves, they come at 3 and 5, and their gradients at 6.5 and 8.5. Where both
# do, they come at 2.5 and 4.5, and back at 6 and 8.
@pytest.mark.parametrize(
    ("sizes", "step_s"), [((8, 8), 14.0), ((4, 8), 12.5), ((8, 4), 10.5), ((4, 4), 9.0)]
)
def test_a_step_takes_what_it_takes_by_hand(sizes, step_s):
    problem = problem_of(seconds=0.0, seconds_of_row=1 / 8)
    plan = replace(plan_of(8, *sizes), stages=plan_of(8, *sizes).stages[:1] + one_at_a_time(sizes))
    assert judge(problem, plan).latency_s == pytest.approx(step_s, rel=1e-6)


def one_at_a_time(sizes):
    """The second stage, backward as soon as it can."""
    return (replace(plan_of(8, *sizes).stages[1], warm_up=1),)


def test_smaller_ones_go_before_a_slow_link_and_larger_ones_where_each_costs():
    slow = better_sizes(problem_of(seconds=0.0, seconds_of_row=1 / 8), plan_of(8))
    assert all(stage.rows <= 2 for stage in slow.stages)
    costly = better_sizes(problem_of(seconds=1.0, capacity=1e6), plan_of(2))
    assert [stage.rows for stage in costly.stages] == [8, 8]
    # the one is paid by the byte, the other by the instruction
    problem = problem_of(seconds=0.0, seconds_of_row=1 / 8)
    per_call = LayerCost(rows=(1, 8), forward_s=(2.0, 2.0), backward_s=(4.0, 4.0), update_s=0.0)
    problem = replace(problem, costs={**problem.costs, "b": (per_call, per_call)})
    first, second = better_sizes(problem, plan_of(4)).stages
    assert first.rows < second.rows


@pytest.mark.long
def test_what_takes_a_plans_place_is_never_worse_and_nothing_near_is_better():
    for seed in range(12):
        problem = random_home(seed, Training(batch=8, micro_batch=2))
        for plan in make_plans(problem).items[:3]:
            best = better_sizes(problem, plan)
            judged = judge(problem, plan)
            if best is None:
                best = judged
            else:
                assert preference(best, problem) < preference(judged, problem)
                assert not breaches(problem, best)
            assert same_sums(plan, best, problem.layers)
            for sizes in product(*((s.rows // 2, s.rows, 2 * s.rows) for s in best.stages)):
                all_half = [a != b.rows for a, b in zip(sizes, best.stages, strict=True)]
                if sum(all_half) == 1:  # one stage alone
                    try:
                        other = judge(problem, resized(problem, plan, sizes))
                    except PlanError:
                        continue
                    assert breaches(problem, other) or preference(other, problem) >= preference(
                        best, problem
                    )


@pytest.mark.parametrize("seeing", [{"norm_values": 4}, {"is_random": True}])
def test_layers_that_see_micro_batches_keep_theirs(seeing):
    problem = problem_of(seconds=0.0, seconds_of_row=1 / 8)
    first, second = problem.layers
    assert better_sizes(problem, plan_of(8)) is not None
    seen = replace(problem, layers=(first, replace(second, **seeing)))
    found = better_sizes(seen, plan_of(8))
    assert [stage.rows < 8 for stage in found.stages] == [True, False]
    both = replace(problem, layers=(replace(first, **seeing), replace(second, **seeing)))
    assert better_sizes(both, plan_of(8)) is None


def test_rows_are_shared_as_before_and_no_device_goes_without():
    problem = problem_of()
    shared = replace(
        plan_of(8), stages=(Stage(start=0, stop=2, devices=("a", "b"), shares=(6, 2)),)
    )
    assert resized(problem, shared, [4]).stages[0].shares == (3, 1)
    with pytest.raises(PlanError, match="each of its 2 devices needs a share"):
        resized(problem, shared, [1])
    with pytest.raises(PlanError, match="cannot be cut into"):
        resized(problem, shared, [3])
    with pytest.raises(PlanError, match="cannot be cut into"):
        resized(problem, shared, [16])


@pytest.mark.parametrize("seed", range(40))
def test_another_plan_takes_over_the_sizes_that_layers_see(seed):
    rng = random.Random(seed)
    problem = replace(random_problem(rng), workload=Training(batch=8, micro_batch=2))
    layers = tuple(replace(layer, is_random=rng.random() < 0.5) for layer in problem.layers)
    problem = replace(problem, layers=layers)
    before, after = (random_plan(rng, problem) for _ in range(2))
    if any(len(stage.devices) > 1 for stage in after.stages):
        return
    alike = with_sizes_of(before, after, layers)
    assert same_sums(before, alike, layers)
    assert judge(problem, alike).latency_s
    places = [
        [stage.devices for stage in plan.stages for _ in range(stage.start, stage.stop)]
        for plan in (after, alike)
    ]
    assert places[0] == places[1]
    if not any(layer.is_random for layer in layers):
        assert alike is after


@pytest.mark.long
def test_what_may_take_a_plans_place_trains_alike():
    for seed in range(8):
        problem = random_home(seed, Training(batch=8, micro_batch=2))
        layers = tuple(
            replace(layer, is_random=i % 2 == 0) for i, layer in enumerate(problem.layers)
        )
        problem = replace(problem, layers=layers)
        plan, *others = make_plans(problem).items
        found = trained_alike(problem, plan, others, 4)
        assert all(same_sums(plan, other, layers) for other in found)
        assert all(other.stages != plan.stages for other in found)
        assert len(found) <= 6


@pytest.mark.long
def test_the_planner_chooses_sizes_where_it_is_asked_to():
    profile = potluck.estimate("traffic-monitor", "bert-base", max_layers=12)
    training = potluck.Training(batch=32, micro_batch=8)
    usual = potluck.plan(profile, training)
    sized = potluck.plan(profile, training, stage_sizes=True)
    assert all(len(plan.sizes) == 1 for plan in usual)
    assert len(sized.best.sizes) > 1
    assert sized.best.latency_s < usual.best.latency_s
    assert sized.best.gap_frac is None
    assert usual.best.stages in [plan.stages for plan in sized]
    again = potluck.judge(replace(sized.best, latency_s=None), profile)
    assert again.latency_s == sized.best.latency_s


def test_other_planners_choose_no_sizes():
    profile = potluck.estimate("traffic-monitor", "bert-base", max_layers=12)
    with pytest.raises(UserError, match="sizes of stages' own are not what 'gpipe' chooses"):
        potluck.plan(profile, potluck.Training(batch=8), planner="gpipe", stage_sizes=True)


def test_a_device_that_is_missing_is_still_wanted_when_the_others_take_other_sizes():
    both = plan_of(8)
    alone, sized = (
        replace(
            both, stages=(Stage(start=0, stop=2, devices=("a",), shares=(n,), micro_batch=own),)
        )
        for n, own in ((8, None), (4, 4))
    )
    assert still_wanted(both, alone, sized) is both
    assert still_wanted(both, both, alone) is alone
    assert still_wanted(alone, alone, sized) is sized
    assert still_wanted(both, alone, both) is both
