"""Plans that recompute: found where memory keeps better ones away, and where nothing else fits."""

import random
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import pytest
from tests.sdk.planning.homes import random_home

from potluck.display import text as display
from potluck.errors import Infeasible, PlanError
from potluck.planning import make_plans, text
from potluck.planning.evaluate import judge
from potluck.planning.exhaustive import plan_exhaustive
from potluck.planning.feasibility import breaches
from potluck.planning.recomputation import recomputation_notes
from potluck.planning.scenario import only
from potluck.planning.search.recomputation import starts
from potluck.records import Device, Inference, Plan, Stage, Training
from potluck.simulate import cost, footprint

N_SEEDS = 12


def home_of(seed, *, part=None, micro_batch=4, devices=2):
    """Activations are many times what is handed on, and memory is a part of what all need."""
    rng = random.Random(seed)
    problem = random_home(seed, Training(batch=8, micro_batch=micro_batch), devices=devices)
    layers = tuple(
        replace(layer, activation_bytes=layer.output_bytes * rng.choice([3, 6, 10]))
        for layer in problem.layers
    )
    problem = replace(problem, layers=layers, input_bytes=100)
    one_stage_bytes = footprint.memory_bytes(cost.CostTable(problem), 0, len(layers), 8, warm_up=1)
    parts = [part or rng.uniform(0.1, 0.5) for _ in problem.devices]
    given = zip(problem.devices, parts, strict=True)
    return replace(
        problem, devices=tuple(replace(d, memory_bytes=int(one_stage_bytes * f)) for d, f in given)
    )


def best_s(problem):
    """Seconds of our best plan; infinite where there is none."""
    try:
        return make_plans(problem).best.latency_s
    except Infeasible:
        return inf


def every(problem):
    """What the oracle finds by keeping, and by computing again in segments, judged, if it holds."""
    for recomputes in (False, True):
        table = cost.CostTable(problem, recomputes=recomputes)
        for plan in plan_exhaustive(problem, table):
            others = starts(table, plan) if recomputes else (plan,)
            for other in others:
                judged = judge(problem, replace(other, planner="oracle"))
                if not breaches(problem, judged):
                    yield judged


@pytest.mark.long
def test_plans_are_as_good_as_the_oracle_s_that_recompute_everything_or_nothing():
    n_again, n_alone = 0, 0
    for seed in range(N_SEEDS):
        problem = home_of(seed)
        known = [*every(problem)]
        keeping = [plan for plan in known if not any(s.recompute for s in plan.stages)]
        least_s = min((plan.latency_s for plan in known), default=inf)
        kept_s = min((plan.latency_s for plan in keeping), default=inf)
        found_s = best_s(problem)
        assert found_s <= least_s * 1.02, (seed, found_s, least_s)
        n_again += found_s < kept_s * (1 - 1e-9)
        n_alone += kept_s == inf > found_s
    assert n_again > n_alone > 0  # both kinds were there


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_where_memory_is_ample_nothing_recomputes(seed):
    plans = make_plans(home_of(seed, part=100.0))
    assert not any(stage.recompute for plan in plans for stage in plan.stages)


def lone():
    """One device that holds its layers only in segments."""
    problem = home_of(3, part=1.0, micro_batch=8)
    device = problem.devices[0]
    alone = Device(name=device.name, memory_bytes=10**9)
    layers = tuple(
        replace(layer, activation_bytes=10_000, output_bytes=1000, gradient_bytes=1000)
        for layer in problem.layers
    )
    problem = replace(problem, devices=(alone,), layers=layers)
    (first, *_) = make_plans(problem)
    least = min(
        max(judge(problem, plan).peak_bytes.values())
        for plan in starts(cost.CostTable(problem), first)
    )
    return replace(problem, devices=(replace(alone, memory_bytes=least),)), first


@pytest.mark.long
def test_a_device_alone_computes_its_layers_again_in_segments_and_says_what_that_saves():
    problem, keeping = lone()
    best = make_plans(problem).best
    assert len(best.stages) > 1
    assert not breaches(problem, best)
    assert judge(problem, keeping).peak_bytes[best.devices[0]] > problem.devices[0].memory_bytes
    (note,) = recomputation_notes(best)
    assert "recompute" in note
    assert f"on {best.devices[0]}, costs" in note
    for shown in (display.plan(best, best.problem), repr(best.explain())):
        assert note in shown
    bare = replace(best, problem=None)
    assert recomputation_notes(bare)[0] == note.split(":")[0]


def test_a_plan_in_a_file_says_which_stages_recompute_and_older_files_mean_none():
    best = make_plans(lone()[0]).best
    written = text.dumps(best)
    assert "recompute = true" in written
    assert text.loads(written) == replace(best, problem=None)
    older = "\n".join(line for line in written.splitlines() if "recompute" not in line)
    assert not any(stage.recompute for stage in text.loads(older).stages)
    with pytest.raises(PlanError, match="`recompute` must be true or false, got 1"):
        text.loads(written.replace("recompute = true", "recompute = 1", 1))


@pytest.mark.long
def test_inference_recomputes_nothing():
    problem = replace(home_of(0, part=100.0), workload=Inference(batch=4))
    (best, *_) = make_plans(problem)
    again = tuple(replace(stage, recompute=True) for stage in best.stages)
    with pytest.raises(PlanError, match="inference keeps none"):
        replace(best, stages=again)


def test_what_is_impossible_says_so_only_of_what_was_tried():
    with pytest.raises(Infeasible) as caught:
        make_plans(home_of(3, part=0.01))
    assert "recompute" not in str(caught.value)  # a layer fits nowhere: nothing was searched


def alone_in_parts(problem):
    """Seconds of the best way to cut the layers of one device, each part keeping or computing
    again.
    """
    (device,) = problem.devices
    (rows,) = {problem.workload.micro_batch}
    n_layers, least_s = len(problem.layers), inf
    for cuts in product((False, True), repeat=n_layers - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), n_layers]
        for ways in product((False, True), repeat=len(bounds) - 1):
            stages = tuple(
                Stage(start=a, stop=b, devices=(device.name,), shares=(rows,), recompute=again)
                for (a, b), again in zip(pairwise(bounds), ways, strict=True)
            )
            n_micro_batches = problem.workload.batch // rows
            plan = Plan(
                planner="oracle",
                model=problem.model,
                stages=stages,
                micro_batch=rows,
                n_micro_batches=n_micro_batches,
            )
            judged = judge(problem, plan)
            if not breaches(problem, judged):
                least_s = min(least_s, judged.latency_s)
    return least_s


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(8))
def test_no_more_layers_of_a_device_recompute_than_have_to(seed):
    problem, rng = home_of(seed, part=1.0), random.Random(seed)
    layers = tuple(
        replace(layer, activation_bytes=layer.output_bytes * rng.choice([2, 8, 30]))
        for layer in problem.layers[:4]
    )
    costs = {name: of[: len(layers)] for name, of in problem.costs.items()}
    problem = only(replace(problem, layers=layers, costs=costs), (problem.devices[0].name,))
    needs = [
        footprint.memory_bytes(
            cost.CostTable(problem, recomputes=again), 0, len(layers), 4, warm_up=1
        )
        for again in (True, False)
    ]
    memory_bytes = int(needs[0] + rng.uniform(0.2, 0.9) * (needs[1] - needs[0]))
    (device,) = problem.devices
    problem = replace(problem, devices=(replace(device, memory_bytes=memory_bytes),))
    assert best_s(problem) <= alone_in_parts(problem) * 1.01
