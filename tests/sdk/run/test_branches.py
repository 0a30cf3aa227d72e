"""Parallel branches of a model on different devices at once, over real agents: the results of one
machine.
"""

import copy

import pytest
from tests.sdk.graph.branching_modules import ForkedStem, TwoEncoders
from tests.sdk.run.conftest import train_alone

import potluck
from potluck.records import Plan, Stage
from potluck.schedule.stage_graph import path_lengths, wire

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
loss = torch.nn.functional.cross_entropy


def make(net, rows=8):
    x, y = net.example(rows), torch.randint(0, 4, (rows,))
    return potluck.Model.from_torch(net, x, loss=loss, example_targets=y), x, y


def branch_ends(model, training):
    """Where a layer does not simply go on with what the layer before it hands to it alone."""
    layers = model.layers(training)
    takers = [{to for edge in layer.edges for to in edge.to} for layer in layers]
    givers = [{k for k, taken in enumerate(takers) if i in taken} for i in range(len(layers))]
    ends = (i for i in range(1, len(layers)) if givers[i] != {i - 1} or takers[i - 1] != {i})
    return [0, *ends, len(layers)]


def make_plan(model, bounds, places, *, n_micro_batches=1, training=True):
    stages = [
        Stage(start=start, stop=stop, devices=tuple(shares), shares=tuple(shares.values()))
        for start, stop, shares in zip(bounds, bounds[1:], places, strict=False)
    ]
    plan = Plan(
        planner="by hand", model="test", stages=tuple(stages), micro_batch=4, training=training
    )
    segments = [model.segment(s.start, s.stop, train=training)[0] for s in stages]
    before = wire(plan, segments, training=training).before
    stages = [
        Stage(
            start=s.start,
            stop=s.stop,
            devices=s.devices,
            shares=s.shares,
            warm_up=min(2 * h - 1, n_micro_batches),
        )
        for s, h in zip(stages, path_lengths(before), strict=True)
    ]
    plan = Plan(
        planner="by hand",
        model="test",
        stages=tuple(stages),
        micro_batch=4,
        n_micro_batches=n_micro_batches,
        training=training,
    )
    return plan, before


def test_branches_whose_tensors_three_stages_read_train_as_on_one_machine(home):
    torch.manual_seed(0)
    net = ForkedStem()
    model, x, y = make(net)
    bounds = branch_ends(model, True)
    plan, before = make_plan(model, bounds, [{A: 4}, {B: 4}, {A: 4}, {B: 4}], n_micro_batches=2)
    assert before == ((), (0,), (0,), (1, 2))  # the branches are side by side
    run = home.deploy(plan, model).wait()
    losses = run.fit((*x, y), epochs=10).wait().losses
    state = run.state_dict()
    run.close()
    alone = copy.deepcopy(net)
    expected = train_alone(
        alone,
        x,
        y,
        batch=8,
        micro_batch=4,
        epochs=10,
        make_optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-3),
    )
    assert list(losses) == pytest.approx(expected, abs=1e-5)
    assert all(
        torch.allclose(state[name], tensor, atol=1e-5)
        for name, tensor in alone.state_dict().items()
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", [TwoEncoders, ForkedStem])
def test_branches_answer_as_one_machine(home, kind):
    torch.manual_seed(0)
    net = kind().eval()
    model, _, _ = make(net)
    bounds = branch_ends(model, False)
    places = [{A: 4}, {B: 4}, {A: 4}, {B: 4}][: len(bounds) - 1]
    plan, _ = make_plan(model, bounds, places, training=False)
    run = home.deploy(plan, model).wait()
    for rows in (1, 4, 6):
        x = net.example(rows)
        with torch.no_grad():
            assert (run(*x) - net(*x)).abs().max() <= 1e-6
    run.close()


@pytest.mark.long
def test_branches_from_profile_to_plan_to_answers(home):
    torch.manual_seed(0)
    net = TwoEncoders().eval()
    model, x, _ = make(net)
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    problem = profile.problem(potluck.Inference(batch=4))
    assert problem.branches
    best = potluck.plan(profile, potluck.Inference(batch=4)).best
    run = home.deploy(best, model).wait()
    with torch.no_grad():
        assert (run(*x) - net(*x)).abs().max() <= 1e-6
    run.close()
