"""Weights come to a device once: a second deploy, and a switch back, send none; what a device keeps
is used only where it is what was offered.
"""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import PotluckError
from potluck.records import Plan, Stage
from potluck.sessions.events import Received, Send
from potluck.testing.faults import agents_of
from potluck.testing.internals import link_of
from potluck_wire.messages import Credit, Offer, Value

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


class Case(NamedTuple):
    net: Any
    model: Any
    x: Any
    y: Any


class Deployed(NamedTuple):
    answer: Any
    nbytes: int
    kept_bytes: int


SEEN_S = 0.5


def make(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(N_LAYERS)])
    x, y = torch.randn(4, 128), torch.randn(4, 128)
    model = potluck.Model.from_torch(
        net, x, loss=nn.functional.mse_loss, example_targets=y, name=f"net-{seed}"
    )
    return Case(net, model, x, y)


def plan(model, *devices, training=False):
    n = len(model.layers(training))
    bounds = [i * n // len(devices) for i in range(len(devices) + 1)]
    stages = tuple(
        Stage(start=start, stop=stop, devices=(device,), shares=(4,), warm_up=1)
        for device, (start, stop) in zip(devices, pairwise(bounds), strict=True)
    )
    return Plan(planner="by hand", model=model.name, stages=stages, micro_batch=4,
                n_micro_batches=1, training=training)  # fmt: skip


def folders(home, device):
    root = Path(agents_of(home).directory) / device / "weights"
    return sorted(path for path in root.glob("*/*") if path.suffix == "")


def settled(home, n_files):
    """Once so many tensors are on the disks of all."""
    end_s = time.monotonic() + TIMEOUT_S
    while len(folders(home, A)) + len(folders(home, B)) < n_files:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    time.sleep(SEEN_S)  # an agent hears of its file a moment later


def answers(home, case, devices=(A, B)):
    """What it answers, bytes put onto devices, and those of them that were there."""
    run = home.deploy(plan(case.model, *devices), case.model).wait()
    answer, weights = run(case.x), run.deployed
    run.close()
    return Deployed(answer, weights.nbytes, weights.kept_bytes)


def small(n):
    return n * 4 * 128  # biases are too small to be offered


@pytest.mark.long
def test_a_second_deploy_sends_no_weights_and_answers_the_same(keeping):
    case = make(1)
    n_before = len(folders(keeping, A)) + len(folders(keeping, B))
    first = answers(keeping, case)
    assert first[1:] == (BYTES, 0)
    settled(keeping, n_before + N_LAYERS)
    again = answers(keeping, case)
    assert again[1:] == (BYTES, BYTES - small(N_LAYERS))
    assert torch.equal(first.answer, case.net(case.x))
    assert torch.equal(again.answer, first.answer)
    told = keeping.deploy(plan(case.model, A, B), case.model)
    assert "were there already" in told.wait().deployed.words
    told.wait().close()


def test_a_training_begins_with_weights_that_were_kept_and_ends_as_alone(keeping):
    case = make(2)
    losses = []
    for _ in range(2):
        run = keeping.deploy(
            plan(case.model, A, B, training=True), case.model, optimizer=potluck.SGD(0.1)
        ).wait()
        losses.append(run.fit((case.x, case.y), epochs=5).wait().losses)
        kept = run.deployed.kept_bytes
        run.close()
    assert losses[0] == losses[1]
    assert kept > 0
    optimizer = torch.optim.SGD(case.net.parameters(), 0.1)
    for expected in losses[0]:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(case.net(case.x), case.y)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("how", ["in place", "past torch's count", "by numpy"])
def test_weights_that_were_changed_are_sent(keeping, how):
    case = make(3)
    before = answers(keeping, case)
    with torch.no_grad():
        if how == "in place":
            case.net[2].weight.mul_(2)
        elif how == "past torch's count":
            case.net[2].weight.data.mul_(2)
        else:
            case.net[2].weight.detach().numpy()[:] *= 2
    after = answers(keeping, case)
    assert torch.equal(after.answer, case.net(case.x))
    assert not torch.equal(after.answer, before.answer)


SPOILED = {
    "other bytes": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "cut": lambda path: path.write_bytes(b"x"),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", SPOILED)
def test_files_that_somebody_spoiled_are_never_used(keeping, how):
    case = make(4)
    answers(keeping, case)
    for path in folders(keeping, A):
        SPOILED[how](path)
    again = answers(keeping, case)
    assert torch.equal(again.answer, case.net(case.x))
    assert again.kept_bytes <= BYTES // 2


def test_a_switch_back_sends_no_weights(keeping):
    case = make(5)
    n_before = len(folders(keeping, A)) + len(folders(keeping, B))
    run = keeping.deploy(plan(case.model, A, B), case.model).wait()
    settled(keeping, n_before + N_LAYERS)
    run.switch(plan(case.model, A)).wait()
    sent = []

    def look(event, actions):
        sent.extend(
            sum(map(len, action.buffers))
            for action in actions
            if type(getattr(action, "message", None)).__name__ in ("Value", "Chunk")
        )

    link_of(keeping).watch(look)
    try:
        run.switch(plan(case.model, A, B)).wait()
    finally:
        link_of(keeping).watch(None)
    assert sum(sent) <= small(N_LAYERS)
    assert torch.equal(run(case.x), case.net(case.x))
    run.close()


@pytest.mark.long
def test_a_deploy_that_was_cut_goes_on_where_it_was(keeping):
    case = make(6)
    agents, n_done = agents_of(keeping), [0]
    old = set(folders(keeping, A))

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
            keeping.deploy(plan(case.model, A), case.model).wait()
    finally:
        link_of(keeping).watch(None)
    there = sum(path.stat().st_size for path in set(folders(keeping, A)) - old)
    agents.restart(A)
    keeping.devices.need([A])
    again = answers(keeping, case, (A,))
    assert 0 < there <= again.kept_bytes
    assert torch.equal(again.answer, case.net(case.x))


def test_devices_that_keep_nothing_are_sent_all_without_being_asked(home):
    """Those of an older minor version say as little of what they keep."""
    case, kinds = make(7), set()
    link_of(home).watch(
        lambda event, actions: kinds.update(
            type(action.message) for action in actions if isinstance(action, Send)
        )
    )
    try:
        found = [answers(home, case) for _ in range(2)]
    finally:
        link_of(home).watch(None)
    assert [each.kept_bytes for each in found] == [0, 0]
    assert torch.equal(found[1].answer, case.net(case.x))
    assert Value in kinds
    assert Offer not in kinds
