"""Profiling real agents: every layer on every device, links both ways, cached, cancellable."""

import warnings

import pytest
from tests.sdk.run.conftest import make_model

import potluck
from potluck.profile.layer_times_store import LayerTimesStore
from potluck.profile.measure import by_host, profile
from potluck.sessions.members import Member
from potluck.testing.internals import link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")


@pytest.mark.long
def test_a_profile_makes_a_problem_that_planners_solve(home):
    _, model = make_model("mlp")
    handle = home.profile(model, rows=(1, 4), repeats=1)
    measured = handle.wait()
    assert handle.progress[0] == 1.0
    for mode, train in ((measured.training, True), (measured.inference, False)):
        assert set(mode.costs) == {"local-1", "local-2"}
        for costs in mode.costs.values():
            assert len(costs) == len(model.layers(train))
            assert all(cost.rows == (1, 4) and min(cost.forward_s) > 0 for cost in costs)
            assert all(len(cost.backward_s) == 2 * train for cost in costs)
    names = ("local-1", "local-2", "home")
    assert set(measured.network.paths) == {(a, b) for a in names for b in names if a != b}
    assert all(device.memory_bytes > 0 for device in measured.devices)
    assert all(device.host_cores and device.handling_s for device in measured.devices)
    plans = potluck.plan(handle, potluck.Training(batch=8))
    run = home.deploy(plans.best, model).wait()
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    run.fit((x, y)).wait()
    compared = run.compare()
    assert compared.predicted_step_s > 0
    assert compared.measured_step_s > 0
    assert "Plan" in run._repr_html_() or "plan" in run._repr_html_()
    learned = home.learn(run)
    used = plans.best.devices[0]
    assert learned.training.costs[used] != measured.training.costs[used]
    assert learned.inference == measured.inference
    assert run.predicted.busy_s != compared.predicted.busy_s
    run.close()


def test_some_devices_alone_are_measured_and_that_is_not_the_homes_profile(home):
    _, model = make_model("mlp")
    known = home.network
    some = home.profile(model, train=False, rows=(1,), repeats=1, devices=("local-2",)).wait()
    assert set(some.inference.costs) == {device.name for device in some.devices} == {"local-2"}
    assert home.network == known
    with pytest.raises(potluck.errors.DeviceGone, match="not in this home"):
        home.profile(model, devices=("nobody",)).wait()


@pytest.mark.filterwarnings("error")
def test_profiles_that_are_asked_for_at_once_come_one_after_another(home):
    models = [make_model(kind)[1] for kind in ("mlp", "cnn", "mlp")]
    handles = [home.profile(model, rows=(2,), repeats=9, fresh=True) for model in models]
    links = home.measure_network()
    for handle in handles:
        assert set(handle.wait().training.costs) == {*home.devices}
    assert links.wait()


def test_the_second_time_nothing_is_measured(home, tmp_path):
    _, model = make_model("mlp")
    store = LayerTimesStore(tmp_path)

    class Counted(potluck.handle.Task):
        texts = ()

        def update(self, done_frac, text=""):
            self.texts = (*self.texts, text)

    def once(**more):
        task = Counted()
        found = profile(
            link_of(home),
            home.devices,
            model,
            task,
            train=False,
            rows=(1, 2),
            repeats=1,
            store=store,
            save=store,
            **more,
        )
        return found, sum("known" in text for text in task.texts)

    first, n_known = once()
    assert n_known == 0
    second, n_known = once()
    assert n_known == 2 * len(model.layers())
    assert second.inference.costs == first.inference.costs
    broken = store.path(
        model.signature,
        potluck.profile.layer_times_store.about_of(
            home.devices["local-1"].key, home.devices["local-1"].capability
        ),
    )
    broken.write_text("{")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        third, n_known = once()
    assert n_known == len(model.layers())
    assert broken.name in str(warned[0].message)
    assert broken.name in third.notes[0]


def test_devices_of_one_host_are_measured_one_after_another():
    host = {"a": "x", "b": "x", "c": "y"}
    busy, most = set(), {}

    def work(name):
        busy.add(name)
        same_host = [other for other in busy if host[other] == host[name]]
        most[name] = len(same_host)
        busy.discard(name)
        return name.upper()

    assert by_host("abc", host.get, work) == {"a": "A", "b": "B", "c": "C"}
    assert set(most.values()) == {1}


def test_a_profile_for_inference_cannot_plan_training(home):
    _, model = make_model("mlp")
    measured = home.profile(model, train=False, rows=(1,), repeats=1).wait()
    with pytest.raises(potluck.errors.PlanError, match="not measured for training"):
        potluck.plan(measured, potluck.Training(batch=8))


@pytest.mark.long
def test_a_batch_norm_over_rows_is_measured_at_what_it_can_learn_from(home, tmp_path):
    """A row that is one value of a channel teaches it nothing; two do."""
    layers = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4)
    x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
    net, loss = torch.nn.Sequential(*layers), torch.nn.functional.cross_entropy
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    measured = home.profile(model, rows=(1, 4), repeats=1).wait()
    for costs in measured.training.costs.values():
        assert {cost.rows for cost in costs} == {(2, 4)}
    for costs in measured.inference.costs.values():
        assert {cost.rows for cost in costs} == {(1, 4)}
    plan = potluck.plan(measured, potluck.Training(batch=8)).best
    run = home.deploy(plan, model).wait()
    run.fit((torch.randn(16, 8), torch.randint(0, 4, (16,)))).wait()
    assert run.step == 2


def test_a_device_whose_memory_others_have_is_left_out_and_the_others_are_measured(monkeypatch):
    stated = Member.capability.fget
    with memory_home(2) as home:
        full, other = home.devices

        def left(member):
            return {**stated(member), **({"available_bytes": 0} if member.name == full else {})}

        monkeypatch.setattr(Member, "capability", property(left))
        with pytest.warns(UserWarning, match=f"{full} is left out. {full}: none of what its owner"):
            found = home.profile(make_model("mlp")[1], rows=(2,), repeats=1).wait()
        assert [device.name for device in found.devices] == [other]
        assert "none of what its owner" in found.excluded[full]
