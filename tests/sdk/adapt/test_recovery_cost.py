"""What a recovery is foretold to take: by hand, on one shared medium."""

from dataclasses import replace

import pytest
from tests.sdk.planning.homes import random_home

from potluck.adapt.recovery_cost import load_s, recovery_s
from potluck.planning import make_plans
from potluck.records import HOME, Medium, Network, Path, Training


def shared_air(problem, bytes_per_s, latency_s=0.5):
    names = [HOME, *(device.name for device in problem.devices)]
    air = Path(media=(("air", 1),), latency_s=latency_s)
    paths = {(a, b): air for a in names for b in names if a != b}
    network = Network(media=(Medium(name="air", capacity_bytes_per_s=bytes_per_s),), paths=paths)
    return replace(problem, network=network)


@pytest.mark.parametrize("seed", range(6))
def test_all_state_of_all_devices_crosses_the_medium_once(seed):
    problem = shared_air(random_home(seed, Training(batch=8, optimizer_copies=2)), 1e6)
    plan = make_plans(problem).best
    held = sum(
        3 * layer.parameter_bytes - 2 * layer.frozen_bytes + layer.buffer_bytes
        for stage in plan.stages
        for layer in problem.layers[stage.start : stage.stop]
        for _ in stage.devices
    )
    assert load_s(plan, problem) == pytest.approx(0.5 + held / 1e6)
    assert load_s(plan, shared_air(problem, 2e6)) == pytest.approx(0.5 + held / 2e6)


def test_steps_since_the_snapshot_come_again_and_one_more():
    problem = shared_air(random_home(1, Training(batch=8)), 1e6)
    plan = make_plans(problem).best
    seconds = [recovery_s(plan, problem, n) for n in (0, 5)]
    assert seconds[0] == pytest.approx(load_s(plan, problem) + plan.latency_s)
    assert seconds[1] - seconds[0] == pytest.approx(5 * plan.latency_s)
