"""A device is lost while nobody uses the run, or just after a switch: whatever is called next, the
run goes on as if it had stayed.
"""

from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_plan
from torch import nn

import potluck
from potluck.run.state_transfer import RunState
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
PIPELINE = (((A,), (4,)), ((B,), (4,)))


def net():
    """Its result depends on how a batch is cut into micro-batches, and on the step."""
    torch.manual_seed(0)
    layers = (nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
    return nn.Sequential(*layers)


def data(rows=8, n=4, seed=1):
    made = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(rows, 8, generator=made), torch.randint(0, 4, (rows,), generator=made))
        for _ in range(n)
    ]


def loss(output, target):
    return nn.functional.cross_entropy(output, target)


class Played:
    """A run in a home in memory after four steps, none of which is in a later snapshot."""

    def __init__(self, home, *, recompute=False):
        ((x, y),) = data(n=1)
        self.model = potluck.Model.from_torch(net(), x, loss=loss, example_targets=y, name="test")
        self.lab = memory_of(home)
        plan = self.plan(4, 2)
        if recompute:
            plan = replace(plan, stages=tuple(replace(s, recompute=True) for s in plan.stages))
        deploy = home.deploy(plan, self.model, optimizer=potluck.SGD(0.1), protect=1000)
        self.run = deploy.wait()
        self.losses = list(self.run.fit(data()).wait().losses)

    def plan(self, rows, n, *stages):
        return make_plan(self.model, *(stages or PIPELINE), micro_batch=rows, n_micro_batches=n)

    def end(self):
        """Four more steps: all losses and weights."""
        self.losses += self.run.fit(data(seed=3)).wait().losses
        assert len(self.losses) == self.run.step
        return self.losses, self.run.state_dict()


def lose(lab, how):
    if how in ("killed", "restarted"):
        lab.kill(B)
    if how == "restarted":
        lab.restart(B)
    if how == "worker":
        lab.kill_worker(B)
    lab.pass_time(1.0)


CALLS = {
    "another number of rows": lambda p: p.losses.extend(p.run.fit(data(6, 2)).wait().losses),
    "another optimizer": lambda p: p.losses.extend(
        p.run.fit(data(8, 2), optimizer=potluck.AdamW(1e-2)).wait().losses
    ),
    "weights": lambda p: p.run.state_dict(),
    "switch": lambda p: p.run.switch(p.plan(4, 2, ((A,), (4,)))).wait(),
}
SWITCHES = {
    "larger micro-batches": (8, 1, ((A,), (8,)), ((B,), (8,))),
    "smaller ones": (2, 4, ((A,), (2,)), ((B,), (2,))),
    "another batch": (4, 3),
}


def check_same(play, how, *, recompute=False):
    """`play(played, lose_one)` learns the same with a loss as without one."""
    ends = []
    for loses in (False, True):
        with memory_home(2) as home:
            played = Played(home, recompute=recompute)
            play(played, lambda played=played, loses=loses: loses and lose(played.lab, how))
            ends.append(played.end())
    (losses, weights), (losses_after, weights_after) = ends
    assert losses_after == pytest.approx(losses, abs=1e-5)
    for name, tensor in weights.items():
        torch.testing.assert_close(weights_after[name], tensor, atol=1e-5, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("how", ["killed", "restarted", "worker"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_whatever_comes_after_a_loss_goes_on_as_if_it_had_stayed(call, how, recompute):
    def play(played, lose_one):
        lose_one()
        call(played)

    check_same(play, how, recompute=recompute)


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "worker"])
@pytest.mark.parametrize("to", SWITCHES.values(), ids=SWITCHES)
def test_steps_from_before_a_switch_are_not_cut_anew_when_a_device_is_lost_after_it(to, how):
    def play(played, lose_one):
        played.run.switch(played.plan(*to)).wait()
        lose_one()

    check_same(play, how)


def test_a_fault_in_a_recovery_is_met_again_and_never_passed_over(monkeypatch):
    """As any error that nobody foresaw: what is half restored must not look whole."""

    def broken(self, states, **more):
        raise KeyError("a fault")

    with memory_home(2) as home:
        played = Played(home)
        lose(played.lab, "killed")
        with monkeypatch.context() as patch:
            patch.setattr(RunState, "push", broken)
            for _ in range(2):
                with pytest.raises(KeyError):
                    played.run.state_dict()
        assert played.run.step == 4
        losses, _ = played.end()
        assert len(losses) == 8
