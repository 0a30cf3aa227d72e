"""Weights that layers share are held by several stages, which add up their gradients: over plans,
replicas, switches and losses they are the weights of one machine.

Gradients of micro-batches are added up by each holder first, which rounds in another order than one
machine; with one micro-batch in a pipeline nothing differs.
"""

import copy
import random

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.records import Training
from potluck.run.weight_update import Update
from potluck.schedule import compile_training
from potluck.simulate import simulate
from potluck.simulate.direct_simulation import Direct
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B, C = (f"local-{i}" for i in (1, 2, 3))
BATCH, MICRO = 8, 4
ROUNDING = 2e-5
PLANS = {
    "one": [((A,), (4,))],
    "pipeline": [((A,), (4,)), ((B,), (4,))],
    "three": [((A,), (4,)), ((B,), (4,)), ((C,), (4,))],
    "there and back": [((A,), (4,)), ((B,), (4,)), ((A,), (4,))],
    "and back": [((A,), (4,)), ((B,), (4,)), ((B,), (4,)), ((A,), (4,))],
    "round": [((A,), (4,)), ((B,), (4,)), ((A,), (4,)), ((B,), (4,))],
    "replicas": [((A, B, C), (2, 1, 1))],
    "replicas first": [((A, B), (3, 1)), ((C,), (4,))],
    "replicas last": [((A,), (4,)), ((B, C), (2, 2))],
    "overlapping": [((A, B), (2, 2)), ((B, A), (1, 3))],
}


class Writer(torch.nn.Module):
    """A language model: the head has the weights of the embedding, and so has a layer between."""

    def __init__(self, thrice=False):
        super().__init__()
        torch.manual_seed(0)
        self.thrice = thrice
        self.embed = torch.nn.Embedding(12, 16)
        self.one, self.two = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.one(self.embed(ids)).tanh()
        if self.thrice:
            x = x + self.head(x).softmax(-1) @ self.embed.weight
        return self.head(self.norm(self.two(x)).tanh())


