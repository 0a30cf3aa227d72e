"""Devices that were lost, or left, come back while a training goes on: it goes back to them where
that pays, and learns what one machine learns.
"""

import random
from dataclasses import replace

import pytest
from tests.sdk.planning.homes import later, random_home
from tests.sdk.run import test_recovery as losses
from tests.sdk.run.conftest import make_data
from tests.sdk.run.test_recovery import A, B, C, check_learned, deployed, inject_after, joined

from potluck.adapt.lightweight_replay import replayed
from potluck.planning import make_plans
from potluck.planning.scenario import only
from potluck.records import Training
from potluck.run import rejoin
from potluck.run.rejoin import pays
from potluck.testing.faults import memory_of
from potluck.testing.internals import drained, link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
MESSAGES = 400


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(rejoin, "BACK_S", 0.0)


@pytest.fixture
def home():
    with memory_home(3) as home:
        yield home


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "leave"])
def test_it_goes_back_to_the_plan_that_was_chosen(home, how):
    run = deployed(home, optimizer="sgd", protect=4)  # AdamW makes roundings of long runs larger
    chosen, lab = run.plan, memory_of(home)
    plans = []

    def on_step(step, loss):
        plans.append(run.plan)
        if step == 4:
            lab.kill(B) if how == "kill" else lab.leave(B, "its owner plays", 1e6)
        if run.plan.devices == (A, C) and not plans.count(run.plan) % 3:
            if how == "kill" and not lab.is_there(B):
                lab.restart(B)
                home.devices.join([B])
            elif how == "leave":
                lab.stay(B)

    history = run.fit(make_data("mlp", losses.ROWS), epochs=30, on_step=on_step).wait()
    assert (A, C) in [plan.devices for plan in plans]
    assert run.plan.stages == chosen.stages
    (arrival,) = history.arrivals
    assert (arrival.back, arrival.devices) == ((B,), (A, B, C))
    assert arrival.words in history.notes
    assert "local-2 is back" in arrival.words
    check_learned(run, history, epochs=30, optimizer="sgd")


def test_it_goes_to_the_plan_that_was_meant_where_it_has_begun_without_a_device(home):
    """As a training does that a coordinator began while one of its devices was away."""
    chosen = deployed(home, optimizer="sgd", protect=4).plan
    without = replayed(chosen, (A, C), [1.0] * chosen.stages[-1].stop)
    run = deployed(home, optimizer="sgd", protect=4, chosen=without)
    run.return_to(chosen)
    history = run.fit(make_data("mlp", losses.ROWS), epochs=30).wait()
    assert run.plan.stages == chosen.stages
    assert [arrival.back for arrival in history.arrivals] == [(B,)]
    check_learned(run, history, epochs=30, optimizer="sgd")


@pytest.mark.long
def test_not_before_it_is_there_for_a_while(home, monkeypatch):
    monkeypatch.setattr(rejoin, "BACK_S", 1e9)
    run, lab = deployed(home, protect=4), memory_of(home)

    def on_step(step, loss):
        if step == 4:
            lab.kill(B)
        if step == 10:
            lab.restart(B)
            home.devices.join([B])

    history = run.fit(make_data("mlp", losses.ROWS), epochs=12, on_step=on_step).wait()
    assert run.plan.devices == (A, C)
    assert not history.arrivals
    check_learned(run, history, epochs=12)


def test_a_plan_that_the_user_switched_to_is_the_one_to_go_back_to(home):
    run = deployed(home, protect=4)
    first = run.fit(make_data("mlp", losses.ROWS)).wait()
    first_stage, last_stage = run.plan.stages
    only_stage = replace(first_stage, stop=last_stage.stop)
    without = replace(run.plan, stages=(only_stage,))
    run.switch(without).wait()
    second = run.fit(make_data("mlp", losses.ROWS), epochs=10).wait()
    assert run.plan.devices == (A,)  # all others are there, and not wanted
    assert not second.arrivals
    check_learned(run, joined(first, second), epochs=11)


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(s, marks=pytest.mark.long) for s in range(8, 300))]
)
def test_whoever_comes_and_goes_whenever_it_learns_what_one_machine_learns(seed):
    rng = random.Random(seed)
    plan, optimizer = rng.choice([*losses.PLANS]), rng.choice([*losses.OPTIMIZERS])
    with memory_home(3) as home:
        run, lab = (
            deployed(home, plan, optimizer, protect=rng.choice((1, 4, True))),
            memory_of(home),
        )

        def goes(device):
            if lab.is_there(device) and sum(map(lab.is_there, (A, B, C))) > 1:
                rng.choice((lab.kill, lab.kill, lambda d: lab.leave(d, "tired", 1e6)))(device)

        def comes(device):
            if not lab.is_there(device):
                lab.restart(device)
            elif home.devices[device].leaving:
                lab.stay(device)

        faults = []
        for _ in range(rng.choice((1, 2, 3))):
            device, when = rng.choice((A, B, C)), rng.randrange(MESSAGES)
            faults += [
                (when, lambda d=device: goes(d)),
                (when + rng.randrange(1, 300), lambda d=device: comes(d)),
            ]
        inject_after(home, faults)
        history = run.fit(make_data("mlp", losses.ROWS), epochs=8).wait()
        link_of(home).watch(None)
        drained(run)  # one may have wanted to leave as the training ended
        check_learned(run, history, epochs=8, optimizer=optimizer)


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(1, 6), *later([0])])
def test_the_fewer_steps_are_left_the_less_it_pays(seed):
    problem = random_home(seed, Training(batch=8))
    best = make_plans(problem).best
    less = make_plans(only(problem, [problem.devices[0].name])).best
    is_faster = best.latency_s < 0.99 * less.latency_s
    assert pays(less, best, problem, None) == (best.latency_s < less.latency_s)
    assert not pays(less, best, problem, 0)
    assert pays(less, best, problem, 10**9) or not is_faster
    found = [pays(less, best, problem, n) for n in (0, 1, 10, 10**3, 10**5, 10**9)]
    assert found == sorted(found)
    assert not pays(best, less, problem, 10**9)
    assert pays(best, less, problem, 10**9, wanted=less) or not is_faster
