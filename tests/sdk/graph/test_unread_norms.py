"""Running statistics follow the batches although the loss reads nothing of their norm."""

import copy

import pytest
import torch
from tests.sdk.run.conftest import make_plan
from torch import nn
from torch.nn.functional import mse_loss

import potluck
from potluck.graph import Model
from potluck.testing.memory import memory_home


class Net(nn.Module):
    """Answers, and features that no loss reads."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden), self.norm(hidden)


def test_statistics_that_no_loss_reads_are_those_of_one_machine():
    net = Net()
    x = torch.randn(8, 5) + 3
    y = torch.randn(8, 4)
    alone = copy.deepcopy(net).train()
    alone(x)
    model = Model.from_torch(
        net, x, loss=lambda o, y: mse_loss(o[0], y), example_targets=y, name="t"
    )
    with memory_home(2) as home:
        a, b = home.devices
        for stages in ([((a,), (8,))], [((a,), (8,)), ((b,), (8,))]):
            plan = make_plan(model, *stages, micro_batch=8)
            run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
            run.fit([(x, y)]).wait()
            torch.testing.assert_close(
                run.state_dict()["norm.running_mean"], alone.norm.running_mean
            )
            run.close()


class Deep(nn.Module):
    """A norm that is read, and behind it one whose features no loss reads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(5, 6), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 4)
        self.side = nn.Linear(6, 3)
        self.unread = nn.BatchNorm1d(3)

    def forward(self, x):
        hidden = self.norm(self.first(x)).tanh()
        return self.last(hidden), self.unread(self.side(hidden))


def loss_of(outputs, y):
    return mse_loss(outputs[0], y)


def batches_of(n):
    torch.manual_seed(1)
    return [(torch.randn(8, 5) * (i + 1) + 3, torch.randn(8, 4)) for i in range(n)]


def made():
    net, (x, y) = Deep(), batches_of(1)[0]
    return net, Model.from_torch(net, x, loss=loss_of, example_targets=y, name="t")


def alone_by_shares(net, batches, shares):
    """SGD on one machine that normalises each share by itself; the statistics become their mean by
    rows.
    """
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d)]
    for x, y in batches:
        before = [copy.deepcopy(norm.state_dict()) for norm in norms]
        means = [{} for _ in norms]
        optimizer.zero_grad()
        for part, target in zip(x.split(shares), y.split(shares), strict=True):
            for norm, was in zip(norms, before, strict=True):
                norm.running_mean, norm.running_var = (
                    was["running_mean"].clone(),
                    was["running_var"].clone(),
                )
            (loss_of(net(part), target) * (len(part) / len(x))).backward()
            for norm, mean in zip(norms, means, strict=True):
                for name in ("running_mean", "running_var"):
                    mean[name] = mean.get(name, 0.0) + getattr(norm, name) * len(part) / len(x)
        for norm, mean in zip(norms, means, strict=True):
            norm.running_mean, norm.running_var = mean["running_mean"], mean["running_var"]
        optimizer.step()


def assert_same_statistics(run, alone):
    found = run.state_dict()
    for name, wanted in alone.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("shares", [(4, 4), (5, 3), (2, 6)])
@pytest.mark.parametrize("cut", [False, True])
def test_of_replicas_they_are_the_mean_by_rows(shares, cut):
    net, model = made()
    alone, batches = copy.deepcopy(net), batches_of(3)
    alone_by_shares(alone, batches, list(shares))
    with memory_home(2) as home:
        a, b = home.devices
        stages = [((a, b), shares)] * (2 if cut else 1)
        plan = make_plan(model, *stages, micro_batch=8)
        run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
        run.fit(batches).wait()
        assert_same_statistics(run, alone)
        run.close()


def test_a_live_switch_and_a_checkpoint_lose_none(tmp_path):
    net, model = made()
    alone, batches = copy.deepcopy(net), batches_of(12)
    alone_by_shares(alone, batches, [8])
    with memory_home(2) as home:
        a, b = home.devices
        uncut, cut, other = (
            make_plan(model, *stages, micro_batch=8)
            for stages in ([((a,), (8,))], [((a,), (8,)), ((b,), (8,))], [((b,), (8,))])
        )
        run = home.deploy(cut, model, optimizer=potluck.SGD(0.1)).wait()
        switching = []
        run.fit(
            batches[:8], on_step=lambda step, _: step == 2 and switching.append(run.switch(other))
        ).wait()
        switching[0].wait()
        run.fit(batches[8:10]).wait()
        run.save(tmp_path / "saved")
        run.close()
        run = home.deploy(uncut, model, resume=tmp_path / "saved").wait()
        run.fit(batches[10:]).wait()
        assert_same_statistics(run, alone)
        assert run.state_dict()["unread.num_batches_tracked"] == len(batches)
        run.close()