def loss_of(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def batches_of(n):
    torch.manual_seed(1)
    return [(torch.randint(0, 12, (BATCH, 5)), torch.randint(0, 12, (BATCH, 5))) for _ in range(n)]


def model_of(net):
    ids, targets = batches_of(1)[0]
    return potluck.Model.from_torch(net, ids, loss=loss_of, example_targets=targets)


def plan_of(model, name, micro=MICRO):
    stages = [
        (devices, tuple(share * micro // MICRO for share in shares))
        for devices, shares in PLANS[name]
    ]
    return make_plan(model, *stages, micro_batch=micro, n_micro_batches=BATCH // micro)


def alone(net, batches, make, clip=None, micro=MICRO):
    optimizer, losses = make(net), []
    for ids, targets in batches:
        total = 0.0
        for i in range(0, BATCH, micro):
            part = slice(i, i + micro)
            loss = loss_of(net(ids[part]), targets[part])
            (loss * (micro / BATCH)).backward()
            total += loss.item() * micro
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / BATCH)
    return losses


def adamw(net):
    return torch.optim.AdamW(net.parameters(), 1e-2)


def momentum(net):
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


def check_equal(run, net, losses, tolerance):
    assert run.history.losses == pytest.approx(losses, abs=tolerance)
    learned = run.state_dict()
    for name, tensor in net.state_dict().items():
        assert (learned[name] - tensor).abs().max().item() <= tolerance, name
    assert torch.equal(learned["head.weight"], learned["embed.weight"])


@pytest.mark.long
def test_the_network_is_cut_between_its_tied_weights():
    model = model_of(Writer())
    assert len(model.layers(True)) > 3
    assert "add up its gradients" in model.notes(train=True)[0]
    first, last = model.layers(True)[0], model.layers(True)[-1]
    assert first.shared == last.shared
    assert first.shared[0].nbytes == 12 * 16 * 4


@pytest.mark.few(1)  # each plan in one of the two ways
@pytest.mark.parametrize("thrice", [False, True], ids=["twice", "thrice"])
@pytest.mark.parametrize("name", PLANS)
def test_tied_weights_learn_as_on_one_machine(trio, name, thrice):
    net = Writer(thrice)
    reference, batches = copy.deepcopy(net), batches_of(6)
    model = model_of(net)
    run = trio.deploy(plan_of(model, name), model).wait()
    run.fit(batches, optimizer=momentum(net), clip_norm=0.5).wait()
    losses = alone(reference, batches, momentum, 0.5)
    check_equal(run, reference, losses, ROUNDING)
    run.close()


SPLIT = {"zb-h1": "pipeline", "zb-compact": "three", "zb-v": "and back", "zb-interleaved": "round"}


@pytest.mark.long
@pytest.mark.parametrize(("schedule", "name"), SPLIT.items(), ids=SPLIT)
def test_backwards_in_two_parts_are_limited_as_on_one_machine(trio, schedule, name):
    """A tied weight has gradients that wait, and others that do not."""
    net = Writer(thrice=True)
    reference, batches = copy.deepcopy(net), batches_of(4)
    model = model_of(net)
    run = trio.deploy(plan_of(model, name), model, schedule=schedule).wait()
    run.fit(batches, optimizer=momentum(net), clip_norm=0.5).wait()
    check_equal(run, reference, alone(reference, batches, momentum, 0.5), ROUNDING)
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["pipeline", "there and back"])
def test_with_one_micro_batch_no_bit_differs(trio, name):
    net = Writer()
    reference, batches = copy.deepcopy(net), batches_of(6)
    model = model_of(net)
    run = trio.deploy(plan_of(model, name, BATCH), model).wait()
    run.fit(batches, optimizer=adamw(net)).wait()
    check_equal(run, reference, alone(reference, batches, adamw, micro=BATCH), 0.0)
    run.close()


def test_all_holders_have_the_same_bits(trio):
    """What each stage has is read on its own: a later step begins from equal weights."""
    net = Writer()
    model = model_of(net)
    run = trio.deploy(plan_of(model, "replicas last"), model).wait()
    run.fit(batches_of(5), optimizer=adamw(net)).wait()
    for name in ("one", "pipeline", "three", "replicas first"):
        before = run.state_dict()
        run.switch(plan_of(model, name)).wait()
        after = run.state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)
        run.fit(batches_of(1)).wait()
    answer = run(batches_of(1)[0][0])
    net.load_state_dict(run.state_dict())
    assert torch.allclose(answer, net.eval()(batches_of(1)[0][0]), atol=1e-5)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(s, marks=pytest.mark.long) for s in range(12, 300))]
)
def test_whatever_happens_meanwhile_tied_weights_are_those_of_one_machine(seed, tmp_path):
    rng = random.Random(seed)
    plan, other = rng.choice([*PLANS]), rng.choice([*PLANS])
    happens, when = rng.choice(("switch", "lost", "both", "resume")), rng.randrange(2, 9)
    make = rng.choice((adamw, momentum))
    clip = rng.choice((None, 0.5))
    ema = rng.random() < 0.5
    torch.set_num_threads(1)
    with memory_home(3) as home:
        net, batches = Writer(rng.random() < 0.5), batches_of(12)
        reference, model = copy.deepcopy(net), model_of(net)
        run = home.deploy(plan_of(model, plan), model, protect=rng.choice((1, 3))).wait()

        def on_step(step, loss):
            if step == when and happens in ("switch", "both"):
                run.switch(plan_of(model, other)).wait()
            if step == when + 1 and happens in ("lost", "both"):
                memory_of(home).kill(run.plan.devices[-1])
            return potluck.StopTraining if step == when and happens == "resume" else None

        options = {"clip_norm": clip, "ema": 0.9 if ema else None}
        run.fit(batches, optimizer=make(net), on_step=on_step, **options).wait()
        history = run.history.losses
        if happens == "resume":
            run.save(tmp_path / "run")
            run.close()
            run = home.deploy(plan_of(model, other), model, resume=tmp_path / "run").wait()
            run.fit(batches, resume=True).wait()
            history = (*history, *run.history.losses)
        losses = alone(reference, batches, make, clip)
        assert history == pytest.approx(losses, abs=ROUNDING)
        learned = run.state_dict()
        for name, tensor in reference.state_dict().items():
            assert (learned[name] - tensor).abs().max().item() <= ROUNDING, name
        averages = run.state_dict(ema=True) if ema else learned
        assert torch.equal(averages["head.weight"], averages["embed.weight"])


@pytest.fixture(scope="module")
def profiled(trio):
    """A model, and its profile on three devices; of a loss that takes nothing of a whole batch."""
    ids, targets = batches_of(1)[0][0], torch.randn(BATCH, 5, 12)
    loss = torch.nn.functional.mse_loss
    model = potluck.Model.from_torch(Writer(), ids, loss=loss, example_targets=targets)
    return model, trio.profile(model, rows=(1, 2, 4), repeats=1).wait()


@pytest.mark.long
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("clipped", [False, True])
def test_both_simulators_say_the_same_of_it(profiled, name, clipped):
    model, profile = profiled
    problem = profile.problem(Training(batch=BATCH, micro_batch=MICRO, clipped=clipped))
    plan = plan_of(model, name)
    pieces = [model.segment(stage.start, stage.stop, train=True) for stage in plan.stages]
    trained = [[p.name for p in graph.parameters if p.trainable] for _, graph in pieces]
    update = Update(optimizer=potluck.AdamW(), clip_norm=0.5 if clipped else None)
    update_of_stages = update.of_stages(trained, [p.name for p in model.trained])
    trace = simulate(compile_training(plan, tuple(s for s, _ in pieces), update_of_stages), problem)
    outcome = Direct(problem).run(plan)
    # one does not know how many pieces are between those of the vector that are shared
    assert outcome.latency_s == pytest.approx(trace.step_s[0], rel=4e-2)
    assert outcome.peak_bytes() == pytest.approx(trace.peak_bytes, rel=5e-2)
