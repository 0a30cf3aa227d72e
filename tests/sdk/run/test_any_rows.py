"""A batch of any number of rows, over real agents: with batch norm what plain torch makes of the
same micro-batches.
"""

import copy
import math
from dataclasses import replace
from functools import cache

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.schedule.micro_batches import divide

torch = pytest.importorskip("torch")

A, B = "local-1", "local-2"
MICRO = 4
LR = 0.05
# As an epoch may end: with a prime number of rows, one row over, more than the plan's batch, less
# than a micro-batch.
BATCHES = (8, 7, 5, 13, 9, 2, 3, 11)
PLANS = {
    "one device": [((A,), (MICRO,))],
    "pipeline": [((A,), (MICRO,)), ((B,), (MICRO,))],
    "interleaved": [((A,), (MICRO,)), ((B,), (MICRO,)), ((A,), (MICRO,)), ((B,), (MICRO,))],
}


def normed_net(kind):
    torch.manual_seed(0)
    if kind == "batch norm 1d":
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.ReLU(),
            torch.nn.Linear(16, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.ReLU(),
            torch.nn.Linear(16, 16),
            torch.nn.Tanh(),
            torch.nn.Linear(16, 4),
        )
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (2, 2, 2)),
        torch.nn.Conv2d(2, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.BatchNorm1d(8),
        torch.nn.Linear(8, 16),
        torch.nn.Linear(16, 16),
        torch.nn.Linear(16, 4),
    )


def batches_of(rows):
    x, y = make_data("mlp", sum(rows))
    ends = [sum(rows[: i + 1]) for i in range(len(rows))]
    return [(x[end - n : end], y[end - n : end]) for end, n in zip(ends, rows, strict=True)]


