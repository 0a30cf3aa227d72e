"""Switching plans while a run goes on: nothing learned is lost, no request is, and failures leave
the old plan.
"""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_plan, more_steps, train_alone
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import DeviceGone, OutOfMemory, PlanError
from potluck.handle import CancelledError
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import at, memory_of
from potluck.testing.internals import engine_of, evaluation_of, runs_of
from potluck.testing.memory import memory_home
from potluck_wire.messages import Welcome

torch = pytest.importorskip("torch")

A = "left"
B = "middle"
C = "right"
ROWS = 64
BATCH = 8
MICRO = 4
PLANS = {
    "a": [((A,), (4,))],
    "ab": [((A,), (4,)), ((B,), (4,))],
    "abc": [((A,), (4,)), ((B,), (4,)), ((C,), (4,))],
    "ca": [((C,), (4,)), ((A,), (4,))],
    "c": [((C,), (4,))],
    "a|bc": [((A,), (4,)), ((B, C), (3, 1))],
    "abc shared": [((A, B, C), (2, 1, 1))],
}
FOREVER = 100_000


# links are slow enough that a switch takes some steps of training
SPECS = tuple(Spec(name=name, link_rate="20 Mbit/s") for name in (A, B, C))


def open_lab():
    torch.set_num_threads(1)
    return memory_home(SPECS)


@pytest.fixture(scope="module")
def one_lab():
    with open_lab() as opened:
        yield opened


@pytest.fixture
def lab(one_lab):
    """What a test that failed has left there would take memory from the next."""
    yield one_lab
    for run in runs_of(one_lab):
        if run.is_open:
            run.close()


@pytest.fixture
def fresh_lab():
    """One that the test may break."""
    with open_lab() as opened:
        yield opened


def make_net(norm=True):
    """Batch-norm normalises the share of each device by itself, so stages that are shared go
    without.
    """
    torch.manual_seed(0)
    first = torch.nn.BatchNorm1d(96) if norm else torch.nn.Identity()
    return torch.nn.Sequential(
        torch.nn.Linear(8, 96, bias=False),
        first,
        torch.nn.ReLU(),
        torch.nn.Linear(96, 96),
        torch.nn.Tanh(),
        torch.nn.Linear(96, 96),
        torch.nn.Tanh(),
        torch.nn.Linear(96, 4),
    )


def make_data():
    torch.manual_seed(1)
    return torch.randn(ROWS, 8), torch.randint(0, 4, (ROWS,))


def make_model(norm=True):
    x, y = make_data()
    loss = torch.nn.functional.cross_entropy
    return potluck.Model.from_torch(make_net(norm), x[:4], loss=loss, example_targets=y[:4])


@pytest.fixture(scope="module")
def model():
    return make_model()


def plan_of(model, name, *, training=True):
    return make_plan(
        model, *PLANS[name], micro_batch=MICRO, n_micro_batches=BATCH // MICRO, training=training
    )


def alone(steps, norm=True):
    """(losses, weights, moments) of one machine after so many steps on the same batches."""
    net, (x, y) = make_net(norm), make_data()
    losses, per_epoch = [], ROWS // BATCH
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for number in range(0, steps, per_epoch):
        rows = BATCH * min(per_epoch, steps - number)
        losses += train_alone(
            net,
            x[:rows],
            y[:rows],
            batch=BATCH,
            micro_batch=MICRO,
            epochs=1,
            make_optimizer=lambda _: optimizer,
        )
    return losses, net.state_dict(), optimizer.state_dict()["state"]


def stop(run, handle):
    """Stop training at once; the number of steps taken."""
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.wait()
    return run.step


def check_equal(run, tolerance=0.0, norm=True):
    """Losses, weights and moments are those of one machine after as many steps."""
    losses, weights, moments = alone(run.step, norm)
    assert run.history.losses == pytest.approx(losses, rel=0, abs=tolerance)
    state, own = run.state_dict(), engine_of(run).state.pull(moments=True)
    assert (
        max((state[name] - tensor).abs().max().item() for name, tensor in weights.items())
        <= tolerance
    )
    names = [name for name, _ in make_net(norm).named_parameters()]
    for name, slots in zip(names, moments.values(), strict=True):
        for slot, tensor in slots.items():
            assert (own[f"{slot}:{name}"] - tensor).abs().max().item() <= tolerance


