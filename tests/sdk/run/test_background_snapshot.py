"""Snapshots that come home while training goes on, and copies of them that survivors go on from:
whatever is lost, whenever, it learns what one machine learns.
"""

import random
from dataclasses import replace

import pytest
from tests.sdk.run import test_recovery as losses
from tests.sdk.run.conftest import make_data
from tests.sdk.run.test_recovery import A, B, C, check_learned, deployed, joined

from potluck.run import snapshots
from potluck.sessions.events import StartExecution
from potluck.testing.faults import memory_of
from potluck.testing.internals import engine_of, link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
ROWS, EPOCHS = losses.ROWS, losses.EPOCHS


@pytest.fixture
def home():
    with memory_home(3) as home:
        yield home


@pytest.fixture
def often(monkeypatch):
    """Devices are lost every moment: a snapshot is due as soon as the one before has come home."""
    monkeypatch.setattr(snapshots, "LOST_S", 1e-12)
    monkeypatch.setattr(snapshots, "MOST_FRAC", 1e9)
    monkeypatch.setattr(snapshots, "MOST_AIR_FRAC", 1e9)
    monkeypatch.setattr(snapshots, "LATE", 1e30)


def killed_at(home, step, *devices, how="kill"):
    """What is told every step; these go as soon as so many are done."""

    def on_step(now, loss):
        for device in devices if now == step else ():
            getattr(memory_of(home), how)(device)

    return on_step


def started(home):
    """All programs that are begun from now on, and how many tensors are sent for each."""
    found = []

    def observe(event, actions):
        if isinstance(event, StartExecution):
            found.append((event.program, sum(len(fed) for fed in event.feeds.values())))

    link_of(home).watch(observe)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "seed", [*range(16), *(pytest.param(s, marks=pytest.mark.long) for s in range(16, 600))]
)
def test_whatever_is_lost_whenever_it_learns_what_one_machine_learns(often, seed):
    rng = random.Random(seed)
    plan, optimizer = rng.choice([*losses.PLANS]), rng.choice([*losses.OPTIMIZERS])
    with memory_home(3) as home:
        run = deployed(home, plan, optimizer)
        lab = memory_of(home)
        losses.inject_after(home, [*losses.random_faults(rng, lab)])
        history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
        link_of(home).watch(None)
        check_learned(run, history, optimizer=optimizer)
        assert all(lab.is_there(device) for device in run.plan.devices)


@pytest.mark.long
def test_where_the_air_has_no_room_training_waits_for_it(home, often, monkeypatch):
    monkeypatch.setattr(snapshots, "LATE", 0.0)
    run = deployed(home)
    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
    assert run.protection.snapshot.step >= run.step - 3
    check_learned(run, history)


@pytest.mark.long
def test_a_snapshot_comes_home_by_itself_and_forgets_the_batches_before_it(home, often):
    run = deployed(home)
    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
    assert run.protection.snapshot.step > 5
    assert len(run.protection.batches) == run.step - run.protection.snapshot.step
    check_learned(run, history)


@pytest.mark.long
@pytest.mark.parametrize("lost", [A, B, C])
@pytest.mark.parametrize("plan", [*losses.PLANS])
def test_survivors_go_on_in_the_same_run_from_what_they_have(home, often, plan, lost):
    run = deployed(home, plan)
    name, programs = engine_of(run).compiled_plan.run, started(home)
    history = run.fit(
        make_data("mlp", ROWS), epochs=EPOCHS, on_step=killed_at(home, 9, lost)
    ).wait()
    link_of(home).watch(None)
    check_learned(run, history)
    if lost not in losses.PLANS[plan][-1][0] and lost not in losses.PLANS[plan][0][0]:
        assert not history.recoveries  # it was idle
        return
    assert lost not in run.plan.devices
    assert len(history.recoveries) == 1
    if (
        engine_of(run).compiled_plan.run == name
    ):  # else the copies were newer than what had come home
        fed = sum(n for program, n in programs if program == "move")
        most = 4 * len(run.state_dict()) * len(run.plan.devices)  # a weight, and AdamW's three
        assert fed < most if plan != "replicas" else fed == 0


