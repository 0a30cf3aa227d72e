"""Why a plan is as it is: parts that add up, the bottleneck of hand-made homes, what would help."""

from dataclasses import replace

import pytest
from tests.sdk.planning.homes import WORKLOADS, random_home

from potluck.display import html
from potluck.errors import PlanError
from potluck.planning import judge, make_plans
from potluck.planning.explain import explain
from potluck.planning.text import dumps, loads
from potluck.records import Inference, Medium, Network, Path, Plan, Stage, Training


def split(problem):
    """The first half of the layers on d0, the rest on d1."""
    n, training = len(problem.layers), isinstance(problem.workload, Training)
    rows = problem.workload.batch
    stages = tuple(
        Stage(start=a, stop=b, devices=(name,), shares=(rows,))
        for a, b, name in ((0, 1, "d0"), (1, n, "d1"))
    )
    return judge(
        problem,
        Plan(planner="mine", model="chain", stages=stages, micro_batch=rows, training=training),
    )


@pytest.mark.long
@pytest.mark.parametrize("workload", WORKLOADS, ids=["training", "request", "streaming"])
@pytest.mark.parametrize("seed", range(3))
def test_the_parts_of_a_step_add_up(seed, workload):
    plan = make_plans(random_home(seed, workload)).best
    found = explain(plan, improvements=False)
    assert [part.device for part in found.parts] == list(plan.devices)
    for part in found.parts:
        assert part.compute_frac + part.link_frac + part.wait_frac == pytest.approx(1)
        assert min(part.compute_frac, part.link_frac, part.wait_frac) >= -1e-9
    assert all(0 <= frac <= 1 + 1e-9 for frac in found.media_frac.values())
    assert found.unused == plan.unused


def test_by_hand_a_slow_link_is_the_bottleneck_and_a_fast_one_is_not():
    problem = random_home(0, Inference(batch=1), capacity=50.0)
    slow = explain(split(problem), improvements=False)
    assert slow.bottleneck == "air"
    nbytes = problem.layers[0].output_bytes
    assert slow.bottleneck_frac == pytest.approx(nbytes / 50.0 / slow.plan.latency_s)
    fast = explain(split(random_home(0, Inference(batch=1), capacity=1e9)), improvements=False)
    assert fast.bottleneck in ("d0", "d1")


def test_air_that_is_crossed_twice_is_busy_twice_as_long():
    problem = random_home(0, Inference(batch=1), capacity=1e4)
    twice = {
        pair: replace(path, media=(("air", 2),)) for pair, path in problem.network.paths.items()
    }
    once, double = (
        explain(split(item), improvements=False)
        for item in (problem, replace(problem, network=replace(problem.network, paths=twice)))
    )
    seconds = [item.media_frac["air"] * item.plan.latency_s for item in (once, double)]
    assert seconds[1] == pytest.approx(2 * seconds[0])


@pytest.mark.long
def test_what_would_help_is_planned_on_the_home_as_it_would_be():
    problem = random_home(2, Training(batch=8, micro_batch=2))
    found = explain(make_plans(problem).best)
    changes = {improvement.change: improvement.plan for improvement in found.improvements}
    assert "any micro-batch" in changes
    twin = next(name for name in changes if name.startswith("another device like"))
    assert changes[twin].latency_s <= found.plan.latency_s * 1.01
    assert len(changes[twin].problem.devices) == len(problem.devices) + 1


def test_each_device_alone_is_there_for_comparison():
    problem = random_home(4, capacity=100.0)
    found = explain(make_plans(problem).best, improvements=False)
    assert set(found.alone) == {device.name for device in problem.devices}
    assert min(plan.latency_s for plan in found.alone.values()) == pytest.approx(
        found.plan.latency_s
    )


def test_a_plan_from_a_file_must_be_judged_first():
    plan = make_plans(random_home(1)).best
    loaded = loads(dumps(plan))
    with pytest.raises(PlanError, match=r"never judged .* potluck\.judge\(plan, profile\) first"):
        loaded.explain()
    assert judge(plan.problem, loaded).explain().plan == replace(plan, unused=loaded.unused)


@pytest.mark.long
def test_shows_itself_as_text_and_html():
    network = Network(
        media=(Medium(name="<air>", capacity_bytes_per_s=1e5),),
        paths={pair: Path(media=(("<air>", 1),)) for pair in random_home(2).network.paths},
    )
    found = explain(make_plans(replace(random_home(2), network=network)).best)
    representation = repr(found)
    assert "bottleneck:" in representation
    assert "What would help" in representation
    assert "alone:" in representation
    shown = html.explanation(found)
    assert 'id="potluck-explanation-' in shown
    assert "<air>" not in shown


@pytest.mark.few(1)
@pytest.mark.parametrize("free", ["one path", "all paths"])
def test_paths_that_cross_no_medium_are_planned_for_and_explained(free):
    """Two places on one host, or what a link costs taken away: baselines that know one mean rate
    must live with it.
    """
    problem = random_home(1, Training(batch=8, micro_batch=4))
    network = problem.network
    pairs = list(network.paths)[:2] if free == "one path" else list(network.paths)
    paths = {
        pair: replace(path, media=() if pair in pairs else path.media)
        for pair, path in network.paths.items()
    }
    problem = replace(problem, network=replace(network, paths=paths))
    assert explain(make_plans(problem).best).parts
