"""Frozen weights cost what they do on one machine: neither gradients nor moments nor transfers, in
plans as in runs.
"""

import copy
import random
from collections import Counter
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_plan, train_alone

import potluck
from potluck.planning import predict
from potluck.profile.measure import FLOOR_BYTES

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
ROWS, MICRO = 16, 8
SHAPES = {
    "alone": [((A,), (8,))],
    "pipeline": [((A,), (8,)), ((B,), (8,))],
    "replicated": [((A, B), (5, 3))],
    "replicated, then one": [((A, B), (4, 4)), ((B,), (8,))],
}
OPTIMIZERS = {
    "adamw": (potluck.AdamW(1e-3), lambda weights: torch.optim.AdamW(weights, lr=1e-3)),
    "sgd": (potluck.SGD(1e-2), lambda weights: torch.optim.SGD(weights, lr=1e-2)),
}
SLACK_FRAC, SLACK_BYTES = 0.1, 64 * 2**10


class LowRank(nn.Module):
    """A frozen product, and a trained one of low rank beside it."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def random_net(rng):
    """Products, norms and adapters; any of their weights are frozen, though not all."""
    torch.manual_seed(rng.randrange(2**16))
    width, layers = rng.choice([192, 256, 384]), []
    for _ in range(rng.randint(3, 6)):
        product = nn.Linear(width, width)
        layers.append(LowRank(product, 4) if rng.random() < 0.3 else product)
        layers.append(rng.choice([nn.ReLU, nn.Tanh, lambda: nn.LayerNorm(width)])())
        if rng.random() < 0.2:
            layers.append(nn.BatchNorm1d(width).eval().requires_grad_(False))
    net = nn.Sequential(*layers, nn.Linear(width, 4))
    stop = rng.choice([0, rng.randrange(len(layers)), len(layers)])  # a frozen backbone
    net[:stop].requires_grad_(False)
    for module in net:
        if rng.random() < 0.4:
            module.requires_grad_(False)
    for weight in net.parameters():
        if rng.random() < 0.2:
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in net.parameters()):
        net[-1].requires_grad_(True)
    return net, width


def planned_bytes(plan, problem):
    """What each device sends each other in a step of the plan."""
    sent = Counter()
    for event in predict(problem, plan).events:
        if event.op == "recv" and event.peer != "home":
            sent[event.peer, event.device] += event.nbytes
    return sent


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_memory_and_transfers_of_any_frozen_weights_are_those_predicted(process_home, seed):
    rng = random.Random(seed)
    net, width = random_net(rng)
    x, y = torch.randn(ROWS, width), torch.randint(0, 4, (ROWS,))
    model = potluck.Model.from_torch(
        copy.deepcopy(net), x[:8], loss=nn.functional.cross_entropy, example_targets=y[:8]
    )
    profile = process_home.profile(model, rows=(1, 8), repeats=1).wait()
    shape = SHAPES[list(SHAPES)[seed % len(SHAPES)]]
    mine, theirs = OPTIMIZERS[rng.choice(list(OPTIMIZERS))]
    copies = {"AdamW": 2, "SGD": 0}[type(mine).__name__]
    problem = profile.problem(
        potluck.Training(batch=ROWS, micro_batch=MICRO, optimizer_copies=copies)
    )
    plan = make_plan(model, *shape, micro_batch=MICRO, n_micro_batches=ROWS // MICRO)
    plan = potluck.judge(replace(plan, model=profile.model), profile, problem.workload)
    run = process_home.deploy(plan, model, optimizer=mine, order_transfers=False).wait()
    history = run.fit([(x, y)] * 3).wait()
    compared = run.compare()
    run.close()
    alone = train_alone(net, x, y, batch=ROWS, micro_batch=MICRO, epochs=3, make_optimizer=theirs)
    assert history.losses == pytest.approx(alone, rel=1e-4)
    unseen = max(layer.widest_parameter_bytes for layer in model.layers(True))
    for device, (_, used) in compared.peak_bytes.items():
        assert used <= plan.peak_bytes[device]
        beyond = plan.peak_bytes[device] - FLOOR_BYTES - unseen
        assert beyond <= (1 + SLACK_FRAC) * used + SLACK_BYTES
    moved = {(row.source, row.target): row.nbytes for row in compared.transfers}
    assert planned_bytes(plan, problem) == moved


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_replicas_of_every_precision_send_and_hold_what_was_predicted(process_home, dtype):
    """In half precision, replicas add up in float32."""
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4)).to(dtype)
    x, y = torch.randn(ROWS, 256, dtype=dtype), torch.randint(0, 4, (ROWS,))
    model = potluck.Model.from_torch(
        net, x[:8], loss=nn.functional.cross_entropy, example_targets=y[:8]
    )
    profile = process_home.profile(model, rows=(1, 8), repeats=1).wait()
    workload = potluck.Training(batch=ROWS, micro_batch=MICRO)
    plan = make_plan(model, *SHAPES["replicated"], micro_batch=MICRO, n_micro_batches=2)
    plan = potluck.judge(replace(plan, model=profile.model), profile, workload)
    run = process_home.deploy(plan, model, order_transfers=False).wait()
    run.fit([(x, y)] * 3).wait()
    compared = run.compare()
    run.close()
    moved = {(row.source, row.target): row.nbytes for row in compared.transfers}
    assert planned_bytes(plan, profile.problem(workload)) == moved
    assert all(used <= plan.peak_bytes[name] for name, (_, used) in compared.peak_bytes.items())


def adapted(rank, width=256):
    """A deep network with adapters, and the same trained whole."""
    products = [nn.Linear(width, width) for _ in range(6)]
    adapters = [LowRank(copy.deepcopy(product), rank) for product in products]
    return (
        nn.Sequential(*adapters, nn.Linear(width, 4)),
        nn.Sequential(*products, nn.Linear(width, 4)),
    )


def estimated(net, width):
    x, y = torch.randn(8, width), torch.randint(0, 4, (8,))
    model = potluck.Model.from_torch(net, x, loss=nn.functional.cross_entropy, example_targets=y)
    return potluck.estimate("smart-home-2", model).problem(potluck.Training(batch=128))


@pytest.mark.long
def test_frozen_layers_between_trained_ones_are_estimated_with_half_the_backward():
    _, trained = adapted(2, 2048)
    middle = copy.deepcopy(trained)
    middle[1:6].requires_grad_(False)
    one, other = estimated(middle, 2048), estimated(trained, 2048)
    device = one.devices[0].name

    def ratio(seconds):
        return sum(map(seconds, one.costs[device])) / sum(map(seconds, other.costs[device]))

    # one large product of six is trained; the first needs no gradient of its input
    assert ratio(lambda cost: cost.update_s) == pytest.approx(1 / 6, rel=0.02)
    assert ratio(lambda cost: cost.backward_s[-1]) == pytest.approx(6 / 11, rel=0.1)
    assert ratio(lambda cost: cost.forward_s[-1]) == 1


def test_a_frozen_backbone_is_estimated_without_backward_update_and_gradients():
    backbone, _ = adapted(2)
    backbone[:6].requires_grad_(False)
    problem = estimated(backbone, 256)
    costs = problem.costs[problem.devices[0].name]
    still = [not layer.trained_bytes for layer in problem.layers]
    assert still == [*[True] * (len(still) - 1), False]
    for layer, cost in zip(problem.layers[:-1], costs, strict=False):
        assert cost.backward_s[-1] == cost.update_s == layer.gradient_bytes == 0
    assert costs[-1].backward_s[-1] > 0


@pytest.mark.long
def test_a_graph_with_frozen_weights_is_read_as_written_and_one_without_as_before():
    x, y = torch.randn(8, 256), torch.randint(0, 4, (8,))
    for net in adapted(2):
        graph = potluck.Model.from_torch(
            net, x, loss=nn.functional.cross_entropy, example_targets=y
        ).graph()
        text = graph.to_text()
        assert type(graph).from_text(text) == graph
        assert ("frozen_bytes" in text) == any(not p.requires_grad for p in net.parameters())
