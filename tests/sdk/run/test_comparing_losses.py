"""Losses that compare the rows of a batch: all rows are there at once where the loss is, and what
is learned is what one machine learns.
"""

import copy

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError, PlanError, UserError
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B, C = (f"local-{i}" for i in (1, 2, 3))
BATCH = 8
PLANS = {
    "one": [((A,), (8,))],
    "pipeline": [((A,), (8,)), ((B,), (8,))],
    "shared before": [((A, B), (5, 3)), ((C,), (8,))],
}


class Towers(torch.nn.Module):
    """Two encoders, whose answers for the same row are to be alike."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh())
        self.right = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh())
        self.out = torch.nn.Linear(16, 8)

    def forward(self, x, y):
        return self.out(self.left(x)), self.out(self.right(y))


def clip_loss(answer, kind):
    left, right = (torch.nn.functional.normalize(part, dim=-1) for part in answer)
    logits = left @ right.T * 5.0
    own = torch.arange(len(logits), device=logits.device)  # as transformers does
    both = torch.nn.functional.cross_entropy(logits, own)
    return (both + torch.nn.functional.cross_entropy(logits.T, own)) / 2


def dice(answer, kind):
    left = answer[0].sigmoid()
    overlap = (left * kind).sum()
    return 1 - 2 * overlap / (left.sum() + kind.sum()) + answer[1].square().mean()


LOSSES = {"clip": clip_loss, "dice": dice}


def batches_of(n, rows=BATCH):
    torch.manual_seed(1)
    return [
        (torch.randn(rows, 6), torch.randn(rows, 5), (torch.rand(rows, 8) < 0.5).float())
        for _ in range(n)
    ]


def model_of(net, loss, **more):
    x, y, kind = batches_of(1)[0]
    return potluck.Model.from_torch(
        net, (x, y), loss=loss, example_targets=kind, compares_rows=True, **more
    )


def alone(net, loss, batches):
    optimizer, losses = torch.optim.AdamW(net.parameters(), 1e-2), []
    for x, y, kind in batches:
        value = loss(net(x, y), kind)
        value.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


def check_equal(run, net, losses, tolerance=1e-5):
    assert run.history.losses == pytest.approx(losses, abs=tolerance)
    learned = run.state_dict()
    for name, tensor in net.state_dict().items():
        assert torch.allclose(learned[name], tensor, atol=tolerance), name


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


@pytest.mark.long
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_that_compares_rows_learns_as_on_one_machine(trio, name, loss):
    net = Towers()
    reference, model = copy.deepcopy(net), model_of(net, loss)
    run = trio.deploy(make_plan(model, *PLANS[name], micro_batch=BATCH), model).wait()
    batches = [*batches_of(4), *batches_of(1, 5), *batches_of(1, 11)]  # any number of rows
    run.fit(batches, optimizer=torch.optim.AdamW(net.parameters(), 1e-2), clip_norm=0.5).wait()
    check_equal(run, reference, alone(reference, loss, batches))
    run.close()


@pytest.mark.long
def test_it_goes_on_through_a_switch_and_a_loss_of_a_device():
    torch.set_num_threads(1)
    with memory_home(3) as home:
        net = Towers()
        reference, model = copy.deepcopy(net), model_of(net, clip_loss)
        plans = {name: make_plan(model, *PLANS[name], micro_batch=BATCH) for name in PLANS}
        run = home.deploy(plans["pipeline"], model, protect=2).wait()

        def on_step(step, loss):
            if step == 3:
                run.switch(plans["shared before"]).wait()
            if step == 6:
                memory_of(home).kill(A)

        batches = batches_of(10)
        run.fit(
            batches,
            optimizer=torch.optim.AdamW(net.parameters(), 1e-2),
            clip_norm=0.5,
            on_step=on_step,
        ).wait()
        check_equal(run, reference, alone(reference, clip_loss, batches))


@pytest.mark.long
def test_planners_leave_all_rows_to_the_device_with_the_loss(trio):
    model = model_of(Towers(), clip_loss)
    profile = trio.profile(model, rows=(1, 8), repeats=1).wait()
    plans = potluck.plan(profile, potluck.Training(batch=BATCH))
    assert plans
    for plan in plans:
        assert plan.n_micro_batches == 1
        assert len(plan.stages[-1].devices) == 1
    with pytest.raises(UserError, match="compares rows: micro-batches of 4 rows"):
        potluck.plan(profile, potluck.Training(batch=BATCH, micro_batch=4))


def test_plans_that_divide_the_rows_are_refused(trio):
    model = model_of(Towers(), clip_loss)
    with pytest.raises(PlanError, match="compares rows, and the plan has 2 micro-batches"):
        trio.deploy(
            make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2), model
        ).wait()
    with pytest.raises(PlanError, match="share those of its stage"):
        trio.deploy(make_plan(model, ((A, B), (4, 4)), micro_batch=8), model).wait()
    run = trio.deploy(make_plan(model, *PLANS["one"], micro_batch=8), model).wait()
    with pytest.raises(UserError, match="would put several together"):
        run.fit(batches_of(2), accumulate=2)
    run.close()


def test_without_being_said_it_is_refused_and_told_what_to_do():
    x, y, kind = batches_of(1)[0]
    with pytest.raises(ModelError, match=r"no mean over rows.*compares_rows=True"):
        potluck.Model.from_torch(Towers(), (x, y), loss=clip_loss, example_targets=kind)


def test_a_saved_model_still_compares_rows(tmp_path):
    model = model_of(Towers(), clip_loss)
    model.save(tmp_path / "model")
    back = potluck.Model.load(tmp_path / "model")
    assert back.layers(True)[-1].whole_batch
    assert not back.layers(True)[0].whole_batch