def test_a_run_that_is_closed_leaves_nothing_that_is_waited_for(home, often):
    """Else virtual time would go on for ever."""
    run = deployed(home)
    for _ in range(100):  # until a snapshot is on its way
        run.fit(make_data("mlp", ROWS)).wait()
        background = engine_of(run).background
        if background is not None and background.is_arriving:
            break
    else:
        raise AssertionError("no snapshot has begun")
    run.close()
    memory_of(home).pass_time(1.0)
    assert link_of(home).n_unanswered == 0


@pytest.mark.long
def test_replicas_lose_nothing_that_home_has_to_send(home, often, monkeypatch):
    run = deployed(home, "replicas")
    name, programs = engine_of(run).compiled_plan.run, started(home)

    def on_step(step, loss):
        engine = engine_of(run)
        with engine.boundary():
            if step == 9:
                engine.finish()
                if engine.background.is_arriving:
                    engine.background.take_in()
                monkeypatch.setattr(snapshots, "LOST_S", 1e30)  # no further one
                memory_of(home).kill(A)

    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
    link_of(home).watch(None)
    check_learned(run, history)
    assert engine_of(run).compiled_plan.run == name
    assert not any(n for program, n in programs if program in ("move", "push"))


@pytest.mark.long
def test_a_worker_that_ended_knows_the_run_no_more(home, often):
    run = deployed(home)
    name = engine_of(run).compiled_plan.run
    history = run.fit(
        make_data("mlp", ROWS), epochs=EPOCHS, on_step=killed_at(home, 9, A, how="kill_worker")
    ).wait()
    assert engine_of(run).compiled_plan.run != name
    assert run.plan.devices == (A, B, C)
    check_learned(run, history)


@pytest.mark.long
def test_two_that_go_at_once_leave_the_third_with_all(home, often):
    run = deployed(home)
    history = run.fit(
        make_data("mlp", ROWS), epochs=EPOCHS, on_step=killed_at(home, 9, A, B)
    ).wait()
    assert run.plan.devices == (C,)
    check_learned(run, history)


def test_one_after_another_each_before_the_next_snapshot(home):
    run = deployed(home, "pipeline")
    first = run.fit(make_data("mlp", ROWS)).wait()
    memory_of(home).kill(B)
    second = run.fit(make_data("mlp", ROWS), on_step=killed_at(home, 8, A)).wait()
    third = run.fit(make_data("mlp", ROWS)).wait()
    assert run.plan.devices == (C,)
    check_learned(run, joined(first, second, third))


@pytest.mark.long
def test_a_number_of_steps_is_kept_to_the_letter(home, often):
    run = deployed(home, protect=4)
    run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
    assert run.protection.is_exact
    assert run.protection.snapshot.step == 12
    assert engine_of(run).background is None


@pytest.mark.long
def test_without_memory_for_a_copy_training_waits_for_snapshots(home, often):
    _, model = losses.make_model("mlp")
    plan = losses.make_plan(model, *losses.PLANS["both"], micro_batch=4, n_micro_batches=2)
    may_use = home.devices[A].capability["memory_bytes"]
    plan = replace(plan, peak_bytes={A: may_use - 64})
    run = home.deploy(plan, model, optimizer=losses.OPTIMIZERS["adamw"][0]).wait()
    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
    assert engine_of(run).background is None
    assert run.protection.snapshot.step > 5
    (note,) = history.notes
    assert note.startswith("local-1 has no room for a second copy of its state, ")
    assert "--memory" in note
    check_learned(run, history)


def test_what_copies_take_of_each_device_is_said_before_and_true(home, often):
    run = deployed(home, "pipeline")
    assert set(run.protection.copies) == {A, B}
    run.fit(make_data("mlp", ROWS)).wait()
    parameters = sum(tensor.nbytes for tensor in run.state_dict().values())
    n_steps = 4 * len(run.state_dict())  # AdamW counts the steps of every parameter
    assert sum(run.protection.copies.values()) == 3 * parameters + n_steps
    assert "at most on a device" in repr(run.protection)


@pytest.mark.long
def test_a_switch_and_a_loss_after_it(home, often):
    run = deployed(home, "pipeline")
    first = run.fit(make_data("mlp", ROWS)).wait()
    other = losses.make_plan(
        engine_of(run).model, *losses.PLANS["both"], micro_batch=4, n_micro_batches=2
    )
    run.switch(other).wait()
    second = run.fit(make_data("mlp", ROWS), epochs=2, on_step=killed_at(home, 10, C)).wait()
    assert C not in run.plan.devices
    check_learned(run, joined(first, second))
