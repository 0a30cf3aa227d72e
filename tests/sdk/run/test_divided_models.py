"""Models divided by tensor run on agents: answers, losses and weights are those of one machine."""

import copy

import pytest
import torch
from tests.sdk.graph.divisible_modules import Gpt, Language, Llama, word_loss

import potluck
from potluck.errors import PlanError
from potluck.planning.tensor_parallel import plan_of
from potluck.records import Plan, Stage
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

TOLERANCE = 2e-5  # sums in another order, in float32


def made(seed=0, tied=True):
    """A net, its model, and a batch."""
    torch.manual_seed(seed)
    net = Language(32, 16, [Llama(16, 4, 2, 24, "grouped"), Gpt(16, 4, 24)], tied=tied)
    x, y = torch.randint(0, 32, (4, 6)), torch.randint(0, 32, (4, 6))
    model = potluck.Model.from_torch(net, x, loss=word_loss, example_targets=y)
    return net, model, x, y


def by_lanes(model, devices, rows, *, training, n_micro_batches=1):
    """Each lane on a device of its own."""
    return plan_of(
        model.name,
        model.layers(training),
        [*devices],
        rows,
        n_micro_batches=n_micro_batches,
        training=training,
    )


def steps(net, x, y, n, make=torch.optim.SGD, clip=None, lr=0.05):
    """Losses of one machine, and the weights after them."""
    net = copy.deepcopy(net)
    optimizer, losses = make(net.parameters(), lr), []
    for _ in range(n):
        loss = word_loss(net(x), y)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, net.state_dict()


def is_near(state, expected):
    return state.keys() == expected.keys() and all(
        torch.allclose(state[name], expected[name], atol=TOLERANCE, rtol=TOLERANCE)
        for name in expected
    )


