"""Devices and workers are lost at every moment of a training; it goes on, and learns what one
machine learns.
"""

import random
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.sdk.run import fault_injection
from tests.sdk.run import test_switching as switching
from tests.sdk.run.conftest import (
    make_data,
    make_model,
    make_net,
    make_plan,
    more_steps,
    train_alone,
)
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.adapt.lightweight_replay import POLICIES
from potluck.errors import DeviceGone, OutOfMemory, PotluckError, UserError
from potluck.run.history import History
from potluck.run.snapshots import LOST_S, MOST_FRAC, interval_s
from potluck.sessions.agent_specs import Spec
from potluck.sessions.events import Received
from potluck.testing.faults import at, memory_of
from potluck.testing.internals import engine_of, link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B, C = (f"local-{i}" for i in (1, 2, 3))
PLANS = {
    "pipeline": (((A,), (4,)), ((B,), (4,))),
    "replicas": (((A, B, C), (2, 1, 1)),),
    "both": (((A,), (4,)), ((B, C), (3, 1))),
}
ROWS = 36
BATCH = 8  # the last batch of an epoch has four rows
EPOCHS = 3
MESSAGES = 250  # more than any of these trainings brings to the notebook
OPTIMIZERS = {
    "adamw": (potluck.AdamW(lr=1e-2), lambda p: torch.optim.AdamW(p, lr=1e-2)),
    "sgd": (potluck.SGD(lr=0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
}


@pytest.fixture
def home():
    with memory_home(3) as home:
        yield home


def deployed(home, plan="both", optimizer="adamw", chosen=None, **more):
    _, model = make_model("mlp")
    chosen = chosen or make_plan(model, *PLANS[plan], micro_batch=4, n_micro_batches=2)
    return home.deploy(chosen, model, optimizer=OPTIMIZERS[optimizer][0], **more).wait()


def check_learned(run, history, epochs=EPOCHS, optimizer="adamw"):
    """Every loss and every weight is that of one machine."""
    alone, (x, y) = make_net("mlp"), make_data("mlp", ROWS)
    losses = train_alone(
        alone,
        x,
        y,
        batch=BATCH,
        micro_batch=4,
        epochs=epochs,
        make_optimizer=OPTIMIZERS[optimizer][1],
    )
    assert len(history.losses) == len(losses) == run.step
    assert history.losses == pytest.approx(losses, abs=1e-5)
    learned = run.state_dict()
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(learned[name], tensor, atol=1e-5)


def inject_after(home, faults):
    """Each fault, a pair of a number of messages to the notebook and what then happens."""
    remaining, seen = sorted(faults, key=lambda fault: fault[0]), 0

    def observe(event, actions):
        nonlocal seen
        seen += isinstance(event, Received)
        while remaining and seen > remaining[0][0]:
            remaining.pop(0)[1]()

    link_of(home).watch(observe)


def random_faults(rng, lab):
    """One or two losses, at any moments; a device is left."""
    killed = []

    def kill(device):
        if lab.is_there(device) and len(killed) < 2:
            killed.append(device)
            lab.kill(device)

    def kill_worker(device):
        if lab.is_there(device):
            lab.kill_worker(device)

    for _ in range(rng.choice((1, 2, 2))):
        device, how = rng.choice((A, B, C)), rng.choice((kill, kill_worker))
        yield rng.randrange(MESSAGES), lambda how=how, device=device: how(device)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(s, marks=pytest.mark.long) for s in range(12, 600))]
)
def test_whatever_is_lost_whenever_it_learns_what_one_machine_learns(seed):
    rng = random.Random(seed)
    plan, optimizer = rng.choice([*PLANS]), rng.choice([*OPTIMIZERS])
    every = rng.choice((1, 2, 4, 100))
    recovery = rng.choice([*POLICIES])
    with memory_home(3) as home:
        run = deployed(home, plan, optimizer, protect=every, recovery=recovery)
        lab = memory_of(home)
        inject_after(home, [*random_faults(rng, lab)])
        history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
        link_of(home).watch(None)
        check_learned(run, history, optimizer=optimizer)
        assert all(lab.is_there(device) for device in run.plan.devices)
        assert sum(recovery.n_again for recovery in history.recoveries) <= (every + 2) * 4


