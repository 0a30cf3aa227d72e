"""Stages with micro-batches of their own sizes, over agents: what one machine learns on which every
stage takes its own micro-batches.
"""

from dataclasses import replace
from functools import cache

import pytest
from tests.sdk.run.conftest import make_plan, more_steps, train_by_stages
from tests.sdk.run.test_switching import in_the_middle
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import PlanError
from potluck.handle import CancelledError
from potluck.planning.text import dumps, loads
from potluck.run import checkpoint
from potluck.schedule.ir import Action
from potluck.testing.faults import memory_of
from potluck.testing.internals import engine_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")

A, B, C = (f"local-{i}" for i in (1, 2, 3))
MICRO, N = 4, 4
BATCH = MICRO * N
TOLERANCE = 2e-5  # of sums of replicas, or in another order
SIZES = {
    "smaller before": [((A,), (2,)), ((B,), (4,))],
    "larger before": [((A,), (8,)), ((B,), (4,))],
    "three sizes": [((A,), (2,)), ((B,), (8,)), ((C,), (4,))],
    "all at the end": [((A,), (2,)), ((B,), (4,)), ((A,), (16,))],
    "one row at a time": [((A,), (1,)), ((B,), (8,))],
}
SHARED = {
    "one to two": [((A,), (2,)), ((B, C), (5, 3))],
    "two to two": [((A, B), (3, 1)), ((B, C), (1, 1))],
    "two to one": [((B, C), (9, 7)), ((A,), (4,))],
}