@pytest.mark.long
@pytest.mark.parametrize("shares", [(1, 1), (1, 3)])
def test_two_devices_answer_as_one(home, shares):
    net, model, x, _ = made()
    model = model.divided(shares, tolerance_frac=1.0)
    run = home.deploy(by_lanes(model, home.devices, 4, training=False), model).wait()
    assert torch.allclose(run(x), net.eval()(x), atol=TOLERANCE)
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("n_micro_batches", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("sequence", [False, True])
def test_two_devices_train_as_one(home, n_micro_batches, clip, sequence):
    net, model, x, y = made()
    divided = model.divided((1, 1), sequence=sequence)
    plan = by_lanes(
        divided, home.devices, 4 // n_micro_batches, training=True, n_micro_batches=n_micro_batches
    )
    run = home.deploy(plan, divided, optimizer=potluck.SGD(lr=0.05)).wait()
    history = run.fit([(x, y)] * 4, clip_norm=clip).wait()
    losses, weights = steps(net, x, y, 4, clip=clip)
    assert list(history.losses) == pytest.approx(losses, abs=TOLERANCE)
    assert is_near(run.state_dict(), weights)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("sequence", [False, True])
def test_a_device_with_two_lanes_of_three_trains_as_one(home, sequence):
    torch.manual_seed(0)
    net = Language(32, 16, [Gpt(16, 4, 24)], tied=True)
    x, y = torch.randint(0, 32, (4, 6)), torch.randint(0, 32, (4, 6))
    model = potluck.Model.from_torch(net, x, loss=word_loss, example_targets=y)
    divided = model.divided((2, 1, 1), tolerance_frac=1.0, sequence=sequence)
    first, second = home.devices
    plan = by_lanes(divided, (first, second, first), 2, training=True, n_micro_batches=2)
    run = home.deploy(plan, divided, optimizer=potluck.SGD(lr=0.05)).wait()
    history = run.fit([(x, y)] * 3).wait()
    losses, weights = steps(net, x, y, 3)
    assert list(history.losses) == pytest.approx(losses, abs=TOLERANCE)
    assert is_near(run.state_dict(), weights)
    run.close()


@pytest.mark.long
def test_the_optimizers_of_torch_find_the_pieces_of_their_weights(home):
    net, model, x, y = made(tied=False)
    divided = model.divided((1, 1))
    plan = by_lanes(divided, home.devices, 4, training=True)
    norms = [p for name, p in net.named_parameters() if "norm" in name]
    others = [p for name, p in net.named_parameters() if "norm" not in name]
    groups = [{"params": others, "momentum": 0.9}, {"params": norms, "lr": 0.0}]
    run = home.deploy(plan, divided, optimizer=torch.optim.SGD(groups, lr=0.05)).wait()
    history = run.fit([(x, y)] * 3).wait()
    one = copy.deepcopy(net)
    optimizer = torch.optim.SGD(
        [p for n, p in one.named_parameters() if "norm" not in n], lr=0.05, momentum=0.9
    )
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = word_loss(one(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert list(history.losses) == pytest.approx(losses, abs=TOLERANCE)
    assert is_near(run.state_dict(), one.state_dict())
    run.close()


def test_a_saved_run_goes_on_with_moments_in_pieces(home, tmp_path):
    net, model, x, y = made()
    divided = model.divided((1, 1))
    plan = by_lanes(divided, home.devices, 4, training=True)
    run = home.deploy(plan, divided, optimizer=potluck.SGD(lr=0.05, momentum=0.9)).wait()
    run.fit([(x, y)] * 2).wait()
    run.save(tmp_path / "run")
    run.close()
    run = home.deploy(plan, divided, resume=tmp_path / "run").wait()
    history = run.fit([(x, y)] * 2).wait()
    momentum = lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9)  # noqa: E731
    losses, weights = steps(net, x, y, 4, make=momentum)
    assert list(history.losses)[-2:] == pytest.approx(losses[2:], abs=TOLERANCE)
    assert is_near(run.state_dict(), weights)
    run.close()


def test_the_users_module_gets_whole_weights(home):
    net, model, x, y = made()
    divided = model.divided((1, 1))
    _, weights = steps(net, x, y, 2)
    plan = by_lanes(divided, home.devices, 4, training=True)
    run = home.deploy(plan, divided, optimizer=potluck.SGD(lr=0.05)).wait()
    run.fit([(x, y)] * 2).wait()
    after, _ = steps(net, x, y, 3)
    assert run.evaluate([(x, y)], word_loss) == pytest.approx(after[-1], abs=TOLERANCE)
    run.load_into()
    assert is_near(net.state_dict(), weights)
    run.close()


def test_adafactor_needs_whole_matrices(home):
    _, model, *_ = made()
    divided = model.divided((1, 1))
    plan = by_lanes(divided, home.devices, 4, training=True)
    with pytest.raises(PlanError, match="Adafactor goes by whole rows"):
        home.deploy(plan, divided, optimizer=potluck.Adafactor()).wait()


def test_updates_one_step_late_are_for_the_whole_model(home):
    _, model, x, y = made()
    divided = model.divided((1, 1))
    plan = by_lanes(divided, home.devices, 4, training=True)
    run = home.deploy(plan, divided, optimizer=potluck.SGD(lr=0.05)).wait()
    with pytest.raises(PlanError, match=r"divided by tensor .* plan the whole one"):
        run.fit([(x, y)] * 4, one_step_late=2).wait()
    assert len(run.fit([(x, y)] * 2).wait().losses) == 2
    run.close()


@pytest.mark.parametrize("shape", [(8, 6), (8, 5, 6)])
def test_a_dropout_behind_the_sum_drops_the_same_on_every_device(home, shape):
    class Dropped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(6, 12), torch.nn.Linear(12, 6)
            self.more, self.less = torch.nn.Linear(6, 12), torch.nn.Linear(12, 6)
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, x):
            x = x + self.dropout(self.down(torch.relu(self.up(x))))
            return x + self.less(torch.relu(self.more(x)))

    torch.manual_seed(0)
    net = Dropped()
    x, y = torch.randn(shape), torch.randn(shape)
    model = potluck.Model.from_torch(net, x, loss=torch.nn.functional.mse_loss, example_targets=y)
    undivided = Plan(
        planner="by hand",
        model=model.name,
        stages=(
            Stage(
                start=0,
                stop=len(model.layers(True)),
                devices=(next(iter(home.devices)),),
                shares=(8,),
            ),
        ),
        micro_batch=8,
    )
    divided = model.divided((1, 1), sequence=len(shape) > 2)
    losses = []
    for plan, each in (
        (undivided, model),
        (by_lanes(divided, home.devices, 8, training=True), divided),
    ):
        run = home.deploy(plan, each, optimizer=potluck.SGD(lr=0.1), seed=3).wait()
        losses.append(run.fit([(x, y)] * 3).wait().losses)
        run.close()
    assert list(losses[0]) == pytest.approx(list(losses[1]), abs=TOLERANCE)


@pytest.mark.long
def test_the_best_plan_of_either_model_is_deployed_by_its_name(home):
    net, model, x, _ = made()
    divided = model.divided((1, 1))
    profile, other = (home.profile(m, rows=(1,), repeats=1).wait() for m in (model, divided))
    plans = potluck.plan(profile, potluck.Inference(), divided=other)
    assert {plan.model for plan in plans} == {model.name, divided.name}
    for name in (model.name, divided.name):
        run = home.deploy(next(plan for plan in plans if plan.model == name)).wait()
        assert torch.allclose(run(x[:1]), net.eval()(x[:1]), atol=TOLERANCE)
        run.close()


@pytest.mark.long
def test_a_run_goes_over_to_one_device_and_back(home):
    net, model, x, y = made()
    divided = model.divided((1, 1))
    n_layers = len(divided.layers(True))
    first, second = home.devices
    alone = Plan(
        planner="by hand",
        model=divided.name,
        stages=(Stage(start=0, stop=n_layers, devices=(second,), shares=(4,)),),
        micro_batch=4,
    )
    lanes = by_lanes(divided, (first, second), 4, training=True)
    run = home.deploy(lanes, divided, optimizer=potluck.SGD(lr=0.05, momentum=0.9)).wait()
    losses = [*run.fit([(x, y)] * 2).wait().losses]
    for plan in (alone, lanes):
        run.switch(plan).wait()
        losses += run.fit([(x, y)] * 2).wait().losses
    momentum = lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9)  # noqa: E731
    expected, weights = steps(net, x, y, 6, make=momentum)
    assert losses == pytest.approx(expected, abs=TOLERANCE)
    assert is_near(run.state_dict(), weights)
    run.close()


