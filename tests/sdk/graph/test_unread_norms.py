"""Running statistics follow the batches although the loss reads nothing of their norm."""

import copy

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
        self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden), self.norm(hidden)


def test_statistics_that_no_loss_reads_are_those_of_one_machine():
    net, x, y = Net(), torch.randn(8, 5) + 3, torch.randn(8, 4)
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
