"""What more devices, or alike ones, change: never the best plan for the worse, and of twins the
same is said.
"""

from dataclasses import replace
from itertools import combinations
from math import inf

import pytest
from tests.sdk.planning.homes import later, random_home

import potluck
from potluck.bench import small_homes
from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.building_blocks.device_classes import alike
from potluck.planning.scenario import only, with_twin
from potluck.records import Inference, QoE, Training


def best_s(problem):
    try:
        return make_plans(problem).best.latency_s
    except Infeasible:
        return inf


@pytest.fixture(scope="module")
def of_library():
    """A problem of the library, and the latency of its best plan."""
    profile = potluck.estimate("family", "efficientnet-b1", max_layers=12).with_device(
        "rtx-4060-laptop"
    )
    problem = profile.problem(Training(batch=32), QoE())
    return problem, best_s(problem)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *later([1, 2, 3])])
@pytest.mark.parametrize("kind", small_homes.KINDS)
def test_no_plan_of_fewer_of_the_devices_is_better(kind, seed):
    problem = small_homes.draw(kind, f"subsets {seed}", {"devices": 4 if seed else 3, "layers": 6})
    names, all_s = [device.name for device in problem.devices], best_s(problem)
    for n in range(1, len(names)):
        for some in combinations(names, n):
            assert all_s <= best_s(only(problem, some)) * 1.001, some


@pytest.mark.long
@pytest.mark.parametrize(
    "some", [("laptop-1", "rtx-4060-laptop"), ("laptop-1", "laptop-2"), ("laptop-1",)]
)
def test_nor_in_a_home_of_the_library(of_library, some):
    problem, all_s = of_library
    assert all_s <= best_s(only(problem, some)) * 1.001


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(3), *later(range(3, 6))])
@pytest.mark.parametrize("limits", [QoE(), QoE(latency_s=0.5)], ids=["speed", "joules"])
def test_of_alike_devices_that_are_left_out_the_same_is_said(seed, limits):
    problem = replace(random_home(seed, Inference(batch=4), devices=3), qoe=limits)
    for device in problem.devices:
        doubled = with_twin(problem, device.name, "twin")
        try:
            best = make_plans(doubled).best
        except Infeasible:
            continue
        pair = {name: best.unused.get(name) for name in (device.name, "twin")}
        if None not in pair.values():
            assert pair[device.name] == pair["twin"]
        elif any(pair.values()):
            (used,) = (name for name, reason in pair.items() if reason is None)
            (reason,) = (reason for reason in pair.values() if reason is not None)
            assert reason.startswith(f"alike to {used}, which is used")
            assert "no plan" not in reason


@pytest.mark.long
def test_a_second_device_of_a_kind_that_the_home_has_is_judged_as_the_first():
    profile = (
        potluck.estimate("family", "efficientnet-b1")
        .with_device("jetson-orin-nano")
        .with_medium("air", 6.25e6)
    )
    unused = make_plans(profile.problem(Inference(streaming=True), QoE(latency_s=0.05))).best.unused
    assert unused["jetson"] == unused["jetson-orin-nano"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "latency_s", [None, 9.0], ids=["no limit", "a limit without joules to decide"]
)
def test_watts_change_nothing_where_only_speed_decides(seed, latency_s):
    """Of twins by speed: one known watt makes them no more unlike, and no plan slower."""
    problem = with_twin(
        random_home(seed, Training(batch=8, micro_batch=2), devices=2), "d0", "twin"
    )
    silent = [replace(device, idle_w=None, busy_w=None) for device in problem.devices]
    stated = [
        replace(device, idle_w=1.0 if i else None, busy_w=10.0 + i)
        for i, device in enumerate(silent)
    ]
    plain, watts = (
        replace(problem, devices=tuple(devices), qoe=QoE(latency_s=latency_s))
        for devices in (silent, stated)
    )
    assert alike(plain) == alike(watts)
    assert make_plans(plain).best.latency_s == make_plans(watts).best.latency_s


def test_of_twins_by_speed_the_thriftier_is_chosen_and_where_joules_decide_they_are_no_twins():
    problem = random_home(0, Inference(batch=1), devices=2)
    dear = [replace(device, idle_w=1.0, busy_w=40.0) for device in problem.devices]
    problem = with_twin(replace(problem, devices=tuple(dear)), "d0", "twin")
    devices = [replace(d, busy_w=5.0) if d.name == "twin" else d for d in problem.devices]
    problem = replace(problem, devices=tuple(devices))
    assert (
        len(alike(problem))
        < len(problem.devices)
        == len(alike(replace(problem, qoe=QoE(latency_s=9.0))))
    )
    assert "d0" not in make_plans(problem).best.devices
