"""Devices want to leave at every moment of a training or while requests are answered; the run moves
elsewhere first, and nothing is computed twice.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan
from tests.sdk.run.test_recovery import (
    BATCH,
    EPOCHS,
    OPTIMIZERS,
    PLANS,
    ROWS,
    A,
    B,
    C,
    check_learned,
    deployed,
    inject_after,
    joined,
)
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.display.tables import members
from potluck.errors import DeviceGone, PotluckError, Refused
from potluck.run import history
from potluck.testing.faults import agents_of, memory_of
from potluck.testing.internals import drained, link_of
from potluck.testing.memory import memory_home
from potluck_wire.messages import Leaving, Pong

torch = pytest.importorskip("torch")
WHY = "its battery is at 29%"
LONG_S = 1e6  # virtual time passes in no time
MESSAGES = 150


@pytest.fixture
def home():
    with memory_home(3) as home:
        yield home


def leave(home, device, within_s=LONG_S, *, for_good=False):
    memory_of(home).leave(device, WHY, within_s, for_good=for_good)


def settled(home, run):
    """What was said has been heard, and what is to be done because of it is done."""
    memory_of(home).pass_time(1.0)
    drained(run)
    memory_of(home).pass_time(1.0)


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(s, marks=pytest.mark.long) for s in range(10, 400))]
)
def test_whoever_wants_to_leave_whenever_it_is_left_first_and_nothing_is_computed_twice(seed):
    rng = random.Random(seed)
    plan, optimizer = rng.choice([*PLANS]), rng.choice([*OPTIMIZERS])
    going = rng.sample((A, B, C), rng.choice((1, 1, 2)))
    for_good = rng.choice((True, False))
    with memory_home(3) as home:
        run = deployed(home, plan, optimizer, protect=rng.choice((1, 4, 100)))
        was_on = set(run.plan.devices)
        faults = [
            (rng.randrange(MESSAGES), lambda d=d: leave(home, d, for_good=for_good)) for d in going
        ]
        inject_after(home, faults)
        first = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
        link_of(home).watch(None)
        for device in going:  # the training may have been over before its moment came
            if memory_of(home).is_there(device) and not home.devices[device].leaving:
                leave(home, device, for_good=for_good)
        settled(home, run)
        second = run.fit(make_data("mlp", ROWS)).wait()
        check_learned(run, joined(first, second), epochs=EPOCHS + 1, optimizer=optimizer)
        assert was_on >= set(going) or plan == "pipeline"
        assert not set(going) & set(run.plan.devices)
        history = run.history
        assert sum(recovery.n_again for recovery in history.recoveries) == 0
        if was_on & set(going):
            assert history.departures or history.recoveries
        if for_good:  # it waited for the run alone, and that has moved
            assert not any(memory_of(home).is_there(device) for device in going)


@pytest.mark.long
def test_the_history_tells_who_left_and_why(home):
    run = deployed(home, "pipeline")

    def on_step(step, loss):
        if step == 4:
            leave(home, B)

    first = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
    settled(home, run)
    (departure,) = run.history.departures
    assert (departure.left, departure.devices) == ((B,), run.plan.devices)
    assert B not in run.plan.devices
    assert departure.step >= 4
    assert WHY in departure.reason
    assert departure.words in run.history.notes
    assert home.devices[B].status == "leaving"
    assert home.devices[B].leaving == WHY
    assert ["leaving" in row and WHY in row for row in members(home.devices.values()).rows] == [
        False,
        True,
        False,
    ]
    memory_of(home).stay(B)
    memory_of(home).pass_time(1.0)
    assert home.devices[B].status == "ready"
    check_learned(run, first)


def test_a_run_at_rest_moves_too(home):
    run = deployed(home, "pipeline")
    first = run.fit(make_data("mlp", ROWS)).wait()
    leave(home, A, for_good=True)
    settled(home, run)
    assert not memory_of(home).is_there(A)
    second = run.fit(make_data("mlp", ROWS), epochs=EPOCHS - 1).wait()
    assert run.history.recoveries == ()
    check_learned(run, joined(first, second))


@pytest.mark.long
def test_where_nobody_else_is_all_that_it_has_learned_is_kept():
    with memory_home(1) as home:
        _, model = make_model("mlp")
        plan = make_plan(model, ((A,), (4,)), micro_batch=4, n_micro_batches=2)
        run = home.deploy(plan, model, optimizer=OPTIMIZERS["adamw"][0], protect=1000).wait()
        run.fit(make_data("mlp", ROWS)).wait()
        leave(home, A, within_s=30.0)
        settled(home, run)
        assert run.protection.snapshot.step == run.step == 5
        assert "Nobody else is there" in run.history.notes[-1]
        memory_of(home).pass_time(31.0)
        with pytest.raises(DeviceGone, match=WHY):
            run.fit(make_data("mlp", ROWS)).wait()


def test_where_nobody_else_is_the_training_waits_until_it_stays():
    """As for a device that is too hot for a while."""
    with memory_home(1) as home:
        _, model = make_model("mlp")
        plan = make_plan(model, ((A,), (4,)), micro_batch=4, n_micro_batches=2)
        run = home.deploy(plan, model, optimizer=OPTIMIZERS["adamw"][0], protect=3).wait()
        waited = []

        def on_step(step, loss):
            if step == 6:
                leave(home, A, within_s=1.0)
                memory_of(home).pass_time(2.0)

        def watch(_, text):
            if text.startswith("waiting"):
                waited.append(text)
                if len(waited) == 40:
                    memory_of(home).stay(A)

        fit = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step)
        fit.listen(watch)
        check_learned(run, fit.wait())
        assert A in waited[0]


@pytest.mark.long
def test_one_that_goes_before_it_is_left_is_lost_as_any_other(home):
    run = deployed(home, "both", protect=2)

    def on_step(step, loss):
        if step == 6:
            leave(home, B, within_s=0.0)

    history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
    assert B not in run.plan.devices
    check_learned(run, history)


@pytest.mark.long
@pytest.mark.parametrize("lost", [A, C])
def test_one_that_is_lost_while_another_leaves_is_survived(home, lost):
    run = deployed(home, "both", protect=2)

    def on_step(step, loss):
        if step == 6:
            leave(home, B)
            memory_of(home).kill(lost)

    first = run.fit(make_data("mlp", ROWS), epochs=EPOCHS - 1, on_step=on_step).wait()
    settled(home, run)
    second = run.fit(make_data("mlp", ROWS)).wait()
    assert not {B, lost} & set(run.plan.devices)
    check_learned(run, joined(first, second))


@pytest.mark.few(1)
@pytest.mark.parametrize("after", [0, 5, 20, 40])
def test_one_that_a_switch_goes_to_and_that_then_wants_to_leave_is_left_again(home, after):
    _, model = make_model("mlp")
    without_middle = make_plan(model, ((A,), (4,)), ((C,), (4,)), micro_batch=4, n_micro_batches=2)
    run = deployed(home, "pipeline")
    first = run.fit(make_data("mlp", ROWS)).wait()
    inject_after(home, [(after, lambda: leave(home, C))])
    with suppress(PotluckError):  # it may have declined
        run.switch(without_middle).wait()
    at_last = run.fit(make_data("mlp", ROWS), epochs=EPOCHS - 1)
    at_last.wait()
    settled(home, run)
    assert C not in run.plan.devices or not home.devices[C].leaving
    assert sum(recovery.n_again for recovery in run.history.recoveries) == 0
    check_learned(run, joined(first, at_last))


@pytest.mark.few(1)
@pytest.mark.parametrize("device", [A, B])
def test_requests_are_answered_while_a_device_leaves(home, device):
    net, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, training=False)
    run = home.deploy(plan, model).wait()
    x, _ = make_data("mlp", 40)
    is_asked = threading.Event()

    def ask(index):
        is_asked.set()
        return run(x[index : index + 1])

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, index) for index in range(40)]
        is_asked.wait()
        leave(home, device, for_good=True)
        found = torch.cat([answer.result() for answer in answers])
    settled(home, run)
    with torch.no_grad():
        assert torch.allclose(found, net(x), atol=1e-6)
    assert device not in run.plan.devices
    assert not memory_of(home).is_there(device)
    assert [departure.left for departure in run.history.departures] == [(device,)]


@pytest.mark.long
def test_one_that_wants_to_leave_is_planned_with_no_more(home):
    _, model = make_model("mlp")
    leave(home, B)
    memory_of(home).pass_time(1.0)
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    assert {device.name for device in profile.devices} == {A, C}
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    with pytest.raises(Refused, match=f"it wants to leave: {WHY}"):
        home.deploy(plan, model).wait()


def test_who_joins_later_hears_of_it_in_the_statement():
    with memory_home(2) as home:
        leave(home, B)
        memory_of(home).pass_time(1.0)
        assert home.devices.staying == (A,)
        memory_of(home).kill(B)
        memory_of(home).restart(B)
        home.devices.join([B])
        assert home.devices[B].leaving == ""  # it has begun anew
        assert home.devices.staying == (A, B)


@pytest.mark.long
def test_with_a_profile_the_best_plan_without_it_is_taken(home):
    _, model = make_model("mlp")
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    plan = potluck.plan(profile, potluck.Training(batch=BATCH, micro_batch=4)).best
    run = home.deploy(plan, model, optimizer=OPTIMIZERS["adamw"][0]).wait()
    gone = run.plan.devices[0]
    first = run.fit(make_data("mlp", ROWS)).wait()
    leave(home, gone)
    settled(home, run)
    assert gone not in run.plan.devices
    assert run.plan.latency_s > 0
    second = run.fit(make_data("mlp", ROWS), epochs=EPOCHS - 1).wait()
    check_learned(run, joined(first, second))


@pytest.mark.long
@pytest.mark.slow  # two processes with torch
def test_a_real_agent_that_is_told_to_end_is_left_first():
    with potluck.Home.local(2) as home:
        run = deployed(home, "pipeline")
        agents = agents_of(home)

        def on_step(step, loss):
            if step == 4:
                agents.process(B).terminate()

        first = run.fit(make_data("mlp", ROWS), epochs=EPOCHS, on_step=on_step).wait()
        assert agents.process(B).wait(TIMEOUT_S) == 0  # once it is told that all has moved
        assert run.plan.devices == (A,)
        assert run.history.recoveries == ()
        second = run.fit(make_data("mlp", ROWS)).wait()
        check_learned(run, joined(first, second), epochs=EPOCHS + 1)


def test_a_device_that_gives_new_reasons_for_ever_causes_no_more_notes_than_there_may_be(
    monkeypatch,
):
    monkeypatch.setattr(history, "MAX_NOTES", 5)
    reasons = count()

    def says(message, buffers):
        more = [(Leaving(reason=f"reason {next(reasons)}", within_s=LONG_S), ())]
        return [(message, buffers), *(more if isinstance(message, Pong) else ())]

    with memory_home(1) as home:
        _, model = make_model("mlp")
        run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
        memory_of(home).take_over(A, says)
        for _ in range(10):
            settled(home, run)
        assert next(reasons) > 10
        assert run.history.notes[-1] == history.NO_MORE
        assert len(run.history.notes) == 5
