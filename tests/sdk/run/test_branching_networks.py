"""Networks with skips, transposed convolutions and parallel encoders, on plans of Dora's: trained
as on one machine.
"""

import copy

import pytest
from tests.sdk.graph.families import Residual

import potluck
from potluck.planning.registry import plan_dora
from potluck.profile.measure import device_of
from potluck.records import Inference, LayerCost, Medium, Network, Path, Problem, Training
from potluck.schedule.stage_graph import wire

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

loss = nn.functional.cross_entropy
STEPS = 10
ROWS = 8
MICRO = 4


class Segmenter(nn.Module):
    """Down and up again by transposed convolutions, what was before joined on: a class for every
    pixel.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.down = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up, self.narrow = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 8, 3, padding=1)
        self.out, self.head = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        a = self.first(x)
        b = self.down(a)
        c = torch.relu(self.narrow(torch.cat([self.up(self.deep(b)), b], 1)))
        return self.head(torch.cat([self.out(c), a], 1))

    @staticmethod
    def example(rows):
        return (torch.randn(rows, 1, 16, 16),), torch.randint(0, 3, (rows, 16, 16))


class ResNet(nn.Module):
    """Residual blocks with batch normalisation and projections."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.blocks = nn.Sequential(
            Residual(4, 4), Residual(4, 8, 2), Residual(8, 8), Residual(8, 16, 2)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))

    @staticmethod
    def example(rows):
        return (torch.randn(rows, 1, 16, 16),), torch.randint(0, 4, (rows,))


class Captioned(nn.Module):
    """A picture through convolutions and a text through a transformer block, joined for the
    answer.
    """

    def __init__(self):
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 16),
        )
        self.words, self.norms = (
            nn.Embedding(30, 16),
            nn.ModuleList(nn.LayerNorm(16) for _ in range(2)),
        )
        self.mix, self.join = nn.Linear(16, 48), nn.Linear(16, 16)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))

    def text(self, tokens):
        x = self.words(tokens)
        q, k, v = (
            self.mix(self.norms[0](x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind(0)
        )
        x = x + self.join(
            nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )
        return (x + self.net(self.norms[1](x))).mean(1)

    def forward(self, picture, tokens):
        return self.head(torch.cat([self.picture(picture), self.text(tokens)], 1))

    @staticmethod
    def example(rows):
        return (torch.randn(rows, 1, 8, 8), torch.randint(0, 30, (rows, 6))), torch.randint(
            0, 4, (rows,)
        )


NETWORKS = [Segmenter, ResNet, Captioned]


def made(kind):
    torch.manual_seed(0)
    net, (x, y) = kind(), kind.example(ROWS)
    return net, potluck.Model.from_torch(net, x, loss=loss, example_targets=y), x, y


def plan_of_dora(home, model, workload):
    """Its plan over both devices, one a stage, that has most stages side by side, the fastest of
    them; every layer takes a second and no link any."""
    train = isinstance(workload, Training)
    layers = model.layers(train)
    names = tuple(home.devices)
    costs = (LayerCost(rows=(1,), forward_s=(1.0,), backward_s=(2.0,)),) * len(layers)
    sides = (*names, potluck.records.HOME)
    problem = Problem(
        model="m",
        devices=tuple(device_of(name, home.devices[name].capability) for name in names),
        layers=layers,
        network=Network(
            media=(Medium(name="air", capacity_bytes_per_s=1e9),),
            paths={(a, b): Path(media=(("air", 1),)) for a in sides for b in sides if a != b},
        ),
        costs=dict.fromkeys(names, costs),
        workload=workload,
    )
    found = [
        plan
        for plan in plan_dora(problem)
        if all(len(stage.devices) == 1 for stage in plan.stages)
        and len({s.devices for s in plan.stages}) == 2
    ]
    return min(found, key=lambda plan: (-side_by_side(model, plan), plan.latency_s))


def side_by_side(model, plan):
    """How many stages wait for no other."""
    segments = [
        model.segment(stage.start, stage.stop, train=plan.training)[0] for stage in plan.stages
    ]
    return sum(not before for before in wire(plan, segments, training=plan.training).before)


@pytest.mark.long
@pytest.mark.parametrize("kind", NETWORKS)
def test_ten_steps_of_training_equal_one_machine_to_the_bit(home, kind):
    net, model, x, y = made(kind)
    plan = plan_of_dora(home, model, Training(batch=ROWS, micro_batch=MICRO))
    assert side_by_side(model, plan) == (2 if kind is Captioned else 1)
    run = home.deploy(plan, model).wait()
    losses = run.fit((*x, y), epochs=STEPS).wait().losses
    state = run.state_dict()
    run.close()
    alone = copy.deepcopy(net)
    optimizer, expected = torch.optim.AdamW(alone.parameters(), 1e-3), []
    for _ in range(STEPS):
        total = 0.0
        for i in range(0, ROWS, MICRO):
            part = loss(alone(*(t[i : i + MICRO] for t in x)), y[i : i + MICRO])
            (part * (MICRO / ROWS)).backward()
            total += part.item() * MICRO
        optimizer.step()
        optimizer.zero_grad()
        expected.append(total / ROWS)
    assert list(losses) == expected
    for name, tensor in alone.state_dict().items():
        assert torch.equal(state[name], tensor), name


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", NETWORKS)
def test_answers_are_those_of_one_machine(home, kind):
    net, model, x, _ = made(kind)
    net.eval()
    plan = plan_of_dora(home, model, Inference(batch=ROWS))
    assert side_by_side(model, plan) == (2 if kind is Captioned else 1)
    run = home.deploy(plan, model).wait()
    for rows in (1, 3, ROWS):
        part = [t[:rows] for t in x]
        with torch.no_grad():
            # rows may come in other micro-batches
            assert (run(*part) - net(*part)).abs().max() <= 1e-6
    run.close()