@pytest.mark.long
def test_processes_of_their_own_train_as_one_machine(process_home):
    net, model, x, y = made()
    divided = model.divided((1, 1))
    plan = by_lanes(divided, process_home.devices, 4, training=True)
    run = process_home.deploy(plan, divided, optimizer=potluck.SGD(lr=0.05)).wait()
    history = run.fit([(x, y)] * 3).wait()
    losses, weights = steps(net, x, y, 3)
    assert list(history.losses) == pytest.approx(losses, abs=TOLERANCE)
    assert is_near(run.state_dict(), weights)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("how", ["divided", "rounded"])
def test_a_lost_device_is_recovered_from(how):
    net, model, x, y = made()
    with memory_home(3) as home:
        first, lost, _ = home.devices
        if how == "divided":
            model = model.divided((1, 1))
            plan = by_lanes(model, (first, lost), 4, training=True)
        else:
            model = model.rounded("bfloat16")
            bounds = (0, 2), (2, len(model.layers(True)))
            stages = tuple(
                Stage(start=a, stop=b, devices=(name,), shares=(4,), warm_up=1)
                for (a, b), name in zip(bounds, (first, lost), strict=True)
            )
            plan = Plan(planner="by hand", model=model.name, stages=stages, micro_batch=4)
        undisturbed = home.deploy(plan, model, optimizer=potluck.SGD(lr=0.05)).wait()
        expected = undisturbed.fit([(x, y)] * 6, adapt=False).wait().losses
        weights = undisturbed.state_dict()
        undisturbed.close()

        def kill_lost(step, loss):
            if step == 3:
                memory_of(home).kill(lost)

        run = home.deploy(plan, model, optimizer=potluck.SGD(lr=0.05)).wait()
        history = run.fit([(x, y)] * 6, on_step=kill_lost, adapt=False).wait()
        assert len(history.recoveries) == 1
        assert lost not in run.plan.devices
        assert history.losses == pytest.approx(expected, abs=TOLERANCE)
        assert is_near(run.state_dict(), weights)
        if how == "divided":
            assert is_near(weights, steps(net, x, y, 6)[1])