@pytest.mark.long
def test_the_history_tells_what_was_lost_and_what_it_cost(home):
    run = deployed(home, protect=4)

    def on_step(step, loss):
        if step == 7:
            memory_of(home).kill(B)

    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
    (recovery,) = history.recoveries
    assert (recovery.device, recovery.devices) == (B, (A, C))
    assert 7 <= recovery.step <= 9
    assert recovery.n_again == recovery.step - 4 or recovery.n_again == recovery.step - 8
    assert recovery.seconds > 0
    assert "lightweight replay" in recovery.planner
    (note,) = history.notes
    assert note == recovery.words
    assert "local-2" in note
    assert "Deploy again" not in note  # nobody has to
    check_learned(run, history)


@pytest.mark.long
@pytest.mark.parametrize("lost", [A, B, C])
def test_with_a_profile_the_plan_is_the_best_for_who_is_left_within_its_limits(home, lost):
    _, model = make_model("mlp")
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    limits = potluck.QoE(memory_bytes={A: 2**30, B: 2**30, C: 2**30}, latency_s=1e-9)
    chosen = replace(
        make_plan(model, *PLANS["both"], micro_batch=4, n_micro_batches=2),
        problem=profile.problem(potluck.Training(batch=BATCH), limits),
    )
    run = home.deploy(chosen, model, optimizer=OPTIMIZERS["adamw"][0], protect=3).wait()

    def on_step(step, loss):
        if step == 6:
            memory_of(home).kill(lost)

    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
    assert lost not in run.plan.devices
    assert run.plan.latency_s > 0
    assert history.recoveries[0].predicted_s > 0
    assert run.plan.micro_batch == 4
    check_learned(run, history)


@pytest.mark.long
@pytest.mark.parametrize("name", ["as profiled", "by hand"])
@pytest.mark.parametrize(
    ("recovery", "planner"), [("lightweight", "lightweight replay"), ("heavy", "planned anew")]
)
def test_a_way_of_recovery_is_taken_by_its_name(home, recovery, planner, name):
    _, model = make_model("mlp")
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    problem = profile.problem(potluck.Training(batch=BATCH))
    plan = make_plan(model, *PLANS["both"], micro_batch=4, n_micro_batches=2)
    chosen = replace(plan, model=problem.model, problem=problem) if name == "as profiled" else plan
    run = home.deploy(
        chosen,
        model,
        optimizer=OPTIMIZERS["adamw"][0],
        protect=3,
        recovery=recovery,
        profile=profile,
    ).wait()

    def on_step(step, loss):
        if step == 6:
            memory_of(home).kill(C)

    data = make_data("mlp", ROWS)
    history = run.fit(data, epochs=EPOCHS, on_step=on_step, adapt=False).wait()
    (steps,) = history.recoveries
    assert steps.planner.endswith(planner)
    check_learned(run, history)


@pytest.mark.parametrize("recovery", ["", "fast", None, 1, ["heavy"]])
def test_no_other_way_of_recovery_is_taken(home, recovery):
    with pytest.raises(
        UserError, match=r"no way of recovery called .* soonest, lightweight, heavy"
    ):
        deployed(home, recovery=recovery)


@pytest.mark.long
def test_on_step_hears_of_every_step_once(home):
    run, steps = deployed(home, protect=5), []

    def on_step(step, loss):
        steps.append((step, loss))
        if step in (6, 13):
            memory_of(home).kill_worker(A)

    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
    assert len(history.recoveries) == 2
    assert steps == list(enumerate(history.losses, start=1))


@pytest.mark.long
def test_what_becomes_of_the_module_meanwhile_does_not_matter(home):
    """The first snapshot is of the weights as they were sent."""
    run = deployed(home, protect=100)

    def on_step(step, loss):
        if step == 5:
            run.load_into()
        if step == 8:
            memory_of(home).kill(C)

    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
    assert history.recoveries[0].n_again == history.recoveries[0].step
    check_learned(run, history)


