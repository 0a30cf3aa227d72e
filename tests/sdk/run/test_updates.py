"""Limits of gradients, groups, schedules and every optimizer: over stages, replicas, switches,
losses and resumed runs, steps are those of torch on one machine.
"""

import copy
import math
import random

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import UserError
from potluck.run.weight_update import read_update
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B, C = (f"local-{i}" for i in (1, 2, 3))
MICRO = 4
BATCH = 8
ROWS = 64
N_STEPS = ROWS // BATCH
PLANS = {
    "one": [((A,), (4,))],
    "pipeline": [((A,), (4,)), ((B,), (4,)), ((C,), (4,))],
    "around": [((B,), (4,)), ((A,), (4,))],
    "replicas": [((A, B, C), (2, 1, 1))],
    "both": [((A,), (4,)), ((B, C), (3, 1))],
    "both behind": [((C, A), (2, 2)), ((B,), (4,))],
}
# of replicated stages: sums of shares are in another order
SHARED = {"replicas", "both", "both behind"}
ROUNDING = 1e-4


def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 24),
        torch.nn.LayerNorm(24),
        torch.nn.Tanh(),
        torch.nn.Linear(24, 24),
        torch.nn.Tanh(),
        torch.nn.Linear(24, 4),
    )


def make_data():
    torch.manual_seed(1)
    return torch.randn(ROWS, 8), torch.randint(0, 4, (ROWS,))


def batches_of(data):
    x, y = data
    return [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]


def model_of(net):
    x, y = make_data()
    loss = torch.nn.functional.cross_entropy
    return potluck.Model.from_torch(net, x[:4], loss=loss, example_targets=y[:4])


def plan_of(model, name):
    return make_plan(model, *PLANS[name], micro_batch=MICRO, n_micro_batches=BATCH // MICRO)


def two_groups(net, make, **settings):
    """No decay on norms and biases, and another rate there."""
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim == 1]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0, "lr": 3e-3},
    ]
    return make(groups, **settings)


optim = torch.optim
MAKERS = {
    "sgd": lambda net: optim.SGD(net.parameters(), lr=0.1, weight_decay=0.01),
    "nesterov": lambda net: optim.SGD(
        net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True
    ),
    "adam": lambda net: optim.Adam(net.parameters(), lr=1e-2, weight_decay=0.1),
    "amsgrad": lambda net: optim.AdamW(net.parameters(), lr=1e-2, amsgrad=True),
    "adamw": lambda net: optim.AdamW(net.parameters(), lr=1e-2),
    "decoupled": lambda net: optim.Adam(
        net.parameters(), lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "coupled": lambda net: optim.AdamW(
        [{"params": [*net.parameters()], "decoupled_weight_decay": False}], weight_decay=0.1
    ),
    "nadam": lambda net: optim.NAdam(net.parameters()),
    "radam": lambda net: optim.RAdam(net.parameters()),
    "adamax": lambda net: optim.Adamax(net.parameters()),
    "adagrad": lambda net: optim.Adagrad(net.parameters(), lr_decay=0.01),
    "adadelta": lambda net: optim.Adadelta(net.parameters()),
    "rmsprop": lambda net: optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.9, centered=True),
    "adafactor": lambda net: optim.Adafactor(net.parameters(), weight_decay=0.1),
    "adamw groups": lambda net: two_groups(net, optim.AdamW, lr=1e-2),
    "sgd groups": lambda net: two_groups(net, optim.SGD, lr=0.05, momentum=0.9),
    "momentum in one": lambda net: optim.SGD(
        [
            {"params": [p for p in net.parameters() if p.ndim > 1], "momentum": 0.9},
            {"params": [p for p in net.parameters() if p.ndim == 1]},
        ],
        lr=0.05,
    ),
    "adafactor groups": lambda net: two_groups(net, optim.Adafactor, lr=1e-2),
}
LIMITS = {
    "none": {},
    "norm": {"clip_norm": 0.3},
    "largest": {"clip_norm": 0.05, "norm_order": math.inf},
    "sum": {"clip_norm": 1.0, "norm_order": 1.0},
    "value": {"clip_value": 0.01},
}
scheduler = torch.optim.lr_scheduler
SCHEDULES = {
    "none": lambda made: None,
    "cosine": lambda made: scheduler.CosineAnnealingLR(made, 10),
    "warm-up": lambda made: scheduler.SequentialLR(
        made,
        [scheduler.LinearLR(made, 0.1, total_iters=4), scheduler.ExponentialLR(made, 0.9)],
        [4],
    ),
    "steps": lambda made: scheduler.StepLR(made, 3, 0.5),
    "one cycle": lambda made: scheduler.OneCycleLR(
        made, 0.02, total_steps=100, cycle_momentum="momentum" in made.defaults
    ),
}


