"""Devices and workers are lost at every moment of answering; every request is answered once, and
rightly, by what is left.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from itertools import cycle

import pytest
from tests.sdk.run import fault_injection
from tests.sdk.run import test_switching as switching
from tests.sdk.run.conftest import make_data, make_model, make_plan
from tests.sdk.run.test_recovery import inject_after
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import DeviceGone, ModelError, PotluckError, UserError
from potluck.testing.faults import agents_of, at, memory_of
from potluck.testing.internals import engine_of, link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B, C = NAMES = tuple(f"local-{i}" for i in (1, 2, 3))
PLANS = {
    "one": (((A,), (4,)),),
    "pipeline": (((A,), (4,)), ((B,), (4,))),
    "shared": (((A, B), (3, 1)), ((C,), (4,))),
}
MESSAGES = 60  # more than any of these answers brings to the notebook
ROWS = 30  # eight requests at once, the last of them not full


@pytest.fixture
def home():
    with memory_home(3) as home:
        yield home


@pytest.fixture(scope="module")
def mlp():
    return make_model("mlp")


def deployed(home, mlp, plan="pipeline", **more):
    _, model = mlp
    chosen = make_plan(model, *PLANS[plan], micro_batch=4, training=False)
    return home.deploy(chosen, model, **more).wait()


def check_answers(run, mlp, n=1, rows=ROWS):
    """As often as asked, all rows in order, as one machine answers."""
    x, _ = make_data("mlp", rows)
    with torch.no_grad():
        expected = mlp[0](x)
    for _ in range(n):
        assert torch.allclose(run(x), expected, atol=1e-6)


HOW = "kill", "kill_worker", "pull"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("plan", "device", "how", "after"),
    [
        pytest.param(
            plan,
            device,
            how,
            after,
            marks=[]
            if (after * 7 + len(how) + NAMES.index(device)) % 19 == 0
            else pytest.mark.long,
        )
        for plan, stages in PLANS.items()
        for device in sorted({name for devices, _ in stages for name in devices})
        for how in HOW
        for after in range(MESSAGES)
    ],
)
def test_whoever_is_lost_at_any_message_all_is_answered_in_order(mlp, plan, device, how, after):
    with memory_home(3) as home:
        run = deployed(home, mlp, plan)
        fault = getattr(memory_of(home), how)
        inject_after(home, [(after, lambda: fault(device))])
        check_answers(run, mlp, n=2)
        link_of(home).watch(None)
        assert how == "kill_worker" or device not in run.plan.devices or not run.history.recoveries
        assert len(run.history.recoveries) <= 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.long) for s in range(6, 300))]
)
def test_callers_at_once_all_get_their_answers_whatever_is_lost(mlp, seed):
    rng = random.Random(seed)
    lost = rng.sample(NAMES, 2)
    with memory_home(3) as home:
        run, lab = deployed(home, mlp, rng.choice([*PLANS])), memory_of(home)

        def fault(device, how):
            return lambda: getattr(lab, how)(device)

        faults = [
            (rng.randrange(3 * MESSAGES), fault(device, rng.choice(("kill", "kill_worker"))))
            for device in lost
        ]
        inject_after(home, faults)
        with ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(check_answers, run, mlp, 3, rows) for rows in (1, 7, ROWS)]
            for caller in asking:
                caller.result(TIMEOUT_S)
        link_of(home).watch(None)
        assert len(run.history.recoveries) <= len(lost)  # one of all callers recovers


def test_the_history_tells_who_was_lost_and_what_was_asked_again(home, mlp):
    run = deployed(home, mlp)
    inject_after(home, [(4, lambda: memory_of(home).kill(B))])
    check_answers(run, mlp)
    (recovery,) = run.history.recoveries
    assert (recovery.device, recovery.devices, recovery.what) == (B, (A,), "request")
    assert 0 < recovery.n_again <= recovery.step
    assert run.history.notes == (recovery.words,)
    assert recovery.words.startswith(f"request {recovery.step}: {B}: ")
    assert recovery.words in repr(run.history)
    assert "Deploy again" not in recovery.words


@pytest.mark.long
@pytest.mark.parametrize("lost", [A, B])
def test_with_a_profile_who_had_no_part_may_take_one(home, mlp, lost):
    _, model = mlp
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    limits = potluck.QoE(latency_s=1e-9)  # nobody can hold it: a slow answer is better than none
    plan = make_plan(model, *PLANS["pipeline"], micro_batch=4, training=False)
    plan = replace(plan, problem=profile.problem(potluck.Inference(batch=4), limits))
    run = home.deploy(plan, model).wait()
    check_answers(run, mlp)
    memory_of(home).kill(lost)
    check_answers(run, mlp)
    assert lost not in run.plan.devices
    assert run.plan.latency_s > 0
    assert run.predicted is not None


def test_a_request_whose_values_fail_is_no_loss_and_a_loss_is_none_of_its_failures(home):
    from tests.sdk.run.test_inference import Picked

    net = Picked().eval()
    good = torch.arange(4.0)
    bad = torch.full((4,), 99.0)
    model = potluck.Model.from_torch(net, good)
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, training=False)
    run = home.deploy(plan, model).wait()
    for n_lost in (0, 1):
        with pytest.raises(potluck.errors.RequestFailed, match="look at the inputs"):
            run(bad)
        assert torch.equal(run(good), net(good).detach())
        assert len(run.history.recoveries) == n_lost
        memory_of(home).kill_worker(A) if n_lost == 0 else None


def test_where_nobody_is_left_all_callers_hear_the_cause(home, mlp):
    run = deployed(home, mlp)
    inject_after(home, [(5, lambda: [memory_of(home).kill(device) for device in NAMES])])
    with ThreadPoolExecutor(3) as pool:
        ends = [pool.submit(check_answers, run, mlp) for _ in range(3)]
    for end in ends:
        with pytest.raises(DeviceGone, match=r"local-\d: "):
            end.result()
    assert not run.is_open
    with pytest.raises(DeviceGone, match="this run has ended"):
        check_answers(run, mlp)


def test_whoever_breaks_off_a_recovery_leaves_it_to_the_next(home, mlp, monkeypatch):
    run = deployed(home, mlp)
    engine = engine_of(run)

    def broken_off(plan):
        engine.forget_all()
        raise KeyboardInterrupt

    memory_of(home).kill(B)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "begin_again", broken_off)
        with pytest.raises(KeyboardInterrupt):
            check_answers(run, mlp)
    check_answers(run, mlp)
    assert run.plan.devices == (A,)


def test_whoever_waits_for_a_request_that_is_given_up_hears_of_it(home, mlp):
    """A caller is seldom so late that it is not asked before the loss is known."""
    run, given_up = deployed(home, mlp), threading.Event()
    link_of(home).watch(lambda event, actions: given_up.wait())  # no answer until then
    request = engine_of(run).request(make_data("mlp", 4)[:1], 0, 4)
    engine_of(run).requests.give_up()
    given_up.set()
    assert wait((request.future,), TIMEOUT_S).done
    assert request.future.cancelled()
    memory_of(home).pass_time(1.0)
    assert link_of(home).n_unanswered == 0


def test_without_protection_a_loss_ends_the_run(home, mlp):
    run = deployed(home, mlp, protect=False)
    assert not run.is_protected
    memory_of(home).kill(B)
    with pytest.raises(DeviceGone, match=B):
        check_answers(run, mlp)
    assert not run.is_open


def test_a_number_of_steps_protects_no_requests(home, mlp):
    with pytest.raises(UserError, match=r"protect=3 .* steps of training"):
        deployed(home, mlp, protect=3)


def test_weights_that_were_changed_here_take_nobodys_place(home, mlp):
    """Those that were deployed are gone with the device."""
    net, model = make_model("mlp")
    run = home.deploy(
        make_plan(model, *PLANS["pipeline"], micro_batch=4, training=False), model
    ).wait()
    x, _ = make_data("mlp", ROWS)
    run(x)

    def change():
        memory_of(home).kill(B)
        with torch.no_grad():
            net[0].weight.add_(1.0)

    inject_after(home, [(4, change)])
    with pytest.raises(ModelError, match="changed"):
        run(x)
    assert run.history.recoveries == ()


def test_answers_of_a_saved_run_are_its_own_after_a_loss(home, tmp_path):
    net, model = make_model("mlp")
    training = make_plan(model, ((A,), (4,)), micro_batch=4)
    learning = home.deploy(training, model, optimizer=potluck.SGD(lr=0.5)).wait()
    learning.fit(make_data("mlp", 8)).wait()
    learning.save(tmp_path / "run")
    learning.close()
    plan = make_plan(model, *PLANS["pipeline"], micro_batch=4, training=False)
    run, (x, _) = home.deploy(plan, model, resume=tmp_path / "run").wait(), make_data("mlp", 5)
    before = run(x)
    assert not torch.allclose(before, net(x), atol=1e-3)
    memory_of(home).kill(A)
    assert torch.allclose(run(x), before, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("moment", fault_injection.REQUESTS)
@pytest.mark.parametrize(
    ("device", "how", "after"),
    [
        pytest.param(
            device,
            how,
            after,
            marks=[] if (device, after) == (switching.A, 1) else pytest.mark.long,
        )
        for device in (switching.A, switching.B, switching.C)
        for how in ("kill", "kill_worker")
        for after in (0, 1, 4)
    ],
)
def test_a_loss_in_the_middle_of_a_switch_loses_no_request(moment, device, how, after):
    model, x = switching.make_model(), switching.make_data()[0]
    expected, over = switching.make_net().eval()(x).detach(), threading.Event()
    with switching.open_lab() as lab:
        run = lab.deploy(switching.plan_of(model, "ab", training=False), model).wait()
        fault = getattr(memory_of(lab), how)

        def ask():
            n = 0
            while not over.is_set() or n < 2:
                assert torch.allclose(run(x), expected, atol=1e-6)
                n += 1

        with (
            at(lab, fault_injection.REQUESTS[moment], lambda: fault(device), after=after),
            ThreadPoolExecutor(2) as pool,
        ):
            asking = [pool.submit(ask) for _ in range(2)]
            with suppress(PotluckError):  # it may be the switch that met the fault
                run.switch(switching.plan_of(model, "abc", training=False)).wait()
            over.set()
            for caller in asking:
                caller.result(TIMEOUT_S)
        assert engine_of(run).failed is None


def ask_on(run, mlp, over, answered):
    """All rows in order, again and again; `answered` holds one for each answer."""
    for rows in cycle((1, 5, ROWS)):
        if over.is_set():
            return
        check_answers(run, mlp, rows=rows)
        answered.release()


# is there sooner than torch: most of the time goes into starting anew
LIGHT = ("--backends", "onnxruntime")


@pytest.mark.long
@pytest.mark.parametrize(
    "n_kills", [3, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_real_processes_killed_again_and_again_lose_no_request(mlp, n_kills):
    """Whoever was killed is started again, and has a part again when another is lost."""
    rng = random.Random(n_kills)
    over = threading.Event()
    answered = threading.Semaphore(0)

    def some_more():
        for _ in range(4):
            assert answered.acquire(timeout=TIMEOUT_S)

    with potluck.Home.local(3, extra=LIGHT) as home, ThreadPoolExecutor(2) as pool:
        run, agents = deployed(home, mlp), agents_of(home)
        asking = [pool.submit(ask_on, run, mlp, over, answered) for _ in range(2)]
        try:
            for number in range(n_kills):
                some_more()
                device = rng.choice(run.plan.devices)
                if number % 3 == 1:
                    for worker in agents.workers(device):
                        worker.kill()
                    some_more()
                    continue
                agents.kill(device)
                some_more()
                agents.restart(device)
                while device not in home.devices.ready:  # the link may not know of its loss yet
                    with suppress(PotluckError):
                        home.devices.need([device])
        finally:
            over.set()
        for caller in asking:
            caller.result(TIMEOUT_S)
        assert run.is_open
        assert len(run.history.recoveries) >= n_kills / 2