@pytest.mark.long
def test_a_device_that_is_lost_while_nothing_goes_on_is_missed_by_nobody(home):
    run = deployed(home, protect=1)
    first = run.fit(make_data("mlp", ROWS)).wait()
    memory_of(home).kill(B)
    check_learned(run, first, epochs=1)  # whoever asks for the weights gets them
    memory_of(home).kill(A)
    second = run.fit(make_data("mlp", ROWS), epochs=2).wait()
    assert run.plan.devices == (C,)
    check_learned(run, joined(first, second))


def joined(*histories):
    """One history of several."""
    return History(losses=sum((history.losses for history in histories), ()))


@pytest.mark.long
@pytest.mark.parametrize("after", range(4))
def test_who_asks_for_weights_as_a_fit_ends_takes_no_loss_from_its_history(home, after):
    """Another thread may be the one that recovers."""
    run = deployed(home, protect=3)

    def on_step(step, loss):
        if step == 5 + after:
            memory_of(home).kill_worker(A)
            asking.start()

    asking = threading.Thread(target=lambda: [run.state_dict() for _ in range(3)])
    fits = [run.fit(make_data("mlp", ROWS), on_step=on_step) for _ in range(EPOCHS)]
    histories = [fit.wait() for fit in fits]
    asking.join(TIMEOUT_S)
    assert [len(history.losses) for history in histories] == [5, 5, 5]
    check_learned(run, joined(*histories))


@pytest.mark.long
def test_an_answer_of_a_run_in_training_survives_too(home):
    run, (x, _) = deployed(home, protect=1), make_data("mlp", ROWS)
    run.fit(make_data("mlp", ROWS)).wait()
    before = run(x)
    memory_of(home).kill_worker(A)
    assert torch.allclose(run(x), before, atol=1e-6)
    memory_of(home).kill(B)
    assert torch.allclose(run(x), before, atol=1e-6)


@pytest.mark.long
def test_a_saved_run_is_that_of_now_although_a_device_was_lost(home, tmp_path):
    run = deployed(home, protect=100)
    first = run.fit(make_data("mlp", ROWS)).wait()
    memory_of(home).kill(B)
    run.save(tmp_path / "run")
    run.close()
    plan = make_plan(engine_of(run).model, ((A,), (4,)), micro_batch=4, n_micro_batches=2)
    resumed = home.deploy(plan, engine_of(run).model, resume=tmp_path / "run").wait()
    second = resumed.fit(make_data("mlp", ROWS), epochs=2).wait()
    assert (run.step, len(first.losses)) == (5, 5)
    check_learned(resumed, joined(first, second))


@pytest.mark.long
def test_where_nobody_is_left_what_was_learned_can_still_be_saved(home, tmp_path):
    run = deployed(home, protect=2)

    def on_step(step, loss):
        for device in (A, B, C) if step == 7 else ():
            memory_of(home).kill(device)

    with pytest.raises(DeviceGone) as ended:
        run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
    with pytest.raises(DeviceGone, match=r"by step 6 is still here: run\.save"):
        run.state_dict()
    run.save(tmp_path / "run")
    memory_of(home).restart(A)
    home.devices.join()
    plan = make_plan(engine_of(run).model, ((A,), (4,)), micro_batch=4, n_micro_batches=2)
    resumed = home.deploy(plan, engine_of(run).model, resume=tmp_path / "run").wait()
    assert resumed.step == 6
    assert ended.value.device in (A, B, C)


@pytest.mark.long
def test_a_device_that_comes_back_can_be_used_again_by_a_switch(home):
    run = deployed(home, protect=3)
    before = run.plan

    def on_step(step, loss):
        if step == 4:
            memory_of(home).kill(B)
        if step == 9:
            memory_of(home).restart(B)

    history = run.fit(make_data("mlp", ROWS), epochs=2, on_step=on_step).wait()
    assert run.plan.devices == (A, C)
    home.devices.join()
    run.switch(before).wait()
    more = run.fit(make_data("mlp", ROWS)).wait()
    assert run.plan.devices == (A, B, C)
    check_learned(run, joined(history, more))


def test_without_protection_a_loss_ends_the_run(home):
    run = deployed(home, protect=False)
    assert run.protection is None
    memory_of(home).kill(B)
    with pytest.raises(DeviceGone, match=B):
        run.fit(make_data("mlp", ROWS)).wait()
    with pytest.raises(DeviceGone, match="a saved run can be resumed"):
        run.fit(make_data("mlp", ROWS))