def clip(net, clip_norm=None, norm_order=2.0, clip_value=None):
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip_norm, norm_order)
    if clip_value is not None:
        torch.nn.utils.clip_grad_value_(net.parameters(), clip_value)


def alone(net, make, limits, schedule, n_epochs, ema=None):
    """Losses of the same training on one machine; `net` learns. And the average of its weights."""
    made = make(net)
    rates, losses = SCHEDULES[schedule](made), []
    average = copy.deepcopy(net) if ema is not None else None
    for _ in range(n_epochs):
        for x, y in batches_of(make_data()):
            total = 0.0
            for i in range(0, BATCH, MICRO):
                part = slice(i, i + MICRO)
                loss = torch.nn.functional.cross_entropy(net(x[part]), y[part])
                (loss * (MICRO / BATCH)).backward()
                total += loss.item() * MICRO
            clip(net, **limits)
            made.step()
            made.zero_grad()
            if rates is not None:
                rates.step()
            if average is not None:
                for own, p in zip(average.parameters(), net.parameters(), strict=True):
                    own.detach().lerp_(p.detach(), 1 - ema)
            losses.append(total / BATCH)
    return losses, average


def check_equal(run, losses, net, tolerance):
    assert run.history.losses == pytest.approx(losses, abs=tolerance)
    learned = run.state_dict()
    for name, tensor in net.state_dict().items():
        assert (learned[name] - tensor).abs().max().item() <= tolerance, name


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


def trained(home, plan, maker, limits, schedule, *, ema=None):
    net = make_net()
    model = model_of(net)
    run = home.deploy(plan_of(model, plan), model).wait()
    made = MAKERS[maker](net)
    rates = SCHEDULES[schedule](made)
    run.fit(make_data(), optimizer=made, schedule=rates, ema=ema, **LIMITS[limits]).wait()
    return run


@pytest.mark.long
@pytest.mark.parametrize("maker", MAKERS)
def test_every_optimizer_steps_as_on_one_machine(trio, maker):
    run, net = trained(trio, "pipeline", maker, "none", "none"), make_net()
    losses, _ = alone(net, MAKERS[maker], {}, "none", 1)
    check_equal(run, losses, net, 0.0)
    run.close()


@pytest.mark.few(2)  # every plan and, twice, every limit
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("limits", LIMITS)
def test_gradients_are_limited_over_all_devices(trio, plan, limits):
    run, net = trained(trio, plan, "nesterov", limits, "none"), make_net()
    losses, _ = alone(net, MAKERS["nesterov"], LIMITS[limits], "none", 1)
    check_equal(run, losses, net, ROUNDING if plan in SHARED else 0.0)
    norms = run.history.gradient_norms
    assert len(norms) == N_STEPS
    assert all(map(math.isnan, norms)) == ("norm" not in "".join(LIMITS[limits]))
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_follow_a_schedule(trio, schedule):
    for maker in ("nesterov", "adamw groups"):
        run, net = trained(trio, "both", maker, "norm", schedule), make_net()
        losses, _ = alone(net, MAKERS[maker], LIMITS["norm"], schedule, 1)
        check_equal(run, losses, net, ROUNDING)
        run.close()


