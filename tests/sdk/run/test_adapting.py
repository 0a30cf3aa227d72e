"""A fit that adapts: it leaves links that carry less than was thought, learns what one machine
learns, and leaves a home alone that is as predicted.
"""

from dataclasses import replace

import pytest
from tests.sdk.run.test_switching import A, B, C, check_equal, make_data, make_model, plan_of

from potluck.errors import UserError
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

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


def test_without_it_nothing_is_decided(home, model, profile):
    run = home.deploy(plan_of(model, "abc"), model, profile=optimistic(profile)).wait()
    assert run.fit(make_data(), epochs=3, adapt=False).wait().decisions == ()
    assert run.plan.stages == plan_of(model, "abc").stages
    run.close()


def test_the_best_plan_stays_and_its_order_too(home, model, profile):
    run = home.deploy(plan_of(model, "a"), model, profile=profile).wait()
    history = run.fit(make_data(), epochs=EPOCHS, adapt=True).wait()
    assert [each for each in history.decisions if each.action == "order"] == []
    check_equal(run)
    run.close()


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
