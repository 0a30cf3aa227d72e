"""Batch norms that are called more than once, by branches or by the loss: one norm, wherever the
layers lie.
"""

import copy
from itertools import combinations

import pytest

import potluck
from potluck.records import Plan, Stage

torch = pytest.importorskip("torch")

LR = 0.05
MICRO = 4
WIDTH = 6


class Called(torch.nn.Module):
    """Two norms that are called twice and thrice; `frozen`: the second stays in evaluation."""

    def __init__(self, frozen=False):
        super().__init__()
        torch.manual_seed(0)
        self.lines = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(WIDTH, momentum=0.3) for _ in "ab"])
        self.frozen = frozen
        self.double().train()

    def train(self, mode=True):
        super().train(mode)
        self.norms[1].train(mode and not self.frozen)
        return self

    def forward(self, x):
        first, second = self.norms
        x = self.lines[1](first(self.lines[0](first(x))))
        x = second(torch.tanh(x)) + second(self.lines[2](x))
        return self.lines[3](second(x))


class OfTargets(torch.nn.Module):
    """A loss that normalises what it compares, by a norm of its own."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(WIDTH).double()

    def forward(self, y, t):
        return torch.nn.functional.mse_loss(y, self.norm(t))


class OfBoth(OfTargets):
    def forward(self, y, t):
        return torch.nn.functional.mse_loss(self.norm(y), self.norm(t))


class Plain(torch.nn.Module):
    """No norm but in the loss, so that the counter of this one may lie anywhere."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = torch.nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x):
        return self.line(x)


CASES = {
    "called again": (Called, torch.nn.MSELoss),
    "called again, one frozen": (lambda: Called(frozen=True), torch.nn.MSELoss),
    "called again by model and loss": (Called, OfBoth),
    "in the loss alone": (Plain, OfTargets),
}
BATCHES = (8, 7, 11)


def every_plan(model, most):
    """One stage, and every way to cut the layers into two or three; `most` of them."""
    n_layers = len(model.layers(True))
    cuts = [cut for n in range(3) for cut in combinations(range(1, n_layers), n)]
    for cut in cuts[:: max(1, len(cuts) // most)]:
        bounds = (0, *cut, n_layers)
        yield Plan(
            planner="by hand",
            model="test",
            stages=tuple(
                Stage(
                    start=bounds[i],
                    stop=bounds[i + 1],
                    devices=(f"local-{i % 2 + 1}",),
                    shares=(MICRO,),
                    warm_up=2 * (len(cut) - i) + 1,
                )
                for i in range(len(cut) + 1)
            ),
            micro_batch=MICRO,
            n_micro_batches=2,
            training=True,
        )


def alone_on(net, loss, batches):
    """SGD on one machine, micro-batch after micro-batch; returns the losses."""
    optimizer = torch.optim.SGD([*net.parameters(), *loss.parameters()], LR)
    losses = []
    for x, t in batches:
        total = 0.0
        for part_x, part_t in zip(x.split(MICRO), t.split(MICRO), strict=True):
            part = loss(net(part_x), part_t) * (len(part_x) / len(x))
            part.backward()
            total += part.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_norm_is_one_norm_wherever_the_layers_lie(home, name):
    net, loss = (make() for make in CASES[name])
    torch.manual_seed(1)
    batches = [(torch.randn(n, WIDTH).double(), torch.randn(n, WIDTH).double()) for n in BATCHES]
    model = potluck.Model.from_torch(net, batches[0][0], loss=loss, example_targets=batches[0][1])
    alone, alone_loss = copy.deepcopy(net).train(), copy.deepcopy(loss)
    losses = alone_on(alone, alone_loss, batches)
    begin = [copy.deepcopy(module.state_dict()) for module in (net, loss)]
    for plan in every_plan(model, most=6):
        for module, state in zip((net, loss), begin, strict=True):
            module.load_state_dict(state)
        run = home.deploy(plan, model, optimizer=potluck.SGD(LR)).wait()
        assert run.fit(batches).wait().losses == pytest.approx(losses, rel=1e-10)
        run.load_into()
        run.close()
        for local, reference in ((net, alone), (loss, alone_loss)):
            for key, tensor in reference.state_dict().items():
                torch.testing.assert_close(
                    local.state_dict()[key], tensor, rtol=1e-10, atol=1e-12, msg=key
                )


def test_a_norm_that_averages_over_all_batches_is_refused_however_often_it_is_called():
    net = Called()
    net.norms[0].momentum = None
    x = torch.randn(4, WIDTH).double()
    with pytest.raises(potluck.errors.ModelError, match=r"momentum=None.*Give it a momentum"):
        potluck.Model.from_torch(net, x, loss=torch.nn.MSELoss(), example_targets=x)