@pytest.mark.long
@pytest.mark.parametrize(
    "names", [("ab", "abc", "ab"), ("abc", "ca", "c")], ids=["out and back", "around"]
)
def test_training_goes_on_during_a_switch_and_equals_one_machine_to_the_bit(lab, model, names):
    run = lab.deploy(plan_of(model, names[0]), model).wait()
    handle = run.fit(make_data(), epochs=FOREVER)
    for name in names[1:]:
        switching, go_on = in_the_middle(run, plan_of(model, name))
        more_steps(run, handle, 2)  # more than what was under way
        go_on.set()
        switching.wait(TIMEOUT_S)
        assert run.plan == plan_of(model, name)
    stop(run, handle)
    check_equal(run)
    check_nothing_else_is_loaded(lab, run, model)
    run.close()


@pytest.mark.parametrize("largest", [None, 0, 1])
def test_whatever_a_device_says_of_its_largest_value_a_training_goes_on(fresh_lab, model, largest):
    def says(message, buffers):
        if not isinstance(message, Welcome):
            return [(message, buffers)]
        statement = {**json.loads(bytes(buffers[0])), "max_value_bytes": largest}
        return [(message, (json.dumps(statement).encode(),))]

    run = fresh_lab.deploy(plan_of(model, "ab"), model).wait()
    memory_of(fresh_lab).kill(C)
    memory_of(fresh_lab).take_over(C, says)
    memory_of(fresh_lab).restart(C)
    fresh_lab.devices.join([C])
    handle = run.fit(make_data(), epochs=FOREVER)
    switching, go_on = in_the_middle(run, plan_of(model, "abc"))
    more_steps(run, handle, 2)
    go_on.set()
    with suppress(PlanError):  # that nothing can be sent there is said before anything is
        switching.wait(TIMEOUT_S)
    stop(run, handle)
    check_equal(run)


def test_a_run_answers_while_it_trains_and_switches_and_each_step_is_told_once(lab, model):
    """Whoever is told of a step may ask for the next boundary: nobody waits for himself."""
    run, steps = lab.deploy(plan_of(model, "ab"), model).wait(), []

    def on_step(step, loss):
        steps.append((step, loss))
        if step == 3:
            assert run.switch(plan_of(model, "abc")).wait() is run
            run.state_dict()

    handle, (x, _) = run.fit(make_data(), epochs=FOREVER, on_step=on_step), make_data()
    for _ in range(3):
        answer, evaluation = run(x[:4]), None
        while evaluation is None:  # the switch may just have taken it away
            answer, evaluation = run(x[:4]), evaluation_of(run)
    net = make_net().eval()
    net.load_state_dict(alone(evaluation.weights_of[0])[1])
    assert torch.allclose(answer, net(x[:4]), atol=1e-6)
    while len(steps) < 3:
        assert not handle.done
    stop(run, handle)
    assert run.plan == plan_of(model, "abc")
    assert steps == list(enumerate(run.history.losses, 1))
    check_equal(run)
    run.close()


def test_what_is_asked_while_a_switch_ends_is_answered(lab, model, monkeypatch):
    run, (x, _) = lab.deploy(plan_of(model, "ab"), model).wait(), make_data()
    expected = run(x[:4])
    evaluating = evaluation_of(run).run
    ask = engine_of(evaluating).request

    def switch_first(*request):
        monkeypatch.undo()
        run.switch(plan_of(model, "abc")).wait()
        return ask(*request)

    monkeypatch.setattr(engine_of(evaluating), "request", switch_first)
    assert torch.equal(run(x[:4]), expected)
    assert not evaluating.is_open  # once it has answered
    assert torch.allclose(run(x[:4]), expected)
    run.close()


@pytest.mark.long
def test_a_switch_over_shared_stages_loses_nothing(lab):
    model = make_model(norm=False)
    run = lab.deploy(plan_of(model, "abc shared"), model).wait()
    handle = run.fit(make_data(), epochs=FOREVER)
    run.switch(plan_of(model, "c")).wait()
    stop(run, handle)
    check_equal(run, 1e-5, norm=False)
    run.close()


@pytest.mark.long
def test_a_batch_of_another_size_on_the_way_only_delays_a_switch(lab, model):
    run = lab.deploy(plan_of(model, "ab"), model).wait()
    switching = run.switch(plan_of(model, "abc"))
    x, y = make_data()
    rows = 0
    while not switching.done:
        rows += 1
        run.fit([(x[:BATCH], y[:BATCH]), (x[: 4 + rows % 3], y[: 4 + rows % 3])]).wait()
    switching.wait()
    assert run.plan == plan_of(model, "abc")
    assert run.step == 2 * rows
    run.close()


# --- what goes wrong ------------------------------------------------------------------------------


