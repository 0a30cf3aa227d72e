"""Limits on joules, of a device or of all, are part of what is searched for."""

import random
import re
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from tests.sdk.planning.homes import WORKLOADS, later, random_branches, random_home

import potluck
from potluck.errors import Infeasible
from potluck.planning import make_plans
from potluck.planning.evaluate import judge
from potluck.planning.feasibility import breaches
from potluck.planning.registry import BASELINES, ask
from potluck.records import Inference, Plan, QoE, Stage, Training
from potluck.simulate.direct_simulation import Direct

ADVISED = re.compile(r"([\d.e+-]+) (s|J)(?: on (\w+)| in all)?[, ]")

ASKED = ("gpipe", "pipedream", "dapple", "alpa", "metis")


def limits(plan, slack=1.02):
    """As tight as that plan is: on each device, and on all."""
    return (
        QoE(device_energy_j={name: slack * used for name, used in plan.device_energy_j.items()}),
        QoE(energy_j=slack * plan.energy_j),
    )


def solved(problem, name):
    try:
        return ask(problem, name).best.latency_s
    except Infeasible:
        return float("inf")


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("limit", range(2), ids=["of each", "of all"])
@pytest.mark.parametrize("name", ["dapple", "gpipe"])
@pytest.mark.parametrize(
    "workload", [Training(batch=8), Inference(batch=8)], ids=["train", "infer"]
)
@pytest.mark.parametrize("home", ["family", *later(["traffic-monitor"])])
def test_a_plan_within_the_joules_of_a_baselines_is_as_fast_as_any_baselines(
    home, workload, name, limit
):
    problem = potluck.estimate(home, "bert-base", max_layers=6).problem(workload)
    theirs = next(plan for plan in ask(problem, name) if len(plan.devices) > 1)
    limited = replace(problem, qoe=limits(theirs)[limit])
    ours = make_plans(limited).best
    assert not breaches(limited, ours)
    assert ours.latency_s <= 1.01 * min(solved(limited, baseline) for baseline in ASKED)


@pytest.mark.long
@pytest.mark.parametrize("limit", range(2), ids=["of each", "of all"])
@pytest.mark.parametrize("seed", range(12))
def test_in_random_homes_no_baseline_is_faster_within_the_joules_of_its_own_plan(seed, limit):
    problem = random_home(seed, WORKLOADS[seed % 3])
    name = ASKED[seed % len(ASKED)]
    assert name in BASELINES
    try:
        theirs = ask(problem, name).best
    except Infeasible:
        return
    limited = replace(problem, qoe=limits(theirs)[limit])
    assert make_plans(limited).best.latency_s <= 1.01 * theirs.latency_s


def followed(problem, error):
    """The problem with all that the error's advice names allowed."""
    qoe = problem.qoe
    joules = dict(qoe.device_energy_j)
    for amount, unit, device in ADVISED.findall(error.next_step):
        device = device or (error.device if error.facts["limit"] == "device energy" else "")
        if unit == "s":
            qoe = replace(qoe, latency_s=float(amount))
        elif device:
            joules[device] = float(amount)
        else:
            qoe = replace(qoe, energy_j=float(amount))
    return replace(problem, qoe=replace(qoe, device_energy_j=joules))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("slow", [None, 0.97], ids=["joules", "joules and seconds"])
@pytest.mark.parametrize("seed", [*range(4), *later(range(4, 30))])
def test_where_several_limits_are_broken_the_advice_names_all_that_must_be_allowed(seed, slow):
    problem = random_home(seed, WORKLOADS[seed % 3])
    joules = {device.name: 1e-3 for device in problem.devices}
    latency_s = make_plans(problem).best.latency_s
    qoe = QoE(device_energy_j=joules, latency_s=slow and latency_s / slow)
    with pytest.raises(Infeasible) as refused:
        make_plans(replace(problem, qoe=qoe))
    allowed = followed(replace(problem, qoe=qoe), refused.value)
    assert not breaches(allowed, make_plans(allowed).best)


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(3), *later(range(3, 12))])
def test_a_plan_within_its_joules_that_just_fits_is_kept_though_faster_ones_are_not(seed):
    """One device may compute; its memory is between what the model takes as one stage, and what it
    takes with its frozen first layers as a stage of their own.
    """
    rng = random.Random(f"frozen {seed}")
    home = random_home(seed, Training(batch=8, micro_batch=2), devices=2)
    still, name = rng.randint(1, len(home.layers) - 1), home.devices[-1].name
    layers = tuple(
        replace(layer, activation_bytes=20 * layer.output_bytes) for layer in home.layers
    )
    frozen = tuple(
        replace(layer, frozen_bytes=layer.parameter_bytes, gradient_bytes=0)
        for layer in layers[:still]
    )
    home = replace(home, layers=(*frozen, *layers[still:]))

    def peak_bytes(*ends):
        stages = tuple(
            Stage(start=start, stop=stop, devices=(name,), shares=(2,))
            for start, stop in pairwise((0, *ends))
        )
        return judge(
            home,
            Plan(planner="p", model=home.model, stages=stages, micro_batch=2, n_micro_batches=4),
        ).peak_bytes[name]

    one_bytes, cut_bytes = peak_bytes(len(layers)), peak_bytes(still, len(layers))
    assert cut_bytes < one_bytes
    home = replace(
        home,
        devices=tuple(replace(d, memory_bytes=(one_bytes + cut_bytes) // 2) for d in home.devices),
        qoe=QoE(device_energy_j={d.name: 1e-9 for d in home.devices[:-1]}),
    )
    assert make_plans(home).best.devices == (name,)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *later(range(1, 8))])
@pytest.mark.parametrize("kind", ["chain", "frozen", "branches"])
def test_a_device_alone_is_cut_anywhere_where_the_others_may_not_compute(kind, seed):
    """Its memory is just what the model takes in two stages or three, less than in one."""
    rng, workload = random.Random(f"cut {kind} {seed}"), Training(batch=4)
    make = random_branches if kind == "branches" else random_home
    home = make(seed, workload, devices=2)
    n_layers, still = len(home.layers), kind == "frozen" and rng.randint(1, len(home.layers) - 1)
    layers = tuple(
        replace(
            layer,
            parameter_bytes=size,
            frozen_bytes=size if i < still else 0,
            gradient_bytes=0 if i < still - 1 else layer.gradient_bytes,
            activation_bytes=rng.choice([300, 3000, 30_000]),
        )
        for i, layer in enumerate(home.layers)
        for size in (rng.choice([400, 4000, 40_000]),)
    )
    home, name = replace(home, layers=layers), home.devices[-1].name
    simulator = Direct(home)

    def peak_bytes(ends, size):
        stages = tuple(
            Stage(start=start, stop=stop, devices=(name,), shares=(size,))
            for start, stop in pairwise((0, *ends, n_layers))
        )
        plan = Plan(
            planner="p",
            model=home.model,
            stages=stages,
            micro_batch=size,
            n_micro_batches=4 // size,
        )
        return simulator.run(plan).peak_bytes()[name]

    one_bytes = min(peak_bytes((), size) for size in (1, 2, 4))
    cut_bytes = min(
        peak_bytes(ends, size)
        for size in (1, 2, 4)
        for n in (1, 2)
        for ends in combinations(range(1, n_layers), n)
    )
    home = replace(
        home,
        devices=tuple(replace(d, memory_bytes=min(one_bytes, cut_bytes)) for d in home.devices),
        qoe=QoE(device_energy_j={d.name: 1e-9 for d in home.devices if d.name != name}),
    )
    assert make_plans(home).best.devices == (name,)
