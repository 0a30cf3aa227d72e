"""In which order the devices of a home are named must not decide which plan is found."""

import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import WORKLOADS, later, random_home

from potluck.planning import make_plans
from potluck.planning.search.device_order import in_one_order
from potluck.records import Inference, Medium, Network, Path
from potluck.simulate.cost import CostTable


def _shuffled(home, seed):
    rng = random.Random(seed)
    return replace(home, devices=tuple(rng.sample(home.devices, len(home.devices))))


def _two_channels(home, seed):
    """Each device is on one of two channels; from one to the other a transfer takes both."""
    rng = random.Random(seed)
    channel = {device.name: rng.choice("ab") for device in home.devices}
    media = tuple(Medium(name=name, capacity_bytes_per_s=10 ** rng.uniform(4, 6)) for name in "ab")

    def path(source, target):
        a, b = channel[source], channel[target]
        return Path(media=((a, 2),) if a == b else ((a, 1), (b, 1)), latency_s=0.002)

    return replace(
        home, network=Network(media=media, paths={p: path(*p) for p in home.network.paths})
    )


@pytest.mark.long
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("seed", [*range(3), *later(range(3, 20))])
def test_the_same_plan_is_found_in_any_order_of_the_devices(seed, workload):
    home = _two_channels(random_home(seed, workload, devices=4), seed)
    best = make_plans(home).best
    for other in range(2):
        again = make_plans(_shuffled(home, other)).best
        assert again.stages == best.stages
        assert again.latency_s == best.latency_s


@pytest.mark.parametrize("seed", later(range(5)))
def test_streams_on_five_devices_and_two_channels_are_planned_alike(seed):
    stream = Inference(batch=7, streaming=True)
    home = _two_channels(random_home(seed, stream, devices=5, layers=6), seed)
    best = make_plans(home).best
    assert make_plans(_shuffled(home, seed)).best.stages == best.stages


@pytest.mark.long
def test_a_plan_is_for_the_problem_that_was_asked_about():
    home = _shuffled(random_home(0, devices=4), 1)
    assert all(plan.problem is home for plan in make_plans(home))


def test_devices_that_nothing_tells_apart_stay_as_given():
    home = random_home(4, devices=4)
    first = home.devices[0].name
    alike = replace(home, costs=dict.fromkeys(home.costs, home.costs[first]))
    assert in_one_order(CostTable(alike)) is alike


def test_the_fastest_device_comes_first():
    home = random_home(4, devices=4)
    ordered = in_one_order(CostTable(home))
    seconds = [ordered.costs[device.name][0].forward_s[-1] for device in ordered.devices]
    assert seconds == sorted(seconds)
    assert {*ordered.devices} == {*home.devices}
