"""Weights come to a device once: a second deploy, and a switch back, send none; what a device keeps
is used only where it is what was offered.
"""

import time
from itertools import pairwise
from pathlib import Path

import pytest
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import PotluckError
from potluck.records import Plan, Stage
from potluck.sessions.events import Received
from potluck.testing.faults import agents_of
from potluck.testing.internals import link_of
from potluck_wire.messages import Credit

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
N_LAYERS = 8
BYTES = N_LAYERS * 4 * (128 * 128 + 128)


@pytest.fixture(scope="module")
def keeping():
    torch.set_num_threads(1)
    with potluck.Home.local(2, extra=("--keep", "64MiB")) as home:
        yield home


def make(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(N_LAYERS)])
    x, y = torch.randn(4, 128), torch.randn(4, 128)
    model = potluck.Model.from_torch(
        net, x, loss=nn.functional.mse_loss, example_targets=y, name=f"net-{seed}"
    )
    return net, model, x, y


def plan(model, *devices, training=False):
    n = len(model.layers(training))
    bounds = [i * n // len(devices) for i in range(len(devices) + 1)]
    stages = tuple(
        Stage(start=start, stop=stop, devices=(device,), shares=(4,), warm_up=1)
        for device, (start, stop) in zip(devices, pairwise(bounds), strict=True)
    )
    return Plan(planner="by hand", model=model.name, stages=stages, micro_batch=4,
                n_micro_batches=1, training=training)  # fmt: skip


def state_of(run):
    return run._engine.state


def folders(home, device):
    root = Path(agents_of(home).directory) / device / "weights"
    return sorted(path for path in root.glob("*/*") if path.suffix == "")


def settled(home, n_files):
    """Once so many tensors are on the disks of all."""
    end_s = time.monotonic() + TIMEOUT_S
    while len(folders(home, A)) + len(folders(home, B)) < n_files:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def answers(home, model, x, devices=(A, B)):
    """(what it answers, bytes put there, bytes of them that were there)."""
    run = home.deploy(plan(model, *devices), model).wait()
    answer, state = run(x), state_of(run)
    run.close()
    return answer, state.pushed_bytes, state.kept_bytes


def small(n):
    return n * 4 * 128  # biases are too small to be offered


def test_a_second_deploy_sends_no_weights_and_answers_the_same(keeping):
    net, model, x, _ = make(1)
    n_before = len(folders(keeping, A)) + len(folders(keeping, B))
    first, pushed, kept = answers(keeping, model, x)
    assert (pushed, kept) == (BYTES, 0)
    settled(keeping, n_before + N_LAYERS)
    again, pushed, kept = answers(keeping, model, x)
    assert (pushed, kept) == (BYTES, BYTES - small(N_LAYERS))
    assert torch.equal(first, net(x))
    assert torch.equal(again, first)
    told = keeping.deploy(plan(model, A, B), model)
    assert "were there" in state_of(told.wait()).told()
    told.wait().close()


def test_a_training_begins_with_weights_that_were_kept_and_ends_as_alone(keeping):
    net, model, x, y = make(2)
    losses = []
    for _ in range(2):
        run = keeping.deploy(
            plan(model, A, B, training=True), model, optimizer=potluck.SGD(0.1)
        ).wait()
        losses.append(run.fit((x, y), epochs=5).wait().losses)
        kept = state_of(run).kept_bytes
        run.close()
    assert losses[0] == losses[1]
    assert kept > 0
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for expected in losses[0]:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("how", ["in place", "past torch's count", "by numpy"])
def test_weights_that_were_changed_are_sent(keeping, how):
    net, model, x, _ = make(3)
    before, _, _ = answers(keeping, model, x)
    with torch.no_grad():
        if how == "in place":
            net[2].weight.mul_(2)
        elif how == "past torch's count":
            net[2].weight.data.mul_(2)
        else:
            net[2].weight.detach().numpy()[:] *= 2
    after, _, _ = answers(keeping, model, x)
    assert torch.equal(after, net(x))
    assert not torch.equal(after, before)


SPOILED = {
    "other bytes": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "cut": lambda path: path.write_bytes(b"x"),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", SPOILED)
def test_files_that_somebody_spoiled_are_never_used(keeping, how):
    net, model, x, _ = make(4)
    answers(keeping, model, x)
    for path in folders(keeping, A):
        SPOILED[how](path)
    again, _, kept = answers(keeping, model, x)
    assert torch.equal(again, net(x))
    assert kept <= BYTES // 2


def test_a_switch_back_sends_no_weights(keeping):
    net, model, x, _ = make(5)
    n_before = len(folders(keeping, A)) + len(folders(keeping, B))
    run = keeping.deploy(plan(model, A, B), model).wait()
    settled(keeping, n_before + N_LAYERS)
    run.switch(plan(model, A)).wait()
    sent = []

    def look(event, actions):
        sent.extend(
            sum(map(len, action.buffers))
            for action in actions
            if type(getattr(action, "message", None)).__name__ in ("Value", "Chunk")
        )

    link_of(keeping).watch(look)
    try:
        run.switch(plan(model, A, B)).wait()
    finally:
        link_of(keeping).watch(None)
    assert sum(sent) <= small(N_LAYERS)
    assert torch.equal(run(x), net(x))
    run.close()


def test_a_deploy_that_was_cut_goes_on_where_it_was(keeping):
    net, model, x, _ = make(6)
    agents, old, n_done = agents_of(keeping), set(folders(keeping, A)), [0]

    def cut(event, actions):
        done = isinstance(event, Received) and isinstance(event.message, Credit)
        if done and event.message.done and event.device == A:
            n_done[0] += 1
            if n_done[0] == 4:
                while not set(folders(keeping, A)) - old:
                    time.sleep(0.01)
                agents.kill(A)

    link_of(keeping).watch(cut)
    try:
        with pytest.raises(PotluckError):
            keeping.deploy(plan(model, A), model).wait()
    finally:
        link_of(keeping).watch(None)
    there = sum(path.stat().st_size for path in set(folders(keeping, A)) - old)
    agents.restart(A)
    keeping.devices.need([A])
    answer, _, kept = answers(keeping, model, x, (A,))
    assert 0 < there <= kept
    assert torch.equal(answer, net(x))
