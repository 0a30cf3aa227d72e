"""Devices want to leave, crash and are there again, in every order and at any moment: a training
learns what one machine learns, and every request is answered once, and rightly. Now and then
nobody is left for a while.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan
from tests.sdk.run.test_recovery import EPOCHS, OPTIMIZERS, ROWS, A, B, check_learned, inject_after
from tests.timeouts import TIMEOUT_S

from potluck.errors import DeviceGone, UserError
from potluck.testing.faults import memory_of
from potluck.testing.internals import drained, engine_of, link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
WHY = "its battery is at 29%"
MESSAGES = {True: 150, False: 60}  # training or requests: that these bring to the notebook
LONG_S = 1e6
BACK_S = 12.0  # no device is away for longer


def names_of(n_devices):
    return tuple(f"local-{i + 1}" for i in range(n_devices))


def plan_over(model, names, rng, training):
    used = rng.sample(names, rng.randint(1, len(names)))
    stages = [((name,), (4,)) for name in used]
    if len(used) > 1 and rng.random() < 0.4:
        stages = [((used[0],), (4,)), (tuple(used[1:]), (4,) if len(used) == 2 else (3, 1))]
    more = {"n_micro_batches": 2} if training else {}
    return make_plan(model, *stages, micro_batch=4, training=training, **more)


class Comings:
    """What devices do. Whoever crashes or wants to leave is there again after a while."""

    def __init__(self, home, rng):
        self._lab, self._rng = memory_of(home), rng
        self.log = []

    def faults(self, names, n_messages):
        """A few, each with the number of messages until then."""
        for name in names:
            for _ in range(self._rng.choice((0, 1, 1, 2))):
                does = self._rng.choice((self._leave, self._crash, self._lose_worker))
                within_s = self._rng.choice((0.0, 1.0, 30.0))
                back_s = self._rng.uniform(0.5, BACK_S)
                about = name, within_s, back_s
                yield self._rng.randrange(n_messages), lambda f=does, a=about: f(*a)

    def _leave(self, name, within_s, back_s):
        if self._lab.is_there(name):
            self.log.append(f"{name} leaves in {within_s} s, for {back_s:.1f} s")
            self._lab.leave(name, WHY, within_s)
            self._lab.after(back_s, lambda: self._if_there(name, self._lab.stay))

    def _crash(self, name, within_s, back_s):
        if self._lab.is_there(name):
            self.log.append(f"{name} crashes, for {back_s:.1f} s")
            self._lab.kill(name)
            self._lab.after(back_s, lambda: self._lab.restart(name))

    def _lose_worker(self, name, within_s, back_s):
        self.log.append(f"the worker of {name} ends")
        self._if_there(name, self._lab.kill_worker)

    def _if_there(self, name, act):
        if self._lab.is_there(name):
            act(name)


def check_forgotten(home, model, names):
    """Once all are there again a plan that takes all their memory can be deployed."""
    lab = memory_of(home)
    while set(home.devices.staying) != set(names):
        lab.pass_time(1.0)
    memory = {name: home.devices[name].capability["memory_bytes"] for name in names}
    plan = make_plan(model, *(((name,), (4,)) for name in names), micro_batch=4, training=False)
    home.deploy(replace(plan, peak_bytes=memory), model).wait().close()


def seeds(n_few, n):
    return pytest.mark.parametrize(
        "seed", [pytest.param(s, marks=[] if s < n_few else [pytest.mark.long]) for s in range(n)]
    )


@seeds(3, 100)
@pytest.mark.parametrize("n_devices", [2, 3])
def test_every_request_is_answered_whoever_leaves_or_crashes_and_comes_back(n_devices, seed):
    rng = random.Random(seed)
    names, (net, model) = names_of(n_devices), make_model("mlp")
    x, _ = make_data("mlp", 30)
    with torch.no_grad():
        expected = net(x)
    with memory_home(n_devices) as home:
        run = home.deploy(plan_over(model, names, rng, training=False), model).wait()
        comings = Comings(home, rng)
        inject_after(home, [*comings.faults(names, 3 * MESSAGES[False])])

        def ask(rows):
            for _ in range(4):
                assert torch.allclose(run(x[:rows]), expected[:rows], atol=1e-6), comings.log

        with ThreadPoolExecutor(2) as pool:
            for caller in [pool.submit(ask, rows) for rows in (7, 30)]:
                caller.result(TIMEOUT_S)
        link_of(home).watch(None)
        assert run.is_open, comings.log
        run.close()
        check_forgotten(home, model, names)


@seeds(3, 100)
@pytest.mark.parametrize("n_devices", [2, 3])
def test_a_training_learns_what_one_machine_learns_whoever_leaves_or_crashes(n_devices, seed):
    rng = random.Random(seed)
    names, (_, model) = names_of(n_devices), make_model("mlp")
    with memory_home(n_devices) as home:
        run = home.deploy(
            plan_over(model, names, rng, training=True),
            model,
            optimizer=OPTIMIZERS["adamw"][0],
            protect=rng.choice((True, 1, 4, 100)),
        ).wait()
        comings = Comings(home, rng)
        inject_after(home, [*comings.faults(names, MESSAGES[True])])
        history = run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait()
        link_of(home).watch(None)
        check_learned(run, history)
        run.close()
        check_forgotten(home, model, names)


def pipeline(model, training):
    more = {"n_micro_batches": 2} if training else {}
    stages = ((A,), (4,)), ((B,), (4,))
    return make_plan(model, *stages, micro_batch=4, training=training, **more)


def does(run, expected):
    """All of a training, or some requests."""
    if run.plan.training:
        check_learned(run, run.fit(make_data("mlp", ROWS), epochs=EPOCHS).wait())
        return
    x, _ = make_data("mlp", 30)
    for _ in range(4):
        assert torch.allclose(run(x), expected(x).detach(), atol=1e-6)


@pytest.fixture(params=[True, False], ids=["training", "requests"])
def at_work(request):
    """A run on two devices with no patience, and the module that it runs."""
    net, model = make_model("mlp")
    plan, adamw = pipeline(model, request.param), OPTIMIZERS["adamw"][0] if request.param else None
    with memory_home(2) as home:
        yield home, home.deploy(plan, model, optimizer=adamw, patience_s=0.0).wait(), net


def test_where_it_was_left_before_the_error_says_that_it_is_there(at_work):
    home, run, net = at_work
    does(run, net)
    memory_of(home).leave(A, WHY, LONG_S)
    memory_of(home).pass_time(1.0)
    drained(run)
    memory_of(home).kill(B)
    with pytest.raises(DeviceGone, match=f"{B}: .*{A} wants to leave: {WHY}"):
        run.fit(make_data("mlp", ROWS)).wait() if run.plan.training else does(run, net)
    assert not run.is_open


@pytest.mark.parametrize("training", [True, False])
def test_whoever_waits_for_a_device_ends_where_the_run_is_closed(training):
    _, model = make_model("mlp")
    with memory_home(2) as home, ThreadPoolExecutor(1) as pool:
        run = home.deploy(pipeline(model, training), model, patience_s=1e9).wait()
        waits = threading.Event()
        x, y = make_data("mlp", ROWS)
        for name in (A, B):
            memory_of(home).kill(name)
        if training:
            fit = run.fit((x, y))
            fit.listen(lambda _, text: waits.set() if text.startswith("waiting") else None)
            ends = pool.submit(fit.wait)
        else:
            engine_of(run).notify = lambda text: waits.set()
            ends = pool.submit(run, x)
        assert waits.wait(TIMEOUT_S)
        run.close()
        with pytest.raises(UserError, match="it was closed"):
            ends.result(TIMEOUT_S)
