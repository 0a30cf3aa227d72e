"""Steps whose updates come one step late, against the same on one machine in plain PyTorch: each
gradient is held back by a step, and after so many steps in a row all are there.
"""

import copy
import random
from dataclasses import replace

import pytest

import potluck
from potluck.errors import PlanError, UserError
from potluck.records import Plan, Stage
from potluck.run import snapshots
from potluck.sessions.members import Member
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home
from potluck_wire.version import LATE_STEPS

torch = pytest.importorskip("torch")
ROWS, MICRO = 8, 4
DEVICES = ("local-1", "local-2", "local-3", "local-4")
CHAIN = (("local-1",), ("local-2",), ("local-3",))
# ours, and torch's own of the same settings
OPTIMIZERS = {
    "momentum": (potluck.SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "AdamW": (potluck.AdamW(1e-2), lambda p: torch.optim.AdamW(p, 1e-2)),
}


def network(seed=0, *, norm=False):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 12),
        *[torch.nn.BatchNorm1d(12)] * norm,
        torch.nn.Tanh(),
        torch.nn.Linear(12, 10),
        torch.nn.ReLU(),
        torch.nn.Linear(10, 10),
        torch.nn.ReLU(),
        torch.nn.Linear(10, 3),
    )


def data(n_batches, seed=1, last=ROWS):
    torch.manual_seed(seed)
    sizes = [ROWS] * (n_batches - 1) + [last]
    return [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in sizes]


def plan_on(groups, n_layers, *, recompute=False, micro=MICRO):
    """A stage of about as many layers for each group of devices."""
    bounds = [round(p * n_layers / len(groups)) for p in range(len(groups) + 1)]
    stages = tuple(
        Stage(
            start=bounds[p],
            stop=bounds[p + 1],
            devices=names,
            shares=tuple(micro // len(names) for _ in names),
            warm_up=min(2 * (len(groups) - p) - 1, ROWS // micro),
            recompute=recompute,
        )
        for p, names in enumerate(groups)
    )
    return Plan(
        planner="by hand",
        model="m",
        stages=stages,
        micro_batch=micro,
        n_micro_batches=ROWS // micro,
    )


def model_of(net, loss=None):
    x, y = data(1)[0]
    loss = loss or torch.nn.CrossEntropyLoss()
    return potluck.Model.from_torch(net, x[:4], loss=loss, example_targets=y[:4], name="m")


def deployed(home, net, groups=CHAIN, *, schedule=None, loss=None, planned=None, **options):
    model = model_of(net, loss)
    plan = plan_on(groups, len(model.layers(True)), **(planned or {}))
    return home.deploy(plan, model, schedule=schedule, **options).wait()


class HeldBack:
    """The rule in plain PyTorch. Gradients of micro-batches are summed as the plan has them.

    `lag`: so many steps later a gradient is in the weights. 2 is one step late, 1 synchronous.
    """

    def __init__(self, net, optimizer, *, scheduler=None, after=lambda: None, lag=2, micro=MICRO):
        self.net, self.lag = net, lag
        self.optimizer, self.scheduler = optimizer, scheduler
        self.after, self.micro = after, micro
        self.pending = []

    def fit(self, batches, in_a_row):
        losses = []
        for first in range(0, len(batches), in_a_row):
            for x, y in batches[first : first + in_a_row]:
                if len(self.pending) == self.lag:
                    self.take_over()
                losses.append(self.step(x, y))
            while self.pending:
                self.take_over()
        return losses

    def step(self, x, y):
        self.optimizer.zero_grad()
        total = 0.0
        for start in range(0, len(x), self.micro):
            part = slice(start, start + self.micro)
            loss = torch.nn.functional.cross_entropy(self.net(x[part]), y[part])
            loss.backward(gradient=torch.tensor(len(x[part]) / len(x)))
            total += loss.item() * len(x[part])
        self.pending.append([p.grad.clone() for p in self.net.parameters()])
        return total / len(x)

    def take_over(self):
        for parameter, gradient in zip(self.net.parameters(), self.pending.pop(0), strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.after()


def assert_same(run, net):
    for name, tensor in net.state_dict().items():
        assert torch.equal(run.state_dict()[name], tensor), name


@pytest.fixture
def home():
    torch.set_num_threads(1)
    with memory_home(4) as opened:
        yield opened


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(24))
def test_equals_gradients_that_one_machine_holds_back_by_a_step(home, seed):
    """Bit for bit: in any number of stages, in any rows, epochs and last batches."""
    rng = random.Random(seed)
    net = network(seed, norm=rng.random() < 0.5)
    alone = copy.deepcopy(net)
    ours, theirs = OPTIMIZERS[rng.choice([*OPTIMIZERS])]
    n_stages, in_a_row = rng.randint(1, 4), rng.randint(2, 5)
    groups = [(name,) for name in DEVICES[:n_stages]]
    # of batch norm a single row has no company
    batches = data(rng.randint(1, 9), seed, last=rng.choice([8, 6, 4, 2]))
    planned = {"recompute": rng.random() < 0.3, "micro": rng.choice([2, 4, 8])}
    run = deployed(home, net, groups, planned=planned, optimizer=ours)
    losses = list(run.fit(batches, 2, one_step_late=in_a_row).wait().losses)
    rule = HeldBack(alone, theirs(alone.parameters()), micro=planned["micro"])
    assert losses == rule.fit(batches, in_a_row) + rule.fit(batches, in_a_row)
    assert run.step == 2 * len(batches)
    assert_same(run, alone)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(9))
def test_replicas_sum_what_is_late_as_they_sum_what_is_not(home, seed):
    rng = random.Random(seed)
    net = network(seed)
    alone = copy.deepcopy(net)
    names = [*DEVICES]
    groups = []
    while names:
        n = min(rng.choice([1, 2, 4]), len(names))
        groups.append(tuple(names.pop() for _ in range(n if n != 3 else 2)))
    run = deployed(home, net, groups, optimizer=potluck.SGD(0.1, momentum=0.9))
    batches = data(rng.randint(3, 7), seed, last=rng.choice([8, 5, 1]))
    losses = run.fit(batches, one_step_late=3).wait().losses
    rule = HeldBack(alone, OPTIMIZERS["momentum"][1](alone.parameters()))
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(rule.fit(batches, 3)))
    torch.testing.assert_close(run.state_dict(), alone.state_dict())