def pieces_of(n_rows, most):
    """Micro-batches of at most `most` rows as plain torch can take them: no single row that had
    company.
    """
    cuts = [most] * (n_rows // most) + [n_rows % most] * (n_rows % most > 0)
    if len(cuts) > 1 and cuts[-1] == 1:
        cuts[-2:] = [math.ceil((most + 1) / 2), (most + 1) // 2]
    return cuts


def alone_on(net, batches):
    """SGD on one machine, micro-batch after micro-batch; returns the losses."""
    optimizer, losses = torch.optim.SGD(net.parameters(), LR), []
    for x, y in batches:
        total = 0.0
        for part_x, part_y in zip(
            x.split(pieces_of(len(x), MICRO)), y.split(pieces_of(len(x), MICRO)), strict=True
        ):
            loss = torch.nn.functional.cross_entropy(net(part_x), part_y)
            (loss * (len(part_x) / len(x))).backward()
            total += loss.item() * len(part_x) / len(x)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def trained(home, model, plan, batches):
    """Losses, rows per step, and the state afterwards."""
    run = home.deploy(
        plan,
        model,
        optimizer=potluck.SGD(LR),
        schedule="interleaved" if len(plan.stages) == 4 else None,
    ).wait()
    history, state = run.fit(batches).wait(), run.state_dict()
    run.close()
    return history, state


def assert_same_state(state, net):
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(
            state[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["batch norm 1d", "batch norm 2d"])
@pytest.mark.parametrize("name", PLANS)
def test_batch_norm_learns_from_every_batch_as_on_one_machine(home, name, kind):
    (net, model), batches = normed_model(kind), batches_of(BATCHES)
    plan = make_plan(model, *PLANS[name], micro_batch=MICRO, n_micro_batches=2)
    history, state = trained(home, model, plan, batches)
    alone = copy.deepcopy(net).train()
    assert history.losses == pytest.approx(alone_on(alone, batches), rel=1e-4)
    assert history.rows == BATCHES
    assert not any("left out" in note for note in history.notes)
    assert_same_state(state, alone)


@pytest.mark.long
@pytest.mark.parametrize("shares", [(2, 2), (3, 1), (1, 3)])
def test_replicas_leave_out_no_row(home, shares):
    net, model = make_model("mlp")
    rows = (*BATCHES, 1)
    plan = make_plan(
        model, ((A, B), shares), ((B, A), shares), micro_batch=MICRO, n_micro_batches=2
    )
    history, state = trained(home, model, plan, batches_of(rows))
    alone = copy.deepcopy(net)
    assert history.losses == pytest.approx(alone_on(alone, batches_of(rows)), rel=1e-4)
    assert history.rows == rows
    assert_same_state(state, alone)


def normed_model(kind="batch norm 1d"):
    net, model = traced_model(kind)
    return copy.deepcopy(net), model


@cache
def traced_model(kind):
    net, (x, y) = normed_net(kind), make_data("mlp", 6)
    return net, potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )


@pytest.mark.long
def test_one_row_that_cannot_be_learned_from_is_refused_and_changes_nothing(home):
    net, model = normed_model()
    plan = make_plan(model, ((A,), (MICRO,)), ((B,), (MICRO,)), micro_batch=MICRO)
    run = home.deploy(plan, model, optimizer=potluck.SGD(LR)).wait()
    with pytest.raises(
        potluck.errors.ModelError, match="more than 1 value per channel when training"
    ):
        run.fit(batches_of((4, 1))).wait()
    assert run.step == 1
    alone = copy.deepcopy(net).train()
    alone_on(alone, batches_of((4, 1))[:1])
    assert_same_state(run.state_dict(), alone)
    assert run.fit(batches_of((4, 3))).wait().rows == (4, 3)
    run.close()


@pytest.mark.long
def test_replicas_with_batch_norm_never_learn_from_single_values(home):
    _, model = normed_model()
    plan = make_plan(
        model, ((A, B), (2, 2)), ((B, A), (2, 2)), micro_batch=MICRO, n_micro_batches=2
    )
    history, state = trained(home, model, plan, batches_of(BATCHES))
    assert history.rows == BATCHES
    assert all(tensor.isfinite().all() for tensor in state.values())
    assert all(map(math.isfinite, history.losses))
    n_micro_batches = sum(len(pieces_of(rows, MICRO)) for rows in BATCHES)
    assert {int(t) for name, t in state.items() if "num_batches" in name} == {n_micro_batches}


@pytest.mark.long
def test_a_live_switch_and_a_checkpoint_between_odd_batches(home, tmp_path):
    net, model = normed_model()
    first = make_plan(
        model, ((A,), (MICRO,)), ((B,), (MICRO,)), micro_batch=MICRO, n_micro_batches=2
    )
    second = make_plan(model, ((B,), (MICRO,)), micro_batch=MICRO, n_micro_batches=2)
    batches, switching = batches_of(BATCHES), []
    run = home.deploy(first, model, optimizer=potluck.SGD(LR)).wait()
    fitting = run.fit(
        batches[:4] * 8, on_step=lambda step, _: step == 2 and switching.append(run.switch(second))
    )
    fitting.wait()
    switching[0].wait()
    run.save(tmp_path / "saved")
    run.close()
    run = home.deploy(first, model, resume=tmp_path / "saved").wait()
    history = run.fit(batches[4:]).wait()
    alone = copy.deepcopy(net).train()
    losses = alone_on(alone, batches[:4] * 8 + batches[4:])
    assert history.losses == pytest.approx(losses[-len(history.losses) :], rel=1e-4)
    assert_same_state(run.state_dict(), alone)
    alone.eval()
    x, y = batches[1]
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(alone(x), y).item()
    assert run.evaluate([(x, y)], torch.nn.functional.cross_entropy) == pytest.approx(
        expected, rel=1e-4
    )
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 13])
@pytest.mark.parametrize("name", [*PLANS, "replicas"])
def test_a_request_of_any_rows_has_an_answer_for_each(home, name, rows):
    net, model = normed_model("batch norm 2d")
    shape = {**PLANS, "replicas": [((A, B), (3, 1)), ((B, A), (2, 2))]}[name]
    run = home.deploy(make_plan(model, *shape, micro_batch=MICRO, training=False), model).wait()
    x, _ = make_data("mlp", rows)
    with torch.no_grad():
        torch.testing.assert_close(run(x), net.eval()(x), rtol=1e-4, atol=1e-6)
    run.close()


