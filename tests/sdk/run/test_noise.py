"""Noise that a module draws in training is a function of the seed, the step, the micro-batch and
the row: of no plan. Its distribution is that of torch's own.
"""

from functools import cache

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
A, B = "local-1", "local-2"
PLANS = {
    "another device": [((B,), (6,))],
    "two stages": [((A,), (6,)), ((B,), (6,))],
    "one row alone": [((A, B), (1, 5))],
    "both": [((A, B), (4, 2)), ((B, A), (5, 1))],
}


class Net(nn.Module):
    """What is drawn beside the values between two linear layers, in training alone."""

    def __init__(self, noisy):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.noisy = noisy

    def forward(self, x):
        x = self.first(x)
        return self.last(self.noisy(x) if self.training else x)


def depth(x):
    """Stochastic depth, as timm has it."""
    kept = x.new_empty((x.shape[0], 1)).bernoulli_(0.6)
    return x + (x * kept).relu() / 0.6


def reparametrised(x):
    mean, log_scale = x.chunk(2, -1)
    drawn = torch.distributions.Normal(mean, log_scale.exp()).rsample()
    return torch.cat([drawn, mean], -1)


def diffused(x):
    """Another step of a schedule for each row."""
    kept = torch.linspace(0.9, 0.1, 10)[torch.randint(0, 10, (x.shape[0],))][:, None]
    return kept.sqrt() * x + (1 - kept).sqrt() * torch.randn_like(x)


def sequence_first(x):
    steps = x.view(-1, 4, 4).transpose(0, 1)
    return (steps + torch.randn(4, x.shape[0], 4)).transpose(0, 1).flatten(1)


NOISY = {
    "normal": lambda x: x + torch.randn_like(x),
    "uniform": lambda x: x * torch.rand(x.shape[0], 1),
    "masked": lambda x: torch.where(torch.rand_like(x) < 0.3, 0.0, x),
    "stochastic depth": depth,
    "reparametrised": reparametrised,
    "diffused": diffused,
    "Gumbel": lambda x: functional.gumbel_softmax(x, hard=True),
    "alpha dropout": lambda x: functional.alpha_dropout(x, 0.2, True),
    "sequence first": sequence_first,
    "for all rows": lambda x: x + torch.randn(16),
    "for all rows, in another order": lambda x: x[:, torch.randperm(16)],
    "in place": lambda x: x + torch.empty_like(x).uniform_(-1, 1).mul_(2),
    "of a probability each": lambda x: x * torch.bernoulli(x.sigmoid()),
    "of odds": lambda x: x * (1 + torch.multinomial(x.softmax(-1), 2).sum(-1, keepdim=True) / 32),
    "several times": lambda x: x + torch.randn_like(x) + torch.randn_like(x) * torch.rand_like(x),
}


@cache
def case(name):
    torch.manual_seed(0)
    net = Net(NOISY[name])
    x, y = torch.randn(12, 8), torch.randint(0, 4, (12,))
    model = potluck.Model.from_torch(
        net, x[:4], loss=functional.cross_entropy, example_targets=y[:4]
    )
    return net, x, y, model


def trained(home, model, data, *stages, seed=5):
    """The losses of four steps, and the weights."""
    plan = make_plan(model, *stages, micro_batch=6, n_micro_batches=2)
    run = home.deploy(plan, model, optimizer=potluck.SGD(0.3), seed=seed).wait()
    losses, state = run.fit(data, epochs=4).wait().losses, run.state_dict()
    run.close()
    return losses, state


@pytest.mark.long
@pytest.mark.parametrize("name", NOISY)
def test_what_is_drawn_does_not_depend_on_the_plan(home, name):
    net, x, y, model = case(name)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    losses, state = trained(home, model, (x, y), ((A,), (6,)))
    assert trained(home, model, (x, y), ((A,), (6,)), seed=6)[0] != losses
    assert len({round(loss, 6) for loss in losses}) == len(losses)
    for stages in PLANS.values():
        got, weights = trained(home, model, (x, y), *stages)
        assert got == pytest.approx(losses, rel=1e-5)
        for key, value in state.items():
            assert torch.allclose(weights[key], value, atol=1e-5), key
    assert any(not torch.equal(before[key], value) for key, value in state.items())


@pytest.mark.few(1)
@pytest.mark.parametrize("recompute", [False, True])
def test_activations_that_are_computed_again_have_the_same_noise(home, recompute):
    from dataclasses import replace

    _, x, y, model = case("several times")
    plan = make_plan(model, *PLANS["two stages"], micro_batch=6, n_micro_batches=2)
    stages = tuple(replace(stage, recompute=recompute) for stage in plan.stages)
    run = home.deploy(
        replace(plan, stages=stages), model, optimizer=potluck.SGD(0.3), seed=5
    ).wait()
    losses = run.fit((x, y), epochs=4).wait().losses
    run.close()
    assert losses == pytest.approx(trained(home, model, (x, y), ((A,), (6,)))[0], abs=1e-5)


def losses_where(killed):
    """Of ten steps on two of three devices, of which one may die behind the fifth."""
    _, x, y, model = case("several times")
    with memory_home(3) as home:
        plan = make_plan(model, *PLANS["two stages"], micro_batch=6, n_micro_batches=2)
        run = home.deploy(plan, model, optimizer=potluck.SGD(0.3), seed=5, protect=3).wait()

        def on_step(step, _loss):
            if killed and step == 5:
                memory_of(home).kill(killed)

        return run.fit((x, y), epochs=10, on_step=on_step).wait().losses


