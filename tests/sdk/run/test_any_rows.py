"""A batch of any number of rows, over real agents: with batch norm what plain torch makes of the same micro-batches."""

import copy
import math

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck

torch = pytest.importorskip("torch")

A, B = "local-1", "local-2"
MICRO = 4
LR = 0.05
# Batches as an epoch ends with them: prime numbers of rows, one row over, more than the plan's, fewer than a micro-batch.
BATCHES = (8, 7, 5, 13, 9, 2, 3, 11)
PLANS = {
    "one device": [((A,), (MICRO,))],
    "pipeline": [((A,), (MICRO,)), ((B,), (MICRO,))],
    "interleaved": [((A,), (MICRO,)), ((B,), (MICRO,)), ((A,), (MICRO,)), ((B,), (MICRO,))],
}


def normed_net(kind):
    torch.manual_seed(0)
    if kind == "batch norm 1d":
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 16),
            torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4),
        )  # fmt: skip
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (2, 2, 2)), torch.nn.Conv2d(2, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 16),
        torch.nn.Linear(16, 16), torch.nn.Linear(16, 4),
    )  # fmt: skip


def batches_of(rows):
    x, y = make_data("mlp", sum(rows))
    ends = [sum(rows[: i + 1]) for i in range(len(rows))]
    return [(x[end - n : end], y[end - n : end]) for end, n in zip(ends, rows, strict=True)]


def pieces_of(n_rows, most):
    """Micro-batches of at most `most` rows as plain torch can take them: no single row that had company."""
    cuts = [most] * (n_rows // most) + [n_rows % most] * (n_rows % most > 0)
    if len(cuts) > 1 and cuts[-1] == 1:
        cuts[-2:] = [math.ceil((most + 1) / 2), (most + 1) // 2]
    return cuts


def alone_on(net, batches):
    """SGD on one machine, micro-batch after micro-batch; returns the losses."""
    optimizer, losses = torch.optim.SGD(net.parameters(), LR), []
    for x, y in batches:
        total = 0.0
        for part_x, part_y in zip(x.split(pieces_of(len(x), MICRO)), y.split(pieces_of(len(x), MICRO)), strict=True):
            loss = torch.nn.functional.cross_entropy(net(part_x), part_y)
            (loss * (len(part_x) / len(x))).backward()
            total += loss.item() * len(part_x) / len(x)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def trained(home, model, plan, batches):
    """Losses, rows per step, and the state afterwards."""
    run = home.deploy(
        plan, model, optimizer=potluck.SGD(LR), schedule="interleaved" if len(plan.stages) == 4 else None
    ).wait()
    history, state = run.fit(batches).wait(), run.state_dict()
    run.close()
    return history, state


def assert_same_state(state, net):
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", ["batch norm 1d", "batch norm 2d"])
@pytest.mark.parametrize("name", PLANS)
def test_batch_norm_learns_from_every_batch_as_on_one_machine(home, name, kind):
    net, batches = normed_net(kind), batches_of(BATCHES)
    model = potluck.Model.from_torch(
        net, batches[0][0], loss=torch.nn.functional.cross_entropy, example_targets=batches[0][1]
    )
    plan = make_plan(model, *PLANS[name], micro_batch=MICRO, n_micro_batches=2)
    history, state = trained(home, model, plan, batches)
    alone = copy.deepcopy(net).train()
    assert history.losses == pytest.approx(alone_on(alone, batches), rel=1e-4)
    assert history.rows == BATCHES
    assert not any("left out" in note for note in history.notes)
    assert_same_state(state, alone)


@pytest.mark.parametrize("shares", [(2, 2), (3, 1), (1, 3)])
def test_replicas_leave_out_no_row(home, shares):
    net, model = make_model("mlp")
    rows = (*BATCHES, 1)
    plan = make_plan(model, ((A, B), shares), ((B, A), shares), micro_batch=MICRO, n_micro_batches=2)
    history, state = trained(home, model, plan, batches_of(rows))
    alone = copy.deepcopy(net)
    assert history.losses == pytest.approx(alone_on(alone, batches_of(rows)), rel=1e-4)
    assert history.rows == rows
    assert_same_state(state, alone)
