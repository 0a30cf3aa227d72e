"""Slow links and busy devices are no faults: nobody is declared dead, however long it takes."""

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import PlanError
from potluck.testing.faults import memory_of
from potluck.testing.internals import link_of
from potluck.testing.memory import agent, memory_home

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
ROOM_BYTES = 16 * 2**20
WIDE, ROWS = 250_000, 16  # float32: 16 MB, nearly all that a device takes in at once here
BYTES_PER_S = 250_000  # 2 Mbit/s: four seconds for a chunk
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def small_room(monkeypatch):
    monkeypatch.setattr(agent, "ARENA_BYTES", ROOM_BYTES)


def wide_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, 1))


def train_alone(net, x, y, n):
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=1e-9), []
    for _ in range(n):
        loss = torch.nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.long
@pytest.mark.parametrize("hours", [0.1, pytest.param(1.0, marks=pytest.mark.long)])
def test_values_that_take_a_minute_each_end_nothing_in_an_hour(hours):
    torch.manual_seed(1)
    x, y = torch.randn(ROWS, 4), torch.randn(ROWS, 1)
    with memory_home(2) as home:
        model = potluck.Model.from_torch(
            wide_net(), x, loss=torch.nn.functional.mse_loss, example_targets=y
        )
        plan = make_plan(model, ((A,), (ROWS,)), ((B,), (ROWS,)), micro_batch=ROWS)
        run = home.deploy(plan, model, optimizer=potluck.SGD(lr=1e-9)).wait()
        memory_of(home).slow(B, BYTES_PER_S)
        step_s = 2 * ROWS * WIDE * 4 / BYTES_PER_S
        n_steps = max(2, round(hours * HOUR_S / step_s))
        history = run.fit([(x, y)] * n_steps).wait()
        assert sum(history.step_s) > 0.9 * hours * HOUR_S
        assert not history.recoveries
        assert not history.notes
        assert set(home.devices.ready) == {A, B}
        link_of(home).watch(None)
    assert history.losses == pytest.approx(train_alone(wide_net(), x, y, n_steps), rel=1e-4)


def test_what_can_never_fit_where_values_come_in_is_refused_before_anything_is_sent():
    """Alone it would; with the targets beside it, it would wait for ever."""
    with memory_home(2) as home:
        room = home.devices[B].capability["max_value_bytes"]
        wide = room // (4 * ROWS)
        net = torch.nn.Sequential(
            torch.nn.Linear(4, wide), torch.nn.Tanh(), torch.nn.Linear(wide, 1)
        )
        x, y = torch.randn(ROWS, 4), torch.randn(ROWS, 1)
        model = potluck.Model.from_torch(
            net, x, loss=torch.nn.functional.mse_loss, example_targets=y
        )
        plan = make_plan(model, ((A,), (ROWS,)), ((B,), (ROWS,)), micro_batch=ROWS)
        with pytest.raises(PlanError, match=rf"takes in at most {ROOM_BYTES} bytes .* takes 1677"):
            home.deploy(plan, model).wait()
        finer = make_plan(
            model,
            ((A,), (ROWS // 2,)),
            ((B,), (ROWS // 2,)),
            micro_batch=ROWS // 2,
            n_micro_batches=2,
        )
        run = home.deploy(finer, model).wait()
        assert len(run.fit((x, y)).wait().losses) == 1