def in_the_middle(run, plan):
    """A switch that has its standbys at work and stays there, and what lets it go on."""
    reached, go_on = threading.Event(), threading.Event()

    def stay(done_frac, text):
        if text == "fetching what is missing":
            reached.set()
            go_on.wait(TIMEOUT_S)

    with engine_of(run).boundary():  # so that it is not there before we listen
        switching = run.switch(plan)
        switching.listen(stay)
    switching.on_done(lambda handle: reached.set())
    assert reached.wait(TIMEOUT_S)
    return switching, go_on


@pytest.mark.long
def test_a_cancelled_switch_leaves_the_old_plan_at_work(lab, model):
    run = lab.deploy(plan_of(model, "ab"), model).wait()
    handle = run.fit(make_data(), epochs=FOREVER)
    switching, go_on = in_the_middle(run, plan_of(model, "c"))
    switching.cancel()
    go_on.set()
    with pytest.raises(CancelledError):
        switching.wait()
    assert run.plan == plan_of(model, "ab")
    run.switch(plan_of(model, "ca")).wait()  # and another one is possible
    stop(run, handle)
    check_equal(run)
    run.close()


TRAINING_PHASES = {
    ("loading the transition", 0): "ab",
    ("loading standbys", 0): "ab",
    ("fetching", 2): "ab",
    ("following", 3): "ab",
    ("loading the new plan", 0): "ab",
    ("going over", 0): "abc",
    ("committing", 0): "abc",
    ("training on the new plan", 2): "abc",
}
REQUEST_PHASES = {
    ("loading the new plan", 0): "ab", ("copying", 0): "ab", ("committing", 0): "abc",
    ("answering by the new plan", 0): "abc",
}  # fmt: skip
IN_SHORT = {("copying", 0)}


def phases(of):
    """(moment, messages after it, the plan that is left); those that are not in short are long."""
    marks = {phase: [] if phase in IN_SHORT else [pytest.mark.long] for phase in of}
    return [
        pytest.param(*phase, plan, marks=marks[phase], id=phase[0]) for phase, plan in of.items()
    ]


def cancelled_at(lab, moment, after, run, plan):
    """A switch that is cancelled when the notebook says what it says at that moment."""
    switching = []
    with at(lab, moment, lambda: switching[0].cancel(), after=after):
        with engine_of(run).boundary():  # nothing begins before the handle is known
            switching.append(run.switch(plan))
        try:
            switching[0].wait()
        except CancelledError:
            return True
    return False


def check_nothing_else_is_loaded(lab, run, model):
    """A plan that takes all the memory beside this one would not fit, if anything were left of
    another.
    """
    spare = {name: lab.devices[name].capability["memory_bytes"] for name in (A, B, C)}
    for name in run.plan.devices:
        spare[name] -= run.memory_bytes[name]
    other = lab.deploy(replace(plan_of(model, "abc"), peak_bytes=spare), model).wait()
    other.fit(make_data()).wait()
    check_equal(other)
    other.close()


@pytest.mark.parametrize(("moment", "after", "in_force"), phases(TRAINING_PHASES))
def test_a_switch_that_is_cancelled_in_any_phase_leaves_one_plan_at_work(
    lab, model, moment, after, in_force
):
    from tests.sdk.run.fault_injection import TRAINING

    run = lab.deploy(plan_of(model, "ab"), model).wait()
    handle = run.fit(make_data(), epochs=FOREVER)
    was_cancelled = cancelled_at(lab, TRAINING[moment], after, run, plan_of(model, "abc"))
    assert (was_cancelled, run.plan) == (in_force == "ab", plan_of(model, in_force))
    more_steps(run, handle, 2)
    stop(run, handle)
    check_equal(run)
    check_nothing_else_is_loaded(lab, run, model)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize(("moment", "after", "in_force"), phases(REQUEST_PHASES))
def test_a_switch_of_requests_that_is_cancelled_in_any_phase_leaves_one_plan(
    lab, model, moment, after, in_force
):
    from tests.sdk.run.fault_injection import REQUESTS

    run = lab.deploy(plan_of(model, "ab", training=False), model).wait()
    (x, _), over = make_data(), threading.Event()
    expected = make_net().eval()(x).detach()

    def ask():
        while not over.is_set():
            assert torch.allclose(run(x[:8]), expected[:8], atol=1e-6)
        return True

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        was_cancelled = cancelled_at(
            lab, REQUESTS[moment], after, run, plan_of(model, "abc", training=False)
        )
        over.set()
        assert all(future.result() for future in asking)
    assert (was_cancelled, run.plan) == (in_force == "ab", plan_of(model, in_force, training=False))
    assert torch.allclose(run(x), expected, atol=1e-6)
    check_nothing_else_is_loaded(lab, run, model)
    run.close()


