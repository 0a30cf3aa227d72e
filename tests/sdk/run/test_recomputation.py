"""Stages that recompute activations: the same to the bit, in less memory, as the plan says."""

from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_plan, train_alone

import potluck
from potluck.sessions.agent_specs import Spec
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
nn = torch.nn

A = "local-1"
B = "local-2"
C = "local-3"
MICRO, N_MICRO = 6, 3
ROWS = 2 * MICRO * N_MICRO + 11  # the last batch is smaller, and so is its last micro-batch
PATTERNS = {
    "alone": [((A,), (6,))],
    "pipeline": [((A,), (6,)), ((B,), (6,)), ((C,), (6,))],
    "replicas": [((A, B), (2, 4)), ((C,), (6,))],
    "comes back": [((A,), (6,)), ((B,), (6,)), ((A,), (6,))],
}
# which stages, by turns: what a run begins with, and what it is switched to
FLAGS = [(True,), (True, False), (False, True)]


def drawing():
    """Masks are drawn, and statistics move."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16),
        nn.Dropout(0.3),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(16, 4),
    )


def plain():
    """No part draws or normalises, so that one machine computes the same."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )


def data():
    torch.manual_seed(1)
    return torch.randn(ROWS, 8), torch.randint(0, 4, (ROWS,))


def model_of(net):
    x, y = data()
    return potluck.Model.from_torch(
        net, x[:6], loss=nn.functional.cross_entropy, example_targets=y[:6]
    )


def flagged(plan, flags):
    """The plan with `recompute` of its stages by turns."""
    stages = (replace(s, recompute=flags[p % len(flags)]) for p, s in enumerate(plan.stages))
    return replace(plan, stages=tuple(stages))


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


def trained(home, model, plans):
    """Losses and state after an epoch by each of the plans, with a switch between them."""
    run = home.deploy(plans[0], model, optimizer=potluck.AdamW(1e-2), seed=5).wait()
    for number, plan in enumerate(plans):
        if number:
            run.switch(plan).wait()
        run.fit(data()).wait()
    losses, state = run.history.losses, run.state_dict()
    run.close()
    return losses, {name: tensor.numpy().tobytes() for name, tensor in state.items()}


@pytest.mark.long
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_stage_that_recomputes_changes_a_bit_and_a_switch_turns_it_on_and_off(trio, pattern):
    model = model_of(drawing())
    plan = make_plan(model, *PATTERNS[pattern], micro_batch=MICRO, n_micro_batches=N_MICRO)
    kept = trained(trio, model, [plan] * 3)
    for flags in FLAGS if len(plan.stages) > 1 else FLAGS[:1]:
        again = flagged(plan, flags)
        assert trained(trio, model, [again, plan, again]) == kept


def test_a_pipeline_that_recomputes_equals_one_machine(trio):
    net = plain()
    model, (x, y) = model_of(net), data()
    plan = make_plan(model, *PATTERNS["pipeline"], micro_batch=MICRO, n_micro_batches=N_MICRO)
    losses, state = trained(trio, model, [flagged(plan, (True,))])
    alone = train_alone(
        net,
        x,
        y,
        batch=plan.batch,
        micro_batch=MICRO,
        epochs=1,
        make_optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    )
    assert losses == pytest.approx(alone, rel=1e-6)
    assert state == {name: tensor.numpy().tobytes() for name, tensor in net.state_dict().items()}


# --- memory ---------------------------------------------------------------------------------------


def deep():
    """Few weights, and activations many times as large."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(part for _ in range(8) for part in (nn.Linear(256, 256), nn.Tanh(), nn.Sigmoid())),
        nn.Linear(256, 8),
    )


def deep_model(rows):
    x, y = torch.randn(rows, 256), torch.randint(0, 8, (rows,))
    loss = nn.functional.cross_entropy
    return potluck.Model.from_torch(deep(), x[:8], loss=loss, example_targets=y[:8]), (x, y)


@pytest.mark.long
@pytest.mark.parametrize("stages", [1, 2])
def test_peaks_are_those_predicted_and_lower_than_of_kept_activations(process_home, stages):
    rows, micro = 4096, 512
    model, (x, y) = deep_model(rows)
    profile = process_home.profile(model, rows=(64, micro), repeats=1).wait()
    devices = [((name,), (micro,)) for name in (A, B)[:stages]]
    plan = make_plan(model, *devices, micro_batch=micro, n_micro_batches=rows // micro)
    deeper = tuple(replace(stage, warm_up=6) for stage in plan.stages)
    plan = replace(plan, model=profile.model, stages=deeper)
    used = {}
    for flags in ((False,), (True,)):
        judged = potluck.judge(flagged(plan, flags), profile)
        run = process_home.deploy(judged, model, order_transfers=False).wait()
        run.fit([(x, y)] * 2).wait()
        used[flags] = run.compare().peak_bytes
        run.close()
        for expected, measured in used[flags].values():
            assert measured <= expected
    first = next(iter(used[True,]))
    assert used[True,][first][1] < 0.6 * used[False,][first][1]


@pytest.mark.long
def test_where_nothing_else_fits_the_plan_recomputes_and_trains_within_its_memory():
    """What other plans need exceeds the limit by more than a worker may take beside its plan."""
    torch.manual_seed(0)
    wide, rows = 256, 4096
    many = [part for _ in range(4) for part in (nn.Tanh(), nn.Sigmoid())]
    net = nn.Sequential(
        *(part for _ in range(8) for part in (nn.Linear(wide, wide), *many)), nn.Linear(wide, 8)
    )
    x, y = torch.randn(rows, wide), torch.randint(0, 8, (rows,))
    loss = nn.functional.cross_entropy
    model = potluck.Model.from_torch(net, x[:8], loss=loss, example_targets=y[:8])
    workload = potluck.Training(batch=rows, micro_batch=rows)
    with potluck.Home.lab([Spec(name=A, memory="2 GiB")]) as home:
        profile = home.profile(model, rows=(64, rows), repeats=1).wait()
    ample = potluck.plan(profile, workload).best
    assert not any(stage.recompute for stage in ample.stages)  # nothing is short
    keeping = replace(make_plan(model, ((A,), (rows,)), micro_batch=rows), model=profile.model)
    least = potluck.judge(keeping, profile).peak_bytes[A]
    limit = least - 120 * 2**20
    short = replace(profile, devices=tuple(replace(d, memory_bytes=limit) for d in profile.devices))
    plan = potluck.plan(short, workload).best
    assert any(stage.recompute for stage in plan.stages)
    assert plan.peak_bytes[A] <= limit
    with potluck.Home.lab([Spec(name=A, memory=limit)]) as home:
        run = home.deploy(plan, model, order_transfers=False, profile=short).wait()
        run.fit([(x, y)]).wait()
        (expected, measured) = run.compare().peak_bytes[A]
        run.close()
    assert measured <= expected <= limit