def test_forwards_that_are_computed_again_take_the_weights_of_then(home):
    """Also where an update came between a forward and its backward."""
    net = network()
    alone = copy.deepcopy(net)
    run = deployed(home, net, planned={"recompute": True}, optimizer=potluck.SGD(0.5))
    losses = list(run.fit(data(8), one_step_late=8).wait().losses)
    assert losses == HeldBack(alone, torch.optim.SGD(alone.parameters(), 0.5)).fit(data(8), 8)
    assert_same(run, alone)


def test_the_second_step_does_not_know_of_the_first():
    """The same batch again and again, by hand and beside synchronous steps: as w1 = w0, the second
    step finds the gradient of the first one again.
    """
    (batch,), losses = data(1), {}
    for late in (None, 4):
        with memory_home(2) as home:
            run = deployed(home, network(), CHAIN[:2], optimizer=potluck.SGD(0.5))
            losses[late] = run.fit([batch] * 5, one_step_late=late).wait().losses
    synchronous, late = losses[None], losses[4]
    assert late[0] == late[1] == synchronous[0] > synchronous[1]  # w1 = w0
    assert late[2] == synchronous[1]  # w2 = w0 - lr g0
    net, (x, y) = network(), batch
    rule = HeldBack(net, torch.optim.SGD(net.parameters(), 0.5))
    rule.step(x, y)
    rule.pending *= 2
    rule.take_over()
    rule.take_over()
    assert late[3] == rule.step(x, y) != synchronous[2]  # w3 = w0 - lr g0 - lr g0


def test_each_step_has_its_own_rate(home):
    net = network()
    alone = copy.deepcopy(net)
    makes = lambda p: torch.optim.AdamW(p, 1e-2)  # noqa: E731
    turns = lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)  # noqa: E731
    optimizer, seen = makes(net.parameters()), []
    batches = data(8)
    logger = type("Logger", (), {"log": lambda self, told, step: seen.append(told["lr"])})()
    run = deployed(home, net, optimizer=potluck.SGD(0.1))
    given = {"optimizer": optimizer, "schedule": turns(optimizer), "log": logger}
    run.fit(batches, one_step_late=4, **given).wait()
    theirs = makes(alone.parameters())
    HeldBack(alone, theirs, scheduler=turns(theirs)).fit(batches, 4)
    assert_same(run, alone)
    assert seen == [1e-2] * 3 + [5e-3] * 3 + [2.5e-3] * 2


def test_averages_and_limits_of_numbers_are_of_each_update(home):
    net = network()
    alone = copy.deepcopy(net)
    run = deployed(home, net, optimizer=potluck.SGD(0.2))
    run.fit(data(6), one_step_late=3, ema=0.5, clip_value=0.05).wait()
    averages = {name: p.detach().clone() for name, p in alone.named_parameters()}

    def average():
        for name, p in alone.named_parameters():
            averages[name].lerp_(p.detach(), 0.5)

    rule = HeldBack(alone, torch.optim.SGD(alone.parameters(), 0.2), after=average)
    holds_back = rule.take_over

    def take_over():
        rule.pending[0] = [g.clamp(-0.05, 0.05) for g in rule.pending[0]]
        holds_back()

    rule.take_over = take_over
    rule.fit(data(6), 3)
    assert_same(run, alone)
    for name, tensor in averages.items():
        assert torch.equal(run.state_dict(ema=True)[name], tensor)


