"""A stage in which nothing learns trains like any other: it normalises, drops and counts as on one
machine.
"""

import copy
from functools import cache

import pytest
from tests.sdk.run.conftest import more_steps
from tests.sdk.run.test_switching import FOREVER, in_the_middle, stop

import potluck
from potluck.records import Plan, Stage

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
BATCH = 10
MICRO = 5
ROWS = 30


class Stem(nn.Module):
    """Normalises; with `detach` its weights would learn, if their gradient got so far."""

    def __init__(self, affine=True, detach=False, drop=0.0):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16, affine=affine)
        self.last = nn.Linear(16, 12)
        self.drop, self.detach = nn.Dropout(drop), detach

    def forward(self, x):
        out = self.last(self.drop(torch.tanh(self.norm(self.first(x)))))
        return out.detach() if self.detach else out


def head():
    return nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))


def frozen(module):
    return module.requires_grad_(False)


NETS = {
    "frozen stem": lambda: nn.Sequential(frozen(Stem()), head()),
    "frozen stem whose norm has no weights": lambda: nn.Sequential(
        frozen(Stem(affine=False)), head()
    ),
    "detached stem": lambda: nn.Sequential(Stem(detach=True), head()),
    "frozen middle": lambda: nn.Sequential(Stem(), nn.Sequential(frozen(head()[:2]), *head()[2:])),
    "frozen head": lambda: nn.Sequential(Stem(), frozen(head())),
}
LEARNING = {"frozen middle", "frozen head"}  # their stems do
SHAPES = {
    "one device": [(1, (A,), (5,))],
    "a stage of its own": [(0.5, (A,), (5,)), (1, (B,), (5,))],
    "two stages of its own": [(0.25, (A,), (5,)), (0.5, (B,), (5,)), (1, (A,), (5,))],
    "replicated": [(0.5, (A, B), (3, 2)), (1, (B,), (5,))],
}


def make_model(net):
    """The model, and its layers up to the end of the stem."""
    x, y = make_data()
    model = potluck.Model.from_torch(
        net, x[:6], loss=nn.functional.cross_entropy, example_targets=y[:6]
    )
    n_layers = len(model.layers(True))
    of_head = [
        any(name.startswith("1.") for name in model.state_names(i, i + 1, train=True))
        for i in range(n_layers)
    ]
    return model, of_head.index(True)


@cache
def case(name):
    """A network, its model, and its layers up to the end of the stem: tracing takes longest."""
    torch.manual_seed(0)
    net = NETS[name]()
    return net, *make_model(net)


@cache
def dropping(drop):
    """A model whose frozen stem drops so much, and its layers up to the end of the stem."""
    torch.manual_seed(0)
    stem = frozen(Stem(drop=drop))
    stem.norm = nn.Identity()  # shares would be normalised by themselves
    return make_model(nn.Sequential(stem, head()))


def make_data():
    torch.manual_seed(1)
    return torch.randn(ROWS, 8), torch.randint(0, 4, (ROWS,))


def plan_of(model, n_stem, shape):
    """A plan whose stages end at these parts of the stem (half), and of the whole (one)."""
    stages, start = [], 0
    for part, devices, shares in SHAPES[shape]:
        stop_at = len(model.layers(True)) if part == 1 else round(2 * part * n_stem)
        n_behind = len(SHAPES[shape]) - len(stages)
        stages.append(
            Stage(
                start=start,
                stop=stop_at,
                devices=devices,
                shares=shares,
                warm_up=min(2 * n_behind - 1, 2),
            )
        )
        start = stop_at
    return Plan(
        planner="by hand",
        model="test",
        stages=tuple(stages),
        micro_batch=MICRO,
        n_micro_batches=BATCH // MICRO,
    )


def train_alone(net, steps, shares=(MICRO,)):
    """Losses of one machine that takes the stem by shares, each with statistics of its own until
    the step ends.
    """
    x, y = make_data()
    stems, rest = [net[0], *(copy.deepcopy(net[0]) for _ in shares[1:])], net[1]
    optimizer, losses = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.1), []
    for step in range(steps):
        total = 0.0
        for first in range(step * BATCH % ROWS, step * BATCH % ROWS + BATCH, MICRO):
            part = slice(first, first + MICRO)
            out = torch.cat(
                [stem(rows) for stem, rows in zip(stems, x[part].split(shares), strict=True)]
            )
            loss = nn.functional.cross_entropy(rest(out), y[part])
            (loss * MICRO / BATCH).backward()
            total += loss.item() * MICRO / BATCH
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        for buffers in zip(*(stem.buffers() for stem in stems), strict=True):
            if buffers[0].is_floating_point():
                mean = (
                    sum(buffer * share for buffer, share in zip(buffers, shares, strict=True))
                    / MICRO
                )
                for buffer in buffers:
                    buffer.copy_(mean)
    return losses


def check_equal(run, net, shares=(MICRO,)):
    losses = train_alone(net, run.step, shares)
    assert run.history.losses == pytest.approx(losses, rel=1e-5)
    state = run.state_dict()
    assert state.keys() == net.state_dict().keys()
    for name, tensor in net.state_dict().items():
        assert torch.allclose(state[name], tensor, atol=1e-5), name


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NETS)
def test_losses_weights_and_statistics_are_those_of_one_machine(home, name, shape):
    if shape == "replicated" and name in LEARNING:
        pytest.skip("a stem that learns is no stage in which nothing does")
    net, model, n_stem = case(name)
    plan = plan_of(model, n_stem, shape)
    run = home.deploy(plan, model, optimizer=potluck.AdamW(0.01, weight_decay=0.1)).wait()
    run.fit(make_data(), epochs=2).wait()
    check_equal(run, copy.deepcopy(net), plan.stages[0].shares)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_dropout_in_a_frozen_stem_drops_however_it_is_split(home, shape):
    """Drawn masks depend on the seed, the step and the row, so one device says what is right."""
    found = {}
    for split, drop in (("one device", 0.5), (shape, 0.5), ("one device", 0.0)):
        model, n_stem = dropping(drop)
        run = home.deploy(plan_of(model, n_stem, split), model, seed=3).wait()
        found[split, drop] = run.fit(make_data(), epochs=2).wait().losses
        run.close()
    assert found[shape, 0.5] == pytest.approx(found["one device", 0.5], rel=1e-5)
    assert found[shape, 0.5] != pytest.approx(found["one device", 0.0], rel=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("before", "after"),
    [("one device", "a stage of its own"), ("a stage of its own", "one device")],
)
def test_a_switch_on_the_way_changes_nothing(home, name, before, after):
    net, model, n_stem = case(name)
    run = home.deploy(
        plan_of(model, n_stem, before), model, optimizer=potluck.AdamW(0.01, weight_decay=0.1)
    ).wait()
    handle = run.fit(make_data(), epochs=FOREVER)
    switching, go_on = in_the_middle(run, plan_of(model, n_stem, after))
    more_steps(run, handle, 3)  # these are followed by who takes over
    go_on.set()
    switching.wait()
    more_steps(run, handle, 2)
    stop(run, handle)
    check_equal(run, copy.deepcopy(net))
    run.close()
