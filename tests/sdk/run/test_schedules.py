"""Schedules that are chosen, refused, and timed by a profile.

`test_every_way` has what they compute.
"""

import copy
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan, train_alone

import potluck
from potluck.records import Medium, Network, Path
from potluck.testing.internals import engine_of

torch = pytest.importorskip("torch")

A, B = "local-1", "local-2"
STAGES, TOLERANCE = [((A, B), (3, 1)), ((A, B), (1, 3))], 1e-5


def make_deep():
    torch.manual_seed(0)
    inner = [layer for _ in range(4) for layer in (torch.nn.Linear(16, 16), torch.nn.Tanh())]
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), *inner, torch.nn.Linear(16, 4)
    )
    x, y = make_data("mlp", 6)
    return net, potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )


@pytest.fixture(scope="module")
def deep():
    return make_deep()


@pytest.fixture(scope="module")
def alone(deep):
    """One machine: the losses of ten steps, and the weights after them."""
    trained = copy.deepcopy(deep[0])
    x, y = make_data("mlp", 16)
    losses = train_alone(
        trained,
        x,
        y,
        batch=16,
        micro_batch=4,
        epochs=10,
        make_optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
    )
    return losses, trained.state_dict()


def test_inference_takes_its_schedule_too(home):
    net, model = make_model("mlp")
    x, _ = make_data("mlp", 12)
    plan = make_plan(
        model, ((A, B), (3, 1)), ((B, A), (2, 2)), micro_batch=4, n_micro_batches=3, training=False
    )
    run = home.deploy(plan, model, schedule="forward-only").wait()
    with torch.no_grad():
        assert (run(x) - net(x)).abs().max().item() <= 1e-6
    run.close()


@pytest.mark.parametrize(
    ("schedule", "error", "says"),
    [
        ("zigzag", potluck.errors.UserError, "no schedule is called 'zigzag'"),
        ("interleaved", potluck.errors.PlanError, "go round the same devices"),
        ("forward-only", potluck.errors.PlanError, "forward-only never goes backward"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_before_anything_is_loaded(
    home, schedule, error, says
):
    _, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    with pytest.raises(error, match=says):
        home.deploy(plan, model, schedule=schedule).wait()


@pytest.mark.long
def test_transfers_that_take_turns_change_when_and_not_what(home, deep, alone):
    _, model = deep
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    # so slow that turns matter; the real network is not
    air = Medium(name="air", capacity_bytes_per_s=20e3)
    ends = [A, B, "home"]
    paths = {(x, y): Path(media=(("air", 1),)) for x in ends for y in ends if x != y}
    slow = replace(profile, network=Network(media=(air,), paths=paths))
    plan = make_plan(model, *STAGES, micro_batch=4, n_micro_batches=4)
    run = home.deploy(plan, model, order_transfers=True, profile=slow).wait()
    assert engine_of(run).compiled_plan.compiled["train"].together
    history = run.fit(make_data("mlp", 16), epochs=10).wait()
    losses, _ = alone
    assert history.losses == pytest.approx(losses, rel=1e-6, abs=TOLERANCE)
    run.close()
    last_s = max(
        s
        for program in engine_of(run).compiled_plan.compiled["train"].programs.values()
        for s in program.release_s
    )
    # however fast these agents are, no step can be over before its last release
    assert last_s > 0.02
    assert min(history.step_s) >= 0.5 * last_s


def test_turns_need_a_profile(home):
    other = potluck.Model.from_torch(make_model("cnn")[0], make_data("cnn", 6)[0])
    plan = make_plan(other, ((A,), (4,)), ((B,), (4,)), micro_batch=4, training=False)
    with pytest.raises(potluck.errors.PlanError, match="there is none"):
        home.deploy(plan, other, order_transfers=True).wait()
