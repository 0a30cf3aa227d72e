"""What happens to a training over time: fits, saves, other plans, rates by hand and by schedulers,
limits and averages, in any order. Losses and weights are those of the same calls on one machine.
"""

import copy
import random
from itertools import combinations, count

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import UserError
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
MICRO = 3
EXACT = 1e-9  # of double precision
scheduler = torch.optim.lr_scheduler


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


class Shared(nn.Module):
    """One part used twice, one frozen, one whose gradient is zero at times."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        self.gate = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        out = torch.tanh(self.fixed(torch.tanh(self.first(torch.tanh(self.first(x))))))
        return self.last(out * (1 + torch.relu(self.gate)))


MAKERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, 0.05, momentum=0.9, weight_decay=0.05),
    "adamw": lambda groups: torch.optim.AdamW(groups, 0.02),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, 0.01, momentum=0.5, centered=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, 0.05, lr_decay=0.1),
}
SCHEDULES = {
    "exponential": lambda made: scheduler.ExponentialLR(made, 0.8),
    "cosine": lambda made: scheduler.CosineAnnealingLR(made, 6),
    "warm-up": lambda made: scheduler.LinearLR(made, 0.1, 1.0, 4),
    "steps": lambda made: scheduler.StepLR(made, 2, 0.5),
}


def make_net():
    torch.manual_seed(0)
    return Shared().double()


def make_model(net):
    x, y = make_batches([2], 9)[0]
    return potluck.Model.from_torch(
        net, x, loss=nn.functional.mse_loss, example_targets=y, name="over time"
    )


def make_batches(sizes, seed):
    torch.manual_seed(seed)
    return [
        (torch.randn(n, 4, dtype=torch.double), torch.randn(n, 3, dtype=torch.double))
        for n in sizes
    ]


def groups_of(net):
    first, *others = (p for p in net.parameters() if p.requires_grad)
    return [{"params": [first], "lr": 0.03}, {"params": others}]


def plans(model):
    n_layers = len(model.layers(True))
    for cut in range(1, n_layers):
        yield make_plan(
            model, ((A,), (MICRO,)), ((B,), (MICRO,)), micro_batch=MICRO, bounds=[0, cut, n_layers]
        )
    yield make_plan(model, ((A, B), (2, 1)), micro_batch=MICRO)
    yield make_plan(model, ((B,), (MICRO,)), micro_batch=MICRO, n_micro_batches=2)


class OneMachine:
    """The same in plain PyTorch."""

    def __init__(self, net, made):
        self.net, self.made = net, made
        self.schedule, self.every = None, "step"
        self.limits, self.averages = {}, {}
        self.decay = None

    def keep_average(self, decay):
        self.decay = decay
        self.averages = self.averages or {
            name: p.detach().clone() for name, p in self.net.named_parameters() if p.requires_grad
        }

    def step(self, batches):
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        self.made.zero_grad()
        loss = nn.functional.mse_loss(self.net(x), y)
        loss.backward()
        learning = [p for p in self.net.parameters() if p.requires_grad]
        if "clip_norm" in self.limits:
            nn.utils.clip_grad_norm_(learning, self.limits["clip_norm"])
        if "clip_value" in self.limits:
            nn.utils.clip_grad_value_(learning, self.limits["clip_value"])
        self.made.step()
        if self.schedule is not None and self.every == "step":
            self.schedule.step()
        for name, average in self.averages.items():
            average.lerp_(self.net.get_parameter(name).detach(), 1 - self.decay)
        return loss.item()

    def fit(self, batches, epochs=1, accumulate=1):
        losses = []
        for _ in range(epochs):
            starts = range(0, len(batches), accumulate)
            losses += [self.step(batches[start : start + accumulate]) for start in starts]
            if self.schedule is not None and self.every == "epoch":
                self.schedule.step()
        return losses


def check_equal(run, alone):
    found = [run.state_dict()]
    expected = [alone.net.state_dict()]
    if alone.averages:
        averages = run.state_dict(ema=True)
        found.append({name: averages[name] for name in alone.averages})
        expected.append(alone.averages)
    for have, want in zip(found, expected, strict=True):
        assert have.keys() == want.keys()
        for name, tensor in want.items():
            assert torch.allclose(have[name], tensor, rtol=EXACT, atol=EXACT), name


class Sequence:
    """A run, the same on one machine, and what may happen to both."""

    def __init__(self, home, seed, folder):
        self.home, self.folder = home, folder
        self.rng, self.numbers = random.Random(seed), count(100 * seed)
        self.net = make_net()
        self.model = make_model(self.net)
        self.maker = MAKERS[self.rng.choice([*MAKERS])]
        self.made = self.maker(groups_of(self.net))
        of_one = copy.deepcopy(self.net)
        self.alone = OneMachine(of_one, self.maker(groups_of(of_one)))
        self.again = {}  # what a fit has to be told
        self.make_schedule = None
        self.is_touched = False  # by hand: a scheduler made anew would not know
        self.run = home.deploy(self.plan(), self.model, optimizer=self.made).wait()

    def plan(self):
        return self.rng.choice([*plans(self.model)])

    def batches(self):
        sizes = [self.rng.randrange(1, 9) for _ in range(self.rng.randrange(1, 4))]
        return make_batches(sizes, next(self.numbers))

    def fit(self, **more):
        data = self.batches()
        epochs, accumulate = self.rng.choice([1, 2]), self.rng.choice([1, 2])
        given, self.again = {**self.again, **more}, {}
        expected = self.alone.fit(data, epochs, accumulate)
        handle = self.run.fit(data, epochs, accumulate=accumulate, **given)
        assert handle.wait().losses == pytest.approx(expected, rel=EXACT)

    def switch(self):
        data = self.batches() * 2
        handle = self.run.fit(data, **self.again)
        self.again = {}
        self.run.switch(self.plan()).wait()
        assert handle.wait().losses == pytest.approx(self.alone.fit(data), rel=EXACT)

    def schedule(self):
        self.make_schedule = SCHEDULES[self.rng.choice([*SCHEDULES])]
        self.alone.every = self.rng.choice(["step", "epoch"])
        self.is_touched = self.alone.schedule is not None or self.is_touched
        self.alone.schedule = self.make_schedule(self.alone.made)
        self.fit(schedule=self.make_schedule(self.made), schedule_every=self.alone.every)

    def by_hand(self):
        name, value = self.rng.choice([("lr", 0.003), ("lr", 0.0), ("weight_decay", 0.2)])
        number = self.rng.randrange(2)
        for made in (self.made, self.alone.made):
            made.param_groups[number][name] = value
        self.is_touched = True
        self.fit()

    def limit(self):
        self.alone.limits = {self.rng.choice(["clip_norm", "clip_value"]): 0.05}
        self.fit(**self.alone.limits)

    def average(self):
        self.alone.keep_average(self.rng.choice([0.5, 0.9]))
        self.fit(ema=self.alone.decay)

    def save(self):
        """And resume, by the script that began it."""
        if self.alone.schedule is not None and self.is_touched:
            return
        path = self.folder / f"{next(self.numbers)}"
        self.run.save(path)
        self.run.close()
        self.run = self.home.deploy(self.plan(), self.model, resume=path).wait()
        check_equal(self.run, OneMachine(self.alone.net, None))
        self.made = self.maker(groups_of(self.net))
        self.again = {"optimizer": self.made, **self.alone.limits}
        if self.alone.averages:
            self.again["ema"] = self.alone.decay
        if self.alone.schedule is not None:
            every = self.alone.every
            self.again |= {"schedule": self.make_schedule(self.made), "schedule_every": every}
            return
        for mine, theirs in zip(self.made.param_groups, self.alone.made.param_groups, strict=True):
            mine.update({name: theirs[name] for name in ("lr", "weight_decay")})

    def fails(self):
        """The loader does, in the middle."""
        data = self.batches()

        def loader():
            yield from data
            raise KeyError("no more")

        with pytest.raises(KeyError):
            self.run.fit(loader(), **self.again).wait()
        self.again = {}
        for batch in data:
            self.alone.step([batch])

    def new_optimizer(self):
        self.maker = MAKERS[self.rng.choice([*MAKERS])]
        self.made = self.maker(groups_of(self.net))
        self.alone = OneMachine(self.alone.net, self.maker(groups_of(self.alone.net)))
        self.again, self.is_touched = {}, False
        self.fit(optimizer=self.made)


HAPPENS = (
    *(Sequence.fit, Sequence.switch, Sequence.schedule, Sequence.by_hand, Sequence.limit),
    *(Sequence.average, Sequence.save, Sequence.fails, Sequence.new_optimizer),
)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 40))]
)
def test_a_training_is_that_of_one_machine_whatever_happens_to_it(pair, tmp_path, seed):
    sequence = Sequence(pair, seed, tmp_path)
    for happens in sequence.rng.choices(HAPPENS, k=6 if seed else 3):
        happens(sequence)
    sequence.fit()
    check_equal(sequence.run, sequence.alone)
    sequence.run.close()


# --- an optimizer that is given to deploy ---------------------------------------------------------


def deployed(home, **options):
    """A run and the optimizer that it was deployed with; the same on one machine."""
    net = make_net()
    made = MAKERS["sgd"](groups_of(net))
    of_one = copy.deepcopy(net)
    model = make_model(net)
    run = home.deploy(next(plans(model)), model, optimizer=made, **options).wait()
    return run, made, OneMachine(of_one, MAKERS["sgd"](groups_of(of_one)))


def change_rate(run, made):
    made.param_groups[0]["lr"] = 0.001
    return {}


def change_decay(run, made):
    made.param_groups[1]["weight_decay"] = 0.3
    return {}


def schedule_it(run, made):
    rates = scheduler.ExponentialLR(made, 0.5)
    return {"schedule": rates} if run is not None else rates


@pytest.mark.parametrize("change", [change_rate, change_decay, schedule_it])
def test_what_is_changed_of_the_optimizer_of_deploy_holds_from_the_next_step(pair, change):
    run, made, alone = deployed(pair)
    data = make_batches([4, 5, 3], 1)
    losses = [*run.fit(data).wait().losses]
    losses += run.fit(data, **change(run, made)).wait().losses
    expected = alone.fit(data)
    alone.schedule = change(None, alone.made) or None
    expected += alone.fit(data)
    assert losses == pytest.approx(expected, rel=EXACT)
    check_equal(run, alone)
    run.close()


def test_other_groups_of_the_optimizer_of_deploy_are_told(pair):
    run, made, _ = deployed(pair)
    made.param_groups[0]["params"], made.param_groups[1]["params"] = (
        made.param_groups[1]["params"],
        made.param_groups[0]["params"],
    )
    with pytest.raises(UserError, match="hold other parameters"):
        run.fit(make_batches([4], 1)).wait()
    run.close()


# --- where a schedule stands ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("every", ["step", "epoch"])
@pytest.mark.parametrize("n_before", [0, 2])
def test_a_schedule_goes_on_after_any_fits_and_a_file(pair, tmp_path, every, n_before):
    """It counts the epochs of all fits, and what it was stepped before them."""
    run, made, alone = deployed(pair)
    data, every_fit = make_batches([4, 5], 1), {"schedule_every": every}
    alone.schedule, alone.every = scheduler.ExponentialLR(alone.made, 0.6), every
    rates = scheduler.ExponentialLR(made, 0.6)
    for _ in range(n_before):
        for each in (rates, alone.schedule):
            each.step()
    losses = []
    for _ in range(2):
        losses += run.fit(data, epochs=2, schedule=rates, **every_fit).wait().losses
    run.save(tmp_path / "run")
    run.close()
    net = make_net()
    made = MAKERS["sgd"](groups_of(net))
    model = make_model(net)
    run = pair.deploy(next(plans(model)), model, resume=tmp_path / "run").wait()
    rates = scheduler.ExponentialLR(made, 0.6)
    losses += run.fit(data, optimizer=made, schedule=rates, **every_fit).wait().losses
    assert losses == pytest.approx(alone.fit(data, epochs=5), rel=EXACT)
    run.close()


# --- branches that do not learn -------------------------------------------------------------------


class Beside(nn.Module):
    """A value that a part reads which learns, and one further on which does not."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.first = nn.Linear(4, 4)
        self.main, self.side = nn.Linear(4, 3), nn.Linear(4, 3)
        if how == "frozen behind":
            self.side.requires_grad_(False)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        learned, beside = self.main(torch.relu(hidden)), torch.sigmoid(self.side(hidden))
        if self.how == "compared":
            return learned * (beside > 0.5)
        return learned + (beside if self.how == "frozen behind" else beside.detach())


@pytest.mark.parametrize("how", ["detached", "compared", "frozen behind"])
def test_a_stage_to_which_no_gradient_comes_back_returns_none(pair, how):
    torch.manual_seed(0)
    net = Beside(how).double()
    model, data = make_model(net), make_batches([4, 3], 1)
    alone = OneMachine(net, torch.optim.SGD(net.parameters(), 0.1))
    expected = OneMachine(copy.deepcopy(net), None)
    expected.made = torch.optim.SGD(expected.net.parameters(), 0.1)
    losses = expected.fit(data)
    n_layers = len(model.layers(True))
    for cuts in combinations(range(1, n_layers), min(2, n_layers - 1)):
        stages = [((A if p % 2 else B,), (MICRO,)) for p in range(len(cuts) + 1)]
        plan = make_plan(model, *stages, micro_batch=MICRO, bounds=[0, *cuts, n_layers])
        run = pair.deploy(plan, model, optimizer=alone.made).wait()
        assert run.fit(data).wait().losses == pytest.approx(losses, rel=EXACT), cuts
        check_equal(run, expected)
        run.close()
