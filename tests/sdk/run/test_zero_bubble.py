"""Schedules whose backwards come in two parts: the same to the bit, on every kind of plan."""

from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_plan, train_alone
from tests.sdk.run.test_recomputation import MICRO, N_MICRO, data, deep_model, flagged, model_of

import potluck
from potluck.errors import PlanError, UserError
from potluck.sessions.members import Member
from potluck.testing.internals import engine_of
from potluck.testing.memory import memory_home
from potluck_wire.version import SPLIT_BACKWARD

torch = pytest.importorskip("torch")
nn = torch.nn
A = "local-1"
B = "local-2"
C = "local-3"
PATTERNS = {
    "alone": ([((A,), (6,))], ("zb-h1",)),
    "pipeline": ([((A,), (6,)), ((B,), (6,)), ((C,), (6,))], ("zb-h1", "zb-2p", "zb-compact")),
    "replicas": ([((A, B), (2, 4)), ((C,), (6,))], ("zb-h1", "zb-compact")),
    "there and back": ([((A,), (6,)), ((B,), (6,)), ((B,), (6,)), ((A,), (6,))], ("zb-v",)),
    "round": ([((A,), (6,)), ((B,), (6,)), ((A,), (6,)), ((B,), (6,))], ("zb-interleaved",)),
}
CASES = [(name, schedule) for name, (_, schedules) in PATTERNS.items() for schedule in schedules]


def drawing():
    """Masks are drawn, and statistics move."""
    torch.manual_seed(0)
    inner = [
        part
        for _ in range(3)
        for part in (nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2))
    ]
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *inner, nn.Linear(16, 4))


def plain():
    """No part draws or normalises, so that one machine computes the same."""
    torch.manual_seed(0)
    inner = [part for _ in range(3) for part in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *inner, nn.Linear(16, 4))


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


def plan_of(model, pattern):
    return make_plan(model, *PATTERNS[pattern][0], micro_batch=MICRO, n_micro_batches=N_MICRO)


def trained(home, model, plan, schedule=None):
    """Losses and state after two epochs; the last batch of each is smaller."""
    run = home.deploy(plan, model, optimizer=potluck.AdamW(1e-2), seed=5, schedule=schedule).wait()
    run.fit(data(), epochs=2).wait()
    ops = {
        item.op
        for program in engine_of(run).compiled_plan.compiled["train"].programs.values()
        for item in program.instructions
    }
    losses, state = run.history.losses, run.state_dict()
    run.close()
    return losses, {name: tensor.numpy().tobytes() for name, tensor in state.items()}, ops


@pytest.mark.few(1)  # each pattern and schedule in one of the two ways
@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(("pattern", "schedule"), CASES)
def test_two_parts_change_no_bit(trio, pattern, schedule, again):
    model = model_of(drawing())
    plan = plan_of(model, pattern)
    *reference, ops = trained(trio, model, plan, "1f1b" if pattern != "round" else "interleaved")
    assert "backward" in ops
    *parts, ops = trained(trio, model, flagged(plan, (again, False)), schedule)
    assert {"backward_input", "backward_weight"} <= ops
    assert "backward" not in ops
    assert parts == reference


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["zb-h1", "zb-2p", "zb-compact"])
def test_losses_are_those_of_one_machine(trio, schedule):
    net = plain()
    model, (x, y) = model_of(net), data()
    plan = plan_of(model, "pipeline")
    losses, state, _ = trained(trio, model, plan, schedule)
    alone = train_alone(
        net,
        x,
        y,
        batch=plan.batch,
        micro_batch=MICRO,
        epochs=2,
        make_optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    )
    assert losses == pytest.approx(alone, rel=1e-6)
    assert state == {name: tensor.numpy().tobytes() for name, tensor in net.state_dict().items()}


@pytest.mark.long
def test_a_plan_brings_its_schedule_and_a_run_takes_that_of_the_next(trio):
    model = model_of(plain())
    plan = replace(plan_of(model, "pipeline"), schedule="zb-h1")
    *parts, ops = trained(trio, model, plan)
    assert "backward_weight" in ops
    *reference, ops = trained(trio, model, plan, "1f1b")  # what is asked for goes first
    assert "backward_weight" not in ops
    assert parts == reference
    run = trio.deploy(plan, model, optimizer=potluck.AdamW(1e-2), seed=5).wait()
    run.fit(data()).wait()
    run.switch(replace(plan_of(model, "there and back"), schedule="zb-v")).wait()
    run.fit(data()).wait()
    assert run.history.losses == pytest.approx(reference[0], rel=1e-6)
    run.close()


@pytest.mark.long
def test_limited_gradients_are_those_of_whole_backwards(trio):
    model = model_of(plain())
    plan, seen = plan_of(model, "pipeline"), []
    for schedule in ("1f1b", "zb-compact"):
        run = trio.deploy(plan, model, optimizer=potluck.AdamW(1e-2), schedule=schedule).wait()
        run.fit(data(), epochs=2, clip_norm=0.5).wait()
        seen.append((run.history.losses, run.history.gradient_norms))
        run.close()
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("pattern", "schedule", "says"),
    [
        ("there and back", "zb-h1", "never come back to their devices"),
        ("pipeline", "zb-v", "there and back again over the same devices"),
        ("pipeline", "zb-interleaved", "go round the same devices"),
    ],
)
def test_a_policy_for_other_plans_is_refused(trio, pattern, schedule, says):
    model = model_of(plain())
    with pytest.raises(PlanError, match=says):
        trio.deploy(plan_of(model, pattern), model, schedule=schedule).wait()


def test_inference_has_no_backwards_to_put_in_order(trio):
    model = model_of(plain())
    plan = make_plan(model, ((A,), (6,)), micro_batch=6, training=False)
    with pytest.raises(UserError, match="inference has none"):
        trio.deploy(plan, model, schedule="zb-h1").wait()


def test_an_older_agent_is_named_and_gets_whole_backwards(trio, monkeypatch):
    model = model_of(plain())
    plan, speaks = plan_of(model, "pipeline"), Member.speaks
    monkeypatch.setattr(
        Member,
        "speaks",
        lambda self, version: (
            speaks(self, version) and not (self.name == B and version == SPLIT_BACKWARD)
        ),
    )
    with pytest.raises(UserError, match=rf"{B}.*backwards in two parts.*schedule='1f1b'"):
        trio.deploy(plan, model, schedule="zb-h1").wait()
    run = trio.deploy(plan, model, schedule="1f1b").wait()
    run.fit(data()).wait()
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["zb-h1", "zb-compact"])
def test_peaks_are_within_those_predicted(process_home, schedule):
    rows, micro = 2048, 256
    model, (x, y) = deep_model(rows)
    profile = process_home.profile(model, rows=(64, micro), repeats=1).wait()
    plan = make_plan(
        model, ((A,), (micro,)), ((B,), (micro,)), micro_batch=micro, n_micro_batches=rows // micro
    )
    scheduled = replace(plan, model=profile.model, schedule=schedule)
    judged = potluck.judge(scheduled, profile)
    run = process_home.deploy(judged, model, order_transfers=False).wait()
    run.fit([(x, y)] * 2).wait()
    for expected, measured in run.compare().peak_bytes.values():
        assert 0.3 * expected < measured <= expected
    run.close()
