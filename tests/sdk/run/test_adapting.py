"""A fit that adapts: it leaves links that carry less than was thought, learns what one machine
learns, and leaves a home alone that is as predicted.
"""

import time
from dataclasses import replace
from statistics import median

import pytest
from tests.sdk.run.conftest import make_plan
from tests.sdk.run.test_switching import (
    PLANS,
    A,
    B,
    C,
    check_equal,
    make_data,
    make_model,
    make_net,
    plan_of,
)
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.adapt.adapter import FORGET_STEPS
from potluck.errors import PlanError, UserError
from potluck.handle import CancelledError
from potluck.records import LayerCost
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
EPOCHS = 10  # of eight steps


@pytest.fixture(scope="module")
def home():
    with memory_home([Spec(name=name, link_rate="1 Mbit/s") for name in (A, B, C)]) as home:
        yield home


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def profile(home, model):
    return home.profile(model, rows=(1, 4), repeats=1).wait()


def optimistic(profile):
    """It thinks that links carry fifty times as much."""
    media = tuple(
        replace(medium, capacity_bytes_per_s=50 * medium.capacity_bytes_per_s)
        for medium in profile.network.media
    )
    return replace(profile, network=replace(profile.network, media=media))


@pytest.mark.long
def test_a_fit_leaves_slow_links_and_learns_what_one_machine_learns(home, model, profile):
    run = home.deploy(plan_of(model, "abc"), model, profile=optimistic(profile)).wait()
    history = run.fit(make_data(), epochs=EPOCHS, adapt=True).wait()
    switches = [each for each in history.decisions if each.action == "switch"]
    assert len(switches) == 1
    assert switches[0].plan.stages == run.plan.stages
    assert len(run.plan.devices) == 1
    assert "to go save" in switches[0].words
    assert run.decisions == history.decisions
    assert history.step_s[-1] < history.step_s[0] / 2
    check_equal(run)
    run.close()


# --- a home that changes meanwhile ----------------------------------------------------------------

LAYER_S = 0.05
CHANGES, CHANGES_BACK = 24, 80
N_STEPS = 320
QUICK, SLOW = 1e9, 1e3  # bytes per second
LESS = 1.2e4  # about half of what the profile says


@pytest.fixture
def changing():
    """A home whose devices take as long as they are told, and a profile that says so."""
    specs = [Spec(name=name, link_rate="200 kbit/s", emulated=True) for name in (A, B)]
    with memory_home(specs) as home:
        model = make_model(norm=False)  # whose plans may share rows in another way
        profile = home.profile(model, rows=(1, 4), repeats=1).wait()
        cost = LayerCost(
            rows=(4,),
            forward_s=(LAYER_S,),
            backward_s=(LAYER_S,),
            update_s=LAYER_S / 10,
            source="estimated",
        )
        costs = {name: (cost,) * len(profile.training.layers) for name in (A, B)}
        devices = tuple(replace(device, host="", host_cores=None) for device in profile.devices)
        training = replace(profile.training, costs=costs)
        yield home, model, replace(profile, devices=devices, training=training)