@pytest.mark.few(1)
@pytest.mark.parametrize("protect", [0, -3, 2.5, "often"])
def test_no_way_to_protect_is_refused_before_anything_is_sent(home, protect):
    with pytest.raises(UserError, match="protect"):
        deployed(home, protect=protect)


def test_snapshots_cost_no_more_than_their_part_and_come_as_young_and_daly_say():
    for cost_s in (1e-3, 0.1, 1.0, 30.0):
        for n_devices in (1, 4, 20):
            seconds = interval_s(cost_s, n_devices)
            assert cost_s / seconds <= MOST_FRAC * (1 + 1e-9)
            assert seconds >= (2 * cost_s * LOST_S / n_devices) ** 0.5


def test_after_losses_snapshots_come_sooner(home):
    run = deployed(home)
    run.fit(make_data("mlp", ROWS)).wait()
    protection = run.protection
    seconds = [protection.lost_s]
    for _ in range(3):
        protection.lost()
        seconds.append(protection.lost_s)
    assert seconds[0] == LOST_S
    assert seconds[1:] == pytest.approx([LOST_S / (1 + n) for n in (1, 2, 3)], rel=0.01)
    run.close()


SWITCHING = [
    (moment, device, how, after)
    for moment in fault_injection.TRAINING
    for device in switching.PLANS["abc"]
    for how in ("kill", "kill_worker")
    for after in (0, 1, 3, 8)
]
QUICK = SWITCHING[::29]


@pytest.fixture(scope="module")
def model():
    return switching.make_model()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("moment", "device", "how", "after"),
    [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.long]) for case in SWITCHING],
)
def test_a_loss_in_the_middle_of_a_switch_changes_nothing_that_is_learned(
    model, moment, device, how, after
):
    """Bit for bit, with batch norm: the plan after it has the same micro-batches."""
    (name,), _ = device
    with switching.open_lab() as lab:
        run = lab.deploy(switching.plan_of(model, "ab"), model, protect=3).wait()
        fault = getattr(memory_of(lab), how)
        with at(lab, fault_injection.TRAINING[moment], lambda: fault(name), after=after):
            at_work = run.fit(switching.make_data(), epochs=switching.FOREVER)
            with suppress(PotluckError):  # it may be the switch that met the fault
                run.switch(switching.plan_of(model, "abc")).wait()
            more_steps(run, at_work, 3)
            switching.stop(run, at_work)
        assert memory_of(lab).is_there(name) or name not in run.plan.devices
        switching.check_equal(run)


ASKED = {"average": {"ema": 0.9}, "optimizer": {"optimizer": potluck.AdamW(lr=1e-2)}}


@pytest.mark.few(1)
@pytest.mark.parametrize("protect", [None, 1, 100, False])
@pytest.mark.parametrize("devices", [(A,), (A, B)])
@pytest.mark.parametrize("asked", ASKED)
def test_what_a_device_has_no_room_for_is_refused_and_costs_nothing(asked, devices, protect):
    """It is no loss: nobody is left out, and nothing is computed again."""
    _, model = make_model("mlp")
    stages = [((device,), (4,)) for device in devices]
    plan = make_plan(model, *stages, micro_batch=4, n_micro_batches=2)
    data = make_data("mlp", ROWS)
    with memory_home(2) as home:
        made = home.deploy(plan, model, optimizer=OPTIMIZERS["sgd"][0], protect=False).wait()
        needed = {name: engine_of(made).compiled_plan.memory_bytes(name) for name in devices}
    specs = [Spec(name=name, memory=f"{1.02 * needed[name]:.0f} B") for name in devices]
    with memory_home(specs) as home:
        run = home.deploy(plan, model, optimizer=OPTIMIZERS["sgd"][0], protect=protect).wait()
        first = run.fit(data).wait()
        with pytest.raises(OutOfMemory, match="bytes are available"):
            run.fit(data, **ASKED[asked]).wait()
        second = run.fit(data, epochs=EPOCHS - 1).wait()
        assert (run.plan, second.recoveries) == (plan, ())
        check_learned(run, joined(first, second), optimizer="sgd")