@pytest.fixture(scope="module")
def wide(process_home):
    """A network whose activations are seen in memory, and a judged plan in shares of two rows."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 64),
        torch.nn.Unflatten(1, (64, 1, 1)),
        torch.nn.Upsample(scale_factor=32),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 4),
    )
    x, y = make_data("mlp", 4)
    model = potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )
    profile = process_home.profile(model, train=True, rows=(1, 4), repeats=1).wait()
    plan = make_plan(model, ((A, B), (2, 2)), micro_batch=MICRO, n_micro_batches=2)
    return model, potluck.judge(replace(plan, model=profile.model), profile)


@pytest.mark.long
def test_what_a_step_beyond_the_plan_needs_is_asked_for(process_home, wide):
    model, plan = wide
    run = process_home.deploy(plan, model, optimizer=potluck.SGD(LR)).wait()
    run.fit(batches_of((8, 2))).wait()
    assert run.memory_bytes == plan.peak_bytes
    # 4 and 3 rows, the 3 on one device: one row more than its share
    run.fit(batches_of((7,))).wait()
    assert run.memory_bytes[A] > plan.peak_bytes[A]
    assert run.memory_bytes[B] == plan.peak_bytes[B]
    assert all(used <= run.memory_bytes[name] for name, used in run.trace.peak_bytes.items())
    run.fit(batches_of((16,))).wait()
    assert all(used <= run.memory_bytes[name] for name, used in run.trace.peak_bytes.items())
    run.close()


@pytest.mark.long
def test_predictions_are_about_steps_of_one_size(process_home, wide):
    model, plan = wide
    run = process_home.deploy(plan, model, optimizer=potluck.SGD(LR)).wait()
    run.fit(batches_of((3,))).wait()
    few = run.predicted
    assert len(run.compare().measured.step_s) == 1
    run.fit(batches_of((8, 8, 8, 5))).wait()
    full = run.predicted
    assert sum(few.step_s) < sum(full.step_s)
    assert len(run.compare().measured.step_s) == 3
    assert len(run.trace.step_s) == 5
    run.learn()
    run.close()


class Still(torch.nn.Module):
    """A stem that normalises, of which (detached) no gradient comes back, and layers that learn."""

    def __init__(self, detach):
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        self.rest = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)
        )
        self.detach = detach

    def forward(self, x):
        x = self.stem(x)
        return self.rest(x.detach() if self.detach else x)


def alone_by_shares(net, plan, segments, batches):
    """SGD on one machine that normalises each share by itself, and after each step takes the mean
    of what the shares' statistics became, by rows of the step; returns the losses."""
    optimizer, losses = torch.optim.SGD(net.parameters(), LR), []
    for x, y in batches:
        norms = [copy.deepcopy(net.stem[1]) for _ in plan.stages[0].shares]
        rows = [0, 0]
        total = 0.0
        for part in divide(plan, segments, len(x))[0]:
            pieces = x[part.start : part.stop].split([n for n in part.shares if n])
            takers = [i for i, n in enumerate(part.shares) if n]
            for norm in norms:
                norm.weight, norm.bias = net.stem[1].weight, net.stem[1].bias
            normed = torch.cat(
                [norms[i](net.stem[0](piece)) for i, piece in zip(takers, pieces, strict=True)]
            )
            loss = torch.nn.functional.cross_entropy(
                net.rest(normed.detach() if net.detach else normed), y[part.start : part.stop]
            )
            (loss * part.rows / len(x)).backward()
            total += loss.item() * part.rows / len(x)
            rows = [had + n for had, n in zip(rows, part.shares, strict=True)]
        for name in ("running_mean", "running_var"):
            mean = sum(
                getattr(norm, name) * n / len(x) for norm, n in zip(norms, rows, strict=True)
            )
            getattr(net.stem[1], name).copy_(mean)
        net.stem[1].num_batches_tracked += len(divide(plan, segments, len(x))[0])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


@cache
def still_model(detach):
    net, (x, y) = Still(detach), batches_of((16,))[0]
    return net, potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )


@pytest.mark.long
@pytest.mark.parametrize("shares", [(5, 3), (3, 5), (6, 2), (4, 4)])
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("cut", [True, False])
def test_statistics_of_replicas_are_their_mean_by_rows_of_the_step(home, cut, detach, shares):
    """As `fit` promises, also where shares differ between the micro-batches of one step."""
    (net, model), batches = still_model(detach), batches_of((16, 21, 13, 24, 9, 3))
    rows = [((A, B), shares), ((B,), (8,))] if cut else [((A, B), shares)]
    plan = make_plan(model, *rows, micro_batch=8, n_micro_batches=2)
    segments = [model.segment(stage.start, stage.stop, train=True)[0] for stage in plan.stages]
    assert (
        len({part.shares for rows in (16, 21, 13) for part in divide(plan, segments, rows)[0]}) > 1
    )
    history, state = trained(home, model, plan, batches)
    alone = copy.deepcopy(net)
    assert history.losses == pytest.approx(
        alone_by_shares(alone, plan, segments, batches), rel=1e-4
    )
    assert_same_state(state, alone)


class Twice(torch.nn.Module):
    """One norm at two places: its statistics and its counter move twice in a forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.norm(self.first(self.norm(x))))


@pytest.mark.long
@pytest.mark.parametrize("device", [A, B])
def test_a_norm_that_is_called_twice_is_one_norm(home, device):
    net, batches = Twice(), batches_of(BATCHES)
    model = potluck.Model.from_torch(
        net, batches[0][0], loss=torch.nn.functional.cross_entropy, example_targets=batches[0][1]
    )
    plan = make_plan(model, ((device,), (MICRO,)), micro_batch=MICRO, n_micro_batches=2)
    history, state = trained(home, model, plan, batches)
    alone = copy.deepcopy(net)
    assert history.losses == pytest.approx(alone_on(alone, batches), rel=1e-4)
    assert_same_state(state, alone)


def test_an_empty_batch_is_refused_and_training_goes_on(home):
    _, model = make_model("mlp")
    run = home.deploy(
        make_plan(model, ((A, B), (2, 2)), micro_batch=MICRO), model, optimizer=potluck.SGD(LR)
    ).wait()
    x, y = make_data("mlp", 8)
    with pytest.raises(
        potluck.errors.UserError, match="a batch to train on needs one row or more, got none"
    ):
        run.fit([(x, y), (x[:0], y[:0])]).wait()
    assert run.step == 1
    assert run.fit([(x, y)]).wait().rows == (8,)
    run.close()
