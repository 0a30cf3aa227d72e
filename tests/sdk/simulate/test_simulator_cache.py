"""A simulator that remembers outcomes tells what one that does not would tell."""

from dataclasses import replace

from tests.sdk.planning.homes import random_home

from potluck.planning.baselines.dapple import plan_dapple
from potluck.simulate.direct_simulation import Direct
from potluck.simulate.simulator_cache import SimulatorCache


def _times(outcome):
    return outcome.latency_s, outcome.peak_bytes(), outcome.device_energy_j()


def test_every_plan_is_simulated_once_and_told_alike():
    home = random_home(3)
    plans = list({(p.stages, p.micro_batch): p for p in plan_dapple(home)}.values())[:8]
    assert len(plans) > 1
    once, again = Direct(home), SimulatorCache(home)
    for plan in plans * 2:
        assert _times(again.run(plan)) == _times(once.run(plan))
    assert again.n_simulated * 2 == once.n_simulated


def test_what_was_asked_for_longest_ago_is_forgotten_and_simulated_anew():
    home = random_home(3)
    first, *_, second = plan_dapple(home)
    simulator = SimulatorCache(home, most_tasks=1)
    times = _times(simulator.run(first))
    simulator.run(second)
    before = simulator.n_simulated
    assert _times(simulator.run(first)) == times
    assert simulator.n_simulated > before


def test_a_plan_of_another_schedule_is_another_plan():
    home = random_home(3)
    plan = next(plan for plan in plan_dapple(home) if len(plan.stages) > 1)
    simulator = SimulatorCache(home)
    simulator.run(plan)
    before = simulator.n_simulated
    simulator.run(replace(plan, schedule="zb-h1"))
    assert simulator.n_simulated > before
