"""A fit with a deadline ends in time with less energy than the fastest plan takes, and learns what
one machine learns.
"""

import threading
from dataclasses import replace

import pytest
from tests.sdk.run.test_switching import A, C, check_equal, make_data, make_model, plan_of

import potluck
from potluck.adapt.adapter import FAILED
from potluck.errors import Infeasible, UserError
from potluck.records import LayerCost
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import memory_of
from potluck.testing.internals import engine_of
from potluck.testing.memory import memory_home

EPOCHS = 10  # of eight steps
N_STEPS = 80
LAYER_S = {A: 0.01, C: 0.03}
WATTS = {A: (1.0, 30.0, 1.0), C: (0.5, 3.0, 1.0)}


SPECS = [
    Spec(name=name, link_rate="20 Mbit/s", power=WATTS[name], emulated=True) for name in (A, C)
]


@pytest.fixture(scope="module")
def home():
    with memory_home(SPECS) as home:
        yield home


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def profile(home, model):
    return profiled(home, model)


@pytest.fixture
def changing_home(model):
    """One whose devices may leave, and its profile."""
    with memory_home(SPECS) as home:
        yield home, profiled(home, model)


def profiled(home, model):
    """One device is three times as fast, and takes three times as many joules."""
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    costs = {
        name: tuple(
            LayerCost(rows=(4,), forward_s=(seconds,), backward_s=(seconds,), update_s=seconds)
            for _ in profile.training.layers
        )
        for name, seconds in LAYER_S.items()
    }
    return replace(profile, training=replace(profile.training, costs=costs))


@pytest.fixture(scope="module")
def alone_s(profile, model):
    return seconds_alone(profile, model)


def seconds_alone(profile, model):
    """Seconds of all steps on each device alone."""
    plans = {A: plan_of(model, "a"), C: plan_of(model, "c")}
    plans = {name: replace(plan, model=profile.model) for name, plan in plans.items()}
    return {n: N_STEPS * potluck.judge(plan, profile).latency_s for n, plan in plans.items()}


def slowly(step, loss):
    """Virtual steps take no time: who decides in the background comes along."""
    for thread in threading.enumerate():
        if thread.name == "potluck pacing":
            thread.join(0.3)


def trained(home, model, profile, deadline_s):
    run = home.deploy(plan_of(model, "a"), model, profile=profile).wait()
    fitting = run.fit(make_data(), epochs=EPOCHS, deadline_s=deadline_s, on_step=slowly)
    return run, fitting.wait()


@pytest.mark.long
@pytest.mark.parametrize("part", [0.3, 0.7])
def test_a_deadline_is_held_and_the_thrifty_device_works_as_long_as_it_may(
    home, model, profile, alone_s, part
):
    deadline_s = alone_s[A] + part * (alone_s[C] - alone_s[A])
    run, history = trained(home, model, profile, deadline_s)
    seconds = sum(history.step_s)
    assert seconds <= deadline_s
    assert {each.plan.devices for each in history.decisions} >= {(C,)}
    # the time of the fastest plan, and a good part of what is left for the other one
    assert seconds >= alone_s[A] + 0.25 * part * (alone_s[C] - alone_s[A])
    check_equal(run)
    run.close()


@pytest.mark.long
def test_with_time_to_spare_the_thrifty_device_does_it_all(home, model, profile, alone_s):
    run, history = trained(home, model, profile, 1.3 * alone_s[C])
    assert [each.plan.devices for each in history.decisions] == [(C,)]
    assert run.plan.devices == (C,)
    run.close()


@pytest.mark.long
def test_too_little_time_is_refused_before_a_step(home, model, profile, alone_s):
    run = home.deploy(plan_of(model, "a"), model, profile=profile).wait()
    with pytest.raises(Infeasible, match=rf"{N_STEPS} steps take .* or more; the deadline is in"):
        run.fit(make_data(), epochs=EPOCHS, deadline_s=0.5 * alone_s[A]).wait()
    assert run.step == 0
    run.fit(make_data()).wait()  # it goes on without one
    run.close()


@pytest.mark.long
def test_who_turns_out_to_be_slow_goes_over_to_the_fastest_and_says_that_it_is_late(
    home, model, profile, alone_s
):
    quick = replace(
        profile,
        training=replace(
            profile.training,
            costs={
                name: tuple(
                    replace(cost, forward_s=(seconds / 4,), backward_s=(seconds / 4,))
                    for cost in profile.training.costs[name]
                )
                for name, seconds in LAYER_S.items()
            },
        ),
    )
    run = home.deploy(plan_of(model, "c"), model, profile=profile).wait()
    engine_of(run).compiler.profile = quick
    fitting = run.fit(make_data(), epochs=EPOCHS, deadline_s=alone_s[A], on_step=slowly)
    history = fitting.wait()
    assert run.plan.devices == (A,)
    assert "late" in history.decisions[-1].words
    run.close()


def gone(lab, name):
    lab.kill(name)


def leaving(lab, name):
    lab.leave(name, "it is too warm", 1e6)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["", "by hand"])
@pytest.mark.parametrize("how", [gone, leaving])
@pytest.mark.parametrize("part", [0.6, 1.1])  # planning takes real seconds of the time there is
def test_who_is_gone_or_leaves_is_not_chosen_however_fast(changing_home, model, part, how, name):
    home, profile = changing_home
    alone_s = seconds_alone(profile, model)  # calls are measured, and no two profiles are the same
    deadline_s = alone_s[A] + part * (alone_s[C] - alone_s[A])
    plan = replace(plan_of(model, "a"), model=name or profile.model)
    run = home.deploy(plan, model, profile=profile).wait()

    def on_step(step, loss):
        if step == 20 and len(run.history.recoveries) + len(run.history.departures) == 0:
            how(memory_of(home), run.plan.devices[0])
        slowly(step, loss)

    fitting = run.fit(make_data(), epochs=EPOCHS, deadline_s=deadline_s, on_step=on_step)
    history = fitting.wait()
    assert [each.words for each in history.decisions if each.action == FAILED] == []
    assert set(run.plan.devices) <= set(home.devices.staying)
    check_equal(run)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"deadline_s": 0.0}, "a number of seconds to come"),
        ({"deadline_s": float("inf")}, "a number of seconds to come"),
        ({"deadline_s": 5.0, "adapt": True}, "adapt=True is not for it"),
    ],
)
def test_odd_deadlines_are_refused(home, model, profile, options, text):
    run = home.deploy(plan_of(model, "a"), model, profile=profile).wait()
    with pytest.raises(UserError, match=text):
        run.fit(make_data(), **options)
    run.close()


def test_a_deadline_needs_a_profile_and_a_number_of_batches(home, model, profile):
    with memory_home([Spec(name=A)]) as unknown:
        run = unknown.deploy(plan_of(model, "a"), model).wait()
        with pytest.raises(UserError, match=r"home.profile\(model\)"):
            run.fit(make_data(), deadline_s=5.0)
    run = home.deploy(plan_of(model, "a"), model, profile=profile).wait()
    with pytest.raises(UserError, match="how many batches there are is not known"):
        run.fit((batch for batch in [make_data()]), deadline_s=5.0).wait()
    run.close()