@pytest.mark.few(1)
@pytest.mark.parametrize("killed", [A, B])
def test_steps_that_are_computed_again_draw_the_same(killed):
    torch.set_num_threads(1)
    assert losses_where(killed) == pytest.approx(losses_where(""), rel=1e-6)


def test_without_the_noise_it_learns_as_on_one_machine(home):
    """What is drawn is the only difference: of no noise, training is that of torch."""
    net, x, y, model = case("normal")
    run = home.deploy(make_plan(model, ((A,), (6,)), micro_batch=6), model, seed=5).wait()
    run.fit((x, y), optimizer=torch.optim.SGD(net.parameters(), 0.1)).wait()
    with torch.no_grad():
        net.eval()
        state = run.state_dict()
        expected = torch.func.functional_call(net, state, (x,))
        assert torch.allclose(run(x), expected, atol=1e-6)
        net.train()
    run.close()


MIXED = {
    "of the other rows": lambda x: x + torch.randn_like(x).flip(0),
    "in an order of rows": lambda x: x[torch.randperm(x.shape[0])],
    "laid out by halves": lambda x: x + torch.randn(x.shape[0] * 2, 16).view(2, -1, 16).sum(0),
    "sum over the rows": lambda x: x + torch.randn_like(x).mean(0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MIXED)
def test_noise_that_mixes_rows_is_refused(name):
    x = torch.randn(4, 8)
    with pytest.raises(ModelError, match=r"no mean over rows|not lie one after the other"):
        potluck.Model.from_torch(
            Net(MIXED[name]), x, loss=functional.mse_loss, example_targets=torch.randn(4, 4)
        )


def test_noise_that_is_as_long_as_what_rows_make_is_refused():
    x = torch.randn(4, 8)
    with pytest.raises(ModelError, match=r"noise of randn_like.*drawn of a value.*rows"):
        potluck.Model.from_torch(
            Net(lambda x: x + torch.randn_like(x.mean(0))),
            x,
            loss=functional.mse_loss,
            example_targets=torch.randn(4, 4),
            compares_rows=True,
        )


def seeded(x):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return x + torch.randn_like(x)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "noisy",
    [
        seeded,
        lambda x: x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0)),
        lambda x: x + torch.empty_like(x).uniform_(generator=torch.Generator().manual_seed(0)),
    ],
    ids=["the global one", "one of its own", "in place"],
)
def test_noise_of_a_generator_that_the_module_seeds_is_refused(noisy):
    """It would be the same in every step, and here it is another."""
    x = torch.randn(4, 8)
    with pytest.raises(ModelError):
        potluck.Model.from_torch(
            Net(noisy), x, loss=functional.mse_loss, example_targets=torch.randn(4, 4)
        )


def test_noise_in_answers_is_refused():
    class Always(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    with pytest.raises(ModelError, match="draws random numbers when it answers: randn_like"):
        potluck.Model.from_torch(Always(), torch.randn(4, 8))


WAYS = {
    "aten.uniform.default": (2.0, 4.0),
    "aten.normal_functional.default": (3.0, 2.0),
    "aten.bernoulli.p": (0.3,),
    "aten.exponential.default": (2.0,),
    "aten.alpha_dropout.default": (0.3, True),
    "aten.randint_like.default": (7,),
}


@pytest.mark.parametrize("name", WAYS)
def test_what_is_written_out_has_the_mean_and_deviation_of_torchs_own(name):
    from potluck.graph.torch.draws import WAYS as WRITTEN

    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, (_, packet, overload) = torch.randn(200_000), name.split(".")
        ours = WRITTEN[name](x, *WAYS[name]).float()
        theirs = getattr(getattr(torch.ops.aten, packet), overload)(x, *WAYS[name]).float()
    assert ours.mean().item() == pytest.approx(theirs.mean().item(), abs=0.02)
    assert ours.std().item() == pytest.approx(theirs.std().item(), abs=0.02)


def test_odds_are_kept_to():
    from potluck.graph.torch.draws import WAYS as WRITTEN

    odds = torch.tensor([0.1, 0.0, 0.6, 0.3]).expand(20_000, 4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = WRITTEN["aten.multinomial.default"](odds, 1)
    shares = torch.bincount(found.flatten(), minlength=4) / len(odds)
    assert torch.allclose(shares, odds[0], atol=0.02)
    assert shares[1] == 0


class Wide(nn.Module):
    """Noise outside and inside of what is divided by tensor."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        if not self.training:
            return self.last(self.first(x).relu())
        x = self.first(x + torch.randn_like(x)).relu()
        return self.last(x * torch.rand_like(x)) + torch.randn(4)


@pytest.mark.long
def test_a_model_that_is_divided_by_tensor_draws_the_same(home):
    torch.manual_seed(0)
    x, y = torch.randn(12, 8), torch.randint(0, 4, (12,))
    model = potluck.Model.from_torch(
        Wide(), x[:4], loss=functional.cross_entropy, example_targets=y[:4]
    )
    losses, _ = trained(home, model, (x, y), ((A,), (6,)))
    divided = model.divided((1, 1))
    lanes = [layer.lane for layer in divided.layers(True)]
    bounds = [0, *(i for i in range(1, len(lanes)) if lanes[i] != lanes[i - 1]), len(lanes)]
    stages = [((B if lanes[start] else A,), (6,)) for start in bounds[:-1]]
    plan = make_plan(divided, *stages, micro_batch=6, n_micro_batches=2, bounds=bounds)
    run = home.deploy(plan, divided, optimizer=potluck.SGD(0.3), seed=5).wait()
    assert run.fit((x, y), epochs=4).wait().losses == pytest.approx(losses, rel=1e-5)
    run.close()