@pytest.mark.long
def test_a_newcomer_that_dies_on_the_way_is_named_and_training_goes_on(fresh_lab, model):
    run = fresh_lab.deploy(plan_of(model, "ab"), model).wait()
    handle = run.fit(make_data(), epochs=FOREVER)
    switching, go_on = in_the_middle(run, plan_of(model, "abc"))
    memory_of(fresh_lab).kill(C)
    go_on.set()
    with pytest.raises(DeviceGone, match=C):
        switching.wait()
    assert run.plan == plan_of(model, "ab")
    more_steps(run, handle, 4)
    stop(run, handle)
    check_equal(run)
    run.close()


def test_too_little_memory_for_both_plans_is_told_and_the_old_one_goes_on(lab, model):
    run = lab.deploy(plan_of(model, "ab"), model).wait()
    huge = replace(plan_of(model, "abc"), peak_bytes={C: 2**50})
    with pytest.raises(OutOfMemory, match=C):
        run.switch(huge).wait()
    run.fit(make_data()).wait()
    assert run.plan == plan_of(model, "ab")
    check_equal(run)
    run.close()


def test_memory_is_asked_for_both_plans_while_they_overlap(lab, model):
    run = lab.deploy(plan_of(model, "ab"), model).wait()
    engine = engine_of(run)
    from potluck.run.migration import PlanMigration

    old, plan = engine.compiled_plan, plan_of(model, "abc")
    new, migration = (
        engine.next_compiled_plan(plan, old.optimizer, engine.sizes),
        PlanMigration(engine, plan),
    )
    # the old plan's, and the transition's
    assert migration.needs_bytes(A, old) >= 2 * old.held_bytes(A)
    assert migration.needs_bytes(C, old) == new.held_bytes(C)  # what it follows
    run.close()


# --- requests -------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_request_during_switches_over_slow_links_is_answered_once(lab, model):
    names = "a|bc", "abc shared", "ab", "c"
    run = lab.deploy(plan_of(model, names[0], training=False), model).wait()
    x, _ = make_data()
    expected = make_net().eval()(x).detach()
    over = threading.Event()
    sent = []

    def ask(first):
        while not over.is_set():
            rows = 1 + (len(sent) * 7 + first) % ROWS
            out = run(x[:rows])
            assert torch.allclose(out, expected[:rows], atol=1e-6)
            sent.append(-(-rows // BATCH))

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask, first) for first in range(3)]
        for name in names[1:]:
            run.switch(plan_of(model, name, training=False)).wait()
        over.set()
        for future in asking:
            future.result()
    assert engine_of(run).n_requests == sum(sent)
    assert run.plan == plan_of(model, names[-1], training=False)
    run.close()


@pytest.mark.parametrize("phase", ["loading the plan", "copying weights"])
def test_requests_that_need_a_program_of_their_own_meanwhile_only_delay_a_switch(lab, phase):
    """The old plan is loaded anew with it, on its own devices."""
    x, _ = make_data()
    net = torch.nn.Sequential(make_net(norm=False), torch.nn.Softmax(0)).eval()
    model = potluck.Model.from_torch(net, x[:4], compares_rows=True)
    before, after = (
        make_plan(model, *PLANS[name], micro_batch=MICRO, training=False) for name in ("ab", "c")
    )
    run = lab.deploy(before, model).wait()
    asked = []

    def ask(done_frac, words):
        if words == phase and not asked:
            asked.append(run(x[:3]))

    with engine_of(run).boundary():  # so that it does not begin before we listen
        switching = run.switch(after)
        switching.listen(ask)
    switching.wait()
    assert run.plan == after
    for rows, answer in ((3, asked[0]), (3, run(x[:3])), (5, run(x[:5]))):
        assert torch.allclose(answer, net(x[:rows]), atol=1e-6)
    run.close()


def test_a_switch_for_requests_that_fails_leaves_the_old_plan_answering(fresh_lab, model):
    run = fresh_lab.deploy(plan_of(model, "ab", training=False), model).wait()
    x, _ = make_data()
    expected = run(x)
    memory_of(fresh_lab).kill(C)
    with pytest.raises(DeviceGone, match=C):
        run.switch(plan_of(model, "c", training=False)).wait()
    assert torch.equal(run(x), expected)
    with pytest.raises(PlanError):
        run.switch(plan_of(model, "ab"))
    run.close()