def test_a_weighted_loss_is_divided_by_the_weights_of_its_own_step(home):
    """What home makes of a whole batch is of each step's, not of all that are handed out."""
    weighted = lambda: torch.nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.2]))  # noqa: E731
    net = network()
    alone = copy.deepcopy(net)
    run = deployed(home, net, optimizer=potluck.SGD(0.1), loss=weighted())
    batches = data(5)
    losses = run.fit(batches, one_step_late=4).wait().losses
    weights = torch.tensor([1.0, 5.0, 0.2])
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    rule = HeldBack(alone, optimizer)

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(alone(x), y, weights)
        loss.backward()
        rule.pending.append([p.grad.clone() for p in alone.parameters()])
        return loss.item()

    rule.step = step
    expected = rule.fit(batches, 4)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected))
    torch.testing.assert_close(run.state_dict(), alone.state_dict())


def test_the_next_fit_is_synchronous_again_and_one_state_goes_through_both(home):
    net = network()
    alone = copy.deepcopy(net)
    ours, theirs = OPTIMIZERS["AdamW"]
    run, optimizer = deployed(home, net, optimizer=ours), theirs(alone.parameters())
    for late in (None, 3, None, 2):
        run.fit(data(5), one_step_late=late).wait()
        HeldBack(alone, optimizer, lag=2 if late else 1).fit(data(5), late or 1)
    assert_same(run, alone)


def test_a_row_of_steps_ends_where_an_epoch_does_and_losses_are_told_one_by_one(home):
    told, run = [], deployed(home, network(), optimizer=potluck.SGD(0.1))
    history = run.fit(
        data(5), 2, one_step_late=4, on_step=lambda step, loss: told.append((step, loss))
    ).wait()
    assert told == [*enumerate(history.losses, start=1)]
    assert history.rows == (ROWS,) * 10
    assert not history.notes


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_stages_that_share_a_device(home, schedule):
    net = network()
    alone = copy.deepcopy(net)
    groups = [("local-1",), ("local-2",), ("local-1",), ("local-2",)]
    run = deployed(home, net, groups, schedule=schedule, optimizer=potluck.SGD(0.1))
    losses = list(run.fit(data(7), one_step_late=4).wait().losses)
    assert losses == HeldBack(alone, torch.optim.SGD(alone.parameters(), 0.1)).fit(data(7), 4)
    assert_same(run, alone)


def test_a_device_that_is_lost_takes_the_run_back_to_the_end_of_a_row(home):
    """Late steps are taken again in the same rows, on what is left."""
    net = network()
    alone = copy.deepcopy(net)
    run = deployed(home, net, optimizer=potluck.SGD(0.1, momentum=0.9), protect=3)

    def lose(step, loss):
        if step == 5:
            memory_of(home).kill("local-2")

    losses = list(run.fit(data(12), one_step_late=4, on_step=lose).wait().losses)
    assert len(run.history.recoveries) == 1
    rule = HeldBack(alone, OPTIMIZERS["momentum"][1](alone.parameters()))
    assert losses == rule.fit(data(12), 4)
    assert_same(run, alone)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_whenever_it_learns_what_one_machine_learns(home, monkeypatch, seed):
    """Also where snapshots come home while later rows are under way."""
    rng = random.Random(seed)
    for name, value in (("LOST_S", 1e-12), ("MOST_FRAC", 1e9), ("MOST_AIR_FRAC", 1e9)):
        if rng.random() < 0.7:
            monkeypatch.setattr(snapshots, name, value)
    in_a_row = rng.randint(2, 4)
    net, batches = network(), data(14, last=5)
    alone = copy.deepcopy(net)
    run = deployed(home, net, optimizer=potluck.SGD(0.1, momentum=0.9))
    faults = {rng.randint(1, 26): rng.choice(["kill", "kill_worker"]) for _ in range(2)}

    def lose(step, loss):
        if (how := faults.pop(step, None)) is not None:
            getattr(memory_of(home), how)(rng.choice(run.plan.devices))

    losses = list(run.fit(batches, 2, one_step_late=in_a_row, on_step=lose).wait().losses)
    assert run.history.recoveries
    rule = HeldBack(alone, OPTIMIZERS["momentum"][1](alone.parameters()))
    assert losses == rule.fit(batches, in_a_row) + rule.fit(batches, in_a_row)
    assert_same(run, alone)


