"""More values in flight than the memory where they come in holds: they wait nowhere for ever."""

import pytest
from tests.sdk.run.conftest import make_plan, train_alone

import potluck
from potluck.testing.memory import agent, memory_home

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"


@pytest.fixture(autouse=True)
def small_room(monkeypatch):
    monkeypatch.setattr(agent, "ARENA_BYTES", 4 * 2**20)


@pytest.mark.few(1)
@pytest.mark.parametrize("n_values", [8, 3], ids=["small", "large"])
def test_a_stage_that_keeps_more_inputs_than_come_in_at_once(n_values):
    """All-forward-all-backward: the second stage keeps every micro-batch's input."""
    torch.manual_seed(0)
    with memory_home(2) as home:
        room = home.devices[B].capability["max_value_bytes"]
        rows, wide = 32, int(1.6 * room / n_values / 4 / 32)
        net = torch.nn.Sequential(
            torch.nn.Linear(4, wide), torch.nn.Tanh(), torch.nn.Linear(wide, 3)
        )
        x, y = torch.randn(n_values * rows, 4), torch.randint(0, 3, (n_values * rows,))
        loss = torch.nn.functional.cross_entropy
        model = potluck.Model.from_torch(net, x[:rows], loss=loss, example_targets=y[:rows])
        plan = make_plan(
            model, ((A,), (rows,)), ((B,), (rows,)), micro_batch=rows, n_micro_batches=n_values
        )
        run = home.deploy(plan, model, optimizer=potluck.SGD(lr=1e-6), schedule="fill-drain").wait()
        history = run.fit([(x, y)] * 2).wait()
        assert not history.recoveries
    expected = train_alone(
        net,
        x,
        y,
        batch=len(x),
        micro_batch=rows,
        epochs=2,
        make_optimizer=lambda p: torch.optim.SGD(p, 1e-6),
    )
    assert history.losses == pytest.approx(expected, rel=1e-4)
