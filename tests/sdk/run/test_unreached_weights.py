"""A weight that no gradient reaches stays as it is, however the network is split: torch's
optimizers leave it alone.
"""

import copy
import random

import pytest
from tests.sdk.run.conftest import make_plan, more_steps, train_alone
from tests.sdk.run.test_switching import FOREVER, in_the_middle, stop

import potluck
from potluck.records import Plan, Stage
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
nn = torch.nn
A = "local-1"
B = "local-2"
C = "local-3"
WIDTH = 8
CLASSES = 4
ROWS = 24
BATCH = 12
MICRO = 6
SHAPES = {
    "one device": [((A,), (6,))],
    "pipeline": [((A,), (6,)), ((B,), (6,))],
    "replicas": [((A, B), (3, 3))],
    "unequal replicas of three": [((A, B, C), (3, 1, 2))],
    "replicas in a pipeline": [((A, B), (4, 2)), ((C,), (6,))],
    "shared by all in turn": [((A, B), (5, 1)), ((B, C), (2, 4)), ((C, A), (3, 3))],
}
OPTIMIZERS = {
    "adamw": (
        potluck.AdamW(0.01, weight_decay=0.3),
        lambda ps: torch.optim.AdamW(ps, 0.01, weight_decay=0.3),
    ),
    "sgd": (
        potluck.SGD(0.05, weight_decay=0.3),
        lambda ps: torch.optim.SGD(ps, 0.05, weight_decay=0.3),
    ),
    "momentum": (
        potluck.SGD(0.05, momentum=0.9, weight_decay=0.3),
        lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, weight_decay=0.3),
    ),
    "nesterov": (
        potluck.SGD(0.05, momentum=0.9, weight_decay=0.3, nesterov=True),
        lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, weight_decay=0.3, nesterov=True),
    ),
}