class Block(torch.nn.Module):
    """Attention and two linear layers, each beside what it is given."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.heads = torch.nn.Linear(width, 3 * width, bias=False)
        self.joined = torch.nn.Linear(width, width)
        self.wide, self.narrow = torch.nn.Linear(width, 24), torch.nn.Linear(24, width)

    def forward(self, x):
        q, k, v = self.heads(self.norm(x)).chunk(3, dim=-1)
        x = x + self.joined(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.after(x))))


class Pooled(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.last = torch.nn.Linear(width, 4)

    def forward(self, x):
        return self.last(x.mean(1))


def net_of(kind):
    torch.manual_seed(0)
    if kind == "transformer":
        return torch.nn.Sequential(torch.nn.Embedding(20, 12), Block(12), Block(12), Pooled(12))
    if kind == "dropping":
        wide = (torch.nn.Linear(64, 32), torch.nn.Dropout(0.5), torch.nn.Tanh())
        rest = (torch.nn.Linear(32, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
        return torch.nn.Sequential(torch.nn.Flatten(), *wide, *rest)
    norm = torch.nn.BatchNorm2d if kind == "normed cnn" else torch.nn.Identity
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 3, padding=1),
        norm(6),
        torch.nn.ReLU(),
        torch.nn.Conv2d(6, 6, 3, padding=1),
        norm(6),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(96, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 4),
    )


def data_of(kind, rows):
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, 4, (rows,), generator=generator)
    if kind == "transformer":
        return torch.randint(0, 20, (rows, 5), generator=generator), y
    return torch.randn(rows, 1, 8, 8, generator=generator), y


@cache
def model_of(kind):
    net, (x, y) = net_of(kind), data_of(kind, 6)
    return potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )


def batches_of(kind, rows):
    x, y = data_of(kind, sum(rows))
    return [*zip(x.split(rows), y.split(rows), strict=True)]


def plan_of(kind, stages):
    """Cut between modules, as `train_by_stages` has it."""
    model = model_of(kind)
    n_layers, n = len(model.layers(True)), len(stages)
    modules = {}  # with weights -> its first layer
    for layer in range(n_layers):
        for name in model.state_names(layer, layer + 1, train=True):
            modules.setdefault(name.split(".")[0], layer)
    starts = sorted(modules.values())
    bounds = [0, *(starts[round(i * len(starts) / n)] for i in range(1, n)), n_layers]
    return make_plan(model, *stages, micro_batch=MICRO, n_micro_batches=N, bounds=bounds)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


@pytest.fixture(scope="module")
def lab():
    torch.set_num_threads(1)
    with memory_home(3) as home:
        yield home


def check_learned(run, kind, batches, plans, tolerance=0.0):
    """Losses and state are those of one machine; `plans`: (plan, steps) one after the other."""
    net, losses = net_of(kind), []
    optimizers = []

    def optimizer_of(parameters):
        optimizers[:] = optimizers or [adamw(parameters)]
        return optimizers[0]

    for plan, n_steps in plans:
        done = batches[len(losses) : len(losses) + n_steps]
        losses += train_by_stages(net, model_of(kind), plan, done, optimizer_of)
    assert run.history.losses == pytest.approx(losses, rel=0, abs=max(tolerance, 1e-6))
    state = run.state_dict()
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=tolerance, msg=name)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cnn", "normed cnn", "transformer"])
@pytest.mark.parametrize("schedule", [None, "fill-drain", "zb-compact"])
@pytest.mark.parametrize("name", SIZES)
def test_stages_of_other_sizes_learn_what_one_machine_learns_to_the_bit(lab, name, schedule, kind):
    plan, batches = plan_of(kind, SIZES[name]), batches_of(kind, [BATCH] * 3)
    run = lab.deploy(plan, model_of(kind), optimizer=potluck.AdamW(1e-2), schedule=schedule).wait()
    run.fit(batches).wait()
    check_learned(run, kind, batches, [(plan, 3)])
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["cnn", "transformer"])
@pytest.mark.parametrize("name", SHARED)
def test_replicas_cut_and_join_micro_batches_of_other_sizes(lab, name, kind):
    plan, batches = plan_of(kind, SHARED[name]), batches_of(kind, [BATCH] * 3)
    run = lab.deploy(plan, model_of(kind), optimizer=potluck.AdamW(1e-2)).wait()
    run.fit(batches).wait()
    check_learned(run, kind, batches, [(plan, 3)], TOLERANCE)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["three sizes", "all at the end"])
def test_batches_of_any_rows_are_cut_from_the_largest_size_down(lab, name):
    plan, batches = plan_of("cnn", SIZES[name]), batches_of("cnn", [13, 16, 1, 7, 32, 18])
    run = lab.deploy(plan, model_of("cnn"), optimizer=potluck.AdamW(1e-2)).wait()
    history = run.fit(batches).wait()
    assert history.rows == (13, 16, 1, 7, 32, 18)
    check_learned(run, "cnn", batches, [(plan, len(batches))])
    run.close()


def test_an_own_schedule_names_micro_batches_as_each_stage_counts_them(lab):
    plan, batches = plan_of("cnn", [((A,), (8,)), ((B,), (16,))]), batches_of("cnn", [BATCH] * 3)

    def last_first(plan):
        assert plan.counts == (2, 1)
        first = ("0F1", "0F0", "0B1", "0B0")
        return tuple(tuple(map(Action.parse, row)) for row in (first, ("1F0", "1B0")))

    run = lab.deploy(plan, model_of("cnn"), optimizer=potluck.AdamW(1e-2), schedule=last_first)
    run = run.wait()
    run.fit(batches).wait()
    check_learned(run, "cnn", batches, [(plan, 3)], TOLERANCE)
    run.close()


UNIFORM = [((A,), (4,)), ((B,), (4,))]
SWITCHES = {
    "to smaller ones and back": [UNIFORM, SIZES["smaller before"], UNIFORM],
    "to other devices": [UNIFORM, SIZES["three sizes"], SIZES["larger before"]],
    "to one device": [SIZES["three sizes"], [((C,), (8,))]],
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SWITCHES)
def test_a_live_switch_goes_over_at_one_step_and_learns_on_to_the_bit(lab, name):
    plans = [plan_of("cnn", stages) for stages in SWITCHES[name]]
    batches, done = batches_of("cnn", [BATCH] * 6 * len(plans)), []
    run = lab.deploy(plans[0], model_of("cnn"), optimizer=potluck.AdamW(1e-2)).wait()

    def on_step(step, loss):
        if step % 6 == 2 and len(done) < len(plans) - 1:
            before, after = plans[len(done) :][:2]
            run.switch(after).wait()
            assert run.plan == after
            done.append((before, engine_of(run).step - sum(n for _, n in done)))

    run.fit(batches, on_step=on_step).wait()
    assert len(done) == len(plans) - 1
    done.append((plans[-1], run.step - sum(n for _, n in done)))
    check_learned(run, "cnn", batches, done)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["smaller before", "larger before"])
def test_a_standby_follows_a_stage_in_its_own_micro_batches_to_the_bit(lab, name):
    """While steps go on, in the middle of a switch."""
    before, after = (plan_of("cnn", stages) for stages in (SIZES[name], [((C,), (8,))]))
    batches = batches_of("cnn", [BATCH] * 8)
    run = lab.deploy(before, model_of("cnn"), optimizer=potluck.AdamW(1e-2)).wait()
    handle = run.fit(batches * 1000)
    switching, go_on = in_the_middle(run, after)
    more_steps(run, handle, 3)
    with engine_of(run).boundary():
        first = run.step
    go_on.set()
    switching.wait(TIMEOUT_S)
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.wait()
    # which step was the first of the new plan? Its losses say so, as every other one's do not.
    found = [n for n in range(first, run.step + 1) if learned(run, batches, before, after, n)]
    assert found
    run.close()


def learned(run, batches, before, after, n):
    try:
        every = batches * (run.step // len(batches) + 1)
        check_learned(run, "cnn", every, [(before, n), (after, run.step - n)])
    except AssertionError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cnn", "normed cnn"])
@pytest.mark.parametrize("profiled", [True, False])
@pytest.mark.parametrize("recovery", ["lightweight", "heavy"])
@pytest.mark.parametrize("name", ["smaller before", "three sizes", "one row at a time"])
def test_whoever_is_lost_it_learns_what_one_machine_learns(name, recovery, profiled, kind):
    """Also where batch norm sees the rows of a micro-batch: its layers keep their size."""
    plan, batches = plan_of(kind, SIZES[name]), batches_of(kind, [BATCH] * 9)
    with memory_home(3) as home:
        if profiled:
            home.profile(model_of(kind), rows=(1, 8), repeats=1).wait()
        optimizer = potluck.AdamW(1e-2)
        run = home.deploy(
            plan, model_of(kind), optimizer=optimizer, protect=2, recovery=recovery
        ).wait()

        def on_step(step, loss):
            if step == 4:
                memory_of(home).kill(B)

        history = run.fit(batches, on_step=on_step).wait()
        assert [recovery.device for recovery in history.recoveries] == [B]
        assert B not in run.plan.devices
        check_learned(run, kind, batches, [(plan, len(batches))], TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True])
def test_masks_are_those_of_the_stages_own_micro_batches_wherever_they_are(lost):
    """And stay so after a loss."""
    kind, batches = "dropping", batches_of("dropping", [BATCH] * 9)
    states = []
    for devices in ((A,), (A,)), ((A,), (B,)):
        stages = [*zip(devices, ((2,), (8,)), strict=True)]
        with memory_home(3) as home:
            plan = plan_of(kind, stages)
            run = home.deploy(plan, model_of(kind), optimizer=potluck.AdamW(1e-2), protect=2).wait()

            def on_step(step, loss, home=home, devices=devices):
                if lost and step == 4 and devices[1] == (B,):
                    memory_of(home).kill(B)

            history = run.fit(batches, on_step=on_step).wait()
            assert len(history.recoveries) == (lost and devices[1] == (B,))
            states.append((history.losses, run.state_dict()))
    (losses, expected), (found, state) = states
    tolerance = TOLERANCE if lost else 0.0  # layers that draw nothing may get another size
    assert found == pytest.approx(losses, rel=0, abs=tolerance)
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=tolerance, msg=name)


@pytest.mark.long
def test_after_a_switch_to_other_sizes_no_step_is_computed_again_in_these():
    """A loss takes the training back; batch norm had seen the steps before in other sizes."""
    kind = "normed cnn"
    plans = [plan_of(kind, stages) for stages in (UNIFORM, SIZES["smaller before"])]
    batches, first = batches_of(kind, [BATCH] * 10), []
    with memory_home(3) as home:
        run = home.deploy(plans[0], model_of(kind), optimizer=potluck.AdamW(1e-2), protect=100)
        run = run.wait()

        def on_step(step, loss):
            if step == 3 and not first:
                run.switch(plans[1]).wait()
                first.append(engine_of(run).step)
            if step == 7 and len(first) == 1:
                first.append(0)
                memory_of(home).kill(B)

        history = run.fit(batches, on_step=on_step).wait()
        assert len(history.recoveries) == 1
        done = [(plans[0], first[0]), (plans[1], len(batches) - first[0])]
        check_learned(run, kind, batches, done, TOLERANCE)


@pytest.mark.long
def test_a_checkpoint_keeps_the_sizes(lab, tmp_path):
    plan, batches = (
        plan_of("normed cnn", SIZES["three sizes"]),
        batches_of("normed cnn", [BATCH] * 4),
    )
    model, optimizer = model_of("normed cnn"), potluck.AdamW(1e-2)
    run = lab.deploy(plan, model, optimizer=optimizer).wait()
    run.fit(batches[:2]).wait()
    run.save(tmp_path / "saved")
    run.close()
    assert checkpoint.load(tmp_path / "saved").plan == plan
    run = lab.deploy(plan, model, resume=tmp_path / "saved").wait()
    losses = run.fit(batches[2:]).wait().losses
    net = net_of("normed cnn")
    alone = train_by_stages(net, model, plan, batches, adamw)
    assert losses[-2:] == pytest.approx(alone[2:], rel=0, abs=1e-6)
    for name, tensor in net.state_dict().items():
        assert torch.equal(run.state_dict()[name], tensor), name
    run.close()


@pytest.mark.long
def test_processes_learn_what_one_machine_learns(process_home):
    kind, stages = "transformer", [((A,), (2,)), ((B, A), (5, 3))]
    plan, batches = plan_of(kind, stages), batches_of(kind, [BATCH, 11, BATCH])
    run = process_home.deploy(plan, model_of(kind), optimizer=potluck.AdamW(1e-2)).wait()
    run.fit(batches).wait()
    check_learned(run, kind, batches, [(plan, 3)], TOLERANCE)
    run.close()


# --- what a plan may say --------------------------------------------------------------------------


def test_a_plan_as_text_keeps_the_sizes_and_an_old_one_has_none():
    plan = plan_of("cnn", SIZES["three sizes"])
    assert loads(dumps(plan)) == plan
    assert dumps(plan).count("micro_batch = 2\n") == 1
    plain = plan_of("cnn", UNIFORM)
    assert all(stage.micro_batch is None for stage in plain.stages)
    assert dumps(plain).count("micro_batch") == 2  # the plan's size and number


@pytest.mark.parametrize(
    ("stages", "error"),
    [
        ([((A,), (3,)), ((B,), (4,))], "micro-batches of 3 rows cannot be joined to 4"),
        ([((A,), (32,)), ((B,), (4,))], "micro-batches of 32 rows cannot be joined to 16"),
        ([((A,), (6,)), ((B,), (12,))], "micro-batches of 12 rows cannot be joined to 16"),
    ],
)
def test_sizes_that_do_not_meet_are_refused(stages, error):
    with pytest.raises(PlanError, match=error):
        plan_of("cnn", stages)


def test_shares_must_be_those_of_the_stages_own_size():
    plan = plan_of("cnn", SIZES["smaller before"])
    first, second = plan.stages
    with pytest.raises(PlanError, match=r"stage 0: shares \(2,\) add up to 2 rows; expected .* 4"):
        replace(plan, stages=(replace(first, micro_batch=None), second))
    with pytest.raises(PlanError, match="inference takes one number of rows"):
        replace(plan, training=False)


@pytest.mark.parametrize("policy", ["interleaved"])
def test_a_schedule_for_one_size_is_refused(lab, policy):
    plan = plan_of("cnn", [((A,), (2,)), ((B,), (4,)), ((A,), (2,)), ((B,), (4,))])
    with pytest.raises(PlanError, match="interleaved takes micro-batches of one size"):
        lab.deploy(plan, model_of("cnn"), schedule=policy).wait()


def test_a_stage_that_keeps_too_few_is_drawn_up_to_where_it_would_wait_for_ever(lab):
    plan = plan_of("cnn", [((A,), (2,)), ((B,), (8,))])
    first, second = plan.stages
    shallow = replace(plan, stages=(replace(first, warm_up=3), second))
    with pytest.raises(PlanError, match=r"0B0 waits for ever for 1B0.\nstage 0: .*<-- ERROR HERE"):
        lab.deploy(shallow, model_of("cnn")).wait()


def test_a_loss_that_compares_rows_takes_the_whole_batch_in_every_stage(lab):
    def loss(values, targets):
        return (values @ values.T).logsumexp(1).mean()

    net, (x, y) = net_of("cnn"), data_of("cnn", 6)
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y, compares_rows=True)
    stages = [((A,), (4,)), ((B,), (16,))]
    plan = make_plan(model, *stages, micro_batch=16, n_micro_batches=1)
    with pytest.raises(PlanError, match="the loss compares rows, and the plan has 4 micro-batches"):
        lab.deploy(plan, model).wait()