def trained(changing, changes, n_steps=N_STEPS):
    """A training on the best plan; `changes` says what is done to the home after which step."""
    home, model, profile = changing
    plan = potluck.plan(profile, potluck.Training(batch=8, micro_batch=4)).best
    assert len(plan.devices) == 2
    run = home.deploy(plan, model, profile=profile).wait()

    def on_step(step, loss):
        time.sleep(0.01)  # virtual steps take no time: who decides in the background comes along
        if step in changes:
            changes[step](memory_of(home))

    history = run.fit(make_data(), epochs=n_steps // 8, on_step=on_step).wait()
    return run, plan, [each for each in history.decisions if each.action == "switch"]


@pytest.mark.long
def test_a_link_that_becomes_slow_is_left_and_taken_again_when_it_is_not(changing):
    run, plan, switches = trained(
        changing,
        {CHANGES: lambda lab: lab.slow(B, SLOW), CHANGES_BACK: lambda lab: lab.slow(B, QUICK)},
    )
    assert [len(each.plan.devices) for each in switches] == [1, 2]
    assert CHANGES < switches[0].step < CHANGES_BACK < switches[1].step
    assert "carries at" in switches[0].words
    assert run.plan.stages == plan.stages
    check_equal(run, tolerance=1e-5, norm=False)


@pytest.mark.long
def test_over_a_link_that_carries_less_go_smaller_micro_batches(changing):
    """Nothing moves, and the same is learned."""
    run, plan, switches = trained(
        changing, {CHANGES: lambda lab: (lab.slow(A, LESS), lab.slow(B, LESS))}, FORGET_STEPS
    )
    assert len(switches) == 1
    chosen = switches[0].plan
    assert [stage.devices for stage in chosen.stages] == [stage.devices for stage in plan.stages]
    assert [stage.stop for stage in chosen.stages] == [stage.stop for stage in plan.stages]
    assert min(stage.rows for stage in chosen.stages) < plan.micro_batch
    assert "with micro-batches of" in switches[0].words
    history = run.history.step_s
    before, after = history[CHANGES + 4 : switches[0].step], history[switches[0].step + 4 :]
    assert median(after) < 0.9 * median(before)
    check_equal(run, tolerance=1e-5, norm=False)


@pytest.mark.long
def test_a_device_that_becomes_slow_gets_less_to_do(changing):
    changes = {CHANGES: lambda lab: lab.load(B, 5.0)}
    run, plan, switches = trained(changing, changes, FORGET_STEPS)
    assert len(switches) == 1
    assert f"{B} computes at 0.2" in switches[0].words
    assert layers_of_b(run.plan) < layers_of_b(plan)
    check_equal(run, tolerance=1e-5, norm=False)


def layers_of_b(plan):
    return sum(stage.stop - stage.start for stage in plan.stages if B in stage.devices)


@pytest.mark.long
def test_a_home_that_does_not_change_stays_on_its_plan(changing):
    run, plan, switches = trained(changing, {})
    assert switches == []
    assert run.plan.stages == plan.stages


@pytest.mark.long
def test_without_it_nothing_is_decided(home, model, profile):
    run = home.deploy(plan_of(model, "abc"), model, profile=optimistic(profile)).wait()
    assert run.fit(make_data(), epochs=3, adapt=False).wait().decisions == ()
    assert run.plan.stages == plan_of(model, "abc").stages
    run.close()


@pytest.mark.long
def test_the_best_plan_stays_and_its_order_too(home, model, profile):
    run = home.deploy(plan_of(model, "a"), model, profile=profile).wait()
    history = run.fit(make_data(), epochs=EPOCHS, adapt=True).wait()
    assert [each for each in history.decisions if each.action == "order"] == []
    check_equal(run)
    run.close()


@pytest.mark.long
def test_a_loss_in_the_midst_of_adapting_is_survived(model, profile):
    with memory_home([Spec(name=name, link_rate="1 Mbit/s") for name in (A, B, C)]) as home:
        run = home.deploy(plan_of(model, "abc"), model, profile=optimistic(profile)).wait()
        handle = run.fit(
            make_data(),
            epochs=EPOCHS,
            adapt=True,
            on_step=lambda step, _: memory_of(home).kill(B) if step == 25 else None,
        )
        handle.wait()
        assert B not in run.plan.devices
        check_equal(run)


def test_adapting_needs_a_profile(model):
    with memory_home([Spec(name=A), Spec(name=B)]) as nobody_profiled:
        run = nobody_profiled.deploy(plan_of(model, "ab"), model).wait()
        with pytest.raises(UserError, match="there is none") as caught:
            run.fit(make_data(), adapt=True)
        assert "home.profile" in caught.value.next_step


@pytest.mark.long
def test_who_the_user_has_planned_without_is_not_taken_again(home, model, profile):
    """Somebody wants their laptop back."""
    slow = optimistic(profile)
    fast = tuple(
        replace(
            cost,
            forward_s=tuple(seconds / 9 for seconds in cost.forward_s),
            backward_s=tuple(seconds / 9 for seconds in cost.backward_s),
        )
        for cost in slow.training.costs[A]
    )
    costs = {**slow.training.costs, A: fast}  # it would be the best, alone
    slow = replace(slow, training=replace(slow.training, costs=costs))
    run = home.deploy(plan_of(model, "abc"), model, profile=slow).wait()
    without = potluck.plan(slow.without_device(A), potluck.Training(batch=8, micro_batch=4))
    pair = next(plan for plan in without if len(plan.devices) == 2)
    run.switch(pair).wait()
    run.fit(make_data(), epochs=EPOCHS, adapt=True).wait()
    assert [each.action for each in run.decisions].count("switch") == 1
    assert A not in run.plan.devices
    check_equal(run)
    run.close()


# --- requests -------------------------------------------------------------------------------------


def inference_plan(model, name):
    return make_plan(model, *PLANS[name], micro_batch=4, training=False)


@pytest.mark.long
def test_requests_leave_slow_links_and_none_is_answered_otherwise(home, model, profile):
    net, x = make_net(), make_data()[0][:4]
    net.eval()
    run = home.deploy(inference_plan(model, "abc"), model, profile=optimistic(profile)).wait()
    adapting, end_s = home.adapt(run), time.monotonic() + TIMEOUT_S
    while len(run.plan.devices) > 1:
        assert time.monotonic() < end_s
        assert torch.allclose(run(x), net(x), atol=1e-6)
        time.sleep(0.02)  # virtual requests take no time: who decides comes along
    assert torch.allclose(run(x), net(x), atol=1e-6)
    (switch,) = [each for each in run.decisions if each.action == "switch"]
    assert switch.words.startswith("request ")
    run.close()
    assert adapting.wait() == run.decisions


def test_requests_of_a_home_that_is_as_predicted_stay_where_they_are(home, model, profile):
    run = home.deploy(inference_plan(model, "a"), model, profile=profile).wait()
    adapting = run.adapt()
    for _ in range(40):
        run(make_data()[0][:4])
        time.sleep(0.01)
    adapting.cancel()
    with pytest.raises(CancelledError):
        adapting.wait()
    assert [each for each in run.decisions if each.action == "switch"] == []
    run(make_data()[0][:4])  # it answers on
    run.close()


def test_what_cannot_be_adapted_says_so(home, model, profile):
    run = home.deploy(plan_of(model, "a"), model, profile=profile).wait()
    with pytest.raises(PlanError, match="a training adapts by itself"):
        home.adapt(run)
    run.close()
    with memory_home([Spec(name=A)]) as unknown:
        run = unknown.deploy(inference_plan(model, "a"), model).wait()
        with pytest.raises(UserError, match="there is none"):
            run.adapt()
