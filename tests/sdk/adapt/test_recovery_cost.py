"""What a recovery is predicted to take: by hand, on one shared medium."""

from dataclasses import replace

import pytest
from tests.sdk.planning.homes import random_home

from potluck.adapt.lightweight_replay import plans_after
from potluck.adapt.recovery_cost import migration_s, recovery_s
from potluck.planning import make_plans
from potluck.planning.scenario import only
from potluck.records import HOME, Medium, Network, Path, Training


def shared_air(problem, bytes_per_s, latency_s=0.5):
    names = [HOME, *(device.name for device in problem.devices)]
    air = Path(media=(("air", 1),), latency_s=latency_s)
    paths = {(a, b): air for a in names for b in names if a != b}
    network = Network(media=(Medium(name="air", capacity_bytes_per_s=bytes_per_s),), paths=paths)
    return replace(problem, network=network)


@pytest.mark.long
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
    assert migration_s(plan, problem) == pytest.approx(0.5 + held / 1e6)
    assert migration_s(plan, shared_air(problem, 2e6)) == pytest.approx(0.5 + held / 2e6)


def test_steps_since_the_snapshot_come_again_and_one_more():
    problem = shared_air(random_home(1, Training(batch=8)), 1e6)
    plan = make_plans(problem).best
    seconds = [recovery_s(plan, problem, n) for n in (0, 5)]
    assert seconds[0] == pytest.approx(migration_s(plan, problem) + plan.latency_s)
    assert seconds[1] - seconds[0] == pytest.approx(5 * plan.latency_s)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_what_a_device_has_it_keeps_and_the_others_get_it_once(seed):
    problem = shared_air(random_home(seed, Training(batch=8)), 1e6)
    plan = make_plans(problem).best
    everyone = [[device.name for device in problem.devices]] * len(problem.layers)
    assert migration_s(plan, problem, everyone) == 0.0
    nobody = [[] for _ in problem.layers]
    assert migration_s(plan, problem, nobody) == migration_s(plan, problem)
    one = problem.devices[0].name
    from_one = migration_s(plan, problem, [[one]] * len(problem.layers))
    missing = sum(
        3 * layer.parameter_bytes - 2 * layer.frozen_bytes + layer.buffer_bytes
        for stage in plan.stages
        for layer in problem.layers[stage.start : stage.stop]
        for device in stage.devices
        if device != one
    )
    assert from_one == pytest.approx((0.5 if missing else 0.0) + missing / 1e6)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_the_fewer_steps_are_left_the_less_may_be_sent(seed):
    """With few steps left a plan that moves little wins over one that is faster afterwards."""
    problem = shared_air(random_home(seed, Training(batch=8)), 1e4)
    if len(problem.devices) < 3:
        pytest.skip("nobody would be left")
    plan = make_plans(problem).best
    lost = plan.devices[0]
    survivors = [device.name for device in problem.devices if device.name != lost]
    holders = [
        [name for name in stage.devices if name != lost]
        for stage in plan.stages
        for _ in range(stage.start, stage.stop)
    ]
    flop = [layer.forward_flop + layer.backward_flop for layer in problem.layers]
    rest = only(problem, survivors)
    ends = {}
    for n_left in (0, 1, 10**9):
        best, *others = plans_after(plan, survivors, flop, rest, n_left=n_left, holders=holders)
        for chosen in (best, *others):
            moved_s = migration_s(chosen, rest, holders)
            ends[n_left, chosen.planner] = moved_s + n_left * chosen.latency_s
        least = min(seconds for (n, _), seconds in ends.items() if n == n_left)
        assert ends[n_left, best.planner] == least