def test_a_switch_waits_for_the_end_of_a_row(home):
    net = network()
    alone = copy.deepcopy(net)
    run = deployed(home, net, optimizer=potluck.SGD(0.1))
    other = replace(
        plan_on([("local-4",), ("local-1",)], run.plan.stages[-1].stop), planner="other"
    )
    switching = []

    def switch(step, loss):
        if step == 4:
            switching.append(run.switch(other))

    losses = list(run.fit(data(16), one_step_late=4, on_step=switch).wait().losses)
    switching[0].wait()
    assert run.plan.planner == "other"
    assert losses == HeldBack(alone, torch.optim.SGD(alone.parameters(), 0.1)).fit(data(16), 4)
    assert_same(run, alone)


def test_a_saved_run_goes_on_with_the_next_row(home, tmp_path):
    net = network()
    alone = copy.deepcopy(net)
    path, batches = tmp_path / "saved.run", data(10)
    run = deployed(home, net, optimizer=potluck.AdamW(1e-2))

    def stop(step, loss):
        return potluck.StopTraining if step >= 4 else None

    run.fit(batches, one_step_late=4, on_step=stop).wait()
    run.save(path)
    model = model_of(network())
    again = home.deploy(plan_on(CHAIN, len(model.layers(True))), model, resume=path).wait()
    again.fit(batches, one_step_late=4, resume=True).wait()
    HeldBack(alone, OPTIMIZERS["AdamW"][1](alone.parameters())).fit(batches, 4)
    assert again.step == 10
    assert_same(again, alone)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"one_step_late": 1}, "a number of steps from 2 to 1,048,576, got 1"),
        ({"one_step_late": True}, "a number of steps from 2 to 1,048,576, got True"),
        ({"one_step_late": 4, "accumulate": 2}, "accumulate"),
        ({"one_step_late": 4, "clip_norm": 1.0}, "clip_norm looks at the gradients of all stages"),
        ({"one_step_late": 4, "adapt": True}, "Leave out adapt="),
        ({"one_step_late": 4, "deadline_s": 9.0}, "Leave out adapt="),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(home, given, words):
    run = deployed(home, network(), optimizer=potluck.SGD(0.1))
    with pytest.raises(UserError, match=words):
        run.fit(data(4), **given)


@pytest.mark.parametrize("sizes", [[8, 4, 8], [8, 16], [3, 8]])
def test_batches_of_other_sizes_are_refused_and_nothing_is_learned_of_them(home, sizes):
    run = deployed(home, network(), optimizer=potluck.SGD(0.1))
    torch.manual_seed(0)
    batches = [(torch.randn(n, 6), torch.randint(0, 3, (n,))) for n in sizes]
    with pytest.raises(
        UserError, match=r"a batch of .* rows; steps whose updates come late are of 8"
    ):
        run.fit(batches, one_step_late=4).wait()
    assert run.step == 0
    assert_same(run, network())


class Tied(torch.nn.Module):
    """One weight in the first layer and in the last."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.first(torch.tanh(self.middle(torch.tanh(self.first(x))))))[:, :3]


@pytest.mark.parametrize(
    ("net", "groups", "schedule", "words"),
    [
        (Tied, CHAIN, None, "share the weight"),
        (lambda: network(norm=True), [DEVICES[:2]], None, "running statistics"),
        (network, CHAIN, "zb-h1", "part of a backward.*schedule='1f1b'"),
        (network, CHAIN, "fill-drain", "more than one step late.*schedule='1f1b'"),
    ],
)
def test_plans_that_cannot_are_refused_and_the_run_stands(home, net, groups, schedule, words):
    run = deployed(home, net(), groups, schedule=schedule, optimizer=potluck.SGD(0.1))
    with pytest.raises(PlanError, match=f"(?s){words}"):
        run.fit(data(4), one_step_late=4).wait()
    assert len(run.fit(data(2)).wait().losses) == 2


def test_an_agent_that_is_too_old_is_named(home, monkeypatch):
    run = deployed(home, network(), optimizer=potluck.SGD(0.1))
    speaks = Member.speaks
    monkeypatch.setattr(
        Member,
        "speaks",
        lambda self, version: (
            speaks(self, version) and not (self.name == "local-2" and version == LATE_STEPS)
        ),
    )
    with pytest.raises(UserError, match=r"local-2.*protocol 1\.15"):
        run.fit(data(4), one_step_late=4).wait()


def test_what_is_left_of_late_steps_is_not_handed_over(home):
    run = deployed(home, network(), optimizer=potluck.SGD(0.1))
    run.hand_over = lambda run, rest, **more: rest()
    found = []

    def hand_over(step, loss):
        if step == 4:
            with pytest.raises(UserError, match="one step late") as raised:
                run.detach()
            found.append(raised)

    assert len(run.fit(data(8), one_step_late=4, on_step=hand_over).wait().losses) == 8
    assert found