def drawn(rng):
    return {
        "maker": rng.choice([*MAKERS]),
        "limits": rng.choice([*LIMITS]),
        "schedule": rng.choice([*SCHEDULES]),
        "plan": rng.choice([*PLANS]),
        "other": rng.choice([*PLANS]),
        "ema": rng.choice((None, 0.9)),
        "protect": rng.choice((1, 2, 5)),
        "order": rng.choice((None, "zb-h1", "fill-drain")),
        "happens": rng.choice(("switch", "lost", "resume", "switch and lost")),
        "when": rng.randrange(2, 2 * N_STEPS - 3),
    }


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*range(16), *(pytest.param(s, marks=pytest.mark.long) for s in range(16, 400))]
)
def test_whatever_happens_meanwhile_steps_are_those_of_one_machine(seed, tmp_path):
    case = drawn(random.Random(seed))
    maker, limits = MAKERS[case["maker"]], LIMITS[case["limits"]]
    torch.set_num_threads(1)
    with memory_home(3) as home:
        net = make_net()
        model = model_of(net)
        run = home.deploy(
            plan_of(model, case["plan"]), model, protect=case["protect"], schedule=case["order"]
        ).wait()

        def on_step(step, loss):
            if step == case["when"] and "switch" in case["happens"]:
                run.switch(plan_of(model, case["other"])).wait()
            if step == case["when"] + 1 and "lost" in case["happens"]:
                memory_of(home).kill(run.plan.devices[-1])
            if step == case["when"] and case["happens"] == "resume":
                raise potluck.StopTraining

        made = maker(net)
        options = {"ema": case["ema"], "epochs": 2, **limits}
        rates = SCHEDULES[case["schedule"]](made)
        run.fit(make_data(), optimizer=made, schedule=rates, on_step=on_step, **options).wait()
        history = run.history.losses
        if case["happens"] == "resume":
            run.save(tmp_path / "run")
            run.close()
            own = copy.deepcopy(net)
            model = model_of(own)
            run = home.deploy(plan_of(model, case["other"]), model, resume=tmp_path / "run").wait()
            made = maker(own)
            rates = SCHEDULES[case["schedule"]](made)
            run.fit(make_data(), optimizer=made, schedule=rates, resume=True, **options).wait()
            history = (*history, *run.history.losses)
        reference = make_net()
        losses, average = alone(reference, maker, limits, case["schedule"], 2, case["ema"])
        assert history == pytest.approx(losses, abs=ROUNDING), case
        learned = run.state_dict()
        for name, tensor in reference.state_dict().items():
            assert (learned[name] - tensor).abs().max().item() <= ROUNDING, (name, case)
        if average is not None:
            for name, tensor in run.state_dict(ema=True).items():
                assert (average.state_dict()[name] - tensor).abs().max().item() <= ROUNDING, case


@pytest.mark.parametrize("made", ["RMSprop", "SGD"])
@pytest.mark.parametrize("by", ["hand", "schedule", "callback"])
def test_a_momentum_that_begins_or_ends_meanwhile_is_refused(trio, made, by):
    """torch fails (RMSprop), or begins with another first step (SGD)."""
    net = make_net()
    model = model_of(net)
    run = trio.deploy(plan_of(model, "pipeline"), model).wait()
    optimizer = getattr(optim, made)(net.parameters(), lr=1e-3)
    options = {}
    if by == "callback":
        options["on_epoch"] = lambda *_: optimizer.param_groups[0].update(momentum=0.9)
    run.fit(make_data(), optimizer=optimizer).wait()
    if by == "hand":
        optimizer.param_groups[0]["momentum"] = 0.9
    if by == "schedule":
        options["schedule"] = scheduler.OneCycleLR(optimizer, 0.02, total_steps=100)
    with pytest.raises(UserError, match="optimizer was changed"):
        run.fit(make_data(), epochs=2, optimizer=optimizer, **options).wait()
    run.close()


@pytest.mark.parametrize(
    ("rated", "read"),
    [(["lr"], ("lr",)), ("lr", ("lr",)), (["lr", "momentum"], ("lr", "momentum"))],
)
def test_rates_of_a_saved_rule_are_read_by_name(rated, read):
    assert (
        read_update({"name": "momentum", "lr": 0.1, "momentum": 0.9}, {"rated": rated}).rated
        == read
    )


@pytest.mark.parametrize("rated", ["mo", ["exp_avg"], [1], 5, {"lr": 1}, [["lr"]], None])
def test_rates_of_a_saved_rule_that_are_none_are_refused(rated):
    with pytest.raises(UserError, match="are a list of its settings"):
        read_update({"name": "sgd", "lr": 0.1}, {"rated": rated})
