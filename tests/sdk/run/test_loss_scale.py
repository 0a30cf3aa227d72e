"""Training in float16 with a scaled loss, on several devices: as torch.amp.GradScaler on one
machine, with the steps that it leaves out.
"""

from itertools import pairwise
from math import isfinite

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.run import weight_update
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")

DEVICES = ("a", "b", "c")
ROWS, MICRO = 8, 4
PLANS = {
    "one device": [(("a",), (4,))],
    "two stages": [(("a",), (4,)), (("b",), (4,))],
    "shared": [(("a", "b"), (1, 3)), (("c",), (4,))],
    "a last stage that is shared": [(("a",), (4,)), (("b", "c"), (2, 2))],
}


@pytest.fixture(scope="module")
def home():
    torch.set_num_threads(1)
    with memory_home([Spec(name=name) for name in DEVICES]) as opened:
        yield opened


class Net(torch.nn.Module):
    """Its gradients pass through float16, and overflow where the factor is large."""

    def __init__(self, gain):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 16), torch.nn.Linear(16, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.last = torch.nn.Linear(16, 3)
        self.gain = gain

    def forward(self, x):
        y = self.norm(torch.relu(self.second(torch.relu(self.first(x)))))
        return self.last(y) * self.gain


def made(gain):
    torch.manual_seed(0)
    net, loss = Net(gain), torch.nn.CrossEntropyLoss()
    x, y = data(1)[0]
    model = potluck.Model.from_torch(
        net, x, loss=loss, example_targets=y, name="net", autocast="float16"
    )
    return net, loss, model


def weights(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def data(n):
    made = torch.Generator().manual_seed(1)
    return [
        (torch.randn(ROWS, 6, generator=made), torch.randint(0, 3, (ROWS,), generator=made))
        for _ in range(n)
    ]


def on_one_machine(net, loss, batches, make, *, clip=None, growth=2000, ema=None):
    """Micro-batches one after the other: their number changes how gradients are rounded."""
    scaler = torch.amp.GradScaler("cpu", growth_interval=growth)
    optimizer = make(net.parameters())
    losses, scales = [], []
    average = {name: p.detach().clone() for name, p in net.named_parameters()}
    for x, y in batches:
        optimizer.zero_grad()
        total = 0.0
        for start in range(0, len(x), MICRO):
            part = slice(start, start + MICRO)
            with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
                value = loss(net(x[part]), y[part])
            scaler.scale(value * (MICRO / len(x))).backward()
            total += value.item() * MICRO / len(x)
        if clip is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        for name, p in net.named_parameters():
            average[name].lerp_(p.detach(), 1 - (ema or 0.0))
        losses.append(total)
        scales.append(scaler.get_scale())
    return losses, scales, average


def check(run, net, begun, losses, expected):
    """Losses, and how far each weight has moved, of how far the farthest of its tensor has."""
    assert losses == pytest.approx(expected, rel=2e-3, abs=1e-4)
    state = run.state_dict()
    assert state.keys() == begun.keys()
    for name, weight in net.state_dict().items():
        moved = weight - begun[name]
        assert (state[name] - weight).abs().max() <= 0.05 * moved.abs().max(), name


@pytest.mark.few(1)
@pytest.mark.parametrize("stages", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("gain", [1.0, 300.0], ids=["finite", "overflows at first"])
def test_training_in_float16_is_that_of_grad_scaler(home, stages, gain):
    net, loss, model = made(gain)
    begun, batches = weights(net), data(12)
    plan = make_plan(model, *stages, micro_batch=MICRO, n_micro_batches=ROWS // MICRO)
    run = home.deploy(plan, model, optimizer=potluck.AdamW(lr=1e-3)).wait()
    history = run.fit(batches).wait()
    losses, scales, _ = on_one_machine(net, loss, batches, lambda p: torch.optim.AdamW(p, lr=1e-3))
    n_left_out = sum("was left out" in note for note in history.notes)
    assert (n_left_out > 0) == (gain > 1)
    assert scales[-1] == 2.0 ** (16 - n_left_out)
    check(run, net, begun, history.losses, losses)
    run.close()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.mark.long
@pytest.mark.parametrize("stages", [PLANS["two stages"], PLANS["a last stage that is shared"]])
def test_limits_averages_and_growth_are_those_of_one_machine(home, stages, monkeypatch):
    """The factor doubles after three finite steps, until gradients overflow again."""
    monkeypatch.setattr(weight_update, "GROWTH_STEPS", 3)
    net, loss, model = made(100.0)
    begun, batches = weights(net), data(16)
    plan = make_plan(model, *stages, micro_batch=MICRO, n_micro_batches=ROWS // MICRO)
    run = home.deploy(plan, model, optimizer=potluck.SGD(lr=0.05, momentum=0.9)).wait()
    history = run.fit(batches, clip_norm=0.5, ema=0.9).wait()
    losses, scales, average = on_one_machine(net, loss, batches, sgd, clip=0.5, growth=3, ema=0.9)
    before = [2.0**16, *scales]
    left_out = [i for i, norm in enumerate(history.gradient_norms) if not isfinite(norm)]
    assert left_out == [i for i, scale in enumerate(scales) if scale < before[i]]
    assert any(b > a for a, b in pairwise(scales))
    check(run, net, begun, history.losses, losses)
    torch.testing.assert_close(dict(run.state_dict(ema=True)), average, rtol=5e-3, atol=5e-4)
    run.close()


@pytest.mark.long
def test_a_run_that_is_saved_and_one_that_switches_keep_their_factor(home, tmp_path):
    net, loss, model = made(300.0)
    begun, batches = weights(net), data(12)
    plans = [
        make_plan(model, *PLANS[name], micro_batch=MICRO, n_micro_batches=ROWS // MICRO)
        for name in ("two stages", "shared", "one device")
    ]
    run = home.deploy(plans[0], model, optimizer=potluck.AdamW(lr=1e-3)).wait()
    losses = [*run.fit(batches[:4]).wait().losses]
    run.switch(plans[1]).wait()
    losses += run.fit(batches[4:8]).wait().losses[-4:]
    run.save(tmp_path / "run.safetensors")
    run.close()
    again = home.deploy(plans[2], model, resume=tmp_path / "run.safetensors").wait()
    losses += again.fit(batches[8:]).wait().losses[-4:]
    expected, _, _ = on_one_machine(net, loss, batches, lambda p: torch.optim.AdamW(p, lr=1e-3))
    check(again, net, begun, losses, expected)
    again.close()


@pytest.mark.long
@pytest.mark.parametrize("lost", ["a", "b"])
def test_whoever_is_lost_takes_no_factor_with_it(lost):
    """Between the steps that are left out at first, and those that are not."""
    net, loss, model = made(300.0)
    begun, batches = weights(net), data(20)
    plan = make_plan(model, *PLANS["two stages"], micro_batch=MICRO, n_micro_batches=2)
    with memory_home([Spec(name=name) for name in DEVICES]) as home:
        run = home.deploy(plan, model, optimizer=potluck.AdamW(lr=1e-3)).wait()

        def kill_lost(step, _):
            if step == 4:
                memory_of(home).kill(lost)

        history = run.fit(batches, on_step=kill_lost, adapt=False).wait()
        assert history.recoveries
        expected, scales, _ = on_one_machine(
            net, loss, batches, lambda p: torch.optim.AdamW(p, lr=1e-3)
        )
        n_left_out = sum("was left out" in note for note in history.notes)
        assert scales[-1] == 2.0 ** (16 - n_left_out)
        check(run, net, begun, history.losses, expected)
        run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_of_every_kind_of_type_are_scaled(home, reduction):
    """Under autocast this one is in float16, or in float32, as torch has it."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
    loss = torch.nn.L1Loss(reduction=reduction)
    begun = weights(net)
    made_of = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(ROWS, 6, generator=made_of), torch.randn(ROWS, 3, generator=made_of))
        for _ in range(4)
    ]
    model = potluck.Model.from_torch(
        net, batches[0][0], loss=loss, example_targets=batches[0][1], autocast="float16"
    )
    plan = make_plan(model, *PLANS["two stages"], micro_batch=MICRO, n_micro_batches=2)
    run = home.deploy(plan, model, optimizer=potluck.SGD(lr=0.01)).wait()
    losses = run.fit(batches).wait().losses
    parts = 1 if reduction == "mean" else ROWS // MICRO  # the reference takes a mean of them
    expected, _, _ = on_one_machine(
        net, lambda y, t: loss(y, t) * parts, batches, lambda p: torch.optim.SGD(p, lr=0.01)
    )
    check(run, net, begun, losses, expected)
    run.close()


@pytest.mark.long
def test_the_stage_with_the_factor_trains_some_weight(home):
    """A frozen head does not learn when a step is left out; the layer before it does."""
    net, loss, model = made(1.0)
    net.last.requires_grad_(False)
    x, y = data(1)[0]
    frozen = potluck.Model.from_torch(
        net, x, loss=loss, example_targets=y, name="net", autocast="float16"
    )
    last = [len(each.layers(True)) - 1 for each in (model, frozen)]
    for each, layer in zip((model, frozen), last, strict=True):
        _, graph = each.segment(layer, layer + 1, train=True)
        assert any(p.trainable for p in graph.parameters)
    begun, batches = weights(net), data(6)
    plan = make_plan(frozen, *PLANS["two stages"], micro_batch=MICRO, n_micro_batches=2)
    run = home.deploy(plan, frozen, optimizer=potluck.SGD(lr=0.05, momentum=0.9)).wait()
    losses = run.fit(batches).wait().losses
    expected, _, _ = on_one_machine(
        net, loss, batches, lambda _: sgd([p for p in net.parameters() if p.requires_grad])
    )
    check(run, net, begun, losses, expected)
    run.close()


def test_a_weight_of_that_name_is_refused():
    net = torch.nn.Linear(3, 2)
    net.register_parameter("loss_scale", torch.nn.Parameter(torch.ones(2)))
    forward = net.forward
    net.forward = lambda x: forward(x) * net.loss_scale
    with pytest.raises(potluck.errors.ModelError, match="a state called 'loss_scale'"):
        potluck.Model.from_torch(
            net,
            torch.randn(4, 3),
            loss=torch.nn.MSELoss(),
            example_targets=torch.randn(4, 2),
            autocast="float16",
        )
