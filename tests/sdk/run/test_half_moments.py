"""Moments in bfloat16: the same on every plan, over switches, files and losses."""

import copy
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import Infeasible, UserError
from potluck.sessions.members import Member
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home
from potluck_wire.version import HALF_MOMENTS

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
ROWS, MICRO = 16, 8
HALF = potluck.AdamW(1e-2, betas=(0.9, 0.95), bfloat16_moments=True)
PLANS = {
    "alone": [((A,), (8,))],
    "pipeline": [((A,), (8,)), ((B,), (8,))],
    "replicated, then one": [((A, B), (4, 4)), ((B,), (8,))],
}


def made(width=12):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, 24), nn.Tanh(), nn.Linear(24, 24), nn.ReLU())
    net.append(nn.Linear(24, 4))
    x, y = torch.randn(ROWS, width), torch.randint(0, 4, (ROWS,))
    loss = nn.functional.cross_entropy
    model = potluck.Model.from_torch(copy.deepcopy(net), x[:8], loss=loss, example_targets=y[:8])
    return net, model, x, y


def plan_of(model, name):
    return make_plan(model, *PLANS[name], micro_batch=MICRO, n_micro_batches=ROWS // MICRO)


def trained_alone(net, x, y, halved):
    """Losses and weights of torch's AdamW whose moments are rounded after each step, or not; those
    of steps before are rounded first.
    """
    net = copy.deepcopy(net)
    optimizer, losses = torch.optim.AdamW(net.parameters(), 1e-2, betas=(0.9, 0.95)), []
    for half in [True] * halved if isinstance(halved, int) else halved:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if half:
            round_moments(optimizer)
        optimizer.step()
        if half:
            round_moments(optimizer)
        losses.append(loss.item())
    return losses, net.state_dict()


def round_moments(optimizer):
    for state in optimizer.state.values():
        for slot in ("exp_avg", "exp_avg_sq"):
            state[slot].copy_(state[slot].bfloat16())


def is_near(state, expected):
    """Where kernels add in another order, a moment at the edge is rounded the other way: few are.
    Without rounding all weights are apart, by 6e-5 in the mean.
    """
    apart = torch.cat([(state[name] - expected[name]).abs().flatten() for name in expected])
    return apart.max() < 1e-3 and apart.mean() < 5e-6


@pytest.fixture(scope="module")
def home():
    with memory_home(3) as home:
        yield home


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_trains_as_one_machine_that_rounds_them(home, name):
    net, model, x, y = made()
    run = home.deploy(plan_of(model, name), model, optimizer=HALF).wait()
    losses = run.fit([(x, y)] * 8).wait().losses
    expected, weights = trained_alone(net, x, y, 8)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert is_near(run.state_dict(), weights)
    run.close()


def test_they_go_along_over_a_switch_and_a_file(home, tmp_path):
    net, model, x, y = made()
    run = home.deploy(plan_of(model, "pipeline"), model, optimizer=HALF).wait()
    losses = [*run.fit([(x, y)] * 3).wait().losses]
    run.switch(plan_of(model, "replicated, then one")).wait()
    losses += run.fit([(x, y)] * 3).wait().losses
    run.save(tmp_path / "run.safetensors")
    run.close()
    run = home.deploy(plan_of(model, "alone"), model, resume=tmp_path / "run.safetensors").wait()
    losses += run.fit([(x, y)] * 3).wait().losses
    expected, weights = trained_alone(net, x, y, 9)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert is_near(run.state_dict(), weights)
    run.close()


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("again", ["a fit", "a fit with an average", "a file"])
def test_an_optimizer_of_other_moments_goes_on_with_them(home, tmp_path, first, again):
    """Whatever looks at them before the next step: a snapshot, a switch, a file."""
    net, model, x, y = made()
    halved = [first, not first, first, not first]
    expected, weights = trained_alone(net, x, y, [half for half in halved for _ in range(3)])
    losses, run = [], None
    path = tmp_path / "run.safetensors"
    for half, name in zip(halved, ["pipeline", "replicated, then one"] * 2, strict=True):
        optimizer = replace(HALF, bfloat16_moments=half)
        if run is None:
            run = home.deploy(plan_of(model, name), model, optimizer=optimizer).wait()
        elif again == "a file":
            run.close()
            run = home.deploy(plan_of(model, name), model, resume=path, optimizer=optimizer).wait()
            run.save(path)
        ema = 0.9 if again == "a fit with an average" and len(losses) >= 3 else None
        losses += run.fit([(x, y)] * 3, optimizer=optimizer, ema=ema).wait().losses
        run.save(path)
    assert losses == pytest.approx(expected, rel=1e-3)
    assert is_near(run.state_dict(), weights)
    run.close()


def test_a_lost_device_loses_none_of_them():
    net, model, x, y = made()
    with memory_home(3) as home:
        home.profile(model).wait()

        def kill(step, loss):
            if step == 4:
                memory_of(home).kill(B)

        run = home.deploy(plan_of(model, "pipeline"), model, optimizer=HALF, protect=2).wait()
        history = run.fit([(x, y)] * 8, on_step=kill, adapt=False).wait()
        expected, weights = trained_alone(net, x, y, 8)
        assert len(history.recoveries) == 1
        assert history.losses == pytest.approx(expected, rel=1e-4)
        assert is_near(run.state_dict(), weights)
        run.close()


def test_an_older_agent_is_named(home, monkeypatch):
    _, model, _, _ = made()
    speaks = Member.speaks
    monkeypatch.setattr(
        Member,
        "speaks",
        lambda self, version: (
            speaks(self, version) and not (self.name == B and version == HALF_MOMENTS)
        ),
    )
    with pytest.raises(UserError, match=rf"{B}.*bfloat16.*1\.15.*leave bfloat16_moments out"):
        home.deploy(plan_of(model, "pipeline"), model, optimizer=HALF).wait()


def test_a_moment_that_would_never_become_smaller_is_refused():
    with pytest.raises(UserError, match=r"256th.*betas=\(0\.9, 0\.95\)"):
        potluck.AdamW(bfloat16_moments=True)
    with pytest.raises(UserError, match="256th"):
        potluck.Adam(betas=(0.999, 0.95), bfloat16_moments=True)


def test_planning_says_that_they_would_do_where_memory_is_short():
    _, model, _, _ = made(width=20_000)
    profile = potluck.estimate("robot-indoors", model)
    work = potluck.Training(batch=ROWS)
    weights = 20_000 * 24 * 4
    names = [device.name for device in profile.devices]
    floor = max(device.floor_bytes for device in profile.devices)
    short = potluck.QoE(memory_bytes=dict.fromkeys(names, floor + int(4.7 * weights)))
    with pytest.raises(Infeasible, match=r"moments in bfloat16 \(Training\(\.\.\., bfloat16_mom"):
        potluck.plan(profile, work, short)
    best = potluck.plan(profile, replace(work, bfloat16_moments=True), short).best
    assert all(best.peak_bytes[name] <= short.memory_bytes[name] for name in best.devices)


@pytest.mark.long
@pytest.mark.parametrize("name", PLANS)
def test_devices_need_no_more_than_predicted_and_less_than_otherwise(process_home, name):
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.Linear(512, 4))
    x, y = torch.randn(ROWS, 512), torch.randint(0, 4, (ROWS,))
    model = potluck.Model.from_torch(
        net, x[:8], loss=nn.functional.cross_entropy, example_targets=y[:8]
    )
    profile = process_home.profile(model, rows=(1, 8), repeats=1).wait()
    plan = replace(plan_of(model, name), model=profile.model)
    peaks = []
    for optimizer in (HALF, replace(HALF, bfloat16_moments=False)):
        work = potluck.Training(
            batch=ROWS, micro_batch=MICRO, bfloat16_moments=optimizer.bfloat16_moments
        )
        judged = potluck.judge(plan, profile, work)
        run = process_home.deploy(judged, model, optimizer=optimizer).wait()
        run.fit([(x, y)] * 3, adapt=False).wait()
        used = {name: pair[1] for name, pair in run.compare().peak_bytes.items()}
        assert all(used[name] <= judged.peak_bytes[name] for name in used)
        peaks.append((used, judged.peak_bytes))
        run.close()
    (half, half_said), (full, full_said) = peaks
    assert all(half[name] < full[name] for name in half)
    assert all(half_said[name] < full_said[name] for name in half)