class Random(nn.Module):
    """Some layers in a row, each with something that gradients pass, or do not, or pass as
    zeros.
    """

    def __init__(self, seed):
        super().__init__()
        draw = random.Random(seed)
        self.ways = [draw.choice(WAYS) for _ in range(5)]
        self.steps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in self.ways)
        self.sides = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in self.ways)
        self.scales = nn.ParameterList(nn.Parameter(torch.rand(WIDTH) + 0.5) for _ in self.ways)
        self.register_buffer("shift", torch.randn(WIDTH))
        self.head, self.never = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, WIDTH)
        for module in (*self.steps, *self.sides):
            if draw.random() < 0.2:
                module.requires_grad_(False)
            if draw.random() < 0.1:
                module.weight.requires_grad_(False)
        self.half = draw.random() < 0.2

    def forward(self, x):
        for way, step, side, scale in zip(
            self.ways, self.steps, self.sides, self.scales, strict=True
        ):
            main = torch.tanh(step(x)) * scale
            if way == "cut":
                x = main.detach() + side(x)
            elif way == "side":
                x = main + side(x).detach()
            elif way == "silent":
                with torch.no_grad():
                    more = side(x)
                x = main + more
            elif way == "unused":
                side(x)
                x = main + self.shift
            elif way == "rounded":
                x = main + side(x).round()
            elif way == "chosen":
                x = torch.where(side(x) > 0, main, main * self.shift)
            elif way == "mask":
                x = main * (side(x) > 0).float()
            elif way == "size":
                x = main + torch.ones_like(side(x))
            elif way == "part":
                x = torch.cat([main.split(WIDTH // 2, 1)[0], side(x).chunk(2, 1)[1].detach()], 1)
            else:
                x = main + side(x)
        return self.head(x.detach() if self.half else x)


WAYS = ["cut", "side", "silent", "unused", "rounded", "chosen", "mask", "size", "part", "both"]
SEEDS, N_MARKED = range(24), 10


@pytest.fixture(scope="module")
def three():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


def make(seed):
    torch.manual_seed(seed)
    net = Random(seed)
    x = torch.randn(ROWS, WIDTH)
    y = torch.randint(0, CLASSES, (ROWS,))
    model = potluck.Model.from_torch(
        net, x[:6], loss=nn.functional.cross_entropy, example_targets=y[:6]
    )
    return net, model, x, y


def check_equal(state, before, alone):
    """`alone`: the module after plain torch has trained it, with the gradients of one more step."""
    for name, weight in alone.named_parameters():
        assert torch.allclose(state[name], weight, rtol=1e-4, atol=1e-5), name
        if weight.grad is None:
            assert torch.equal(state[name], before[name]), name
    for name, buffer in alone.named_buffers():
        assert torch.equal(state[name], buffer), name


def one_backward(net, x, y):
    nn.functional.cross_entropy(net(x), y).backward()


# every shape once, and every optimizer; with one another in the long tests
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(
            seed, marks=[pytest.mark.long] * (seed // len(SHAPES) != seed % len(SHAPES) % 4)
        )
        for seed in SEEDS
    ],
)
def test_weights_that_no_gradient_reaches_are_left_alone(three, seed):
    shape, optimizer = (
        list(SHAPES)[seed % len(SHAPES)],
        list(OPTIMIZERS)[seed // len(SHAPES) % len(OPTIMIZERS)],
    )
    net, model, x, y = make(seed)
    before, (ours, theirs) = copy.deepcopy(net.state_dict()), OPTIMIZERS[optimizer]
    if len(model.layers(True)) < len(SHAPES[shape]):
        shape = "unequal replicas of three"
    plan = make_plan(model, *SHAPES[shape], micro_batch=MICRO, n_micro_batches=BATCH // MICRO)
    run = three.deploy(plan, model, optimizer=ours).wait()
    losses, state = run.fit((x, y), epochs=2).wait().losses, run.state_dict()
    run.close()
    alone = copy.deepcopy(net)
    expected = train_alone(
        alone, x, y, batch=BATCH, micro_batch=MICRO, epochs=2, make_optimizer=theirs
    )
    assert losses == pytest.approx(expected, rel=1e-5)
    one_backward(alone, x, y)
    check_equal(state, before, alone)


# some ten layers of each way, and as many networks again in the long tests
@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed >= N_MARKED)) for seed in SEEDS]
)
def test_what_is_marked_as_trainable_is_what_torch_gives_a_gradient(seed):
    net, model, x, y = make(100 + seed)
    one_backward(net, x, y)
    _, graph = model.segment(0, len(model.layers(True)), train=True)
    marked = {p.name for p in graph.parameters if p.trainable}
    assert marked == {name for name, weight in net.named_parameters() if weight.grad is not None}


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_who_takes_over_a_stage_leaves_them_alone_too(three, optimizer):
    """A stage of two replicas goes over to others, who follow it by copies of its gradients."""
    net, model, x, y = make(3)
    before, (ours, theirs) = copy.deepcopy(net.state_dict()), OPTIMIZERS[optimizer]
    n_layers = len(model.layers(True))

    def plan(*devices):
        shares = (MICRO // len(devices),) * len(devices)
        stage = Stage(start=0, stop=n_layers, devices=devices, shares=shares, warm_up=1)
        return Plan(
            planner="by hand",
            model="test",
            stages=(stage,),
            micro_batch=MICRO,
            n_micro_batches=BATCH // MICRO,
        )

    run = three.deploy(plan(A, B), model, optimizer=ours).wait()
    handle = run.fit((x, y), epochs=FOREVER)
    switching, go_on = in_the_middle(run, plan(C))
    more_steps(run, handle, 3)  # these are followed by who takes over
    go_on.set()
    switching.wait()
    stop(run, handle)
    n_steps, state = run.step, run.state_dict()
    run.close()
    alone = copy.deepcopy(net)
    train_alone(
        alone,
        x.repeat(n_steps, 1)[: n_steps * BATCH],
        y.repeat(n_steps)[: n_steps * BATCH],
        batch=BATCH,
        micro_batch=MICRO,
        epochs=1,
        make_optimizer=theirs,
    )
    one_backward(alone, x, y)
    check_equal(state, before, alone)


@pytest.mark.parametrize("train", [True, False])
def test_a_state_that_was_told_stays_as_it_is(home, train):
    """It shares no memory with the module, whatever of that the graph reads."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"read": nn.Linear(WIDTH, CLASSES), "frozen": nn.Linear(WIDTH, WIDTH)})
    net["frozen"].requires_grad_(False)
    net["unread"] = nn.BatchNorm1d(WIDTH)
    net.forward = lambda x: net["read"](net["frozen"](x))
    x, y = torch.randn(MICRO, WIDTH), torch.randint(0, CLASSES, (MICRO,))
    more = {"loss": nn.functional.cross_entropy, "example_targets": y} if train else {}
    model = potluck.Model.from_torch(net, x, **more)
    plan = make_plan(model, ((A,), (MICRO,)), micro_batch=MICRO, training=train)
    run = home.deploy(plan, model).wait()
    told = run.state_dict()
    before = copy.deepcopy(told)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.add_(1)
    assert told.keys() == net.state_dict().keys()
    assert all(torch.equal(told[name], before[name]) for name in told)
    run.close()
